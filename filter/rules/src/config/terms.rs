//! What rules say in the same words to whoever writes them and to the filter: only the sidecar deserializes these types, and
//! their doc comments are in `docs/fields.md`.

#[cfg(feature = "schema")]
use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
#[cfg(feature = "schema")]
use serde::{Deserialize, Deserializer};

/// What to do with a request that has no verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum WhenUnavailable {
    /// Let it through, unmetered.
    Allow,
    /// Answer 503.
    Deny,
}

/// What to do with a request that lacks a key component.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum WhenMissing {
    /// Skip the check.
    #[default]
    Skip,
    /// Answer the request with 403.
    Deny,
    /// Use the client's address as the component's value. The key differs from that of any client that sends the
    /// address itself. Clients whose address is missing too share one key.
    Address(Address),
    /// Use this text as the component's value. The key differs from that of any client that sends the text itself.
    Use(#[cfg_attr(feature = "schema", schemars(length(min = 1)))] String),
}

/// What responses tell clients about limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(default, deny_unknown_fields))]
pub struct Reply {
    /// Which rate limit header fields to send, by default `both`. Every denial has `Retry-After` in any case, unless its limit allows nothing at all.
    pub headers: Headers,
    /// Send the header fields with admitted responses too.
    pub on_admitted: bool,
    /// For `openai` and `anthropic`: the units of limits, by their names. Limits that are not named count requests.
    #[cfg_attr(feature = "schema", serde(deserialize_with = "pairs"))]
    #[cfg_attr(feature = "schema", schemars(with = "BTreeMap<String, Unit>"))]
    pub units: Vec<(String, Unit)>,
    /// Body of a 429, in place of a problem detail. `{retry_after}` in it becomes the whole seconds of `Retry-After`.
    pub body: Option<String>,
    /// Media type of `body`, by default `text/plain`.
    pub content_type: Option<String>,
}

/// Header fields that report the status of a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum Headers {
    /// No rate limit header fields.
    None,
    /// `RateLimit` and `RateLimit-Policy`, as in draft-ietf-httpapi-ratelimit-headers.
    Draft,
    /// `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds from now).
    Legacy,
    /// All five header fields.
    #[default]
    Both,
    /// Those of OpenAI's API, such as `x-ratelimit-remaining-tokens`, beside those of `draft`, and its error object as the body of
    /// a 429. They are of the limit that decided, whose unit `units` says.
    Openai,
    /// Those of Anthropic's API, such as `anthropic-ratelimit-requests-reset`, beside those of `draft`, and its error object as the
    /// body of a 429. They are of the limit that decided, whose unit `units` says.
    Anthropic,
}

/// A map would make the filter larger.
#[cfg(feature = "schema")]
fn pairs<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<(String, Unit)>, D::Error> {
    let units: BTreeMap<_, _> = BTreeMap::deserialize(from)?;
    Ok(units.into_iter().collect())
}

/// What a limit counts, as the header fields of `openai` and `anthropic` name it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum Unit {
    /// Requests.
    #[default]
    Requests,
    /// Tokens of a model.
    Tokens,
    /// Tokens that go to a model; for OpenAI they are tokens.
    InputTokens,
    /// Tokens that come from a model; for OpenAI they are tokens.
    OutputTokens,
}

/// The client's address, and how many of its bits identify a client.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(default, deny_unknown_fields))]
pub struct Address {
    /// Take the N-th entry of X-Forwarded-For from the right, 1 being the last. By default, the address that Envoy
    /// considers the client's.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub trusted_hops: Option<usize>,
    /// Number of leading bits to use of an IPv4 address.
    #[cfg_attr(feature = "schema", schemars(range(max = 32)))]
    pub ipv4_bits: u8,
    /// Number of leading bits to use of an IPv6 address.
    #[cfg_attr(feature = "schema", schemars(range(max = 128)))]
    pub ipv6_bits: u8,
}

impl Default for Address {
    fn default() -> Self {
        Self {
            trusted_hops: None,
            ipv4_bits: 32,
            // An IPv6 customer usually has a whole /64, and could otherwise use a new address for each request.
            ipv6_bits: 64,
        }
    }
}

/// A known way to parse the request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum UpstreamName {
    /// Unknown upstream: every combination of choices is considered, and a rule applies if it matches in any of them.
    Strict,
    /// Go's `net/http`: `URL.Path` and `URL.Query()`, Go 1.17 or later. Not for a router that matches segments of the
    /// escaped path, as `ServeMux` of Go 1.22 does for patterns with wildcards.
    Go,
    /// Python: `PATH_INFO` of PEP 3333, ASGI's `path` (Flask, Django, Starlette, FastAPI), and `urllib.parse.parse_qs`,
    /// Python 3.9.2 or later.
    Wsgi,
    /// Tomcat: `getServletPath` and `getPathInfo` with the defaults of a connector, which refuses `%2F` and `\`.
    Tomcat,
    /// nginx: `$uri` with `merge_slashes on`, and `$arg_NAME`. Not for upstreams behind nginx if `proxy_pass` has no
    /// path, because nginx then passes the path on unchanged.
    Nginx,
}

/// How the upstream parses the request's target, choice by choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(deny_unknown_fields))]
pub struct PathChoices {
    /// What a `;` in a segment does, as in `/a;v=1/b`.
    pub parameters: Parameters,
    /// How often the upstream decodes percent-escapes.
    pub escapes: Escapes,
    /// What a decoded `%2F` means.
    pub encoded_slash: EncodedSlash,
    /// What `\` means.
    pub backslash: Backslash,
    /// What `//` means.
    pub double_slash: DoubleSlash,
    /// What the segments `.` and `..` mean.
    pub dot_segments: DotSegments,
    /// What a `;` in the query means, as in `?a=1;b=2`.
    pub query_semicolon: QuerySemicolon,
}

/// What a `;` in a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum Parameters {
    /// Nothing: it belongs to the segment.
    Keep,
    /// It is removed together with everything up to the next `/`, before escapes are decoded.
    Cut,
    /// The same, after escapes are decoded: `%3B` counts too.
    CutDecoded,
}

/// How often the upstream decodes percent-escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum Escapes {
    /// Never.
    Keep,
    /// Once: `%2541` becomes `%41`.
    Once,
    /// Until no escape is left: `%2541` becomes `A`.
    Repeatedly,
}

/// What a decoded `%2F` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum EncodedSlash {
    /// It separates segments, like `/`.
    Separator,
    /// It belongs to the segment.
    Literal,
}

/// What `\` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum Backslash {
    /// It belongs to the segment.
    Literal,
    /// It separates segments, like `/`; so does a decoded `%5C`.
    Separator,
    /// It separates segments; `%5C` does not.
    RawSeparator,
}

/// What `//` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum DoubleSlash {
    /// It stays `//`: an empty segment.
    Keep,
    /// It is merged into `/`.
    Merge,
}

/// What the segments `.` and `..` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum DotSegments {
    /// They are ordinary segments.
    Keep,
    /// They are resolved before escapes are decoded; `%2e` counts as a dot.
    ResolveEncoded,
    /// They are resolved after escapes are decoded.
    Resolve,
}

/// What a `;` in the query means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(Deserialize, JsonSchema))]
#[cfg_attr(feature = "schema", serde(rename_all = "snake_case"))]
pub enum QuerySemicolon {
    /// It belongs to a name or value.
    Literal,
    /// It separates parameters, like `&`.
    Separator,
    /// The parameter that contains it is invalid and dropped, like one with a broken escape (`?a=%zz`).
    Drop,
}
