//! Describes what is wrong with a policy file that is not YAML or has a field of the wrong type: line, column, field, the
//! value there, and what to give instead.

use serde_saphyr::{Error, ExternalMessageSource, Location};
use sluicegate_protocol::is_digits;
use sluicegate_rules::config::nearest;

use super::consumers_file::HASH_DIGITS;
use super::fields::is_name;
use crate::mask::{masked, shown};

/// Fields whose values are never quoted: they may be a password, or the key of a client.
const SECRET: [&str; 6] = ["store", "url", "key", "overrides", "pepper", "keys"];

/// What to give for a field.
type Takes = fn(&str) -> &'static str;

/// Describes an error of the library.
pub fn describe(error: &Error, text: &str, takes: Takes) -> String {
    let location = error.location();
    let problem = problem(error, text, location, takes);
    match location {
        Some(at) => format!("line {}, column {}: {problem}", at.line(), at.column()),
        None => problem,
    }
}

fn problem(error: &Error, text: &str, location: Option<Location>, takes: Takes) -> String {
    match error {
        Error::AliasError { error, .. } => problem(error, text, location, takes),
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
        Error::SerdeMissingField { field, .. } => {
            format!("`{field}` is missing: give {}", takes(field))
        }
        Error::SerdeUnknownField {
            field, expected, ..
        } => unknown_field(field, expected),
        Error::SerdeUnknownVariant {
            variant, expected, ..
        } => match nearest(variant, expected.iter().copied()) {
            Some(near) => format!("`{variant}` does not exist: did you mean `{near}`?"),
            None => wrong_value(text, location, takes),
        },
        Error::DuplicateMappingKey { key, .. } => {
            // The hash of a consumer's key is not repeated.
            let key = key.as_deref().filter(|key| !is_digits(key, HASH_DIGITS));
            let key = key.map_or_else(|| "this key".to_owned(), shown);
            format!("{key} is given twice: remove one")
        }
        Error::UnknownAnchor { .. } => {
            "this alias has no anchor: if the `*` belongs to the value, put the value in quotes"
                .to_owned()
        }
        Error::ExternalMessage { source, msg, .. }
            if matches!(**source, ExternalMessageSource::Parser(_)) =>
        {
            // `while parsing a block mapping, did not find expected key`, at the line that is indented otherwise.
            let remedy = if msg.contains("expected key") {
                ": indent this line as its neighbours"
            } else {
                ""
            };
            format!("this is not YAML: {}{remedy}", masked(msg))
        }
        // The only field that accepts two kinds. The location is that of its name.
        Error::SerdeInvalidType { .. } => {
            format!(
                "`store` is neither a text nor a mapping: give {}",
                takes("store")
            )
        }
        Error::Unexpected { .. }
        | Error::InvalidScalar { .. }
        | Error::NullIntoString { .. }
        | Error::ExternallyTaggedEnumExpectedScalarOrMapping { .. }
        | Error::UnexpectedValueForUnitEnumVariant { .. } => wrong_value(text, location, takes),
        _ => "this cannot be read: write it in plain YAML, without tags, merges or aliases"
            .to_owned(),
    }
}

fn unknown_field(field: &str, expected: &[&str]) -> String {
    if let Some(near) = nearest(field, expected.iter().copied()) {
        return format!("there is no field `{field}`: did you mean `{near}`?");
    }
    // Parts of a URL without quotes, or a key in the place of `key`, are read as fields.
    let is_secret = expected.iter().any(|known| matches!(*known, "url" | "key"));
    let field = if is_secret {
        "this".to_owned()
    } else {
        shown(field)
    };
    let expected = expected.join("`, `");
    format!("{field} is not a field: valid fields here are `{expected}`")
}

/// Describes a value of the wrong type, with its field if that can be determined.
fn wrong_value(text: &str, location: Option<Location>, takes: Takes) -> String {
    let span = location.map(|location| location.span());
    let start = span.and_then(|span| usize::try_from(span.byte_offset()?).ok());
    let length = span.and_then(|span| usize::try_from(span.byte_len()?).ok());
    let (before, after) = start
        .and_then(|start| text.split_at_checked(start))
        .unwrap_or((text, ""));
    let value = after.get(..length.unwrap_or(0)).unwrap_or_default();
    let field = field_before(before);
    let found = match after.chars().next() {
        Some('[') => "a list".to_owned(),
        Some('{') => "a mapping".to_owned(),
        Some('-') if value.is_empty() => "a list".to_owned(),
        Some(c) if value.is_empty() && !c.is_whitespace() => "a mapping".to_owned(),
        _ if matches!(value, "" | "~" | "null") => "nothing".to_owned(),
        // Without a field it may be an entry of `overrides`.
        _ if field.is_none_or(|field| SECRET.contains(&field)) => "a single value".to_owned(),
        _ => shown(value),
    };
    match field {
        Some(field) => format!("`{field}` is {found}: give {}", takes(field)),
        None => format!("expected a mapping, found {found}"),
    }
}

/// The field whose value, or an entry of whose list, begins after this text.
fn field_before(before: &str) -> Option<&str> {
    // A tag or an anchor may come before the value.
    let before = match before.trim_end().rsplit_once(char::is_whitespace) {
        Some((before, mark)) if mark.starts_with(['!', '&']) => before,
        _ => before,
    };
    let opened = |c: char| c.is_whitespace() || matches!(c, '[' | '-' | '{');
    let key = before.trim_end_matches(opened).strip_suffix(':')?;
    let key = key.trim_end_matches(['"', '\'']);
    let begins = |c: char| c.is_whitespace() || matches!(c, '{' | ',' | '"' | '\'');
    let name = key.rsplit(begins).next()?;
    is_name(name).then_some(name)
}
