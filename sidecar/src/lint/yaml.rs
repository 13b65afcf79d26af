//! YAML with the line of each field.

use std::collections::BTreeMap;

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use serde_json::{Map, Value};

use super::nesting::is_too_deep;

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

/// The documents of a text.
pub fn load(text: &str) -> Result<Vec<MarkedYaml<'_>>, String> {
    if is_too_deep(text) {
        return Err("is nested too deep to be a manifest".to_owned());
    }
    MarkedYaml::load_from_str(text).map_err(|error| format!("is not YAML: {error}"))
}

/// A field of a mapping.
pub fn get<'a, 'i>(node: &'a MarkedYaml<'i>, name: &str) -> Option<&'a MarkedYaml<'i>> {
    fields(node).find_map(|(key, value)| (text(key) == Some(name)).then_some(value))
}

/// A field of a field, and so on.
pub fn at<'a, 'i>(node: &'a MarkedYaml<'i>, path: &[&str]) -> Option<&'a MarkedYaml<'i>> {
    path.iter().try_fold(node, |node, name| get(node, name))
}

/// The fields of a mapping; none of anything else.
pub fn fields<'a, 'i>(
    node: &'a MarkedYaml<'i>,
) -> impl Iterator<Item = (&'a MarkedYaml<'i>, &'a MarkedYaml<'i>)> {
    let fields = match &node.data {
        YamlData::Mapping(fields) => Some(fields),
        _ => None,
    };
    fields.into_iter().flatten()
}

/// The entries of a list; none of anything else.
pub fn entries<'a, 'i>(node: &'a MarkedYaml<'i>) -> &'a [MarkedYaml<'i>] {
    match &node.data {
        YamlData::Sequence(list) => list,
        _ => &[],
    }
}

/// What is directly inside a mapping or a list.
pub fn children<'a, 'i>(node: &'a MarkedYaml<'i>) -> impl Iterator<Item = &'a MarkedYaml<'i>> {
    fields(node).map(|(_, value)| value).chain(entries(node))
}

pub fn text<'a>(node: &'a MarkedYaml<'_>) -> Option<&'a str> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text),
        _ => None,
    }
}

pub fn integer(node: &MarkedYaml<'_>) -> Option<i64> {
    match &node.data {
        YamlData::Value(Scalar::Integer(number)) => Some(*number),
        _ => None,
    }
}

/// Whether a field is `true`.
pub fn is_true(node: &MarkedYaml<'_>, field: &str) -> bool {
    let flag = get(node, field).map(|flag| &flag.data);
    matches!(flag, Some(YamlData::Value(Scalar::Boolean(true))))
}

/// The line of a node; `before` lines of the file come before the text that it was loaded from.
pub fn line_of(node: &MarkedYaml<'_>, before: usize) -> usize {
    node.span.start.line() + before
}

/// How many lines of the file come before the text in this node, which is YAML itself.
pub fn lines_before(node: &MarkedYaml<'_>, before: usize) -> usize {
    line_of(node, before).saturating_sub(1)
}

pub fn with_lines(node: &MarkedYaml<'_>, before: usize) -> ValueWithLines {
    let mut lines = BTreeMap::new();
    lines.insert(String::new(), line_of(node, before));
    let value = convert(node, "", before, &mut lines);
    ValueWithLines { value, lines }
}

fn convert(
    node: &MarkedYaml<'_>,
    path: &str,
    before: usize,
    lines: &mut BTreeMap<String, usize>,
) -> Value {
    match &node.data {
        YamlData::Value(Scalar::Boolean(flag)) => (*flag).into(),
        YamlData::Value(Scalar::Integer(number)) => (*number).into(),
        YamlData::Value(Scalar::FloatingPoint(number)) => number.into_inner().into(),
        YamlData::Value(Scalar::String(text)) => text.as_ref().into(),
        YamlData::Sequence(list) => {
            let entries = list.iter().enumerate().map(|(index, entry)| {
                let path = format!("{path}[{index}]");
                lines.insert(path.clone(), line_of(entry, before));
                convert(entry, &path, before, lines)
            });
            Value::Array(entries.collect())
        }
        YamlData::Mapping(fields) => {
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
        _ => Value::Null,
    }
}
