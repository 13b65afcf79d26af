//! YAML with the line of each field.

use std::{fmt, iter};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;
use serde_saphyr::{Error, MergeKeyPolicy, Spanned};

/// Deeper than any manifest: Envoy's own files have about 25 levels, and plugin configurations that are strings begin anew.
const MAX_DEPTH: usize = 128;
/// More than in the manifests of a large cluster.
const MAX_NODES: usize = 10_000_000;
/// What aliases expand to, which a file of a few lines can make endless.
const MAX_ALIASED: usize = 100_000;

/// A value and its place.
pub type Node = Spanned<Data>;

/// A value, with the places of all that is in it.
#[derive(Clone, Debug)]
pub enum Data {
    Scalar(Value),
    List(Vec<Node>),
    Fields(Vec<(Spanned<String>, Node)>),
}

impl<'de> Deserialize<'de> for Data {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_any(AnyData)
    }
}

struct AnyData;

impl<'de> Visitor<'de> for AnyData {
    type Value = Data;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_unit<E>(self) -> Result<Data, E> {
        Ok(Data::Scalar(Value::Null))
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Data, E> {
        Ok(Data::Scalar(flag.into()))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Data, E> {
        Ok(Data::Scalar(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Data, E> {
        Ok(Data::Scalar(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Data, E> {
        Ok(Data::Scalar(number.into()))
    }

    fn visit_str<E>(self, text: &str) -> Result<Data, E> {
        Ok(Data::Scalar(text.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Data, A::Error> {
        let entries = iter::from_fn(|| from.next_element().transpose());
        entries.collect::<Result<_, _>>().map(Data::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Data, A::Error> {
        let fields = iter::from_fn(|| from.next_entry().transpose());
        fields.collect::<Result<_, _>>().map(Data::Fields)
    }
}

/// A value as JSON, and where it is in a file.
#[derive(Debug)]
pub struct ValueWithLines {
    /// The value.
    pub value: Value,
    node: Node,
    /// How many lines of the file come before the text that it was loaded from.
    before: usize,
}

impl ValueWithLines {
    pub fn new(node: &Node, before: usize) -> Self {
        Self {
            value: value(node),
            node: node.clone(),
            before,
        }
    }

    /// The line of a field, by its path (`rules[0].name`), or of the last part of the path that is there.
    pub fn line(&self, path: &str) -> usize {
        line_at(&self.node, self.before, path)
    }
}

/// The same of a node.
pub fn line_at(mut node: &Node, before: usize, path: &str) -> usize {
    let mut line = line_of(node, before);
    for part in path.split(['.', '[']) {
        let index = part.strip_suffix(']').and_then(|index| index.parse().ok());
        let entry = index.and_then(|index: usize| entries(node).get(index));
        let entry = entry.map(|entry| (line_of(entry, before), entry));
        // The key's line: the value may begin on the next.
        let field = fields(node).iter().find(|(key, _)| key.value == part);
        let field = field.map(|(key, value)| (line_of(key, before), value));
        match entry.or(field) {
            Some(found) => (line, node) = found,
            None => break,
        }
    }
    line
}

/// A value without places.
pub fn value(node: &Node) -> Value {
    match &node.value {
        Data::Scalar(scalar) => scalar.clone(),
        Data::List(list) => list.iter().map(value).collect(),
        Data::Fields(fields) => fields
            .iter()
            .map(|(key, inner)| (key.value.clone(), value(inner)))
            .collect(),
    }
}

/// The documents of a text, as Envoy reads them.
pub fn load(text: &str) -> Result<Vec<Node>, String> {
    load_with(text, MergeKeyPolicy::AsOrdinary)
}

/// The same, as Kubernetes and programs in Go read it: with `<<`.
pub fn merged(text: &str) -> Result<Vec<Node>, String> {
    load_with(text, MergeKeyPolicy::Merge)
}

fn load_with(text: &str, merge_keys: MergeKeyPolicy) -> Result<Vec<Node>, String> {
    let options = serde_saphyr::options! {
        with_snippet: false,
        strict_booleans: true,
        merge_keys: merge_keys,
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: MAX_NODES,
            max_recorded_anchor_events: MAX_ALIASED,
        },
    };
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| match error {
        // It would quote the key, which may be the store's URL.
        Error::DuplicateMappingKey { location, .. } => {
            format!("has a key twice, at line {}", location.line())
        }
        error if is_too_much(&error) => {
            "is nested too deep or has too much in it, aliases included, to be a manifest"
                .to_owned()
        }
        error => format!("is not YAML: {error}"),
    })
}

fn is_too_much(error: &Error) -> bool {
    match error {
        Error::AliasError { error, .. } => is_too_much(error),
        error => matches!(error, Error::Budget { .. }),
    }
}

/// A field of a mapping.
pub fn get<'a>(node: &'a Node, name: &str) -> Option<&'a Node> {
    fields(node)
        .iter()
        .find_map(|(key, value)| (key.value == name).then_some(value))
}

/// A field of a field, and so on.
pub fn at<'a>(node: &'a Node, path: &[&str]) -> Option<&'a Node> {
    path.iter().try_fold(node, |node, name| get(node, name))
}

/// The fields of a mapping; none of anything else.
pub fn fields(node: &Node) -> &[(Spanned<String>, Node)] {
    match &node.value {
        Data::Fields(fields) => fields,
        _ => &[],
    }
}

/// The entries of a list; none of anything else.
pub fn entries(node: &Node) -> &[Node] {
    match &node.value {
        Data::List(list) => list,
        _ => &[],
    }
}

/// The values directly inside a mapping or a list.
pub fn children(node: &Node) -> impl Iterator<Item = &Node> {
    fields(node)
        .iter()
        .map(|(_, value)| value)
        .chain(entries(node))
}

pub fn scalar(node: &Node) -> Option<&Value> {
    match &node.value {
        Data::Scalar(value) => Some(value),
        _ => None,
    }
}

pub fn text(node: &Node) -> Option<&str> {
    scalar(node)?.as_str()
}

pub fn integer(node: &Node) -> Option<i64> {
    scalar(node)?.as_i64()
}

/// Whether a field is `true`, which protobuf also reads from a string.
pub fn is_true(node: &Node, field: &str) -> bool {
    let value = get(node, field).and_then(scalar);
    value.is_some_and(|value| *value == true || *value == "true")
}

/// The line of a value; `before` lines of the file come before the text that it was loaded from.
pub fn line_of<T>(node: &Spanned<T>, before: usize) -> usize {
    usize::try_from(node.referenced.line()).unwrap_or_default() + before
}

/// How many lines of the file come before the text in this node, which is YAML itself.
pub fn lines_before(node: &Node, before: usize) -> usize {
    line_of(node, before).saturating_sub(1)
}
