//! Whether one request can have more checks than a decision may have.
//!
//! Requests are made up that each rule asks for, and the rules are evaluated for them: so what is refused here is
//! refused for a request that exists. What no made-up request shows is found when a real one comes: it gets no verdict.

use sluicegate_protocol::MAX_CHECKS;

use super::fault::{ConfigError, fault};
use super::written::{Claim, Condition, Configuration, Match, Part, Rule};
use crate::claims::{claim_of_x, verified};
use crate::request::{Headers, Request};
use crate::rule::{Evaluation, Rules};
use crate::wire::Unusable;

/// A start must not take long: with more than these, the rest is left to the requests themselves.
const MAX_REQUESTS: usize = 1_000;
/// Headers of a request, entries of its X-Forwarded-For: by default Envoy refuses a request with more than 100 headers.
const MOST: usize = 64;

pub(super) fn check(file: &Configuration, rules: &Rules) -> Result<(), ConfigError> {
    let enforced: Vec<&Rule> = file.rules.iter().filter(|rule| !rule.shadow).collect();
    if enforced.iter().map(|rule| rule.checks.len()).sum::<usize>() <= MAX_CHECKS {
        return Ok(());
    }
    let mut asked_for = AskedFor::default();
    for rule in enforced {
        asked_for.by_match(&rule.matcher);
        asked_for
            .keys
            .extend(rule.checks.iter().flat_map(|check| &check.key));
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

/// What rules ask of a request. Lists without order: sorting and maps made the VM's code 20 KB longer.
#[derive(Default)]
struct AskedFor<'a> {
    paths: Vec<String>,
    methods: Vec<String>,
    hosts: Vec<String>,
    conditions: Vec<(Place, &'a Condition)>,
    keys: Vec<&'a Part>,
}

/// What a condition is about.
#[derive(Clone, Copy)]
enum Place {
    Header,
    Query,
}

impl<'a> AskedFor<'a> {
    fn by_match(&mut self, matcher: &'a Match) {
        for path in matcher.path.iter().chain(&matcher.path_prefix) {
            also(&mut self.paths, path.clone());
        }
        if let Some(template) = &matcher.path_template {
            also(&mut self.paths, filled(template));
        }
        for method in &matcher.methods {
            also(&mut self.methods, method.clone());
        }
        for host in &matcher.hosts {
            also(&mut self.hosts, host.replace('*', "x"));
        }
        let headers = matcher.headers.iter().map(|one| (Place::Header, one));
        let query = matcher.query.iter().map(|one| (Place::Query, one));
        self.conditions.extend(headers.chain(query));
        // What is under `not` is not asked for.
        let inner = matcher.all.iter().chain(&matcher.any);
        inner.for_each(|inner| self.by_match(inner));
    }

    /// A request that has too many checks, and what is said of it.
    fn too_much(mut self, rules: &Rules) -> Option<(MadeUp, Unusable)> {
        for (list, default) in [
            (&mut self.paths, "/"),
            (&mut self.methods, "GET"),
            (&mut self.hosts, "x"),
        ] {
            if list.is_empty() {
                list.push(default.to_owned());
            }
        }
        let mut left = MAX_REQUESTS;
        // With what conditions and keys ask for, and without: a rule may be for requests that lack it.
        for (by_match, by_key) in [(true, true), (false, true), (true, false), (false, false)] {
            let base = self.base(by_match, by_key);
            for host in &self.hosts {
                for method in &self.methods {
                    for path in &self.paths {
                        left = left.checked_sub(1)?;
                        let request = base.at(host, method, path);
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

    fn base(&self, by_match: bool, by_key: bool) -> Base {
        let mut base = Base::default();
        let (mut cookies, mut hops, mut claims) = (String::new(), 0, None);
        for (place, condition) in self.conditions.iter().filter(|_| by_match) {
            let text = condition.equals.as_ref().or(condition.prefix.as_ref());
            let present = condition.present == Some(true);
            // One value of each name, or two rules that cannot match together would seem to.
            let value = text.map_or(if present { "x" } else { "" }, String::as_str);
            match place {
                Place::Header => base.header(&condition.name, value),
                Place::Query => base.parameter(&condition.name, value),
            }
        }
        for part in self.keys.iter().filter(|_| by_key) {
            if let Some(name) = &part.header {
                base.header(name, "x");
            }
            if let Some(name) = &part.query {
                base.parameter(name, "x");
            }
            if let Some(name) = &part.cookie {
                cookies.push_str(name);
                cookies.push_str("=x;");
            }
            if let Some(address) = &part.address {
                hops = address.trusted_hops.unwrap_or(0).min(MOST).max(hops);
            }
            if let Some(jwt) = &part.jwt {
                let (_, fields) = claims.get_or_insert((jwt.payload.as_str(), Vec::new()));
                let path = match &jwt.claim {
                    Claim::Name(name) => std::slice::from_ref(name),
                    Claim::List(names) => names,
                };
                fields.extend(claim_of_x(path));
            }
        }
        let mut forwarded = "192.0.2.1,".repeat(hops);
        forwarded.pop();
        base.header("cookie", &cookies);
        base.header("x-forwarded-for", &forwarded);
        base.metadata =
            claims.map_or_else(Vec::new, |(payload, fields)| verified(payload, &fields));
        base
    }
}

/// All of a made-up request but its first line.
#[derive(Default)]
struct Base {
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    metadata: Vec<u8>,
}

impl Base {
    fn header(&mut self, name: &str, value: &str) {
        add(&mut self.headers, name.to_ascii_lowercase(), value);
    }

    fn parameter(&mut self, name: &str, value: &str) {
        add(&mut self.query, name.to_owned(), value);
    }

    fn at(&self, host: &str, method: &str, path: &str) -> MadeUp {
        let mut target = path.to_owned();
        let mut before = "?";
        for (name, value) in &self.query {
            for text in [before, name, "=", value] {
                target.push_str(text);
            }
            before = "&";
        }
        let line = [
            (":method", method),
            (":authority", host),
            (":path", &target),
        ];
        let others = self.headers.iter();
        let others = others.map(|(name, value)| (name.as_str(), value.as_str()));
        MadeUp {
            headers: line.into_iter().chain(others).collect(),
            metadata: self.metadata.clone(),
        }
    }
}

/// Adds a value, unless there is one of this name, or nothing to say, or more than Envoy would let a client send.
fn add(values: &mut Vec<(String, String)>, name: String, value: &str) {
    let is_there = values.iter().any(|(other, _)| *other == name);
    if !is_there && !value.is_empty() && values.len() < MOST {
        values.push((name, value.to_owned()));
    }
}

fn also(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

/// A path of this template.
fn filled(template: &str) -> String {
    let mut path = String::new();
    for segment in template
        .split('/')
        .skip(1)
        .filter(|segment| *segment != "**")
    {
        path.push('/');
        path.push_str(if segment.starts_with(['{', '*']) {
            "x"
        } else {
            segment
        });
    }
    if path.is_empty() {
        path.push('/');
    }
    path
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
