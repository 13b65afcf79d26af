//! The limits of the policy, one for each descriptor that requests meet.

use std::ptr;

use serde_json::{Value, json};
use serde_saphyr::{FlowMap, FlowSeq};

use super::Notes;
use super::descriptors::{Descriptor, Domain, Rate};
use super::envoy::Asked;
use super::scope::Scope;
use super::walk::Walk;

/// Above it, 13 bytes for each request are too many.
const MAX_LOGGED: u32 = 10_000;

struct Limit<'d> {
    node: &'d Descriptor,
    rate: &'d Rate,
    key: Vec<Value>,
    cost: u64,
    /// A request without a verdict is refused.
    denies: bool,
    /// For which requests; empty: for none.
    scopes: Vec<Scope>,
}

pub struct Limits<'d> {
    domains: &'d [Domain],
    found: Vec<Limit<'d>>,
}

impl<'d> Limits<'d> {
    pub fn new(domains: &'d [Domain]) -> Self {
        let found = Vec::new();
        Self { domains, found }
    }

    /// Adds the limits that a descriptor of Envoy's can meet.
    pub fn add(&mut self, asked: &Asked, notes: &mut Notes) {
        let domains = self.domains.iter();
        for domain in domains.filter(|domain| domain.name == asked.by.domain) {
            let (level, scope) = (domain.descriptors.as_slice(), asked.scope.clone());
            let mut all = vec![Walk {
                level,
                node: None,
                key: vec![],
                scope,
            }];
            for entry in &asked.entries {
                all = all
                    .iter()
                    .flat_map(|walk| walk.steps(entry, notes))
                    .collect();
            }
            all.retain(|walk| !walk.scope.is_empty());
            all.into_iter()
                .for_each(|walk| self.reach(walk, asked, notes));
        }
    }

    fn reach(&mut self, walk: Walk<'d>, asked: &Asked, notes: &mut Notes) {
        let reached = walk
            .node
            .and_then(|node| Some((node, node.rate_limit.as_ref()?)));
        let Some((node, rate)) = reached else { return };
        let (key, cost, denies) = (walk.key, asked.cost, asked.by.failure_mode_deny);
        let mut same: Vec<_> = self
            .found
            .iter_mut()
            .filter(|limit| ptr::eq(limit.node, node))
            .collect();
        let is_same = |limit: &&mut &mut Limit<'_>| limit.key == key && limit.cost == cost;
        if let Some(limit) = same.iter_mut().find(is_same) {
            limit.scopes.push(walk.scope);
            return;
        }
        if !same.is_empty() {
            notes.differs("apart", &node.at);
        }
        let scopes = vec![walk.scope];
        self.found.push(Limit {
            node,
            rate,
            key,
            cost,
            denies,
            scopes,
        });
    }

    /// Tells of the limits that no request meets; or adds them, for no request.
    pub fn add_unreached(&mut self, adds: bool, notes: &mut Notes) {
        let mut all: Vec<_> = self
            .domains
            .iter()
            .rev()
            .flat_map(|domain| domain.descriptors.iter().rev())
            .collect();
        while let Some(node) = all.pop() {
            all.extend(node.children.iter().rev());
            let is_reached = self.found.iter().any(|limit| ptr::eq(limit.node, node));
            let rate = node
                .rate_limit
                .as_ref()
                .filter(|rate| !rate.unlimited && !is_reached);
            if let (Some(rate), true) = (rate, adds) {
                let (key, scopes) = (vec![], vec![]);
                self.found.push(Limit {
                    node,
                    rate,
                    key,
                    cost: 1,
                    denies: false,
                    scopes,
                });
            } else if rate.is_some() {
                notes.missing(
                    &node.at,
                    "no `rate_limits` that were imported send this descriptor",
                );
            }
        }
    }

    /// The policy, and how many limits it has.
    pub fn to_yaml(&self, shadow: bool, notes: &mut Notes) -> (usize, String) {
        let (mut names, mut text) = (Vec::new(), "limits:\n".to_owned());
        for limit in self.found.iter().filter(|limit| !limit.rate.unlimited) {
            let node = limit.node;
            let name = limit.rate.name.as_ref().unwrap_or(&node.name);
            let before = names.iter().filter(|other| *other == &name).count();
            names.push(name);
            let number = if before == 0 {
                String::new()
            } else {
                format!("-{}", before + 1)
            };
            text += &format!("  {name}{number}: # {}\n", node.at);
            for (field, value) in limit.fields(shadow, notes) {
                text += &format!("    {field}: {}\n", flow(&value));
            }
        }
        (names.len(), text)
    }
}

impl Limit<'_> {
    fn fields(&self, shadow: bool, notes: &mut Notes) -> Vec<(&'static str, Value)> {
        let one_of = |mut list: Vec<Value>, none: &str| {
            list.dedup();
            match list.len() {
                0 => json!(none),
                1 => list.remove(0),
                _ => list.into(),
            }
        };
        let (quota, per) = (
            self.rate.requests_per_unit,
            self.rate.per().unwrap_or_default(),
        );
        let rate = if quota == 0 {
            json!(0)
        } else {
            json!(format!("{quota}/{per}"))
        };
        let is_met = !self.scopes.is_empty();
        let matched = one_of(self.scopes.iter().map(Scope::to_match).collect(), "none");
        let key = one_of(self.key.clone(), "everyone");
        let (counted, met) = (flow(&key), flow(&matched));
        let can_lack = self
            .key
            .iter()
            .any(|one| one.is_object() && one.get("address").is_none());
        for (is_so, what) in [
            (counted.contains("address"), "address"),
            (can_lack, "values"),
            (counted.contains("path") || met.contains('/'), "path"),
            (met.contains("method: "), "method"),
            (quota > MAX_LOGGED, "memory"),
            (per == "30d", "calendar"),
            (self.node.quota_mode, "quota_mode"),
            (!self.rate.replaces.is_empty(), "replaces"),
        ] {
            if is_so {
                notes.differs(what, &self.node.at);
            }
        }
        let fields = [
            (matched != "all", "match", matched),
            (is_met, "key", key),
            (true, "rate", rate),
            (quota > MAX_LOGGED, "algorithm", json!("sliding_window")),
            (self.cost != 1, "cost", json!(self.cost)),
            (can_lack, "when_missing", json!("skip")),
            (self.denies, "on_failure", json!("deny")),
            (
                is_met && (shadow || self.node.shadow_mode),
                "shadow",
                json!(true),
            ),
        ];
        let there = fields.into_iter().filter(|(is_there, ..)| *is_there);
        there.map(|(_, field, value)| (field, value)).collect()
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
