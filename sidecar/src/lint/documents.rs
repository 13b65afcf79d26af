//! The documents of files: Envoy files, Kubernetes objects, and what is inside a ConfigMap or a List.

use super::envoy_yaml::{self, Plugin};
use super::surroundings::Surroundings;
use super::yaml::{Node, at, children, entries, fields, get, line_of, lines_before, load, text};

/// What files contain that concerns Sluicegate.
#[derive(Debug, Default)]
pub struct Found {
    /// Plugin configurations.
    pub plugins: Vec<Plugin>,
    /// Policies, in ConfigMaps.
    pub policies: Vec<FoundPolicy>,
}

/// A policy in a ConfigMap.
#[derive(Debug)]
pub struct FoundPolicy {
    /// The ConfigMap, such as `ConfigMap shop/sluicegate-policy`.
    pub document: String,
    /// Its namespace.
    pub namespace: String,
    /// The field of the ConfigMap, such as `data.policy.yaml`.
    pub field: String,
    /// How many lines of the file come before the text.
    pub line: usize,
    /// The policy.
    pub text: String,
}

/// Finds what a text contains, and adds to `surroundings` what the plugins of all files need to exist.
///
/// # Errors
/// The text is not YAML.
pub fn read(text: &str, surroundings: &mut Surroundings) -> Result<Found, String> {
    let mut found = Found::default();
    for document in &load(text)? {
        document_of(document, surroundings, &mut found);
    }
    Ok(found)
}

fn document_of(document: &Node, surroundings: &mut Surroundings, found: &mut Found) {
    let kind = get(document, "kind").and_then(text).unwrap_or_default();
    // `kubectl get -o yaml`.
    if kind == "List" {
        let items = get(document, "items").map(entries).unwrap_or_default();
        for item in items {
            document_of(item, surroundings, found);
        }
        return;
    }
    // A copy of what the chart installs, for the Job that checks it.
    if at(document, &["metadata", "annotations", "helm.sh/hook"]).is_some() {
        return;
    }
    let of_metadata = |field| at(document, &["metadata", field]).and_then(text);
    let namespace = of_metadata("namespace").unwrap_or_default().to_owned();
    let name = of_metadata("name").unwrap_or_default();
    let label = match (kind, namespace.as_str()) {
        ("", _) => String::new(),
        (kind, "") => format!("{kind} {name}"),
        (kind, namespace) => format!("{kind} {namespace}/{name}"),
    };
    surroundings.add(kind, &namespace, document);
    let mut plugins = if kind == "ConfigMap" {
        config_map(document, &label, &namespace, found)
    } else {
        envoy_yaml::plugins(document, 0)
    };
    for plugin in &mut plugins {
        plugin.document.clone_from(&label);
        plugin.namespace.clone_from(&namespace);
    }
    found.plugins.append(&mut plugins);
}

/// Adds the policies of a ConfigMap; returns the plugins of the Envoy files in it.
fn config_map(document: &Node, label: &str, namespace: &str, found: &mut Found) -> Vec<Plugin> {
    let mut plugins = Vec::new();
    for (key, value) in get(document, "data").into_iter().flat_map(fields) {
        let (Some(name), Some(inner)) = (text(key), text(value)) else {
            continue;
        };
        // A block begins on the line after its key; its first lines may be empty.
        let before = lines_before(value, 0).min(line_of(key, 0));
        let documents = load(inner).unwrap_or_default();
        // By its name too, so that a broken policy is found.
        if name == "policy.yaml" || documents.iter().any(|node| get(node, "limits").is_some()) {
            found.policies.push(FoundPolicy {
                document: label.to_owned(),
                namespace: namespace.to_owned(),
                field: format!("data.{name}"),
                line: before,
                text: inner.to_owned(),
            });
        }
        for node in &documents {
            if children(node).next().is_some() {
                plugins.append(&mut envoy_yaml::plugins(node, before));
            }
        }
    }
    plugins
}
