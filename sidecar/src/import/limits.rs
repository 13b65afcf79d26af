//! The limits of the policy, one for each descriptor that requests meet.

use std::ptr;

use serde_json::{Value, json};

use super::Notes;
use super::descriptors::{Descriptor, Domain, Rate};
use super::envoy::Asked;
use super::scope::Scope;
use super::walk::Walk;

/// Above it, 13 bytes for each request are too many.
const MAX_LOGGED: u32 = 10_000;
/// Longest names, without what makes them different.
const MAX_NAME: usize = 60;

struct Limit<'d> {
    node: &'d Descriptor,
    rate: &'d Rate,
    name: String,
    key: Vec<Value>,
    cost: u64,
    /// No verdict, no answer from the upstream.
    denies: bool,
    /// X-RateLimit fields are sent.
    tells: bool,
    /// For which requests; none of them: for no request.
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
        let domains = self.domains;
        for domain in domains
            .iter()
            .filter(|domain| domain.name == asked.by.domain)
        {
            let mut all = vec![Walk {
                level: &domain.descriptors,
                node: None,
                name: if domains.len() > 1 {
                    domain.name.clone()
                } else {
                    String::new()
                },
                key: Vec::new(),
                scope: asked.scope.clone(),
            }];
            for entry in &asked.entries {
                all = all
                    .iter()
                    .flat_map(|walk| walk.steps(entry, notes))
                    .collect();
            }
            for walk in all.into_iter().filter(|walk| !walk.scope.is_empty()) {
                if let Some(node) = walk.node {
                    self.reach(node, walk, asked, notes);
                }
            }
        }
    }

    fn reach(&mut self, node: &'d Descriptor, walk: Walk<'d>, asked: &Asked, notes: &mut Notes) {
        let Some(rate) = node.rate_limit.as_ref() else {
            return;
        };
        let same = |limit: &&mut Limit<'_>| ptr::eq(limit.node, node);
        let is_counted = self.found.iter_mut().find(same).is_some();
        let mut same = self.found.iter_mut().filter(same);
        match same.find(|limit| limit.key == walk.key && limit.cost == asked.cost) {
            Some(limit) if limit.scopes.contains(&walk.scope) => notes.differs("twice", &node.at),
            Some(limit) => limit.scopes.push(walk.scope),
            None => {
                if is_counted {
                    notes.differs("apart", &node.at);
                }
                let name = self.unique(rate.name.as_ref().unwrap_or(&walk.name));
                self.found.push(Limit {
                    node,
                    rate,
                    name,
                    key: walk.key,
                    cost: asked.cost,
                    denies: asked.by.failure_mode_deny,
                    tells: asked
                        .by
                        .enable_x_ratelimit_headers
                        .as_ref()
                        .is_some_and(|one| one != "OFF"),
                    scopes: vec![walk.scope],
                });
            }
        }
    }

    /// A name that no other limit has.
    fn unique(&self, name: &str) -> String {
        let allowed = |c: char| {
            if c.is_ascii_alphanumeric() || c == '_' {
                c
            } else {
                '-'
            }
        };
        let name = name
            .trim_matches('.')
            .split('.')
            .map(|part| part.chars().map(allowed).collect::<String>());
        let name: String = name
            .collect::<Vec<_>>()
            .join(".")
            .chars()
            .take(MAX_NAME)
            .collect();
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let mut names = [name.clone()].into_iter().chain(numbered);
        let is_free = |name: &String| self.found.iter().all(|limit| limit.name != *name);
        names.find(is_free).unwrap_or_default()
    }

    /// Tells of the limits that no request meets; or adds them, for no request.
    pub fn add_unreached(&mut self, adds: bool, notes: &mut Notes) {
        let mut all: Vec<_> = self
            .domains
            .iter()
            .flat_map(|domain| &domain.descriptors)
            .map(|node| (node, String::new()))
            .collect();
        while let Some((node, above)) = all.pop() {
            let path = format!("{above}.{}", node.joined);
            all.extend(node.children.iter().map(|child| (child, path.clone())));
            let reached = self.found.iter().any(|limit| ptr::eq(limit.node, node));
            let Some(rate) = node.rate_limit.as_ref().filter(|_| !reached) else {
                continue;
            };
            if adds {
                let name = self.unique(rate.name.as_ref().unwrap_or(&path));
                let (key, scopes) = (Vec::new(), Vec::new());
                self.found.push(Limit {
                    node,
                    rate,
                    name,
                    key,
                    cost: 1,
                    denies: false,
                    tells: false,
                    scopes,
                });
            } else if !rate.unlimited {
                notes.missing(
                    &node.at,
                    "no `rate_limits` that were imported send this descriptor",
                );
            }
        }
    }

    /// The policy, and how many limits it has.
    pub fn to_yaml(&self, shadow: bool, notes: &mut Notes) -> (usize, String) {
        let (mut count, mut text) = (0, String::new());
        if self.found.iter().any(|limit| limit.tells) {
            text += "reply: { headers: legacy, on_admitted: true }\n";
        }
        text += "limits:\n";
        for limit in self.found.iter().filter(|limit| !limit.rate.unlimited) {
            count += 1;
            text += &format!("  {}: # {}\n", limit.name, limit.node.at);
            for (field, value) in limit.fields(shadow, notes) {
                text += &format!("    {field}: {}\n", flow(&value));
            }
        }
        (count, text)
    }
}

impl Limit<'_> {
    fn fields(&self, shadow: bool, notes: &mut Notes) -> Vec<(&'static str, Value)> {
        let (
            Rate {
                requests_per_unit: quota,
                replaces,
                ..
            },
            at,
        ) = (self.rate, &self.node.at);
        let rate = match (quota, self.rate.per()) {
            (0, _) | (_, None) => json!(0),
            (quota, Some(per)) => json!(format!("{quota}/{per}")),
        };
        if self.scopes.is_empty() {
            return vec![("match", json!("none")), ("rate", rate)];
        }
        let mut matched: Vec<_> = self.scopes.iter().map(Scope::to_match).collect();
        matched.dedup();
        let matched = match matched.as_slice() {
            all if all.contains(&json!("all")) => json!("all"),
            [one] => one.clone(),
            several => json!(several),
        };
        let key = match self.key.as_slice() {
            [] => json!("everyone"),
            [one] => one.clone(),
            several => json!(several),
        };
        let (counted, met) = (flow(&key), matched.to_string());
        for (is_so, what) in [
            (counted.contains("address"), "address"),
            (
                counted.contains("header") || counted.contains("query"),
                "values",
            ),
            (counted.contains("path") || met.contains('/'), "path"),
            (met.contains("\"method"), "method"),
            (*quota > MAX_LOGGED, "memory"),
            (self.rate.per() == Some("30d"), "calendar"),
            (self.node.quota_mode, "quota_mode"),
            (!replaces.is_empty(), "replaces"),
        ] {
            if is_so {
                notes.differs(what, at);
            }
        }
        let can_lack = self
            .key
            .iter()
            .any(|one| one.is_object() && one.get("address").is_none());
        [
            (matched != "all").then_some(("match", matched)),
            Some(("key", key)),
            Some(("rate", rate)),
            (*quota > MAX_LOGGED).then(|| ("algorithm", json!("sliding_window"))),
            (self.cost != 1).then(|| ("cost", json!(self.cost))),
            can_lack.then(|| ("when_missing", json!("skip"))),
            self.denies.then(|| ("on_failure", json!("deny"))),
            (shadow || self.node.shadow_mode).then(|| ("shadow", json!(true))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// YAML in one line, as people write it.
fn flow(value: &Value) -> String {
    let is_plain = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "/-_.".contains(c))
            && !["true", "false", "null", "yes", "no", "on", "off", "y", "n"]
                .contains(&text.to_lowercase().as_str())
    };
    match value {
        Value::String(text)
            if is_plain(text)
                || text.starts_with(|c: char| c.is_ascii_digit()) && text.contains('/') =>
        {
            text.clone()
        }
        Value::Array(list) => format!("[{}]", list.iter().map(flow).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.iter().collect();
            fields.sort_by_key(|(name, _)| !["name", "namespace", "all"].contains(&name.as_str()));
            let fields = fields
                .into_iter()
                .map(|(name, value)| format!("{name}: {}", flow(value)));
            format!("{{ {} }}", fields.collect::<Vec<_>>().join(", "))
        }
        other => other.to_string(),
    }
}
