//! Describes errors in a request's JSON by field. Runs only after reading has failed.

use serde::Deserialize;
use serde_json::error::Category;

use crate::{BODY, Code, Problem};

/// The location and description of an error.
#[derive(Debug)]
pub(crate) struct FieldError {
    /// `checks[1].cost`; empty for the whole.
    path: String,
    why: String,
}

impl FieldError {
    /// An error of the whole body.
    pub fn of_body(why: String) -> Self {
        Self {
            path: String::new(),
            why,
        }
    }

    /// An unknown field.
    pub fn unknown(name: &str) -> Self {
        Self {
            path: name.to_owned(),
            why: "unknown field".to_owned(),
        }
    }

    /// A missing field.
    pub fn missing(name: &str) -> Self {
        Self::of_body(format!("missing field `{name}`"))
    }

    /// As a problem, whose message begins with `prefix`. `within` is the path of the value that was read, empty for the body.
    pub fn problem(&self, code: Code, prefix: &str, within: &str) -> Problem {
        let (path, why) = (join(within, &self.path), &self.why);
        let missing = why.strip_prefix("missing field `");
        let field = join(&path, missing.map_or("", |name| name.trim_end_matches('`')));
        let message = if path.is_empty() {
            format!("{prefix}{why}")
        } else {
            format!("{prefix}`{path}`: {why}")
        };
        Problem::new(code, message).at(if field.is_empty() { BODY } else { &field })
    }
}

/// The path of a part, by its path within another one; either may be empty.
fn join(within: &str, path: &str) -> String {
    let is_one = within.is_empty() || path.is_empty() || path.starts_with('[');
    format!("{within}{}{path}", if is_one { "" } else { "." })
}

/// Reads all of a text, and says where it cannot be read.
#[cfg(feature = "field-paths")]
pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, FieldError> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        // The library's names for the whole value and for an unknown location.
        let path = path.trim_start_matches(['.', '?']);
        FieldError {
            path: path.to_owned(),
            why: words(path, error.inner()),
        }
    })?;
    reader
        .end()
        .map_err(|error| FieldError::of_body(error.to_string()))?;
    Ok(value)
}

/// Without the feature `field-paths`: an error does not name the field.
#[cfg(not(feature = "field-paths"))]
pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, FieldError> {
    serde_json::from_slice(json).map_err(|error| FieldError::of_body(words("", &error)))
}

/// Rewrites serde's message. Of the given values, only numbers are shown, and none that is in place of a key: any text
/// may be a misplaced key, and keys may be secrets.
fn words(path: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.classify() != Category::Data {
        return text;
    }
    let message = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(message, _)| message);
    if message.starts_with("invalid length") {
        return "a list is not an object".to_owned();
    }
    let mismatch = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| message.strip_prefix(kind))
        .and_then(|rest| rest.rsplit_once(", expected "));
    let Some((given, expected)) = mismatch else {
        return message.to_owned();
    };
    let number = ["integer `", "floating point `"]
        .iter()
        .find_map(|kind| given.strip_prefix(kind))
        .map(|rest| rest.trim_end_matches('`'));
    let given = match number {
        Some(number) if !path.ends_with("key") => number,
        Some(_) => "a number",
        None if given.starts_with("string") => "a string",
        None if given.starts_with("boolean") => "a boolean",
        None if given.starts_with("map") => "an object",
        None if given.starts_with("sequence") => "a list",
        None if given.starts_with("null") => "null",
        None => "this",
    };
    let expected = match expected {
        "u64" | "a JSON number" => "an integer of at least 0",
        "a sequence" => "a list",
        "a boolean" => "`true` or `false`",
        other if other.starts_with("struct") => "an object",
        "a map" => "an object",
        other => other,
    };
    format!("{given} is not {expected}")
}
