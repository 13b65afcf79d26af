//! Reads a policy's YAML, and its types from that; describes what is wrong: line, column, field, the value there, and what to
//! give instead.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_path_to_error::Segment;
use serde_saphyr::{Error, ExternalMessageSource, Location};
use sluicegate_rules::config::nearest;

use super::fields::is_name;
use crate::mask::{masked, shown};
use crate::yaml::{Data, Node, entries, fields, scalar, value};

/// Fields whose values are never quoted: they may be a password, or the key of a client.
const SECRET: [&str; 6] = ["store", "url", "key", "overrides", "pepper", "keys"];

/// The fields outside `rules` with a list.
const LISTS: [&str; 2] = ["windows", "overrides"];

/// What to give for a field.
type Takes = fn(&str) -> &'static str;

/// Reads a text in which these are fields.
///
/// # Errors
/// It is not YAML.
pub fn load(text: &str, is_field: impl Fn(&str) -> bool) -> Result<Node, String> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    serde_saphyr::from_str_with_options(text, options).map_err(|error| match error.location() {
        Some(at) => placed(at, &problem(&error, is_field)),
        None => problem(&error, is_field),
    })
}

/// Reads the types of a policy from its long form.
///
/// # Errors
/// The first field that is not as it should be.
pub fn read<T: DeserializeOwned>(file: &Node, takes: Takes) -> Result<T, String> {
    if scalar(file) == Some(&Value::Null) {
        return Err(placed(
            file.referenced,
            "the file is empty: it needs `limits`",
        ));
    }
    let read = serde_path_to_error::deserialize(value(file)).map_err(|error| {
        let (mut node, mut at, mut field) = (file, file.referenced, None);
        for segment in error.path() {
            let found = match segment {
                Segment::Map { key } => {
                    let mut fields = fields(node).iter();
                    let found = fields.find(|(name, _)| name.value == *key);
                    // Those of `keys` are hashes.
                    field = field
                        .filter(|field| *field == "keys")
                        .or(Some(key.as_str()));
                    found.map(|(name, inner)| (name.referenced, inner))
                }
                Segment::Seq { index } => {
                    let found = entries(node).get(*index);
                    found.map(|inner| (inner.referenced, inner))
                }
                Segment::Enum { .. } | Segment::Unknown => None,
            };
            (at, node) = found.unwrap_or((at, node));
        }
        let why = error.inner().to_string();
        let (what, expected) = why.rsplit_once(", expected ").unwrap_or((&why, ""));
        let [mut names, mut known] =
            [what, expected].map(|part| part.split('`').skip(1).step_by(2));
        let name = names.next().unwrap_or_default();
        match (what.split(' ').nth(1), field) {
            (Some("field"), _) if what.starts_with("missing") => {
                let why = format!("`{name}` is missing: give {}", takes(name));
                placed(node.referenced, &why)
            }
            (Some("field"), Some(field)) => {
                placed(at, &unknown_field(field, &known.collect::<Vec<_>>()))
            }
            (Some("variant"), _) if let Some(near) = nearest(name, known.by_ref()) => {
                let why = format!("`{name}` does not exist: did you mean `{near}`?");
                placed(node.referenced, &why)
            }
            _ => placed(node.referenced, &wrong(node, field, expected, takes)),
        }
    })?;
    match misplaced_list(file, None) {
        Some((list, field)) => Err(placed(list.referenced, &wrong(list, field, "", takes))),
        None => Ok(read),
    }
}

/// A list in the place of a mapping, with its field. `serde` would read it as the values of the mapping's fields.
fn misplaced_list<'n>(
    node: &'n Node,
    field: Option<&'n str>,
) -> Option<(&'n Node, Option<&'n str>)> {
    let is_list = matches!(node.value, Data::List(_));
    if is_list && field.is_none_or(|field| !LISTS.contains(&field)) {
        return Some((node, field));
    }
    let of_names = matches!(field, Some("limits" | "consumers" | "keys"));
    let within = fields(node)
        .iter()
        .map(|(name, inner)| (inner, Some(name.value.as_str()).filter(|_| !of_names)));
    // Other code reads them.
    let within = within.filter(|(_, field)| *field != Some("rules"));
    let entries = entries(node).iter().map(|inner| (inner, None));
    let mut all = within.chain(entries);
    all.find_map(|(inner, field)| misplaced_list(inner, field))
}

fn placed(at: Location, why: &str) -> String {
    format!("line {}, column {}: {why}", at.line(), at.column())
}

/// Describes a value of the wrong type.
fn wrong(node: &Node, field: Option<&str>, expected: &str, takes: Takes) -> String {
    let (kind, field) = (scalar(node), field.filter(|field| is_name(field)));
    let is_secret = field.is_none_or(|field| SECRET.contains(&field));
    let found = match kind {
        Some(Value::String(_) | Value::Bool(_) | Value::Number(_)) if is_secret => {
            "a single value".to_owned()
        }
        _ => found(node),
    };
    let Some(field) = field else {
        return format!("expected a mapping, found {found}");
    };
    let is_text = expected.contains("string");
    let quotes = match kind {
        Some(Value::Bool(_) | Value::Number(_)) if is_text => ", in quotes",
        Some(Value::String(text)) if !is_text && text.parse::<f64>().is_ok() => ", without quotes",
        _ => "",
    };
    format!("`{field}` is {found}: give {}{quotes}", takes(field))
}

/// What stands in the place of something else.
pub(super) fn found(node: &Node) -> String {
    match &node.value {
        Data::Scalar(Value::String(text)) => shown(text),
        Data::Scalar(Value::Null) => "nothing".to_owned(),
        Data::Scalar(other) => shown(&other.to_string()),
        Data::List(_) => "a list".to_owned(),
        Data::Fields(_) => "a mapping".to_owned(),
    }
}

fn problem(error: &Error, is_field: impl Fn(&str) -> bool) -> String {
    match error {
        Error::AliasError { error, .. } => problem(error, is_field),
        Error::Eof { .. } => "the file ends too early".to_owned(),
        Error::MultipleDocuments { .. } => {
            "a second YAML document begins: a policy is a single document, so remove this one"
                .to_owned()
        }
        Error::DuplicateMappingKey { key, .. } => {
            // What is no field may be a client's key, or its hash.
            let field = key.as_deref().filter(|key| is_field(key));
            let field = field.map_or_else(|| "this key".to_owned(), shown);
            format!("{field} is given twice: remove one")
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
