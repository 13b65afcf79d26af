//! The plugin's configuration as it is written. `envoy/sluicegate.schema.json` and the tables of `docs/filter.md` are
//! made from these types and their comments, so the comments speak to operators.

mod part;
mod upstream;

use std::collections::BTreeMap;

use serde::Deserialize;

pub use part::{Address, Claim, Jwt, Mtls, Names, Part};
pub use upstream::{
    Backslash, DotSegments, DoubleSlash, EncodedSlash, Escapes, Parameters, PathChoices,
    QuerySemicolon, UpstreamName, UpstreamPaths,
};

/// The whole configuration of the plugin.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Version of this format.
    #[serde(default = "version")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1)))]
    pub version: u64,
    /// Where verdicts come from.
    pub sidecar: Sidecar,
    /// Mixed into every hash, so that whoever reads Redis cannot try a dictionary. The same for a whole fleet.
    #[serde(default)]
    pub pepper: String,
    /// How clients are told about limits, for the rules that do not say it themselves.
    #[serde(default)]
    pub reply: Option<Reply>,
    /// How the upstream reads paths and queries: `strict` (the default), `go`, `wsgi`, `tomcat`, `nginx`, or every
    /// choice. `strict` means that it is not known.
    #[serde(default)]
    pub upstream_paths: UpstreamPaths,
    /// Looked at in order. All that match a request are asked, in one decision, up to one that says `stop`.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 256)))]
    pub rules: Vec<Rule>,
}

const fn version() -> u64 {
    1
}

/// Where verdicts come from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// Envoy's cluster that the sidecar is in.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub cluster: String,
    /// How long a request waits for its verdict: `1ms` to `10s`.
    #[serde(default = "timeout")]
    pub timeout: String,
    /// Whether requests that wait go together in one callout; `false` makes one for each, for comparing.
    #[serde(default = "together")]
    pub together: bool,
    /// Whether the sidecar is told the `traceparent` of requests that are sampled, so that its spans join their traces:
    /// docs/tracing.md. Earlier sidecars refuse such decisions: upgrade them first.
    #[serde(default)]
    pub traces: bool,
}

const fn together() -> bool {
    true
}

fn timeout() -> String {
    "50ms".to_owned()
}

/// Which requests, and the checks to make for them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("anyOf" = [
    { "required": ["when_unavailable"] },
    { "required": ["shadow"], "properties": { "shadow": { "const": true } } },
])))]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Names the rule in statistics; no two rules have the same. 1 to 64 of the characters a-z A-Z 0-9 - _ .
    #[cfg_attr(
        feature = "schema",
        schemars(regex(pattern = "^[-A-Za-z0-9_.]{1,64}$"))
    )]
    pub name: String,
    /// Which requests; by default all. All conditions that are present must match.
    #[serde(default, rename = "match")]
    pub matcher: Match,
    /// What is asked for a request that matches.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 8)))]
    pub checks: Vec<Check>,
    /// Without a verdict (sidecar or store away or late): let the request through, or answer 503. What a limit in the policy
    /// says for a store that is down, `when_store_is_down: allow` or `deny`, goes before it. A rule with `shadow: true` has
    /// no need of it.
    #[serde(default)]
    pub when_unavailable: Option<WhenUnavailable>,
    /// No rule after this one is looked at for a request that matches. If the path can be read in several ways, a later
    /// rule is left out only if this one matches in every reading in which the later one does.
    #[serde(default)]
    pub stop: bool,
    /// Ask and count, and never deny. It takes from its own limits as if it were enforced, and nothing else notices it.
    #[serde(default)]
    pub shadow: bool,
    /// How clients are told about this rule's limits, instead of the configuration's own `reply`.
    #[serde(default)]
    pub reply: Option<Reply>,
}

/// What to do with a request that no verdict is to be had for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenUnavailable {
    /// Let it through, unmetered.
    Allow,
    /// Answer 503.
    Deny,
}

/// Which requests. All conditions that are present must match.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Match {
    /// The whole path, without its query. A trailing slash makes no difference.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/")))]
    pub path: Option<String>,
    /// The path begins with this. `/admin/` is also for `/admin`.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/")))]
    pub path_prefix: Option<String>,
    /// Segments: `/v1/videos/{id}` names one, `*` is any one, `**` at the end any number.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/")))]
    pub path_template: Option<String>,
    /// The whole path matches this regular expression. If all readings of the path together have more
    /// than 4 KiB, the request is answered with 414.
    #[serde(default)]
    pub path_regex: Option<String>,
    /// One of these methods, in capitals. `GET` is also for HEAD; `HEAD` alone is for HEAD only.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(inner(regex(pattern = "^[A-Z-]+$"))))]
    pub methods: Vec<String>,
    /// One of these hosts: `api.example.com`, or `*.example.com` for everything under it. Without port.
    #[serde(default)]
    pub hosts: Vec<String>,
    /// Each of these holds.
    #[serde(default)]
    pub headers: Vec<Condition>,
    /// Each of these holds.
    #[serde(default)]
    pub query: Vec<Condition>,
    /// Each of these holds.
    #[serde(default)]
    pub all: Vec<Match>,
    /// At least one of these holds.
    #[serde(default)]
    pub any: Vec<Match>,
    /// This does not hold.
    #[serde(default)]
    pub not: Option<Box<Match>>,
}

/// What must be true of a header or query parameter: `name`, and one of the others. One that is sent several times
/// fulfils a condition if any of its values does.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("minProperties" = 2, "maxProperties" = 2)))]
#[serde(deny_unknown_fields)]
pub struct Condition {
    /// Its name. Case makes no difference in a header's and does in a query parameter's.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub name: String,
    /// It is there (`true`), or is not (`false`).
    #[serde(default)]
    pub present: Option<bool>,
    /// It is this.
    #[serde(default)]
    pub equals: Option<String>,
    /// It begins with this.
    #[serde(default)]
    pub prefix: Option<String>,
    /// The whole of it matches this regular expression. If all its values together have more than 4 KiB, the request is
    /// answered with 431 (header) or 414 (query parameter).
    #[serde(default)]
    pub regex: Option<String>,
}

/// One (limit, key, cost) to be asked.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Check {
    /// A limit of the policy, or tiers of which the request chooses one.
    pub limit: Limit,
    /// Whom to count: 1 to 8 parts.
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 8)))]
    pub key: Vec<Part>,
    /// Units: a number from 1, a table, or what a trusted header says; by default 1.
    #[serde(default)]
    pub cost: Cost,
    /// A request without one of the parts: `skip` the check, `deny` the request (403), or `{use: TEXT}` in its place;
    /// by default `skip`.
    #[serde(default)]
    pub when_missing: Option<WhenMissing>,
}

/// The name of a limit, or tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
pub enum Limit {
    /// A limit of the policy.
    Name(#[cfg_attr(feature = "schema", schemars(length(min = 1, max = 64)))] String),
    /// The request chooses.
    Tiers(Box<Tiers>),
}

/// Limits of which the request chooses one.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Tiers {
    /// The part of the request that names the tier. Never hashed.
    pub by: Part,
    /// For each value of it, a limit. `default` is for every other value and for none, and must be there.
    #[cfg_attr(feature = "schema", schemars(extend("required" = ["default"])))]
    pub map: BTreeMap<String, String>,
}

/// What a request costs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
pub enum Cost {
    /// A fixed cost.
    Constant(
        #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_147_483_648_u64)))] u64,
    ),
    /// A table, or a header.
    Varying(Varying),
}

impl Default for Cost {
    fn default() -> Self {
        Self::Constant(1)
    }
}

/// A cost that differs from request to request: `table` and `default`, or `header`, `max`, `trusted` and `default`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend("oneOf" = [
    { "required": ["table"], "properties": { "header": false, "max": false, "trusted": false } },
    { "required": ["header", "max", "trusted"], "properties": { "table": false, "trusted": { "const": true } } },
])))]
#[serde(deny_unknown_fields)]
pub struct Varying {
    /// The first entry that matches says the cost; if the path can be read in several ways, the largest of their costs
    /// counts.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub table: Option<Vec<CostEntry>>,
    /// The header that says the cost. What is no number from 1 to `max` costs `max`.
    #[serde(default)]
    pub header: Option<String>,
    /// The most that the header can make a request cost.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_147_483_648_u64)))]
    pub max: Option<u64>,
    /// Must be `true`: something in front of this filter writes the header, and takes away what clients send. Else
    /// clients would choose what they pay.
    #[serde(default)]
    pub trusted: bool,
    /// Where no entry matches, or the header is not there.
    #[serde(default = "one")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_147_483_648_u64)))]
    pub default: u64,
}

const fn one() -> u64 {
    1
}

/// A line of a table of costs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct CostEntry {
    /// Paths of this template; by default any.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(regex(pattern = "^/")))]
    pub template: Option<String>,
    /// One of these methods, in capitals; by default any. `GET` is also for HEAD.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(inner(regex(pattern = "^[A-Z-]+$"))))]
    pub methods: Vec<String>,
    /// Units.
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 2_147_483_648_u64)))]
    pub cost: u64,
}

/// What to do with a request that lacks a part of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum WhenMissing {
    /// The check is not made.
    #[default]
    Skip,
    /// The request is answered with 403.
    Deny,
    /// This text stands in the part's place. No client can send it.
    Use(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] String),
}

/// How clients are told about limits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Reply {
    /// Which header fields, by default `both`. `Retry-After` is told with every denial.
    #[serde(default)]
    pub headers: Headers,
    /// Tell clients that were admitted too.
    #[serde(default)]
    pub on_admitted: bool,
    /// The body of a 429, instead of a problem detail.
    #[serde(default)]
    pub body: Option<String>,
    /// The media type of `body`; by default `text/plain`.
    #[serde(default)]
    pub content_type: Option<String>,
}

/// Header fields that tell how a limit stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Headers {
    /// None of them.
    None,
    /// `RateLimit` and `RateLimit-Policy`, as draft-ietf-httpapi-ratelimit-headers has them.
    Draft,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds from now).
    Legacy,
    /// All five.
    #[default]
    Both,
}

/// The JSON Schema of a configuration, for editors and pipelines.
#[cfg(feature = "schema")]
pub fn schema() -> serde_json::Value {
    let mut schema = schemars::schema_for!(Configuration).to_value();
    if let Some(fields) = schema.as_object_mut() {
        fields.insert("title".to_owned(), "Sluicegate's filter".into());
    }
    sorted(schema)
}

/// Fields by name: whether `serde_json` keeps them so, or as they came, depends on who else is in the build.
#[cfg(feature = "schema")]
fn sorted(value: serde_json::Value) -> serde_json::Value {
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
