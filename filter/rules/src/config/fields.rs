//! Reads the canonical form: JSON objects all of whose fields must be known. What is wrong is named; the sidecar, which has read
//! the same rules before (`schema.rs`), says how to mend it. Nothing is inlined: the filter would be larger by tens of kilobytes.

use serde_json::{Map, Value};

use super::error::{ConfigError, invalid};

/// An object and its path; fields that nobody has taken are refused at its end.
#[derive(Default)]
pub(super) struct Fields {
    pub at: String,
    fields: Map<String, Value>,
}

impl Fields {
    #[inline(never)]
    pub fn of(at: String, value: Value) -> Result<Self, ConfigError> {
        match value {
            Value::Object(fields) => Ok(Self { at, fields }),
            _ if at.is_empty() => invalid("configuration", "is not an object"),
            _ => invalid(&at, "is not an object"),
        }
    }

    pub fn has(&self, name: &str) -> bool {
        self.fields.contains_key(name)
    }

    /// The path of a field.
    #[inline(never)]
    pub fn at(&self, name: &str) -> String {
        match self.at.as_str() {
            "" => name.to_owned(),
            at => format!("{at}.{name}"),
        }
    }

    /// Takes a field; one that is null is absent.
    #[inline(never)]
    pub fn take(&mut self, name: &str) -> Option<Value> {
        let field = self.fields.remove(name);
        field.filter(|value| !value.is_null())
    }

    #[inline(never)]
    pub fn text(&mut self, name: &str) -> Result<Option<String>, ConfigError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => invalid(&self.at(name), "is not a text"),
        }
    }

    #[inline(never)]
    pub fn flag(&mut self, name: &str) -> Result<Option<bool>, ConfigError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(_) => invalid(&self.at(name), "is neither `true` nor `false`"),
        }
    }

    #[inline(never)]
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, ConfigError> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        match value.as_u64() {
            Some(number) => Ok(Some(number)),
            None => invalid(&self.at(name), "is not a whole number"),
        }
    }

    /// The index of the word that a field is.
    #[inline(never)]
    pub fn word(&mut self, name: &str, words: &[&str]) -> Result<Option<usize>, ConfigError> {
        match self.text(name)? {
            None => Ok(None),
            Some(text) => word(&self.at(name), &text, words).map(Some),
        }
    }

    #[inline(never)]
    pub fn inner(&mut self, name: &str) -> Result<Option<Self>, ConfigError> {
        let at = self.at(name);
        self.take(name).map(|value| Self::of(at, value)).transpose()
    }

    /// The entries of a list, each with its path; none if it is absent.
    #[inline(never)]
    pub fn list(&mut self, name: &str) -> Result<Vec<(String, Value)>, ConfigError> {
        let at = self.at(name);
        entries(
            &at,
            self.take(name).unwrap_or_else(|| Value::Array(Vec::new())),
        )
    }

    /// The objects of a list.
    #[inline(never)]
    pub fn objects(&mut self, name: &str) -> Result<Vec<Self>, ConfigError> {
        let entries = self.list(name)?;
        let mut objects = Vec::with_capacity(entries.len());
        for (at, value) in entries {
            objects.push(Self::of(at, value)?);
        }
        Ok(objects)
    }

    /// The texts of a list, each with its path.
    #[inline(never)]
    pub fn texts(&mut self, name: &str) -> Result<Vec<(String, String)>, ConfigError> {
        texts(self.list(name)?)
    }

    /// The fields of an object whose names are free.
    pub fn into_map(self) -> Map<String, Value> {
        self.fields
    }

    /// Refuses a field without which there is nothing to do.
    pub fn needs<T>(&self, name: &str, value: Option<T>) -> Result<T, ConfigError> {
        value.map_or_else(|| invalid(&self.at(name), "is missing"), Ok)
    }

    /// Refuses fields that are not known.
    #[inline(never)]
    pub fn end(&self) -> Result<(), ConfigError> {
        match self.fields.keys().next() {
            None => Ok(()),
            Some(name) => invalid(&self.at(name), "is no field that this version knows"),
        }
    }
}

/// The entries of a list, each with its path.
pub(super) fn entries(at: &str, value: Value) -> Result<Vec<(String, Value)>, ConfigError> {
    let Value::Array(list) = value else {
        return invalid(at, "is not a list");
    };
    let entries = list.into_iter().enumerate();
    Ok(entries
        .map(|(index, entry)| (format!("{at}[{index}]"), entry))
        .collect())
}

/// The texts of a list's entries.
pub(super) fn texts(entries: Vec<(String, Value)>) -> Result<Vec<(String, String)>, ConfigError> {
    let mut texts = Vec::with_capacity(entries.len());
    for (at, value) in entries {
        match value {
            Value::String(text) => texts.push((at, text)),
            _ => return invalid(&at, "is not a text"),
        }
    }
    Ok(texts)
}

/// The index of a word. Not what it stands for, by a type parameter: that is 7 KB more of the filter.
pub(super) fn word(at: &str, text: &str, words: &[&str]) -> Result<usize, ConfigError> {
    let known = words.iter().position(|word| *word == text);
    known.map_or_else(
        || {
            invalid(
                at,
                format_args!("`{text}` is none of `{}`", words.join("`, `")),
            )
        },
        Ok,
    )
}
