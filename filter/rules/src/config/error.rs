//! Configuration errors: field, value and remedy, with a suggestion for a misspelt name.

use std::fmt;

/// Why a configuration is refused.
#[derive(Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// The field, by its path: `rules[0].checks[1].cost`.
    pub field: String,
    /// Value and remedy.
    pub why: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}`: {}", self.field, self.why)
    }
}

impl std::error::Error for ConfigError {}

/// An error for the field `at`.
pub(super) fn invalid<T>(at: &str, why: impl fmt::Display) -> Result<T, ConfigError> {
    Err(error(at, &why))
}

/// Not inlined, and of one type: it is called from a hundred places.
#[cold]
#[inline(never)]
fn error(at: &str, why: &dyn fmt::Display) -> ConfigError {
    ConfigError {
        field: at.to_owned(),
        why: why.to_string(),
    }
}

/// Makes a [`ConfigError`] of serde's, suggests the nearest name for an unknown one, and names no type of Rust.
#[cfg(feature = "schema")]
pub(super) fn read_error(error: &serde_path_to_error::Error<serde_json::Error>) -> ConfigError {
    let (path, mut why) = (error.path().to_string(), error.inner().to_string());
    let field = match path.as_str() {
        "" | "." => "configuration",
        path => path,
    };
    if why.starts_with("unknown ") {
        // For example: unknown field `cots`, expected one of `limit`, `key`, `cost`.
        let mut names = why.split('`').skip(1).step_by(2);
        let nearest = names.next().and_then(|given| nearest(given, names));
        if let Some(name) = nearest {
            why = format!("{why}; did you mean `{name}`?");
        }
    }
    // For example: invalid type: string "POST", expected a sequence.
    if let Some((found, expected)) = why.rsplit_once(", expected ")
        && found.starts_with("invalid ")
    {
        let found = found.replace(": sequence", ": a list");
        let found = found.replace(": map", ": an object");
        why = format!("{found}, expected {}", in_words(expected, field));
    }
    ConfigError {
        field: field.to_owned(),
        why,
    }
}

/// What serde expects in a field.
#[cfg(feature = "schema")]
fn in_words<'a>(expected: &'a str, field: &str) -> &'a str {
    match expected {
        "u8" => "a whole number from 0 to 255",
        "u64" => "a whole number",
        "a boolean" => "`true` or `false`",
        "a sequence" if field.ends_with(".key") => "a list such as `[{ header: x-api-key }]`",
        "a sequence" if field.ends_with(".methods") => "a list such as `[GET, POST]`",
        "a sequence" => "a list",
        "string or map" => "a name",
        "unit" | "unit variant" => "the name alone",
        "newtype variant" => "a value, as in `{NAME: ...}`",
        _ if expected.starts_with("struct ") => "an object",
        _ => expected,
    }
}

#[cfg(feature = "schema")]
/// The name that this one misspells. If more than a third differs, it is another word, or a secret in the wrong place.
pub fn nearest<'a>(given: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, name) = names
        .map(|name| (strsim::osa_distance(given, name), name))
        .min_by_key(|(distance, _)| *distance)?;
    (distance * 3 <= name.len()).then_some(name)
}

#[cfg(test)]
#[cfg(feature = "schema")]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_suggested_and_a_different_word_is_not() {
        let names = || ["limit", "key", "cost"].into_iter();
        assert_eq!(nearest("cots", names()), Some("cost"));
        assert_eq!(nearest("limits", names()), Some("limit"));
        assert_eq!(nearest("unrelated", names()), None);
        assert_eq!(nearest("", names()), None);
        // Even where as much differs as a short name has: it may be a secret.
        assert_eq!(nearest("hunter2limit", names()), None);
    }
}
