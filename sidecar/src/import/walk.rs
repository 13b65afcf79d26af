//! The descriptors that entries find, as ratelimit finds them: level by level, the exact value first, then the first wildcard
//! that matches, then the key alone. There is no way back.

use std::net::Ipv4Addr;

use serde_json::{Value, json};

use super::Notes;
use super::actions::{Entry, Sent};
use super::descriptors::Descriptor;
use super::scope::{Scope, condition, escaped};

/// How far entries have led.
#[derive(Clone)]
pub struct Walk<'d> {
    level: &'d [Descriptor],
    pub node: Option<&'d Descriptor>,
    /// Descriptors of single addresses beside it, and their overrides.
    pub single: Vec<(&'d Descriptor, Value)>,
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
            single: vec![],
            key,
            scope,
        }
    }

    fn to(&self, node: &'d Descriptor, component: Option<&Value>, scope: &Scope) -> Self {
        Self {
            level: &node.children,
            node: Some(node),
            single: vec![],
            key: self.key.iter().chain(component).cloned().collect(),
            scope: self.scope.and(scope),
        }
    }

    /// Where an entry leads: for values that requests have, to each descriptor that one of them finds.
    pub fn steps(&self, entry: &Entry, is_last: bool, notes: &mut Notes) -> Vec<Self> {
        let (key, scope) = (&entry.key, &entry.scope);
        let component = match &entry.sent {
            Sent::Told(component) => component,
            Sent::Always(value) => return self.always(key, value, scope).into_iter().collect(),
        };
        let (mut steps, mut others, mut single) = (Vec::new(), scope.clone(), Vec::new());
        let alone = self.level.iter().find(|node| node.joined == *key);
        let begin = format!("{key}_");
        let is_wild = |node: &&Descriptor| node.joined.contains('*');
        let (wild, exact): (Vec<_>, Vec<_>) = self.level.iter().partition(is_wild);
        for node in exact.into_iter().chain(wild) {
            let Some(value) = node.joined.strip_prefix(&begin) else {
                continue;
            };
            // An override has one key, and its address leads no further.
            let ends = |limit: &&Descriptor| is_last || limit.children.is_empty();
            let limit = alone.filter(|limit| self.key.is_empty() && ends(limit));
            if let Some(one) = limit.and_then(|limit| of_address(component, value, [node, limit])) {
                single.push((node, one));
                continue;
            }
            let (how, given) = test(component, value);
            match condition(component, how, given) {
                Err(why) => notes.missing(&node.at, &why),
                Ok(found) => {
                    let is_exact = how == "equals";
                    let counted = !is_exact && !node.share_threshold;
                    // A value is no other one.
                    let left = if is_exact { scope } else { &others };
                    steps.push(self.to(node, counted.then_some(component), &found.and(left)));
                    others = others.without(&found);
                }
            }
        }
        steps.extend(alone.map(|node| Self {
            single,
            ..self.to(node, Some(component), &others)
        }));
        let has = condition(component, "present", json!(true));
        if let (Some(default), Ok(has)) = (&entry.absent, has) {
            let lacks = scope.clone().without(&has);
            match default.as_str() {
                "" => steps.push(Self {
                    scope: self.scope.and(&lacks),
                    ..self.clone()
                }),
                value => steps.extend(self.always(key, value, &lacks)),
            }
        }
        steps
    }

    /// Where a value leads that Envoy knows.
    fn always(&self, key: &str, value: &str, scope: &Scope) -> Option<Self> {
        let node = self.find(key, value)?;
        Some(self.to(node, None, scope))
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

/// The override of a limit by address that stands for the descriptor of this address. Conditions have no addresses, and IPv6
/// counts by /64.
fn of_address(of: &Value, value: &str, [node, alone]: [&Descriptor; 2]) -> Option<Value> {
    let address = match (of.as_str(), of.pointer("/address/ipv4_bits")) {
        (Some("address"), _) => value,
        (_, Some(bits)) => value.strip_suffix(&format!("/{bits}"))?,
        _ => return None,
    };
    let (own, limit) = (node.rate_limit.as_ref()?, alone.rate_limit.as_ref()?);
    let has_more = !node.children.is_empty() || !own.replaces.is_empty();
    let is_alike = node.shadow_mode == alone.shadow_mode && !has_more;
    let (what, given) = match own.units() {
        _ if limit.unlimited || !is_alike => return None,
        _ if own.unlimited => ("unlimited", json!(true)),
        0 => ("blocked", json!(true)),
        _ if limit.units() == 0 || own.per() != limit.per() => return None,
        units => ("quota", json!(units)),
    };
    let address = address.parse::<Ipv4Addr>().ok()?;
    Some(json!({ "key": format!("@address={address}"), what: given }))
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
