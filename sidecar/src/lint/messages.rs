//! Fields as protobuf reads them from YAML: in two spellings, enumerations in any case, durations as texts.

use crate::yaml::{Data, Node, at, children, get, text};

/// Spells fields in snake_case, as all who read them here do: Envoy takes lowerCamelCase too, and both in one file. Plugin
/// configurations, in which only one spelling is right, and the names of files in a ConfigMap stay.
pub fn snake_case(node: &mut Node) {
    if is_sluicegate(node) {
        return;
    }
    match &mut node.value {
        Data::Scalar(_) => {}
        Data::List(list) => list.iter_mut().for_each(snake_case),
        Data::Fields(fields) => {
            for (key, value) in fields.iter_mut().filter(|(key, _)| key.value != "data") {
                key.value = spelled(&key.value);
                snake_case(value);
            }
        }
    }
}

/// A name in snake_case.
pub fn spelled(name: &str) -> String {
    let spell = |one: char| match one {
        'A'..='Z' => format!("_{}", one.to_ascii_lowercase()),
        _ => one.to_string(),
    };
    name.chars().map(spell).collect()
}

/// The name of an enumeration's value.
pub fn enumerated(node: &Node, field: &str) -> Option<String> {
    get(node, field).and_then(text).map(str::to_uppercase)
}

/// Whether a field is a duration that is longer than zero, which switches most of Envoy's off.
pub fn lasts(node: &Node, field: &str) -> bool {
    let duration = get(node, field).and_then(text);
    duration.is_some_and(|text| text.trim_end_matches('s').parse() != Ok(0.0))
}

/// Whether this is so for a value or one that is in it.
pub fn any(node: &Node, is: &dyn Fn(&Node) -> bool) -> bool {
    is(node) || children(node).any(|child| any(child, is))
}

/// Whether a field, a text or a list of texts, has this in it, in any case.
pub fn names(node: &Node, field: &str, what: &str) -> bool {
    let has = |node: &Node| text(node).is_some_and(|text| text.to_lowercase().contains(what));
    get(node, field).is_some_and(|value| any(value, &has))
}

/// Our configurations have `sidecar` and `version`, or `rules` where they are of an earlier version; another plugin's are
/// unlikely to.
pub fn is_sluicegate(node: &Node) -> bool {
    let has = |name| get(node, name).is_some();
    has("sidecar") && (has("version") || has("rules"))
}

/// Whether a filter has this in its name or in its type's.
pub fn is_called(filter: &Node, what: &str) -> bool {
    let names = [&["name"][..], &["typed_config", "@type"]];
    let mut names = names.iter().filter_map(|path| at(filter, path));
    names.any(|name| text(name).is_some_and(|name| name.contains(what)))
}
