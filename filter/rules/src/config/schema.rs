//! The types that a plugin configuration is read into. `envoy/sluicegate.schema.json` and the tables of
//! `docs/fields.md` are generated from these types and their doc comments, so the doc comments address operators.

mod amount;
mod key_component;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

pub use super::terms::{
    Address, Backslash, DotSegments, DoubleSlash, EncodedSlash, Escapes, Headers, Parameters,
    PathChoices, QuerySemicolon, Reply, UpstreamName, WhenMissing, WhenUnavailable,
};
pub use amount::{Amount, AmountSource, NameWeight, Otherwise, Settle, Weight};
pub use key_component::{Jwt, KeyComponent, Metadata, Mtls, NamePath, TrustedSource};

/// The whole configuration of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// 2: the rules are in the policy, and the sidecar pushes them (docs/rules.md).
    #[schemars(range(min = 2, max = 2))]
    pub version: u64,
    /// How the filter reaches the sidecar.
    pub sidecar: Sidecar,
    /// Secret mixed into every hash, so that somebody who can read Redis cannot recover keys with a dictionary. Use the
    /// same pepper for the whole fleet.
    #[serde(default)]
    pub pepper: String,
    /// The environment variable that has the pepper, instead of `pepper`: `vm_config.environment_variables.host_env_keys` lists
    /// it, and Envoy's own environment has it. Without a value the configuration is refused.
    pub pepper_env: Option<String>,
    /// Which of the policy's rule sets this filter may run, by default only the one called `default`.
    pub rule_sets: Option<RuleSets>,
    /// What happens to requests until the rules are known.
    pub until_rules: Option<UntilRules>,
}

/// The policy's rule sets that a filter may run, and which requests each is for.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSets {
    /// The set for all requests for which `by` names no other.
    pub default: String,
    /// The other sets that `by` may name.
    #[serde(default)]
    #[schemars(length(max = 15))]
    pub others: Vec<String>,
    /// Where the name of a request's set is. A name that is not listed here means the default.
    pub by: Option<RouteProperty>,
}

impl Default for RuleSets {
    fn default() -> Self {
        Self {
            default: "default".to_owned(),
            others: Vec::new(),
            by: None,
        }
    }
}

/// A property of the request's route, which no client can write.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RouteProperty {
    /// The route's name.
    RouteName,
    /// A text in the route's metadata.
    RouteMetadata(Metadata),
}

/// What happens to requests until the sidecar has sent rules for the first time.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct UntilRules {
    /// How long a request waits for them, at most `10s`.
    pub hold: String,
    /// What happens to it then: `deny` (the default) answers 503, `allow` lets it pass.
    pub then: WhenUnavailable,
}

impl Default for UntilRules {
    fn default() -> Self {
        Self {
            hold: "2s".to_owned(),
            then: WhenUnavailable::Deny,
        }
    }
}

/// Rules that are in force together, as the policy has them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RuleSetFile {
    /// What responses tell clients about limits; the default for rules without a `reply` of their own.
    pub reply: Option<Reply>,
    /// How the upstream parses paths and queries: `strict` (the default), `go`, `wsgi`, `tomcat`, `nginx`, or every
    /// choice by itself.
    #[serde(default)]
    pub upstream_paths: UpstreamPaths,
    /// Rules, evaluated in order; `[]`: nothing is limited.
    #[schemars(length(max = 256))]
    pub rules: Vec<Rule>,
}

/// How the filter reaches the sidecar.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// Name of the Envoy cluster that contains the sidecar.
    #[schemars(length(min = 1))]
    pub cluster: String,
    /// How long a request waits for its verdict, `1ms` to `10s`.
    #[serde(default = "timeout")]
    pub timeout: String,
    /// Whether waiting requests share a callout; `false` makes one callout for each request, for comparison.
    #[serde(default = "together")]
    pub together: bool,
    /// Whether the sidecar gets the `traceparent` of sampled requests, so that its spans join their traces
    /// (docs/tracing.md). Older sidecars refuse decisions with a `traceparent`: upgrade the sidecars first.
    #[serde(default)]
    pub traces: bool,
}

const fn together() -> bool {
    true
}

fn timeout() -> String {
    "50ms".to_owned()
}

/// Which requests to limit, and the checks to make for them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [
    { "required": ["when_unavailable"] },
    { "required": ["shadow"], "properties": { "shadow": { "const": true } } },
]))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Unique name of the rule, used in statistics. 1 to 64 of the characters a-z A-Z 0-9 - _ .
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = "^[-A-Za-z0-9_.]{1,64}$"))
    )]
    pub name: String,
    /// Which requests the rule applies to, by default all. All conditions that are present must match.
    #[serde(default, rename = "match")]
    pub matcher: Match,
    /// The checks to make for a request that matches.
    #[schemars(length(min = 1, max = 8))]
    pub checks: Vec<Check>,
    /// What to do without a verdict, when sidecar or store are down or too slow: let the request through, or answer
    /// 503. A limit's own `when_store_is_down: allow` or `deny` in the policy overrides it while the store is down. Not
    /// needed with `shadow: true`.
    pub when_unavailable: Option<WhenUnavailable>,
    /// A request that matches skips all later rules. If its path can be read in several ways, a later rule is skipped
    /// only if this rule matches in every reading in which the later one matches.
    #[serde(default)]
    pub stop: bool,
    /// Shadow rule: evaluated and counted, not enforced. It consumes units under keys of its own, as if it were
    /// enforced, and does not affect other rules.
    #[serde(default)]
    pub shadow: bool,
    /// What responses tell clients about this rule's limits; overrides the configuration's `reply`.
    pub reply: Option<Reply>,
}

/// Which requests a rule applies to. All conditions that are present must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Match {
    /// The whole path, without its query. A trailing slash makes no difference.
    #[schemars(regex(pattern = "^/"))]
    pub path: Option<String>,
    /// The path begins with this. `/admin/` is also for `/admin`.
    #[schemars(regex(pattern = "^/"))]
    pub path_prefix: Option<String>,
    /// The path, segment by segment: `/v1/videos/{id}` captures a segment as `id`, `*` matches any one segment, `**` at
    /// the end any number of them.
    #[schemars(regex(pattern = "^/"))]
    pub path_template: Option<String>,
    /// A regular expression that matches the whole path. If all readings of the path together exceed 4 KiB, the request
    /// is answered with 414.
    pub path_regex: Option<String>,
    /// One of these methods, in capitals. `GET` includes HEAD; `HEAD` alone matches HEAD only.
    #[schemars(inner(regex(pattern = "^[A-Z-]+$")))]
    pub methods: Vec<String>,
    /// One of these hosts, without port: `api.example.com`, or `*.example.com` for all of its subdomains.
    pub hosts: Vec<String>,
    /// Conditions on headers, all of which must hold.
    pub headers: Vec<Condition>,
    /// Conditions on query parameters, all of which must hold.
    pub query: Vec<Condition>,
    /// Conditions on values in the dynamic metadata, which filters before this one have written; all must hold.
    pub metadata: Vec<MetadataCondition>,
    /// Every one of these must match.
    pub all: Vec<Match>,
    /// At least one of these must match.
    pub any: Vec<Match>,
    /// This must not match.
    pub not: Option<Box<Match>>,
}

impl Match {
    /// Calls this with each regular expression, and its path under this one.
    pub fn expressions<'a>(&'a self, at: &str, one: &mut dyn FnMut(String, &'a str)) {
        if let Some(text) = &self.path_regex {
            one(format!("{at}.path_regex"), text);
        }
        for (list, fields) in [("headers", &self.headers), ("query", &self.query)] {
            for (index, field) in fields.iter().enumerate() {
                if let Some(text) = &field.regex {
                    one(format!("{at}.{list}[{index}].regex"), text);
                }
            }
        }
        for (index, value) in self.metadata.iter().enumerate() {
            if let Some(text) = &value.regex {
                one(format!("{at}.metadata[{index}].regex"), text);
            }
        }
        for (list, inner) in [("all", &self.all), ("any", &self.any)] {
            for (index, inner) in inner.iter().enumerate() {
                inner.expressions(&format!("{at}.{list}[{index}]"), one);
            }
        }
        if let Some(inner) = &self.not {
            inner.expressions(&format!("{at}.not"), one);
        }
    }
}

/// A condition on a header or query parameter: its `name` and exactly one test. If it is sent several times, one value
/// that passes is enough.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 2, "maxProperties" = 2))]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Name of the header (case-insensitive) or query parameter (case-sensitive).
    #[schemars(length(min = 1))]
    pub name: String,
    /// It must be present (`true`) or absent (`false`).
    pub present: Option<bool>,
    /// Its value equals this text.
    pub equals: Option<String>,
    /// Its value begins with this text.
    pub prefix: Option<String>,
    /// A regular expression that matches its whole value. If all its values together exceed 4 KiB, the request is
    /// answered with 431 (header) or 414 (query parameter).
    pub regex: Option<String>,
}

/// A condition on a value in the dynamic metadata: where it is, and exactly one test. A number or a boolean is compared as text.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("minProperties" = 3, "maxProperties" = 3))]
#[serde(deny_unknown_fields)]
pub struct MetadataCondition {
    /// The namespace that the filter writes to.
    #[schemars(length(min = 1))]
    pub namespace: String,
    /// The value's name, or a list of names that lead to it.
    pub name: NamePath,
    /// It must be there (`true`) or absent (`false`). A list or an object counts as absent.
    pub present: Option<bool>,
    /// It equals this text.
    pub equals: Option<String>,
    /// It begins with this text.
    pub prefix: Option<String>,
    /// A regular expression that matches all of it.
    pub regex: Option<String>,
}

/// One check: a limit, a key and a cost.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A limit in the policy, or tiers from which the request selects one.
    pub limit: Limit,
    /// Whom to count: 1 to 8 key components.
    #[schemars(length(min = 1, max = 8))]
    pub key: Vec<KeyComponent>,
    /// Units to consume: a number from 1 (the default), a table, the value of a trusted header, or units that are reserved and
    /// settled when the response has ended.
    #[serde(default)]
    pub cost: Cost,
    /// Quota of this key, replacing the limit's own, from a trusted source: a whole number from 1. If the source has no such
    /// number, the limit's own quota applies. The policy must accept it with `quota_from_request`. Older sidecars refuse
    /// checks with a quota: upgrade sidecars before filters.
    pub quota: Option<TrustedSource>,
    /// What to do if the request lacks one of the key components: `skip` the check (the default), `deny` the request
    /// (403), or `{address: {}}` or `{use: TEXT}` in its place.
    pub when_missing: Option<WhenMissing>,
    /// `true`: the policy's `consumers` has an entry of this limit's name, and says whose the key is (docs/consumers.md).
    /// A key that it does not know counts as missing. The check needs one component, a hashed `header`, `cookie` or
    /// `query`, and `when_missing: {address: {}}`.
    #[serde(default)]
    pub consumers: bool,
}

/// The limit of a check: a name, or tiers.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Limit {
    /// Name of a limit in the policy.
    Name(#[schemars(length(min = 1, max = 64))] String),
    /// Tiers from which the request selects one.
    Tiers(Box<Tiers>),
}

/// Limits from which a value in the request selects one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tiers {
    /// Where the request names its tier. Never hashed.
    pub by: KeyComponent,
    /// A limit for each tier. `default` is required; it is used for unknown tiers and for requests that name none.
    #[schemars(extend("required" = ["default"]))]
    pub map: BTreeMap<String, String>,
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum Cost {
    /// A fixed cost.
    Constant(#[schemars(range(min = 1, max = 2_147_483_648_u64))] u64),
    /// A cost from a table or a header, or one that is reserved and settled.
    Varying(Box<VaryingCost>),
}

impl Cost {
    /// The request's headers that tell it, each with its path.
    pub fn headers<'a>(&'a self, at: &str) -> Vec<(String, &'a String)> {
        let mut found = Vec::new();
        if let Self::Varying(varying) = self {
            let header = varying.header.as_ref();
            found.extend(header.map(|name| (format!("{at}.header"), name)));
            let reserve = varying.reserve.as_ref();
            reserve.inspect(|amount| amount.headers(&format!("{at}.reserve"), &mut found));
        }
        found
    }

    /// The most that a request can cost; of a reserve, nothing is known.
    pub fn most(&self) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Varying(varying) => {
                let table = varying.table.iter().flatten().map(|entry| entry.cost);
                let others = [varying.default, varying.max.unwrap_or(0)];
                table.chain(others).max().unwrap_or(0)
            }
        }
    }

    /// How it is settled, if it is only reserved.
    pub fn settle(&self) -> Option<&Settle> {
        match self {
            Self::Constant(_) => None,
            Self::Varying(varying) => varying.settle.as_ref(),
        }
    }
}

impl Default for Cost {
    fn default() -> Self {
        Self::Constant(1)
    }
}

/// A cost that depends on the request: `table` and `default`, or `header`, `max`, `trusted` and `default`; or one that is known
/// after the response: `settle`, with `reserve` and `most`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[schemars(extend("oneOf" = [
    { "required": ["table"], "properties": { "header": false, "max": false, "trusted": false, "reserve": false, "most": false, "settle": false } },
    { "required": ["header", "max", "trusted"], "properties": { "table": false, "trusted": { "const": true }, "reserve": false, "most": false, "settle": false } },
    { "required": ["settle"], "properties": { "table": false, "header": false, "max": false, "trusted": false, "default": false } },
]))]
#[serde(deny_unknown_fields)]
pub struct VaryingCost {
    /// The first entry that matches gives the cost. If the path can be read in several ways, the largest cost of them
    /// counts.
    #[schemars(length(min = 1))]
    pub table: Option<Vec<CostEntry>>,
    /// The header that contains the cost. Any value that is not a number from 1 to `max` costs `max`.
    pub header: Option<String>,
    /// Largest cost that the header can set.
    #[schemars(range(min = 1, max = 2_147_483_648_u64))]
    pub max: Option<u64>,
    /// Must be `true`, to confirm that something in front of this filter sets the header and removes what clients send.
    /// Otherwise clients could set their own cost.
    #[serde(default)]
    pub trusted: bool,
    /// Cost if no entry matches, or if the header is absent.
    #[serde(default = "one")]
    #[schemars(range(min = 1, max = 2_147_483_648_u64))]
    pub default: u64,
    /// Units that a request takes when it comes, by default 1. A number that is not written here but told by the request is
    /// rounded up, by a sixty-fourth at most. With 0, a request takes nothing, but is denied if nothing is left.
    pub reserve: Option<Amount>,
    /// Largest part of the quota that a request reserves, by default `25%`: a larger reserve is cut to it, so that it can be
    /// admitted.
    #[schemars(regex(pattern = "^([1-9][0-9]?|100)%$"))]
    pub most: Option<String>,
    /// What the request has cost in fact, once its response has ended.
    pub settle: Option<Settle>,
}

const fn one() -> u64 {
    1
}

/// An entry of a cost table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CostEntry {
    /// Path template that the entry applies to, by default any path.
    #[schemars(regex(pattern = "^/"))]
    pub template: Option<String>,
    /// Methods that the entry applies to, in capitals, by default any. `GET` includes HEAD.
    #[serde(default)]
    #[schemars(inner(regex(pattern = "^[A-Z-]+$")))]
    pub methods: Vec<String>,
    /// Cost in units.
    #[schemars(range(min = 1, max = 2_147_483_648_u64))]
    pub cost: u64,
}

/// How the upstream parses the request's target (path and query): the name of a server, or every choice by itself.
#[derive(Clone, Debug, PartialEq, Eq, JsonSchema)]
#[schemars(untagged)]
pub enum UpstreamPaths {
    /// The name of a known way.
    Name(UpstreamName),
    /// Every choice by itself.
    Choices(PathChoices),
}

impl Default for UpstreamPaths {
    fn default() -> Self {
        Self::Name(UpstreamName::Strict)
    }
}

/// The JSON Schema of the configuration, for editors and pipelines.
pub fn json_schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Configuration).to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("title".to_owned(), "Sluicegate's filter".into());
    }
    sorted(schema)
}

/// Sorts fields by name: whether `serde_json` sorts them or keeps their order depends on features that other crates of
/// the build enable.
pub fn sorted(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(fields) => {
            let fields: BTreeMap<_, _> = fields.into_iter().collect();
            let fields = fields
                .into_iter()
                .map(|(name, field)| (name, sorted(field)));
            Value::Object(fields.collect())
        }
        Value::Array(list) => list.into_iter().map(sorted).collect(),
        other => other,
    }
}
