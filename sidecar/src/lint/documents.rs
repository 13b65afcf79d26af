//! The documents of files: Envoy files, Kubernetes objects, and what is inside a ConfigMap or a List.

use super::envoy_yaml::{self, Plugin, Source};
use super::messages::snake_case;
use super::surroundings::Surroundings;
use crate::policy::Files;
use crate::yaml::{Node, at, entries, fields, get, line_of, lines_before, load, text};

/// What files contain that concerns Sluicegate.
#[derive(Debug, Default)]
pub struct Found {
    /// Plugin configurations.
    pub plugins: Vec<Plugin>,
    /// Policies, in ConfigMaps.
    pub policies: Vec<FoundPolicy>,
    /// What the plugins need to exist.
    pub surroundings: Surroundings,
}

/// A policy in a ConfigMap, or in a file of its own.
#[derive(Debug, Default)]
pub struct FoundPolicy {
    /// The ConfigMap, or the file.
    pub source: Source,
    /// The field of the ConfigMap, such as `data.policy.yaml`; empty in a file.
    pub field: String,
    /// How many lines of the file come before the text.
    pub line: usize,
    /// The policy.
    pub text: String,
    /// What is beside it.
    pub files: Files,
}

impl Found {
    /// Adds what the text of a file contains.
    ///
    /// # Errors
    /// The text is not YAML.
    pub fn add(&mut self, file: &str, text: &str) -> Result<(), String> {
        for mut document in load(text)? {
            snake_case(&mut document);
            self.add_document(file, &document);
        }
        // Routes may be in another file.
        for manager in self
            .plugins
            .iter_mut()
            .filter_map(|one| one.manager.as_mut())
        {
            let routes = manager.route_name.as_ref();
            let routes = routes.and_then(|name| self.surroundings.routes.get(name));
            manager.routes = manager.routes.take().or_else(|| routes.cloned());
        }
        Ok(())
    }

    fn add_document(&mut self, file: &str, document: &Node) {
        let kind = get(document, "kind").and_then(text).unwrap_or_default();
        // `kubectl get -o yaml`.
        if kind == "List" {
            let items = get(document, "items").map(entries).unwrap_or_default();
            return items.iter().for_each(|item| self.add_document(file, item));
        }
        // A copy of what the chart installs, for the Job that checks it.
        if at(document, &["metadata", "annotations", "helm.sh/hook"]).is_some() {
            return;
        }
        let of_metadata = |field| at(document, &["metadata", field]).and_then(text);
        let namespace = of_metadata("namespace").unwrap_or_default();
        let name = of_metadata("name").unwrap_or_default();
        let label = match (kind, namespace) {
            ("", _) => String::new(),
            (kind, "") => format!("{kind} {name}"),
            (kind, namespace) => format!("{kind} {namespace}/{name}"),
        };
        self.surroundings.add(kind, namespace, document);
        let source = Source {
            file: file.to_owned(),
            document: label,
            namespace: namespace.to_owned(),
        };
        if kind == "ConfigMap" {
            self.add_config_map(document, &source);
        } else {
            self.plugins
                .extend(envoy_yaml::plugins(document, 0, &source));
        }
    }

    /// Adds the policies of a ConfigMap, and the plugins of the Envoy files in it.
    fn add_config_map(&mut self, document: &Node, source: &Source) {
        let data = get(document, "data").map(fields).unwrap_or_default();
        let files = data
            .iter()
            .filter_map(|(key, value)| Some((key.value.as_str(), text(value)?)));
        for (key, value) in data {
            let Some(inner) = text(value) else { continue };
            let name = &key.value;
            // A block begins on the line after its key; its first lines may be empty.
            let before = lines_before(value, 0).min(line_of(key, 0));
            let mut documents = load(inner).unwrap_or_default();
            // By its name too, so that a broken policy is found.
            if name == "policy.yaml" || documents.iter().any(|node| get(node, "limits").is_some()) {
                self.policies.push(FoundPolicy {
                    source: source.clone(),
                    field: format!("data.{name}"),
                    line: before,
                    text: inner.to_owned(),
                    files: Files::given(files.clone()),
                });
            }
            for document in &mut documents {
                snake_case(document);
                let plugins = envoy_yaml::plugins(document, before, source);
                self.plugins.extend(plugins);
            }
        }
    }
}
