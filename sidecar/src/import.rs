//! The policy that does what an envoyproxy/ratelimit and the Envoys that ask it do, from their files.
//!
//! | file | for |
//! |---|---|
//! | `descriptors.rs` | ratelimit's files |
//! | `envoy.rs`, `hosts.rs`, `per_route.rs`, `actions.rs` | Envoy's files: for which requests `rate_limits` are, and what they send |
//! | `scope.rs` | conditions of the policy |
//! | `walk.rs` | which descriptors that finds |
//! | `limits.rs` | the limits that follow |
//! | `notes.rs` | what differs, and what was not imported |

mod actions;
mod descriptors;
mod envoy;
mod hosts;
mod limits;
mod notes;
mod per_route;
mod scope;
mod walk;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluicegate_rules::config::from_value;

use self::limits::{Limits, Written};
use self::notes::Notes;
use crate::lint::snake_case;
use crate::policy::{Policy, line_and_why};
use crate::yaml::{Data, Node, fields, get, line_at, line_of, lines_before, merged, text, value};

/// A policy, and what people have to know of it.
#[derive(Debug)]
pub struct Imported {
    /// Its text, with notes as comments at the top.
    pub policy: String,
    /// How many limits it has.
    pub limits: usize,
    /// How many things were not imported.
    pub missing: usize,
    /// Why the sidecar would refuse it.
    pub mistake: Option<&'static str>,
}

/// A file's name and text.
pub type File = (String, String);

/// A YAML document, or one in a ConfigMap.
struct Document {
    file: String,
    /// Lines of the file before its text.
    before: usize,
    node: Node,
}

impl Document {
    /// A place: `config.yaml:12`.
    fn at(&self, node: &Node) -> String {
        format!("{}:{}", self.file, line_of(node, self.before))
    }

    /// The place of a field in a node.
    fn field(&self, node: &Node, path: &str) -> String {
        format!("{}:{}", self.file, line_at(node, self.before, path))
    }

    /// A node as this type.
    fn read<T: DeserializeOwned>(&self, node: &Node) -> Result<T, String> {
        let read = from_value(&value(node));
        read.map_err(|error| format!("{}: {error}", self.field(node, &error.field)))
    }

    fn all(files: &[File]) -> Result<Vec<Self>, String> {
        let mut all = Vec::new();
        for (file, text) in files {
            for node in merged(text).map_err(|why| format!("{file} {why}"))? {
                Self::add((file, text), node, &mut all);
            }
        }
        Ok(all)
    }

    fn add((file, whole): (&str, &str), node: Node, all: &mut Vec<Self>) {
        let mut add = |before, mut node, text: &str| {
            spell(&mut node, text, false);
            snake_case(&mut node);
            let file = file.to_owned();
            all.push(Self { file, before, node });
        };
        let is_map = get(&node, "kind").and_then(text) == Some("ConfigMap");
        let data = get(&node, "data").filter(|_| is_map).map(fields);
        for (key, value) in data.unwrap_or_default() {
            let inner = text(value).unwrap_or_default();
            let before = lines_before(value, 0).min(line_of(key, 0));
            let loaded = merged(inner).unwrap_or_default().into_iter();
            loaded.for_each(|node| add(before, node, inner));
        }
        add(0, node, whole);
    }
}

/// Makes keys and values of descriptors what stands in the text, as ratelimit takes them: `007`, and not 7.
fn spell(node: &mut Node, text: &str, in_descriptors: bool) {
    match &mut node.value {
        Data::List(list) => list
            .iter_mut()
            .for_each(|one| spell(one, text, in_descriptors)),
        Data::Fields(fields) => {
            for (name, inner) in fields {
                match name.value.as_str() {
                    "key" | "value" if in_descriptors => spell_scalar(inner, text),
                    name => spell(inner, text, in_descriptors || name == "descriptors"),
                }
            }
        }
        Data::Scalar(_) => {}
    }
}

fn spell_scalar(node: &mut Node, text: &str) {
    let span = node.defined.span();
    let number = |given: Option<u64>| usize::try_from(given?).ok();
    let place = number(span.byte_offset()).zip(number(span.byte_len()));
    let spelled = place.and_then(|(from, length)| text.get(from..from + length));
    if let (Data::Scalar(Value::Number(_) | Value::Bool(_)), Some(spelled)) = (&node.value, spelled)
    {
        node.value = Data::Scalar(spelled.trim().into());
    }
}

/// Reads ratelimit's files and, if they are given, Envoy's. `shadow`: no limit is enforced.
///
/// # Errors
/// A file is not YAML, or ratelimit would refuse it.
pub fn import(config: &[File], envoy: Option<&[File]>, shadow: bool) -> Result<Imported, String> {
    let mut notes = Notes::default();
    let domains = descriptors::domains(&Document::all(config)?)?;
    let mut limits = Limits::new(&domains);
    match envoy.map(Document::all).transpose()? {
        None => notes.differs("no_envoy", ""),
        Some(documents) => {
            for asked in envoy::read(&documents, &domains, &mut notes) {
                limits.add(&asked, &mut notes);
            }
        }
    }
    let mut limits = limits.written(envoy.is_none(), shadow, &mut notes);
    let body = accepted(&mut limits, &mut notes);
    Ok(Imported {
        mistake: limits.is_empty().then_some("no limit was imported"),
        limits: limits.len(),
        missing: notes.missing.len(),
        policy: notes.to_comments() + &body,
    })
}

/// The policy, after those limits are left out that the sidecar would refuse.
fn accepted(limits: &mut Vec<Written>, notes: &mut Notes) -> String {
    loop {
        let texts = limits.iter().map(|(_, text)| text.as_str());
        let body: String = ["limits:\n"].into_iter().chain(texts).collect();
        let Err(why) = Policy::parse(&body) else {
            return body;
        };
        let (line, why) = line_and_why(&why).unwrap_or((0, &why));
        let mut end = 1;
        let place = limits.iter().position(|(_, text)| {
            end += text.lines().count();
            line <= end
        });
        let Some(place) = place else { return body };
        notes.missing(&limits.remove(place).0, why);
    }
}

#[cfg(test)]
mod tests;
