//! The limits of the policy, one for each descriptor that requests meet.

use std::ptr;

use serde_json::{Value, json};
use serde_saphyr::{FlowMap, FlowSeq};
use sluicegate_engine::MAX_UNITS;
use sluicegate_rules::config::MAX_RULES;

use super::Notes;
use super::descriptors::{Descriptor, Domain, Rate};
use super::envoy::Asked;
use super::scope::{Scope, header};
use super::walk::Walk;

/// Above it, 13 bytes for each request are too many.
const MAX_LOGGED: u64 = 10_000;

/// Beside the `shadow` of a limit that enforces nothing in ratelimit either.
const SHADOW_MODE: &str = " # shadow_mode: keep this line when you enforce";

struct Limit<'d> {
    node: &'d Descriptor,
    rate: &'d Rate,
    key: Vec<Value>,
    /// Null: 1.
    cost: Value,
    /// A request without a verdict is refused.
    denies: bool,
    /// For which requests; empty: for none.
    scopes: Vec<Scope>,
    /// Those of single addresses.
    overrides: Vec<Value>,
}

/// A limit's place in ratelimit's files, and its text.
pub type Written = (String, String);

pub struct Limits<'d> {
    domains: &'d [Domain],
    found: Vec<Limit<'d>>,
}

impl<'d> Limits<'d> {
    /// Those of all descriptors, which no request meets yet.
    pub fn new(domains: &'d [Domain]) -> Self {
        let found = Vec::new();
        let mut limits = Self { domains, found };
        let levels = domains.iter().map(|domain| &domain.descriptors);
        levels.for_each(|level| limits.collect(level));
        limits
    }

    fn collect(&mut self, level: &'d [Descriptor]) {
        for node in level {
            self.found.extend(Limit::of(node));
            self.collect(&node.children);
        }
    }

    /// Adds the requests of which ratelimit is asked this.
    pub fn add(&mut self, asked: &Asked, notes: &mut Notes) {
        let named = |domain: &&Domain| domain.name == asked.domain;
        for domain in self.domains.iter().filter(named) {
            let mut all = vec![Walk::begin(&domain.descriptors, &asked.scope)];
            for (before, entry) in asked.entries.iter().enumerate() {
                let is_last = before + 1 == asked.entries.len();
                let next = all
                    .iter()
                    .flat_map(|walk| walk.steps(entry, is_last, notes));
                all = next.collect();
            }
            all.retain(|walk| !walk.scope.is_empty());
            for walk in all {
                self.reach(walk, asked, notes);
            }
        }
    }

    fn reach(&mut self, walk: Walk<'d>, asked: &Asked, notes: &mut Notes) {
        let Some(node) = walk.node else { return };
        let is_its = |limit: &Limit<'_>| ptr::eq(limit.node, node);
        let is_same = |limit: &Limit<'_>| limit.key == walk.key && limit.cost == asked.cost;
        let fits = |limit: &Limit<'_>| is_its(limit) && (limit.scopes.is_empty() || is_same(limit));
        let mut place = self.found.iter().position(fits);
        if let (None, Some(other)) = (place, self.found.iter().position(is_its)) {
            notes.differs("apart", &node.at);
            let own = Limit::of(node).into_iter();
            self.found.splice(other..other, own);
            place = Some(other);
        }
        let limit = place.and_then(|place| self.found.get_mut(place));
        let mut done = Vec::new();
        if let Some(limit) = limit {
            if !walk.single.is_empty() {
                (done, limit.overrides) = walk.single.into_iter().unzip();
            }
            limit.key = walk.key;
            limit.cost = asked.cost.clone();
            limit.denies |= asked.denies;
            if !limit.scopes.contains(&walk.scope) {
                limit.scopes.push(walk.scope);
            }
        }
        let is_done = |limit: &Limit<'_>| done.iter().any(|node| ptr::eq(*node, limit.node));
        self.found
            .retain(|limit| !limit.scopes.is_empty() || !is_done(limit));
    }

    /// As text. `all`: those that no request meets, too.
    pub fn written(&self, all: bool, shadow: bool, notes: &mut Notes) -> Vec<Written> {
        let (mut names, mut written) = (Vec::new(), Vec::new());
        for limit in &self.found {
            let Descriptor { at, name, .. } = limit.node;
            let why = match limit.rate {
                rate if rate.unlimited && rate.replaces.is_empty() => continue,
                rate if rate.unlimited => Some(
                    "`unlimited` with `replaces`: add an `except` to the limits that it replaces",
                ),
                _ if all => None,
                _ if limit.scopes.is_empty() && notes.is_told(at) => continue,
                _ if limit.scopes.is_empty() => {
                    Some("no `rate_limits` that were imported send this descriptor")
                }
                _ if names.len() == MAX_RULES => {
                    Some("a policy has no room for more limits of requests")
                }
                _ => None,
            };
            if let Some(why) = why {
                notes.missing(at, why);
                continue;
            }
            let number = match names.iter().filter(|other| **other == name).count() {
                0 => String::new(),
                before => format!("-{}", before + 1),
            };
            names.push(name);
            let name = flow(&json!(format!("{name}{number}")));
            let mut text = format!("  {name}: # {at}\n");
            for (field, value) in limit.fields(shadow, notes) {
                let keeps = field == "shadow" && limit.node.shadow_mode;
                let comment = if keeps { SHADOW_MODE } else { "" };
                text += &format!("    {field}: {}{comment}\n", flow(&value));
            }
            written.push((at.clone(), text));
        }
        written
    }
}

impl<'d> Limit<'d> {
    fn of(node: &'d Descriptor) -> Option<Self> {
        Some(Self {
            node,
            rate: node.rate_limit.as_ref()?,
            key: vec![],
            cost: Value::Null,
            denies: false,
            scopes: vec![],
            overrides: vec![],
        })
    }

    fn fields(&self, shadow: bool, notes: &mut Notes) -> Vec<(&'static str, Value)> {
        let quota = self.rate.units();
        let per = self.rate.per().unwrap_or_default();
        let rate = match quota {
            0 => json!(0),
            _ => json!(format!("{quota}/{per}")),
        };
        let is_met = !self.scopes.is_empty();
        let is_shadow = shadow || self.node.shadow_mode;
        let matched = one_of(self.scopes.iter().map(Scope::to_match).collect(), "none");
        let key = one_of(self.key.clone(), "everyone");
        let (counted, met) = (flow(&key), flow(&matched));
        let is_always_there = |one: &Value| one.is_string() || one.get("address").is_some();
        let counts = |component: &Value| self.key.contains(component);
        let queries = self.key.iter().any(|one| one.get("query").is_some());
        let mut credentials = ["authorization", "proxy-authorization"].iter();
        // A list is of `domains`, in which Envoy compares hosts as we do.
        let has_host = met.replace("host: [", "").contains("host: ");
        let has_single = !self.overrides.is_empty();
        let can_lack = !self.key.iter().all(is_always_there);
        for (is_so, what) in [
            (counted.contains("address"), "address"),
            (can_lack, "values"),
            (queries || met.contains("query: "), "query"),
            (met.contains("path_regex"), "regex"),
            (counted.contains("path") || met.contains('/'), "path"),
            (
                counts(&json!("method")) || met.contains("method: GET"),
                "method",
            ),
            (counts(&json!("host")) || has_host, "host"),
            (
                credentials.any(|name| counts(&header(name))),
                "authorization",
            ),
            (quota > MAX_LOGGED, "memory"),
            (quota == MAX_UNITS, "most"),
            (counted.contains("address: {}"), "forwarded"),
            (has_single && is_shadow, "single"),
            (per == "30d", "calendar"),
            (self.node.quota_mode, "quota_mode"),
            (!self.rate.replaces.is_empty(), "replaces"),
            (self.cost.is_object(), "cost"),
        ] {
            if is_so {
                notes.differs(what, &self.node.at);
            }
        }
        let mut cost = self.cost.clone();
        if let Some(fields) = cost.as_object_mut() {
            fields.insert("max".to_owned(), json!(quota.max(1)));
        }
        let fields = [
            (matched != "all", "match", matched),
            (is_met, "key", key),
            (true, "rate", rate),
            (!cost.is_null(), "cost", cost),
            (quota > MAX_LOGGED, "algorithm", json!("sliding_window")),
            (can_lack, "when_missing", json!("skip")),
            (self.denies, "on_failure", json!("deny")),
            (is_met && is_shadow, "shadow", json!(true)),
            (has_single, "overrides", json!(self.overrides)),
        ];
        let there = fields.into_iter().filter(|(is_there, ..)| *is_there);
        there.map(|(_, field, value)| (field, value)).collect()
    }
}

/// Several, or the one of them, or this if there is none.
fn one_of(mut list: Vec<Value>, none: &str) -> Value {
    match list.len() {
        0 => json!(none),
        1 => list.remove(0),
        _ => list.into(),
    }
}

/// YAML in one line.
fn flow(value: &Value) -> String {
    let text = match value {
        Value::Array(list) => serde_saphyr::to_string(&FlowSeq(list)),
        Value::Object(fields) => serde_saphyr::to_string(&FlowMap(fields)),
        scalar => serde_saphyr::to_string(scalar),
    };
    text.unwrap_or_default().trim_end().to_owned()
}
