//! Made-up requests, and the questions that rules derive for them.
#![allow(dead_code, reason = "each test file uses some of it")]

pub mod answered;
#[path = "../../../../tests/src/document.rs"]
mod document;

use std::collections::BTreeMap;
use std::ops::Deref;
use std::rc::Rc;

use serde_json::{Value, json};
use sluicegate_rules::{
    ConfigError, Document, Evaluation, Headers, Question, Request, ResolvedCheck, RuleSet,
    Settings, config,
};

use document::document;

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
        let value = serde_json::from_str(configuration).expect(configuration);
        Self::read(value).unwrap_or_else(|error| panic!("{error}\n{configuration}"))
    }

    /// The settings of this configuration, and its `rules`, `reply` and `upstream_paths` as a sidecar pushes them.
    pub fn read(mut settings: Value) -> Result<Self, ConfigError> {
        let (mut set, mut rules) = (json!({ "set": "s" }), Value::Null);
        if let Some(fields) = settings.as_object_mut() {
            fields.insert("version".to_owned(), json!(2));
            for field in ["reply", "upstream_paths"] {
                set[field] = fields.remove(field).unwrap_or_default();
            }
            rules = fields.remove("rules").unwrap_or_default();
        }
        let rules = rules.as_array().map(Vec::as_slice);
        Self::of(&settings, set, rules.unwrap_or_default())
    }

    /// One set with this line, and these rules.
    pub fn pushed(set: &str, rules: &[&str]) -> Self {
        let read = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let settings = json!({ "version": 2, "sidecar": { "cluster": "sluicegate" } });
        let rules: Vec<_> = rules.iter().map(|rule| read(rule)).collect();
        Self::of(&settings, read(set), &rules).expect("valid rules")
    }

    fn of(settings: &Value, set: Value, rules: &[Value]) -> Result<Self, ConfigError> {
        let mut document = Document::new(document(set, rules).into_bytes())?;
        while document.compile_line()? {}
        let (settings, _) = config::settings(settings.clone())?;
        let set = document.finish(&["s".to_owned()])?.remove(0);
        Ok(Self { settings, set })
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
