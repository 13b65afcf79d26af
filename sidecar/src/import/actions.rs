//! What `rate_limits` send to ratelimit, and for which requests. What is not here has no counterpart in the policy.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::scope::{Scope, condition, escaped, header};

/// An entry of `rate_limits`.
#[derive(Deserialize)]
pub struct RateLimit {
    #[serde(default)]
    pub stage: u32,
    /// By their kinds, one each.
    pub actions: Vec<BTreeMap<String, Action>>,
    #[serde(flatten)]
    pub others: Map<String, Value>,
}

/// The fields of all kinds of actions.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Action {
    descriptor_key: Option<String>,
    descriptor_value: String,
    header_name: String,
    query_parameter_name: String,
    metadata_key: Value,
    source: String,
    default_value: String,
    skip_if_absent: bool,
    v4_prefix_mask_len: Option<u8>,
    v6_prefix_mask_len: Option<u8>,
    expect_match: Option<bool>,
    headers: Value,
    query_parameters: Value,
}

/// An entry of a descriptor, which is sent for these requests.
pub struct Entry {
    pub key: String,
    pub sent: Sent,
    /// What requests without the value send, if they send the descriptor at all; empty: the other entries alone.
    pub absent: Option<String>,
    pub scope: Scope,
}

pub enum Sent {
    Always(String),
    /// What requests have, as a component of a key.
    Told(Value),
}

impl Action {
    /// What it sends, with the names of Envoy's own cluster and the upstream's.
    ///
    /// # Errors
    /// Why the policy cannot say that.
    pub fn entry(&self, kind: &str, clusters: [Option<&str>; 2]) -> Result<Entry, String> {
        let cluster = |name: Option<&str>| {
            let why = || format!("`{kind}`: the Envoy file does not say which cluster that is");
            name.map(str::to_owned).map(Sent::Always).ok_or_else(why)
        };
        let constant = Sent::Always(self.descriptor_value.clone());
        let (default, sent) = match kind {
            "generic_key" => (kind, constant),
            "header_value_match" => ("header_match", constant),
            "query_parameter_value_match" => ("query_match", constant),
            "source_cluster" => (kind, cluster(clusters[0])?),
            "destination_cluster" => (kind, cluster(clusters[1])?),
            "remote_address" => (kind, Sent::Told(json!("address"))),
            "masked_remote_address" => {
                let (v4, v6) = (self.v4_prefix_mask_len, self.v6_prefix_mask_len);
                let bits = json!({ "ipv4_bits": v4.unwrap_or(32), "ipv6_bits": v6.unwrap_or(128) });
                (kind, Sent::Told(json!({ "address": bits })))
            }
            // It begins with what clients write.
            "request_headers" if self.header_name.eq_ignore_ascii_case("x-forwarded-for") => {
                (kind, Sent::Told(json!({ "address": {} })))
            }
            "request_headers" => (kind, Sent::Told(header(&self.header_name))),
            "query_parameters" => (
                kind,
                Sent::Told(json!({ "query": self.query_parameter_name })),
            ),
            "metadata" if !["", "DYNAMIC"].contains(&self.source.as_str()) => {
                return Err("`source` is not DYNAMIC".to_owned());
            }
            "metadata" | "dynamic_metadata" => {
                let of = &self.metadata_key;
                let path = of["path"].as_array().into_iter().flatten();
                let path: Vec<_> = path.map(|part| &part["key"]).collect();
                let found = json!({ "namespace": of["key"], "name": path });
                (kind, Sent::Told(json!({ "metadata": found })))
            }
            _ => return Err(format!("`{kind}` has no counterpart in the policy")),
        };
        let mut scope = all(&self.headers, header)?;
        scope = scope.and(&all(
            &self.query_parameters,
            |name| json!({ "query": name }),
        )?);
        if self.expect_match == Some(false) {
            scope = Scope::default().without(&scope);
        }
        let key = self.descriptor_key.clone();
        let key = key.unwrap_or_else(|| default.to_owned());
        let can_lack = self.skip_if_absent || !self.default_value.is_empty();
        let absent = can_lack.then(|| self.default_value.clone());
        Ok(Entry {
            key,
            sent,
            absent,
            scope,
        })
    }
}

/// The requests that all matchers of a list match, of headers or query parameters.
fn all(list: &Value, component: impl Fn(&str) -> Value) -> Result<Scope, String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|one| matcher(one, &component(one["name"].as_str().unwrap_or_default())))
        .try_fold(Scope::default(), |all, one| Ok(all.and(&one?)))
}

fn matcher(matcher: &Value, component: &Value) -> Result<Scope, String> {
    let (mut how, mut given) = ("present", json!(true));
    let fields = [matcher, &matcher["string_match"]].into_iter();
    for (field, value) in fields.filter_map(Value::as_object).flatten() {
        let text = || escaped(value.as_str().unwrap_or_default());
        (how, given) = match field.trim_end_matches("_match") {
            "name" | "string" | "invert" => continue,
            "present" => ("present", value.clone()),
            "exact" => ("equals", value.clone()),
            "prefix" => ("prefix", value.clone()),
            "suffix" => ("regex", json!(format!(".*{}", text()))),
            "contains" => ("regex", json!(format!(".*{}.*", text()))),
            "safe_regex" => ("regex", value["regex"].clone()),
            _ => return Err(format!("`{field}` is no condition of the policy")),
        };
    }
    let found = condition(component, how, given)?;
    Ok(match matcher["invert_match"] == true {
        false => found,
        true if how == "present" => Scope::default().without(&found),
        // Envoy inverts a test only of what is there.
        true => condition(component, "present", json!(true))?.without(&found),
    })
}

/// The requests that a route's `match` matches.
pub fn route(matched: &Value) -> Result<Scope, String> {
    let path = |how, given: &Value| condition(&json!("path"), how, given.clone());
    let mut scope = Scope::default();
    for (field, value) in matched.as_object().into_iter().flatten() {
        scope = scope.and(&match field.as_str() {
            "prefix" | "path_separated_prefix" => path("prefix", value)?,
            "path" => path("equals", value)?,
            "safe_regex" => path("regex", &value["regex"])?,
            "headers" => all(value, header)?,
            "query_parameters" => all(value, |name| json!({ "query": name }))?,
            _ => return Err(format!("`{field}` is no condition of the policy")),
        });
    }
    Ok(scope)
}
