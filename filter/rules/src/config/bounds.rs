//! Whether one request can have more checks than a decision may have.
//!
//! Requests are made up that each rule asks for, and the rules are evaluated for them: so what is refused here is
//! refused for a request that exists. What no made-up request shows is found when a real one comes: it gets no verdict.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};
use sluicegate_protocol::MAX_CHECKS;

use super::fault::{ConfigError, fault};
use super::written::{Claim, Condition, Configuration, Match, Part, Rule};
use crate::claims::metadata;
use crate::request::{Headers, Request};
use crate::rule::{Evaluation, Rules};
use crate::wire::Unusable;

/// A start must not take long: with more than these, the rest is left to the requests themselves.
const MAX_REQUESTS: usize = 1_000;

pub(super) fn check(file: &Configuration, rules: &Rules) -> Result<(), ConfigError> {
    let enforced: Vec<&Rule> = file.rules.iter().filter(|rule| !rule.shadow).collect();
    if enforced.iter().map(|rule| rule.checks.len()).sum::<usize>() <= MAX_CHECKS {
        return Ok(());
    }
    let mut asked_for = AskedFor::default();
    for rule in enforced {
        asked_for.by_match(&rule.matcher);
        let parts = rule.checks.iter().flat_map(|check| &check.key);
        parts.for_each(|part| asked_for.by_part(part));
    }
    let Some((request, why)) = asked_for.too_much(rules) else {
        return Ok(());
    };
    let line = |name| String::from_utf8_lossy(request.headers.first(name)).into_owned();
    fault(
        "rules",
        format_args!(
            "{why}, as for `{} {}` of host `{}`: let fewer rules match the same request, or say `stop` in one",
            line(":method"),
            line(":path"),
            line(":authority"),
        ),
    )
}

/// What rules ask of a request.
#[derive(Default)]
struct AskedFor {
    paths: Vec<String>,
    methods: Vec<String>,
    hosts: Vec<String>,
    /// By conditions: one value of each name, or two rules that cannot match together would seem to.
    headers: BTreeMap<String, String>,
    query: BTreeMap<String, String>,
    /// By keys.
    part_headers: BTreeMap<String, String>,
    part_query: BTreeMap<String, String>,
    claims: Map<String, Value>,
    payload: String,
}

impl AskedFor {
    fn by_match(&mut self, matcher: &Match) {
        self.paths.extend(matcher.path.clone());
        self.paths.extend(matcher.path_prefix.clone());
        self.paths
            .extend(matcher.path_template.as_deref().map(filled));
        self.methods.extend(matcher.methods.clone());
        let hosts = matcher.hosts.iter().map(|host| host.replace('*', "x"));
        self.hosts.extend(hosts);
        for condition in &matcher.headers {
            if let Some(value) = value_for(condition) {
                let name = condition.name.to_ascii_lowercase();
                self.headers.entry(name).or_insert(value);
            }
        }
        for condition in &matcher.query {
            if let Some(value) = value_for(condition) {
                self.query.entry(condition.name.clone()).or_insert(value);
            }
        }
        // What is under `not` is not asked for.
        let inner = matcher.all.iter().chain(&matcher.any);
        inner.for_each(|inner| self.by_match(inner));
    }

    fn by_part(&mut self, part: &Part) {
        let x = || "x".to_owned();
        if let Some(name) = &part.header {
            self.part_headers.insert(name.to_ascii_lowercase(), x());
        }
        if let Some(name) = &part.query {
            self.part_query.insert(name.clone(), x());
        }
        if let Some(name) = &part.cookie {
            let cookies = self.part_headers.entry("cookie".to_owned()).or_default();
            cookies.push_str(&format!("{name}=x;"));
        }
        if let Some(hops) = part
            .address
            .as_ref()
            .and_then(|address| address.trusted_hops)
        {
            // More than a header holds is not asked for.
            let list = vec!["192.0.2.1"; hops.min(100)].join(",");
            let longest = self
                .part_headers
                .entry("x-forwarded-for".to_owned())
                .or_default();
            if list.len() > longest.len() {
                *longest = list;
            }
        }
        if let Some(jwt) = &part.jwt {
            self.payload.clone_from(&jwt.payload);
            let path = match &jwt.claim {
                Claim::Name(name) => std::slice::from_ref(name),
                Claim::List(names) => names,
            };
            if let Some((first, rest)) = path.split_first() {
                let value = rest
                    .iter()
                    .rev()
                    .fold(json!("x"), |inner, name| json!({ name: inner }));
                self.claims.insert(first.clone(), value);
            }
        }
    }

    /// A request that has too many checks, and what is said of it.
    fn too_much(&self, rules: &Rules) -> Option<(MadeUp, Unusable)> {
        let some = |list: &[String], default: &str| {
            let list = list.iter().cloned().collect::<BTreeSet<_>>();
            if list.is_empty() {
                [default.to_owned()].into()
            } else {
                list
            }
        };
        let (hosts, methods) = (some(&self.hosts, "x"), some(&self.methods, "GET"));
        let paths = some(&self.paths, "/");
        let mut left = MAX_REQUESTS;
        // With what conditions and keys ask for, and without: a rule may be for requests that lack it.
        for variant in [(true, true), (false, true), (true, false), (false, false)] {
            for host in &hosts {
                for method in &methods {
                    for path in &paths {
                        left = left.checked_sub(1)?;
                        let request = self.request(variant, host, method, path);
                        if let Evaluation::NoVerdict(_, why) = rules.evaluate(&request, &mut |_| {})
                        {
                            return Some((request, why));
                        }
                    }
                }
            }
        }
        None
    }

    fn request(
        &self,
        (by_match, by_part): (bool, bool),
        host: &str,
        method: &str,
        path: &str,
    ) -> MadeUp {
        let both = |of_match: &BTreeMap<String, String>, of_part: &BTreeMap<String, String>| {
            let mut both = if by_part {
                of_part.clone()
            } else {
                BTreeMap::new()
            };
            if by_match {
                both.extend(of_match.clone());
            }
            both
        };
        let mut path = path.to_owned();
        for (name, value) in both(&self.query, &self.part_query) {
            let before = if path.contains('?') { '&' } else { '?' };
            path.push_str(&format!("{before}{name}={value}"));
        }
        let mut headers = both(&self.headers, &self.part_headers);
        for (name, value) in [(":method", method), (":authority", host), (":path", &path)] {
            headers.insert(name.to_owned(), value.to_owned());
        }
        let claims = by_part.then(|| metadata(&self.payload, &Value::Object(self.claims.clone())));
        MadeUp {
            headers: headers.into_iter().collect(),
            metadata: claims.unwrap_or_default(),
        }
    }
}

/// A path of this template.
fn filled(template: &str) -> String {
    let segments = template.split('/').filter(|segment| *segment != "**");
    let segments = segments.map(|segment| {
        if segment.starts_with(['{', '*']) {
            "x"
        } else {
            segment
        }
    });
    let path = segments.collect::<Vec<_>>().join("/");
    if path.is_empty() {
        "/".to_owned()
    } else {
        path
    }
}

fn value_for(condition: &Condition) -> Option<String> {
    let present = condition.present == Some(true);
    let text = condition.equals.as_ref().or(condition.prefix.as_ref());
    text.cloned().or_else(|| present.then(|| "x".to_owned()))
}

/// A request that has whatever is asked of its connection.
struct MadeUp {
    headers: Headers,
    metadata: Vec<u8>,
}

impl Request for MadeUp {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        Some(match path {
            ["metadata"] => self.metadata.clone(),
            ["source", "address"] => b"192.0.2.1:1".to_vec(),
            _ => b"spiffe://x".to_vec(),
        })
    }
}
