//! Describes what is wrong with a policy file without quoting it: the file may hold the store's password, and these
//! messages appear in the log, on `/readyz` and on the live page. A message has the location, the names of *our* fields,
//! the kind of the value and the remedy. The parser's own messages quote lines, keys, tags and values of the file.

use std::fmt::Write;

use serde_saphyr::{Error, ExternalMessageSource, Location};
use sluicegate_rules::config::nearest;

const DURATION: &str = "a duration such as `10s`, `1m` or `24h`";
const FILE: &str = "the path of a file";
const WHOLE: &str = "a whole number of 1 or more";

/// All fields of the file, and the values that each accepts.
const FIELDS: [(&str, &str); 36] = [
    (
        "store",
        "`memory` or the URL of a Redis, `\"redis://HOST:PORT\"`",
    ),
    ("url", "the URL of a Redis, `\"redis://HOST:PORT\"`"),
    ("username_file", FILE),
    ("password_file", FILE),
    (
        "tls",
        "a mapping of `ca`, `certificate`, `key` and `server_name`",
    ),
    ("ca", FILE),
    ("certificate", FILE),
    (
        "key",
        "in `tls` the path of a file, in `overrides` the key of decisions, a text",
    ),
    ("server_name", "the name in the certificate of Redis"),
    ("key_prefix", "a text that is put before every key"),
    ("connections", "a whole number from 1 to 16"),
    (
        "sentinel",
        "a mapping of `username_file` and `password_file`",
    ),
    ("store_timeout", DURATION),
    ("memory_limit", "a size such as `256MiB`"),
    ("denial_ttl", DURATION),
    ("when_store_is_down", "`share`, `allow` or `deny`"),
    (
        "limits",
        "a mapping from each limit's name to its `algorithm` and `windows`",
    ),
    (
        "algorithm",
        "one of `sliding_log`, `sliding_window`, `fixed_window` and `token_bucket`",
    ),
    (
        "windows",
        "a list of mappings, for example `- { quota: 100, per: 1m }`",
    ),
    ("quota", WHOLE),
    (
        "per",
        "a duration such as `10s`, `1m` or `24h`, or `day`, `week` or `month`",
    ),
    ("time_zone", "a name such as `Europe/Berlin`"),
    ("precision", DURATION),
    ("burst", WHOLE),
    (
        "quota_from_request",
        "a mapping of `max`, for example `{ max: 5000 }`",
    ),
    ("max", WHOLE),
    (
        "lease",
        "a mapping of `longest`, `most` and `from`, for example `{ longest: 100ms }`",
    ),
    ("longest", DURATION),
    ("most", WHOLE),
    ("from", "a rate such as `50/s`"),
    (
        "overrides",
        "a list of mappings, for example `- { key: KEY, quota: 500 }`",
    ),
    ("unlimited", "`true`"),
    ("blocked", "`true`"),
    ("until", "a time such as `2026-11-22T03:00:00Z`"),
    ("reason", "a text of one line"),
    ("by", "a name"),
];

/// The longest value that a message quotes.
const MAX_SHOWN: usize = 64;

/// Describes an error of the parser: line, column, field, what is there and what should be there.
pub fn describe(error: &Error, text: &str) -> String {
    let mut message = String::new();
    let location = error.location();
    if let Some(location) = location {
        // Writing to a string does not fail.
        let _ = write!(
            message,
            "line {}, column {}: ",
            location.line(),
            location.column()
        );
    }
    message + &problem(error, text, location)
}

fn problem(error: &Error, text: &str, location: Option<Location>) -> String {
    match error {
        Error::WithSnippet { error, .. } | Error::AliasError { error, .. } => {
            problem(error, text, location)
        }
        Error::Eof { .. }
            if text
                .lines()
                .all(|line| line.trim().split('#').next() == Some("")) =>
        {
            "the file is empty: it needs `limits`".to_owned()
        }
        Error::Eof { .. } => "the file ends too early".to_owned(),
        Error::MultipleDocuments { .. } => {
            "a second YAML document begins: a policy is a single document, so remove this one"
                .to_owned()
        }
        Error::SerdeMissingField { field, .. } => format!("`{field}` is missing{}", takes(field)),
        Error::SerdeUnknownField {
            field, expected, ..
        } => match nearest(field, expected.iter().copied()) {
            Some(near) => format!("there is no field `{field}`: did you mean `{near}`?"),
            None => format!(
                "this is not a field: valid fields here are {}",
                list(expected)
            ),
        },
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => match nearest(variant, expected.iter().copied()) {
            Some(near) => format!("`{variant}` does not exist: did you mean `{near}`?"),
            None => wrong_type(text, location, "a name"),
        },
        Error::DuplicateMappingKey { key, .. } => match key {
            Some(key) if FIELDS.iter().any(|(name, _)| name == key) => {
                format!("`{key}` is given twice: remove one")
            }
            _ => "this key is given twice: remove one".to_owned(),
        },
        Error::UnknownAnchor { .. } => {
            "this alias has no anchor: if the `*` belongs to the value, put the value in quotes"
                .to_owned()
        }
        Error::ExternalMessage { source, msg, .. } => match **source {
            // The scanner's messages are fixed texts, except for single characters such as a bracket.
            ExternalMessageSource::Parser(_) => format!("this is not YAML: {msg}"),
            _ => OTHER.to_owned(),
        },
        Error::Unexpected { expected, .. } => wrong_type(
            text,
            location,
            match *expected {
                "mapping start" => "a mapping",
                "sequence start" => "a list",
                "string scalar" => "a text",
                _ => "a value of another kind",
            },
        ),
        Error::InvalidScalar { .. } => wrong_type(text, location, "a number"),
        Error::SerdeInvalidType { .. }
        | Error::SerdeInvalidValue { .. }
        | Error::SerdeInvalidLength { .. }
        | Error::NullIntoString { .. }
        | Error::TaggedEnumMismatch { .. }
        | Error::TaggedScalarCannotDeserializeIntoString { .. }
        | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. } => {
            wrong_type(text, location, "a value of another kind")
        }
        _ => OTHER.to_owned(),
    }
}

/// For errors whose own message might quote the file.
const OTHER: &str = "this cannot be read: write it in plain YAML, without tags, merges or aliases";

/// Describes a value of the wrong type, with its field if that can be determined.
fn wrong_type(text: &str, location: Option<Location>, expected: &str) -> String {
    let start = location.and_then(|location| offset(text, location));
    let (before, after) = start
        .and_then(|start| text.split_at_checked(start))
        .unwrap_or((text, ""));
    let found = value_kind(after);
    match field_before(before) {
        Some((field, takes)) => format!("`{field}` is {found}: give {takes}"),
        None => format!("expected {expected}, found {found}"),
    }
}

/// The byte offset of a location in the text.
fn offset(text: &str, location: Location) -> Option<usize> {
    let lines_before = usize::try_from(location.line()).ok()?.checked_sub(1)?;
    let characters_before = usize::try_from(location.column()).ok()?.checked_sub(1)?;
    let line_start: usize = text
        .split_inclusive('\n')
        .take(lines_before)
        .map(str::len)
        .sum();
    let line = text.get(line_start..)?;
    Some(
        line_start
            + line
                .chars()
                .take(characters_before)
                .map(char::len_utf8)
                .sum::<usize>(),
    )
}

/// The field whose value, or an entry of whose list, begins after this text.
fn field_before(before: &str) -> Option<&'static (&'static str, &'static str)> {
    let opened = |c: char| c.is_whitespace() || matches!(c, '[' | '-' | '{');
    let key = before.trim_end_matches(opened).strip_suffix(':')?;
    let is_named = |name: &str| {
        let rest = key.strip_suffix(name);
        rest.is_some_and(|rest| {
            !rest.ends_with(|c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.'))
        })
    };
    FIELDS.iter().find(|(name, _)| is_named(name))
}

/// The kind of the value that begins here. A number is quoted: no secret is one.
fn value_kind(after: &str) -> String {
    let line = after.lines().next().unwrap_or_default();
    let token = line
        .split([',', '}', ']', '#'])
        .next()
        .unwrap_or_default()
        .trim();
    let named = match line.chars().next() {
        None => "nothing",
        Some('{') => "a mapping",
        Some('[') => "a list",
        Some('-') if token == "-" || token.starts_with("- ") => "a list",
        Some('*') => "an alias",
        Some('!') => "a tagged value",
        Some('"' | '\'' | '|' | '>') => "a text",
        _ if token.contains(": ") || token.ends_with(':') => "a mapping",
        _ if matches!(token, "" | "~" | "null") => "nothing",
        _ if matches!(token, "true" | "false") => "a boolean",
        _ if token.len() <= MAX_SHOWN && token.parse::<f64>().is_ok_and(f64::is_finite) => token,
        _ => "a text",
    };
    named.to_owned()
}

fn takes(field: &str) -> String {
    let found = FIELDS.iter().find(|(name, _)| *name == field);
    found.map_or_else(String::new, |(_, takes)| format!(": give {takes}"))
}

fn list(names: &[&str]) -> String {
    let quoted: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}

/// A name or a duration of the file, in backticks, if it cannot be part of a URL; else `otherwise`.
pub fn shown(value: &str, otherwise: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, ' ' | '-' | '+' | '_' | '.');
    if value.len() <= MAX_SHOWN && value.chars().all(plain) {
        format!("`{value}`")
    } else {
        otherwise.to_owned()
    }
}
