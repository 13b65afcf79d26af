//! Made-up requests, and the questions that rules derive for them.
#![allow(dead_code, reason = "each test file uses some of it")]

pub mod answered;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use sluicegate_rules::{
    Document, Evaluation, Headers, Question, Request, ResolvedCheck, RuleSet, Settings, parse,
};

/// One configuration.
#[derive(Debug)]
pub struct Rules {
    pub settings: Settings,
    pub set: Rc<RuleSet>,
}

impl Deref for Rules {
    type Target = RuleSet;
    fn deref(&self) -> &RuleSet {
        &self.set
    }
}

impl Rules {
    pub fn parse(configuration: &str) -> Self {
        let (settings, set) = parse(configuration.as_bytes())
            .unwrap_or_else(|error| panic!("{error}\n{configuration}"));
        Self {
            settings,
            set: Rc::new(set),
        }
    }

    /// As a sidecar pushes them: one set with this line, and these rules.
    pub fn pushed(set: &str, rules: &[&str]) -> Self {
        let lines = rules.iter().map(|rule| format!(r#"{{"rule":{rule}}}"#));
        let lines: Vec<String> = std::iter::once(set.to_owned()).chain(lines).collect();
        let head = format!(
            r#"{{"format":1,"digest":"a41c09d2e7f3","instance":1,"lines":{}}}"#,
            lines.len()
        );
        let text = format!("{head}\n{}\n", lines.join("\n"));
        let mut document = Document::new(text.clone().into_bytes()).unwrap();
        while document
            .compile_line()
            .unwrap_or_else(|error| panic!("{error}\n{text}"))
        {}
        let (settings, _) = parse(configuration(rules[0]).as_bytes()).unwrap();
        let set = document.finish(&["s".to_owned()]).unwrap().remove(0);
        Self { settings, set }
    }

    pub fn evaluate(&self, request: &FakeRequest) -> Evaluation {
        self.set.evaluate(&self.settings, request)
    }
}

/// The names of the counters that were incremented since the last time.
pub fn counted(rules: &RuleSet) -> Vec<String> {
    let counts = rules.counters.take();
    let names = counts.flat_map(|(name, count)| (0..count).map(move |_| name.to_owned()));
    names.collect()
}

/// A request with headers and attributes.
#[derive(Debug, Default)]
pub struct FakeRequest {
    pub headers: Headers,
    pub attributes: BTreeMap<String, Vec<u8>>,
}

impl Request for FakeRequest {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        self.attributes.get(&path.join(".")).cloned()
    }
}

impl FakeRequest {
    pub fn with(mut self, attribute: &str, value: &[u8]) -> Self {
        self.attributes.insert(attribute.to_owned(), value.to_vec());
        self
    }
}

pub fn request(method: &str, path: &str, headers: &[(&str, &[u8])]) -> FakeRequest {
    let pseudo = [(":method", method.as_bytes()), (":path", path.as_bytes())];
    FakeRequest {
        headers: pseudo.iter().chain(headers).copied().collect(),
        ..FakeRequest::default()
    }
    .with("source.address", b"192.0.2.1:1234")
}

pub fn get(path: &str, headers: &[(&str, &[u8])]) -> FakeRequest {
    request("GET", path, headers)
}

/// A configuration with these rules, given as JSON without brackets around them.
pub fn configuration(rules: &str) -> String {
    format!(r#"{{"sidecar":{{"cluster":"sluicegate"}},"rules":[{rules}]}}"#)
}

pub fn rules(rules: &str) -> Rules {
    Rules::parse(&configuration(rules))
}

/// One rule with this `match`, a limit `l` and a constant key.
pub fn matching(matcher: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","match":{matcher},"checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}],"when_unavailable":"allow"}}"#
    ))
}

/// One rule for all requests, with this check.
pub fn checking(check: &str) -> Rules {
    rules(&format!(
        r#"{{"name":"r","match":{{"path_template":"/**"}},"checks":[{check}],"when_unavailable":"allow"}}"#
    ))
}

/// The evaluation, and the names of the counters that it increments.
pub fn evaluated(rules: &Rules, request: &FakeRequest) -> (Evaluation, Vec<String>) {
    let evaluation = rules.evaluate(request);
    (evaluation, counted(rules))
}

pub fn question(rules: &Rules, request: &FakeRequest) -> Question {
    match evaluated(rules, request).0 {
        Evaluation::Ask(question) => question,
        other => panic!("{other:?}"),
    }
}

/// The cells of a table's rows, without the space around them.
pub fn rows<const CELLS: usize>(table: &str) -> impl Iterator<Item = [&str; CELLS]> {
    let rows = table.lines().filter(|row| !row.trim().is_empty());
    rows.map(|row| {
        let mut cells = row.split(" | ").map(str::trim);
        std::array::from_fn(|_| cells.next().unwrap_or_default())
    })
}

/// The checks of the question as `limit key cost`, the status if the request is refused, or why there is no verdict.
pub fn asked(rules: &Rules, request: &FakeRequest) -> Vec<String> {
    match evaluated(rules, request).0 {
        Evaluation::Pass => Vec::new(),
        Evaluation::Refuse(reply) => vec![reply.status.to_string()],
        Evaluation::Ask(question) => spelt(rules, &question.checks),
        Evaluation::NoVerdict(_, why) => vec![why.to_string()],
    }
}

pub fn spelt(rules: &Rules, checks: &[ResolvedCheck]) -> Vec<String> {
    let spell = |check: &ResolvedCheck| {
        let limit = rules.limit_name(check.rule, check.limit);
        format!("{limit} {} {}", check.key, check.cost)
    };
    checks.iter().map(spell).collect()
}
