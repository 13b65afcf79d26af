//! Which keys the rules of a policy can make, for overrides of single keys. Pure.

use sluicegate_rules::{MISSING, RuleSet, SHADOW};

use super::consumers::consumer_of;
use super::rules::RuleSets;

/// Whether rules can make a key.
#[derive(Debug, PartialEq, Eq)]
pub enum Made {
    /// One can, or no rule names the limit: then other programs make its keys.
    Yes,
    /// None can.
    No,
    /// None can: each hashes this header, cookie or query parameter, which the key has in plain text.
    Hashed(String),
}

/// The rules of a policy, compiled for their keys.
#[derive(Debug)]
pub struct KeyForms(Vec<RuleSet>);

/// Whether a component of a key has this name, and the form of its value.
fn fits(part: &str, (name, hashed): (&str, bool)) -> bool {
    let (part, sign) = match part.strip_prefix(MISSING) {
        Some(part) => (part, '='),
        None => (part, if hashed { '#' } else { '=' }),
    };
    let value = part.strip_prefix(name);
    value.is_some_and(|value| value.starts_with(sign))
}

/// Whether a component has what clients send.
fn is_of_client(name: &str) -> bool {
    !name.starts_with('@') || name.starts_with("@cookie/") || name.starts_with("@query/")
}

impl KeyForms {
    /// Compiles the rules of a policy.
    pub fn new(rules: &RuleSets) -> Self {
        let names = rules.sets.keys();
        Self(names.filter_map(|name| rules.compiled(name)).collect())
    }

    /// Whether one of the rules that name this limit can make this key.
    pub fn make(&self, limit: &str, key: &str) -> Made {
        let keys: Vec<_> = self.0.iter().flat_map(|set| set.keys_of(limit)).collect();
        let parts = key.split(';').filter(|part| !part.starts_with(SHADOW));
        let parts: Vec<_> = parts.collect();
        let is_made = |made: &Vec<(&str, bool)>| {
            let mut both = parts.iter().zip(made);
            made.len() == parts.len() && both.all(|(part, one)| fits(part, *one))
        };
        // The hash of a long key does not show what is in it; whether a consumer exists is the question of `Policy::lacks`.
        let is_unknown = key.starts_with('~') || consumer_of(key).is_some();
        if keys.is_empty() || is_unknown || keys.iter().any(is_made) {
            return Made::Yes;
        }
        let plain = parts.iter().filter_map(|part| part.split_once('='));
        let mut plain = plain
            .map(|(name, _)| name)
            .filter(|name| is_of_client(name));
        let hashed = plain.find(|name| keys.iter().all(|key| key.contains(&(*name, true))));
        hashed.map_or(Made::No, |name| Made::Hashed(name.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    #[test]
    fn keys_that_rules_make_are_told_from_those_that_they_cannot() {
        let text = "
limits:
  one: { key: [{ header: x-key }, host], rate: 5/s }
  tiered: { key: { cookie: c }, tiers: { by: { jwt: plan }, gold: 5/s, default: 1/s } }
  plain: { key: { header: x-key, plain: true }, rate: 5/s }
  job: { match: none, rate: 5/s }
";
        let rules = KeyForms::new(&Policy::parse(text).unwrap().rules);
        for (limit, key, expected) in [
            ("one", "x-key#00;@host=a", Made::Yes),
            ("one", "@missing/x-key=@address;@host=a", Made::Yes),
            ("one", "@shadow=one;x-key#00;@host=a", Made::Yes),
            ("one", "~00", Made::Yes),
            (
                "one",
                "x-key=acme;@host=a",
                Made::Hashed("x-key".to_owned()),
            ),
            ("one", "x-key=acme", Made::Hashed("x-key".to_owned())),
            ("one", "x-key#00", Made::No),
            ("one", "x-keys#00;@host=a", Made::No),
            ("one", "nonsense", Made::No),
            ("tiered.gold", "@cookie/c#00", Made::Yes),
            (
                "tiered.default",
                "@cookie/c=1",
                Made::Hashed("@cookie/c".to_owned()),
            ),
            ("plain", "x-key=acme", Made::Yes),
            ("plain", "x-key#00", Made::No),
            ("job", "anything", Made::Yes),
        ] {
            assert_eq!(rules.make(limit, key), expected, "{limit} {key}");
        }
    }
}
