//! How the upstream parses a request's target.

use serde::Deserialize;

/// How the upstream parses the request's target (path and query): the name of a server, or every choice by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
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

/// A known way to parse the request's target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Parameters {
    /// Nothing: it belongs to the segment.
    Keep,
    /// It is removed together with everything up to the next `/`, before escapes are decoded.
    Cut,
    /// The same, after escapes are decoded: `%3B` counts too.
    CutDecoded,
}

/// How often the upstream decodes percent-escapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Escapes {
    /// Never.
    Keep,
    /// Once: `%2541` becomes `%41`.
    Once,
    /// Until no escape is left: `%2541` becomes `A`.
    Repeatedly,
}

/// What a decoded `%2F` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EncodedSlash {
    /// It separates segments, like `/`.
    Separator,
    /// It belongs to the segment.
    Literal,
}

/// What `\` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Backslash {
    /// It belongs to the segment.
    Literal,
    /// It separates segments, like `/`; so does a decoded `%5C`.
    Separator,
    /// It separates segments; `%5C` does not.
    RawSeparator,
}

/// What `//` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DoubleSlash {
    /// It stays `//`: an empty segment.
    Keep,
    /// It is merged into `/`.
    Merge,
}

/// What the segments `.` and `..` mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DotSegments {
    /// They are ordinary segments.
    Keep,
    /// They are resolved before escapes are decoded; `%2e` counts as a dot.
    ResolveEncoded,
    /// They are resolved after escapes are decoded.
    Resolve,
}

/// What a `;` in the query means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QuerySemicolon {
    /// It belongs to a name or value.
    Literal,
    /// It separates parameters, like `&`.
    Separator,
    /// The parameter that contains it is invalid and dropped, like one with a broken escape (`?a=%zz`).
    Drop,
}
