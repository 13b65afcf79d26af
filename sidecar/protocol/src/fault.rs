//! What is wrong with a request's JSON, said of the field that it is about. Only where reading has failed already.

use serde::Deserialize;
use serde_json::error::Category;

/// Where something is wrong, and what.
#[derive(Debug)]
pub(crate) struct Fault {
    /// `checks[1].cost`, or nothing where it is the whole.
    path: String,
    why: String,
}

impl Fault {
    /// For people; `within` is where what was read stands.
    pub fn within(&self, within: &str) -> String {
        let between = match (within, self.path.as_str()) {
            ("", "") => return self.why.clone(),
            ("", _) | (_, "") => "",
            (_, path) if path.starts_with('[') => "",
            _ => ".",
        };
        format!("`{within}{between}{}`: {}", self.path, self.why)
    }
}

/// Reads all of a text, and says where it cannot be read.
#[cfg(feature = "field-paths")]
pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Fault> {
    let mut reader = serde_json::Deserializer::from_slice(json);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        // What the library calls the whole, and a place that it does not know.
        let path = path.trim_start_matches(['.', '?']);
        Fault {
            path: path.to_owned(),
            why: words(path, error.inner()),
        }
    })?;
    reader.end().map_err(|error| Fault {
        path: String::new(),
        why: error.to_string(),
    })?;
    Ok(value)
}

/// Likewise, without knowing where.
#[cfg(not(feature = "field-paths"))]
pub(crate) fn read<'a, T: Deserialize<'a>>(json: &'a [u8]) -> Result<T, Fault> {
    serde_json::from_slice(json).map_err(|error| Fault {
        path: String::new(),
        why: words("", &error),
    })
}

/// An error without serde's words. Of what was given only numbers are shown, and none that stands for a key: any text may
/// be a key in the wrong place, and keys may be secrets.
fn words(path: &str, error: &serde_json::Error) -> String {
    let text = error.to_string();
    if error.classify() != Category::Data {
        return text;
    }
    let said = text
        .rsplit_once(" at line ")
        .map_or(text.as_str(), |(said, _)| said);
    if said.starts_with("invalid length") {
        return "a list is not an object".to_owned();
    }
    let mismatch = ["invalid type: ", "invalid value: "]
        .iter()
        .find_map(|kind| said.strip_prefix(kind))
        .and_then(|rest| rest.rsplit_once(", expected "));
    let Some((given, expected)) = mismatch else {
        return said.to_owned();
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
        "u64" => "a whole number, 0 or more",
        "a sequence" => "a list",
        "a boolean" => "`true` or `false`",
        other if other.starts_with("struct") => "an object",
        "a map" => "an object",
        other => other,
    };
    format!("{given} is not {expected}")
}
