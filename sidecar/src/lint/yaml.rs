//! YAML with the line of each field.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, MergeKeyPolicy, NonFiniteFloatPolicy, Spanned};

use crate::mask::masked;

/// Deeper than any manifest, aliases included: Envoy's own files have about 25 levels, and plugin configurations that are
/// strings begin anew. A level takes up to 40 KB of stack in a debug build, and the main thread has 8 MB.
const MAX_DEPTH: usize = 64;
/// More than what all objects of a large cluster have.
const MAX_NODES: usize = 10_000_000;

/// A value, and the line of each field in it, by the field's path (`rules[0].name`).
#[derive(Debug, Default)]
pub struct ValueWithLines {
    /// The value as JSON.
    pub value: Value,
    lines: BTreeMap<String, usize>,
}

impl ValueWithLines {
    /// The line of a field, or of the nearest parent that has one.
    pub fn line(&self, path: &str) -> usize {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return *line;
            }
            match path.rfind(['.', '[']) {
                Some(end) => path = path.get(..end).unwrap_or_default(),
                None => return self.lines.get("").copied().unwrap_or(1),
            }
        }
    }
}

/// A value with its line.
pub type Node = Spanned<Data>;

/// A value of any kind.
pub enum Data {
    Null,
    Boolean(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    Mapping(Vec<(Node, Node)>),
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Data;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("YAML")
            }
            fn visit_unit<E>(self) -> Result<Data, E> {
                Ok(Data::Null)
            }
            fn visit_bool<E>(self, flag: bool) -> Result<Data, E> {
                Ok(Data::Boolean(flag))
            }
            fn visit_i64<E>(self, number: i64) -> Result<Data, E> {
                Ok(Data::Integer(number))
            }
            fn visit_u64<E>(self, number: u64) -> Result<Data, E> {
                Ok(i64::try_from(number).map_or(Data::Float(number as f64), Data::Integer))
            }
            fn visit_f64<E>(self, number: f64) -> Result<Data, E> {
                Ok(Data::Float(number))
            }
            fn visit_str<E>(self, text: &str) -> Result<Data, E> {
                Ok(Data::Text(text.to_owned()))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Data, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = list.next_element()? {
                    entries.push(entry);
                }
                Ok(Data::List(entries))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Data, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Data::Mapping(fields))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

/// The documents of a text.
pub fn load(text: &str) -> Result<Vec<Node>, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        merge_keys: MergeKeyPolicy::AsOrdinary,
        non_finite_float_policy: NonFiniteFloatPolicy::PassThrough,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
            enforce_alias_anchor_ratio: false,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        if is_too_deep(&error) {
            "is nested too deep to be a manifest".to_owned()
        } else {
            format!("is not YAML: {}", masked(&error.to_string()))
        }
    })
}

fn is_too_deep(error: &Error) -> bool {
    match error {
        Error::AliasError { error, .. } => is_too_deep(error),
        Error::Budget { breach, .. } => matches!(breach, BudgetBreach::Depth { .. }),
        _ => false,
    }
}

/// A field of a mapping.
pub fn get<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    fields(node).find_map(|(key, value)| (text(key) == Some(name)).then_some(value))
}

/// A field of a field, and so on.
pub fn at<'a>(node: &'a Node, path: &[&str]) -> Option<&'a Node> {
    path.iter().try_fold(node, |node, name| get(node, name))
}

/// The fields of a mapping; none of anything else.
pub fn fields(node: &Node) -> impl Iterator<Item = (&Node, &Node)> {
    let fields = match &node.value {
        Data::Mapping(fields) => fields.as_slice(),
        _ => &[],
    };
    fields.iter().map(|(key, value)| (key, value))
}

/// The entries of a list; none of anything else.
pub fn entries(node: &Node) -> &[Node] {
    match &node.value {
        Data::List(list) => list,
        _ => &[],
    }
}

/// What is directly inside a mapping or a list.
pub fn children(node: &Node) -> impl Iterator<Item = &Node> {
    fields(node).map(|(_, value)| value).chain(entries(node))
}

pub fn text(node: &Node) -> Option<&str> {
    match &node.value {
        Data::Text(text) => Some(text),
        _ => None,
    }
}

pub fn integer(node: &Node) -> Option<i64> {
    match &node.value {
        Data::Integer(number) => Some(*number),
        _ => None,
    }
}

/// Whether a field is `true`.
pub fn is_true(node: &Node, field: &str) -> bool {
    let flag = get(node, field).map(|flag| &flag.value);
    matches!(flag, Some(Data::Boolean(true)))
}

/// The line of a node; `before` lines of the file come before the text that it was loaded from.
pub fn line_of(node: &Node, before: usize) -> usize {
    usize::try_from(node.referenced.line()).unwrap_or_default() + before
}

/// How many lines of the file come before the text in this node, which is YAML itself.
pub fn lines_before(node: &Node, before: usize) -> usize {
    line_of(node, before).saturating_sub(1)
}

pub fn with_lines(node: &Node, before: usize) -> ValueWithLines {
    let mut lines = BTreeMap::new();
    lines.insert(String::new(), line_of(node, before));
    let value = convert(node, "", before, &mut lines);
    ValueWithLines { value, lines }
}

fn convert(node: &Node, path: &str, before: usize, lines: &mut BTreeMap<String, usize>) -> Value {
    match &node.value {
        Data::Null => Value::Null,
        Data::Boolean(flag) => (*flag).into(),
        Data::Integer(number) => (*number).into(),
        Data::Float(number) => (*number).into(),
        Data::Text(text) => text.as_str().into(),
        Data::List(list) => {
            let entries = list.iter().enumerate().map(|(index, entry)| {
                let path = format!("{path}[{index}]");
                lines.insert(path.clone(), line_of(entry, before));
                convert(entry, &path, before, lines)
            });
            Value::Array(entries.collect())
        }
        Data::Mapping(fields) => {
            let mut object = Map::new();
            for (key, value) in fields {
                let name = text(key).unwrap_or_default();
                let path = if path.is_empty() {
                    name.to_owned()
                } else {
                    format!("{path}.{name}")
                };
                // The key's line: the value may begin on the next.
                lines.insert(path.clone(), line_of(key, before));
                object.insert(name.to_owned(), convert(value, &path, before, lines));
            }
            Value::Object(object)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_lists_and_aliases_are_nested_to_a_bound() {
        // A test's thread has less than the main thread.
        let main = std::thread::Builder::new().stack_size(8 << 20);
        main.spawn(nested_to_a_bound).unwrap().join().unwrap();
    }

    fn nested_to_a_bound() {
        let is_too_deep = |text: &str| load(text).is_err_and(|why| why.contains("too deep"));
        let blocks = |depth: usize| -> String {
            let lines = (0..depth).map(|level| " ".repeat(level) + "a:\n");
            lines.collect()
        };
        assert!(load(&blocks(MAX_DEPTH - 1)).is_ok());
        assert!(is_too_deep(&blocks(MAX_DEPTH + 1)));
        assert!(is_too_deep(&blocks(5_000)));
        assert!(is_too_deep(&("- ".repeat(MAX_DEPTH + 1) + "x")));
        assert!(load(&"[".repeat(100_000)).is_err());
        // Each line is one deeper than the one before.
        let aliases = |lines: usize| {
            let line = |n: usize| format!("- &a{} [*a{n}]\n", n + 1);
            "- &a0 []\n".to_owned() + &(0..lines).map(line).collect::<String>()
        };
        assert!(load(&aliases(MAX_DEPTH - 3)).is_ok());
        assert!(is_too_deep(&aliases(MAX_DEPTH + 1)));
    }
}
