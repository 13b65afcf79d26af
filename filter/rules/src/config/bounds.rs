//! Whether one request can have more checks than a decision allows.
//!
//! The validation builds synthetic requests from what the rules match and evaluates the rules for them, so a refusal
//! here always has an example. A combination that no synthetic request reveals shows when a real request comes: that
//! gets no verdict.

use sluicegate_protocol::MAX_CHECKS;

use super::error::{ConfigError, invalid};
use super::schema::{ClaimPath, Condition, Configuration, KeyComponent, Match, Rule};
use crate::claims::{claim_entry, verified_metadata};
use crate::evaluate::Evaluation;
use crate::request::{Headers, Request};
use crate::rule::Rules;
use crate::verdict_error::VerdictError;

/// Startup must be quick: combinations beyond this number are not tried.
const MAX_REQUESTS: usize = 1_000;
/// Headers, query parameters and X-Forwarded-For entries of a synthetic request. By default Envoy refuses a request
/// with more than 100 headers.
const MAX_FIELDS: usize = 64;

pub(super) fn validate(file: &Configuration, rules: &Rules) -> Result<(), ConfigError> {
    let enforced: Vec<&Rule> = file.rules.iter().filter(|rule| !rule.shadow).collect();
    if enforced.iter().map(|rule| rule.checks.len()).sum::<usize>() <= MAX_CHECKS {
        return Ok(());
    }
    let mut requirements = Requirements::default();
    for rule in enforced {
        requirements.add_match(&rule.matcher);
        requirements
            .keys
            .extend(rule.checks.iter().flat_map(|check| &check.key));
    }
    let Some((request, why)) = requirements.request_with_too_many_checks(rules) else {
        return Ok(());
    };
    let line = |name| String::from_utf8_lossy(request.headers.first(name)).into_owned();
    invalid(
        "rules",
        format_args!(
            "{why}, for example `{} {}` of host `{}`: let fewer rules match the same request, or set `stop` in one of them",
            line(":method"),
            line(":path"),
            line(":authority"),
        ),
    )
}

/// What the rules require of a request. Unsorted lists: sorting and maps made the VM's code 20 KB larger.
#[derive(Default)]
struct Requirements<'a> {
    paths: Vec<String>,
    methods: Vec<String>,
    hosts: Vec<String>,
    conditions: Vec<(ConditionTarget, &'a Condition)>,
    keys: Vec<&'a KeyComponent>,
}

/// What a condition is about.
#[derive(Clone, Copy)]
enum ConditionTarget {
    Header,
    Query,
}

impl<'a> Requirements<'a> {
    fn add_match(&mut self, matcher: &'a Match) {
        for path in matcher.path.iter().chain(&matcher.path_prefix) {
            push_unique(&mut self.paths, path.clone());
        }
        if let Some(path_template) = &matcher.path_template {
            push_unique(&mut self.paths, example_path(path_template));
        }
        for method in &matcher.methods {
            push_unique(&mut self.methods, method.clone());
        }
        for host in &matcher.hosts {
            push_unique(&mut self.hosts, host.replace('*', "x"));
        }
        let headers = matcher
            .headers
            .iter()
            .map(|one| (ConditionTarget::Header, one));
        let query = matcher
            .query
            .iter()
            .map(|one| (ConditionTarget::Query, one));
        self.conditions.extend(headers.chain(query));
        // A request need not have what is under `not`.
        let inner = matcher.all.iter().chain(&matcher.any);
        inner.for_each(|inner| self.add_match(inner));
    }

    /// A request that has too many checks, and why it has no verdict.
    fn request_with_too_many_checks(
        mut self,
        rules: &Rules,
    ) -> Option<(SyntheticRequest, VerdictError)> {
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
        // With and without what conditions and keys require: a rule may apply to requests that lack it.
        for (by_match, by_key) in [(true, true), (false, true), (true, false), (false, false)] {
            let template = self.template(by_match, by_key);
            for host in &self.hosts {
                for method in &self.methods {
                    for path in &self.paths {
                        left = left.checked_sub(1)?;
                        let request = template.at(host, method, path);
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

    fn template(&self, by_match: bool, by_key: bool) -> RequestTemplate {
        let mut template = RequestTemplate::default();
        let (mut cookies, mut hops, mut claims) = (String::new(), 0, None);
        for (target, condition) in self.conditions.iter().filter(|_| by_match) {
            let text = condition.equals.as_ref().or(condition.prefix.as_ref());
            let present = condition.present == Some(true);
            // Only one value for each name: otherwise rules that exclude each other would both match.
            let value = text.map_or(if present { "x" } else { "" }, String::as_str);
            match target {
                ConditionTarget::Header => template.header(&condition.name, value),
                ConditionTarget::Query => template.parameter(&condition.name, value),
            }
        }
        for component in self.keys.iter().filter(|_| by_key) {
            if let Some(name) = &component.header {
                template.header(name, "x");
            }
            if let Some(name) = &component.query {
                template.parameter(name, "x");
            }
            if let Some(name) = &component.cookie {
                cookies.push_str(name);
                cookies.push_str("=x;");
            }
            if let Some(address) = &component.address {
                hops = address.trusted_hops.unwrap_or(0).min(MAX_FIELDS).max(hops);
            }
            if let Some(jwt) = &component.jwt {
                let (_, fields) = claims.get_or_insert((jwt.payload.as_str(), Vec::new()));
                let path = match &jwt.claim {
                    ClaimPath::Name(name) => std::slice::from_ref(name),
                    ClaimPath::List(names) => names,
                };
                fields.extend(claim_entry(path));
            }
        }
        let mut forwarded = "192.0.2.1,".repeat(hops);
        forwarded.pop();
        template.header("cookie", &cookies);
        template.header("x-forwarded-for", &forwarded);
        template.metadata = claims.map_or_else(Vec::new, |(payload, fields)| {
            verified_metadata(payload, &fields)
        });
        template
    }
}

/// A synthetic request without its host, method and path.
#[derive(Default)]
struct RequestTemplate {
    headers: Vec<(String, String)>,
    query: Vec<(String, String)>,
    metadata: Vec<u8>,
}

impl RequestTemplate {
    fn header(&mut self, name: &str, value: &str) {
        add(&mut self.headers, name.to_ascii_lowercase(), value);
    }

    fn parameter(&mut self, name: &str, value: &str) {
        add(&mut self.query, name.to_owned(), value);
    }

    fn at(&self, host: &str, method: &str, path: &str) -> SyntheticRequest {
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
        SyntheticRequest {
            headers: line.into_iter().chain(others).collect(),
            metadata: self.metadata.clone(),
        }
    }
}

/// Adds a value, unless it is empty, the name has a value already, or there are more than Envoy would accept.
fn add(values: &mut Vec<(String, String)>, name: String, value: &str) {
    let is_there = values.iter().any(|(other, _)| *other == name);
    if !is_there && !value.is_empty() && values.len() < MAX_FIELDS {
        values.push((name, value.to_owned()));
    }
}

fn push_unique(list: &mut Vec<String>, text: String) {
    if !list.contains(&text) {
        list.push(text);
    }
}

/// A path that matches this template.
fn example_path(template: &str) -> String {
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

/// A request whose connection has every attribute that a rule may require.
struct SyntheticRequest {
    headers: Headers,
    metadata: Vec<u8>,
}

impl Request for SyntheticRequest {
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
