//! Policies of sidecars and configurations of filters, as short as a test's text allows.

use std::fmt::{Display, Write};

use serde_json::{Value, json};

/// A policy in the making. Its `store_timeout` is two seconds unless a test is about it: a machine may stall for tens of
/// milliseconds, which must not count as an outage.
#[derive(Clone, Debug)]
pub struct Policy {
    head: String,
    timeout: String,
    limits: String,
}

impl Policy {
    /// With this `store` (YAML: a string or a mapping).
    pub fn on(store: impl Display) -> Self {
        Self {
            head: format!("store: {store}\n"),
            timeout: "2s".to_owned(),
            limits: String::new(),
        }
    }

    /// Another `store_timeout`.
    #[must_use]
    pub fn timeout(mut self, timeout: &str) -> Self {
        timeout.clone_into(&mut self.timeout);
        self
    }

    /// Further lines beside `store` and `limits`.
    #[must_use]
    pub fn line(mut self, line: &str) -> Self {
        let _ = writeln!(self.head, "{line}");
        self
    }

    /// A limit of one window, as in `window("per-key", "sliding_log", 10, "1h")`.
    #[must_use]
    pub fn window(self, name: &str, algorithm: &str, quota: u64, per: &str) -> Self {
        let fields = format!("algorithm: {algorithm}, windows: [{{ quota: {quota}, per: {per} }}]");
        self.limit(name, &fields)
    }

    /// A limit with these fields, as in a mapping of YAML between its braces.
    #[must_use]
    pub fn limit(mut self, name: &str, fields: &str) -> Self {
        let _ = writeln!(self.limits, "  {name}: {{ {fields} }}");
        self
    }

    /// Its text.
    pub fn text(&self) -> String {
        let Self {
            head,
            timeout,
            limits,
        } = self;
        format!("{head}store_timeout: {timeout}\nlimits:\n{limits}")
    }
}

/// A policy in `store` with one limit `per-key` of one window.
pub fn policy(store: &str, algorithm: &str, quota: u64, per: &str) -> String {
    Policy::on(store)
        .window("per-key", algorithm, quota, per)
        .text()
}

/// The limit `per-key` that no test exhausts, in the sidecar's own memory.
pub fn generous() -> String {
    policy("memory", "fixed_window", 2_000_000_000, "1h")
}

/// A decision of the limit `per-key`.
pub fn question() -> String {
    json!({ "decisions": [{ "checks": [{ "limit": "per-key", "key": "k" }] }] }).to_string()
}

/// A plugin configuration that runs the set `s`, with deadlines that no stall exceeds.
pub fn pushed() -> Value {
    json!({
        "version": 2,
        "sidecar": { "cluster": "sluicegate", "timeout": "3s" },
        "rule_sets": { "default": "s" },
        "until_rules": { "hold": "10s" },
    })
}

/// The same, with the rules that an [`Envoy`](crate::envoy::Envoy) gets although its sidecar has none.
pub fn plugin(rules: Value) -> Value {
    let mut plugin = pushed();
    plugin["rules"] = rules;
    plugin
}

/// A policy with these rules as the set `s`.
pub fn with_rules(policy: &str, rules: &Value) -> String {
    with_sets(policy, &json!({ "s": { "rules": rules } }))
}

/// A policy with these rule sets.
pub fn with_sets(policy: &str, sets: &Value) -> String {
    format!("{policy}\nrules: {sets}\n")
}

/// One rule for all requests: `per-key` by the header x-api-key.
pub fn per_key(when_unavailable: &str) -> Value {
    json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }] }],
        "when_unavailable": when_unavailable,
    }])
}
