//! The descriptors that entries find, as ratelimit finds them: level by level, the exact value first, then the first wildcard
//! that matches, then the key alone. There is no way back.

use serde_json::{Value, json};

use super::Notes;
use super::actions::{Entry, Sent};
use super::descriptors::Descriptor;
use super::scope::{Scope, condition, escaped};

/// How far entries have led.
pub struct Walk<'d> {
    level: &'d [Descriptor],
    pub node: Option<&'d Descriptor>,
    /// What has a counter of its own.
    pub key: Vec<Value>,
    /// For which requests.
    pub scope: Scope,
}

impl<'d> Walk<'d> {
    pub fn begin(level: &'d [Descriptor], scope: &Scope) -> Self {
        let (scope, key) = (scope.clone(), vec![]);
        Self {
            level,
            node: None,
            key,
            scope,
        }
    }

    fn to(&self, node: &'d Descriptor, component: Option<&Value>, scope: &Scope) -> Self {
        Self {
            level: &node.children,
            node: Some(node),
            key: self.key.iter().chain(component).cloned().collect(),
            scope: self.scope.and(scope),
        }
    }

    /// Where an entry leads: for values that requests have, to each descriptor that one of them finds.
    pub fn steps(&self, Entry { key, sent, scope }: &Entry, notes: &mut Notes) -> Vec<Self> {
        let component = match sent {
            Sent::Told(component) => component,
            Sent::Always(value) => {
                let found = self.find(key, value);
                return found
                    .map(|node| self.to(node, None, scope))
                    .into_iter()
                    .collect();
            }
        };
        let (mut steps, mut others) = (Vec::new(), scope.clone());
        let begin = format!("{key}_");
        let is_wild = |node: &&Descriptor| node.joined.contains('*');
        let (wild, exact): (Vec<_>, Vec<_>) = self.level.iter().partition(is_wild);
        for node in exact.into_iter().chain(wild) {
            let Some(value) = node.joined.strip_prefix(&begin) else {
                continue;
            };
            let (how, given) = test(component, value);
            match condition(component, how, given) {
                Err(why) => notes.missing(&node.at, &why),
                Ok(scope) => {
                    let counted = how != "equals" && !node.share_threshold;
                    steps.push(self.to(node, counted.then_some(component), &scope.and(&others)));
                    others = others.without(&scope);
                }
            }
        }
        let alone = self.level.iter().find(|node| node.joined == *key);
        steps.extend(alone.map(|node| self.to(node, Some(component), &others)));
        steps
    }

    fn find(&self, key: &str, value: &str) -> Option<&'d Descriptor> {
        let joined = format!("{key}_{value}");
        let named = |name: &str| self.level.iter().find(|node| node.joined == name);
        let wild = || {
            self.level
                .iter()
                .find(|node| matches(&node.joined, &joined))
        };
        named(&joined).or_else(wild).or_else(|| named(key))
    }
}

/// Whether a text matches a pattern, in which `*` stands for any characters.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else {
        return pattern == text;
    };
    let ends = text.strip_prefix(begin).into_iter();
    let mut ends = ends.flat_map(|text| (0..=text.len()).filter_map(|from| text.get(from..)));
    ends.any(|end| matches(rest, end))
}

/// The test that a value passes if it is this, or matches this pattern.
fn test(component: &Value, value: &str) -> (&'static str, Value) {
    let parts: Vec<_> = value.split('*').map(escaped).collect();
    match value.split_once('*') {
        None => ("equals", json!(value)),
        Some(("", "")) => ("present", json!(true)),
        Some((begin, "")) if component != "path" => ("prefix", json!(begin)),
        Some(_) => ("regex", json!(parts.join(".*"))),
    }
}
