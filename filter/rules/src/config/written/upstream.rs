//! How the upstream reads the request's path, as an operator writes it.

use serde::Deserialize;

/// How the upstream reads the request's target: a name, or its choices one by one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(untagged))]
pub enum UpstreamPaths {
    /// A name.
    Name(UpstreamName),
    /// Every choice.
    Choices(PathChoices),
}

impl Default for UpstreamPaths {
    fn default() -> Self {
        Self::Name(UpstreamName::Strict)
    }
}

/// A way to read the request's target that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum UpstreamName {
    /// Not known: every combination of choices counts. A rule applies if it applies in any of them.
    Strict,
    /// Go's `net/http`: `URL.Path` and `URL.Query()`, Go 1.17 or later. Not for a router that matches segments of the
    /// escaped path, as `ServeMux` of Go 1.22 does for patterns with wildcards.
    Go,
    /// Python: `PATH_INFO` of PEP 3333, ASGI's `path` (Flask, Django, Starlette, FastAPI), and `urllib.parse.parse_qs`,
    /// Python 3.9.2 or later.
    Wsgi,
    /// Tomcat: `getServletPath` and `getPathInfo` with the defaults of a connector, which refuses `%2F` and `\`.
    Tomcat,
    /// nginx: `$uri` with `merge_slashes on`, and `$arg_NAME`. Not for what stands behind nginx when `proxy_pass` names
    /// no path, because nginx then passes the path on as it came.
    Nginx,
}

/// How the upstream reads the request's target, choice by choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PathChoices {
    /// What `;` in a segment does: `/a;v=1/b`.
    pub parameters: Parameters,
    /// How often percent-escapes are decoded.
    pub escapes: Escapes,
    /// What `%2F` is when escapes are decoded.
    pub encoded_slash: EncodedSlash,
    /// What `\` is.
    pub backslash: Backslash,
    /// What `//` is.
    pub double_slash: DoubleSlash,
    /// What `.` and `..` are.
    pub dot_segments: DotSegments,
    /// What `;` in the query is: `?a=1;b=2`.
    pub query_semicolon: QuerySemicolon,
}

/// What `;` in a segment does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Parameters {
    /// Nothing: it is part of its segment.
    Keep,
    /// It is cut with all that follows up to the next `/`, before escapes are decoded.
    Cut,
    /// The same after escapes are decoded, so that `%3B` cuts too.
    CutDecoded,
}

/// How often percent-escapes are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Escapes {
    /// Never.
    Keep,
    /// Once: `%2541` is `%41`.
    Once,
    /// Until none is left: `%2541` is `A`.
    Repeatedly,
}

/// What `%2F` is when escapes are decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum EncodedSlash {
    /// It separates segments, as `/` does.
    Separator,
    /// It is part of its segment.
    Literal,
}

/// What `\` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Backslash {
    /// It is part of its segment.
    Literal,
    /// It separates segments, as `/` does, and so does `%5C` once it has been decoded.
    Separator,
    /// It separates segments; `%5C` does not.
    RawSeparator,
}

/// What `//` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DoubleSlash {
    /// Itself.
    Keep,
    /// The same as `/`.
    Merge,
}

/// What `.` and `..` are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum DotSegments {
    /// Segments like all others.
    Keep,
    /// Resolved before escapes are decoded; `%2e` is such a dot too.
    ResolveEncoded,
    /// Resolved after escapes are decoded.
    Resolve,
}

/// What `;` in the query is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum QuerySemicolon {
    /// Part of a name or value.
    Literal,
    /// A separator of parameters, like `&`.
    Separator,
    /// It makes the parameter that holds it invalid, and that is dropped. So is one with a broken escape: `?a=%zz`.
    Drop,
}
