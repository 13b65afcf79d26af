//! A request that a test makes up, and what rules ask for it.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod answered;

use std::collections::BTreeMap;

use sluicegate_rules::{Check, Evaluation, Headers, Question, Request, Rules, parse};

/// A request of headers and attributes.
#[derive(Debug, Default)]
pub struct Fake {
    pub headers: Headers,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

impl Request for Fake {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attributes.get(&path.join(".")).cloned()
    }
}

impl Fake {
    pub fn with(mut self, attribute: &str, value: &[u8]) -> Self {
        self.attributes.insert(attribute.to_owned(), value.to_vec());
        self
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &[u8])]) -> Fake {
    let pseudo = [(":method", method.as_bytes()), (":path", path.as_bytes())];
    Fake {
        headers: pseudo.iter().chain(headers).copied().collect(),
        ..Fake::default()
    }
    .with("source.address", b"192.0.2.1:1234")
}

pub fn get(path: &str, headers: &[(&str, &[u8])]) -> Fake {
    request("GET", path, headers)
}

/// A configuration of these rules, JSON without the brackets around them.
pub fn configuration(rules: &str) -> String {
    format!(r#"{{"sidecar":{{"cluster":"sluicegate"}},"rules":[{rules}]}}"#)
}

pub fn rules(rules: &str) -> Rules {
    parse(configuration(rules).as_bytes()).unwrap_or_else(|error| panic!("{error}\n{rules}"))
}

/// One rule with this `match`, a limit `l` and a constant key.
pub fn matching(matcher: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","match":{matcher},"checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}],"when_unavailable":"allow"}}"#
    ))
}

/// One rule for all, with this check.
pub fn checking(check: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","match":{{"path_template":"/**"}},"checks":[{check}],"when_unavailable":"allow"}}"#
    ))
}

pub fn question(rules: &Rules, request: &Fake) -> Question {
    match rules.evaluate(request, &mut |_| {}) {
        Evaluation::Ask(question) => question,
        other => panic!("{other:?}"),
    }
}

/// What is asked, spelt `limit key cost`; the status, where the request is refused; why nobody is asked.
pub fn asked(rules: &Rules, request: &Fake) -> Vec<String> {
    match rules.evaluate(request, &mut |_| {}) {
        Evaluation::Pass => Vec::new(),
        Evaluation::Refuse(reply) => vec![reply.status.to_string()],
        Evaluation::Ask(question) => spelt(rules, &question.checks),
        Evaluation::NoVerdict(_, why) => vec![why.to_string()],
    }
}

pub fn spelt(rules: &Rules, checks: &[Check]) -> Vec<String> {
    let spell = |check: &Check| {
        let limit = rules.limit_name(check.rule, check.limit);
        format!("{limit} {} {}", check.key, check.cost)
    };
    checks.iter().map(spell).collect()
}
