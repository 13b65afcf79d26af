//! Envoy's matchers of headers, query parameters and routes. A field that is not here has no counterpart in the policy.

use serde::Deserialize;
use serde_json::{Value, json};

use super::scope::{Scope, condition, escaped, header};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Matcher {
    name: String,
    #[serde(default)]
    invert_match: bool,
    present_match: Option<bool>,
    exact_match: Option<String>,
    prefix_match: Option<String>,
    suffix_match: Option<String>,
    contains_match: Option<String>,
    safe_regex_match: Option<Regex>,
    #[serde(default)]
    string_match: Text,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    exact: Option<String>,
    prefix: Option<String>,
    suffix: Option<String>,
    contains: Option<String>,
    safe_regex: Option<Regex>,
}

#[derive(Deserialize)]
struct Regex {
    regex: String,
}

/// Which requests come to a route.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouteMatch {
    pub prefix: Option<String>,
    path_separated_prefix: Option<String>,
    path: Option<String>,
    safe_regex: Option<Regex>,
    #[serde(default)]
    headers: Vec<Matcher>,
    #[serde(default)]
    query_parameters: Vec<Matcher>,
}

/// The requests that meet all of these matchers.
pub fn all(headers: &[Matcher], query: &[Matcher]) -> Result<Scope, String> {
    let headers = headers.iter().map(|one| one.scope(&header(&one.name)));
    let query = query
        .iter()
        .map(|one| one.scope(&json!({ "query": one.name })));
    headers
        .chain(query)
        .try_fold(Scope::default(), |all, one| Ok(all.and(&one?)))
}

fn tested(component: &Value, how: &str, given: Value) -> Result<Scope, String> {
    let found = condition(component, how, given.clone());
    found.ok_or_else(|| format!("the policy has no condition that {component} {how} {given}"))
}

impl Matcher {
    fn scope(&self, component: &Value) -> Result<Scope, String> {
        let text = &self.string_match;
        let regex = self.safe_regex_match.as_ref().or(text.safe_regex.as_ref());
        let regex = regex.map(|regex| regex.regex.clone());
        let suffix = self.suffix_match.as_ref().or(text.suffix.as_ref());
        let suffix = suffix.map(|end| format!(".*{}", escaped(end)));
        let part = self.contains_match.as_ref().or(text.contains.as_ref());
        let part = part.map(|part| format!(".*{}.*", escaped(part)));
        let exact = self.exact_match.as_ref().or(text.exact.as_ref());
        let prefix = self.prefix_match.as_ref().or(text.prefix.as_ref());
        let (how, given) = match (exact, prefix, regex.or(suffix).or(part)) {
            (Some(exact), ..) => ("equals", json!(exact)),
            (_, Some(prefix), _) => ("prefix", json!(prefix)),
            (.., Some(regex)) => ("regex", json!(regex)),
            _ => ("present", json!(self.present_match.unwrap_or(true))),
        };
        let found = tested(component, how, given)?;
        if !self.invert_match {
            return Ok(found);
        }
        // Envoy inverts a test only of what is there.
        let there = match how {
            "present" => Scope::default(),
            _ => tested(component, "present", json!(true))?,
        };
        Ok(there.without(&found))
    }
}

impl RouteMatch {
    pub fn scope(&self) -> Result<Scope, String> {
        let prefix = self.prefix.as_ref().or(self.path_separated_prefix.as_ref());
        let regex = self.safe_regex.as_ref().map(|regex| &regex.regex);
        let path = match (prefix, &self.path, regex) {
            (Some(prefix), ..) => tested(&json!("path"), "prefix", json!(prefix))?,
            (_, Some(path), _) => tested(&json!("path"), "equals", json!(path))?,
            (.., Some(regex)) => tested(&json!("path"), "regex", json!(regex))?,
            _ => Scope::default(),
        };
        Ok(path.and(&all(&self.headers, &self.query_parameters)?))
    }
}
