//! Whom an override is for: it has the name of an entry of `consumers` where it can, and follows the consumer through all changes
//! of tiers. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use sluicegate_protocol::Whom;
use sluicegate_rules::config::nearest;

use super::consumers::{Consumers, consumer_key, consumer_of, is_hash_alone};
use super::contents::Policy;
use super::overrides::Override;
use crate::mask::shown;

impl Policy {
    /// The entry of `consumers` that a limit's name stands for: that of this name, or the only one that it counts for. A tier that
    /// the policy does not have any more is known by the name that the short form gives it.
    pub fn entry_of(&self, limit: &str) -> Option<&str> {
        if let Some((entry, _)) = self.consumers.get_key_value(limit) {
            return Some(entry);
        }
        let mut counted = self.counted_by(limit);
        match (counted.next(), limit.rsplit_once('.')) {
            (Some((entry, _)), _) => counted.next().is_none().then_some(entry),
            (None, Some((entry, _))) if !self.has(limit) => {
                Some(self.consumers.get_key_value(entry)?.0)
            }
            _ => None,
        }
    }

    /// Whether a limit or an entry of `consumers` has this name.
    pub fn knows(&self, limit: &str) -> bool {
        self.consumers.contains_key(limit) || self.has(limit)
    }

    fn counted_by(&self, limit: &str) -> impl Iterator<Item = (&str, &Consumers)> {
        let entries = self.consumers.iter();
        let entries = entries.filter(move |(_, of)| of.limits().any(|own| own == limit));
        entries.map(|(name, of)| (name.as_str(), &**of))
    }

    /// The name and the keys of an override that is set, removed or kept under these.
    pub fn override_name(&self, limit: &str, whom: &Whom) -> (String, Whom) {
        let as_given = || (limit.to_owned(), whom.clone());
        let Whom::Key(key) = whom else {
            return as_given();
        };
        let owner = |of: &Arc<Consumers>| of.owner(key);
        let is_theirs =
            Consumers::is_asked_with(key) || self.consumers.values().any(|of| owner(of).is_some());
        // Most are of other keys, and a policy may have a thousand tiers.
        if !self.consumers.contains_key(limit) && !is_theirs {
            return as_given();
        }
        let entry = self.entry_of(limit);
        let consumer = entry.and_then(|entry| owner(self.consumers.get(entry)?));
        let key = consumer.as_ref().unwrap_or(key);
        let resolved = self.resolve(entry.unwrap_or(limit), key);
        let with = resolved.map_or(key.as_str().into(), |(_, with)| with);
        let follows = entry.filter(|entry| *entry == limit || consumer_of(&with).is_some());
        match follows {
            Some(entry) => (entry.to_owned(), Whom::Key(with.into_owned())),
            None => as_given(),
        }
    }

    /// The limit and the keys on which an override of this name acts.
    pub fn acts_on(&self, limit: &str, whom: &Whom) -> (String, Whom) {
        let (name, whom) = self.override_name(limit, whom);
        let key = match &whom {
            Whom::Key(key) => key,
            // Consumers are overridden by their names, so these are for everybody else.
            Whom::Subject(_) => "",
            Whom::AllKeys(_) => return (name, whom),
        };
        match self.resolve(&name, key).map(|(limit, _)| limit.to_owned()) {
            Some(limit) => (limit, whom),
            None => (name, whom),
        }
    }

    /// Why the policy has nobody whom an override of this name is for, as far as can be known. It may act all the same: on what
    /// filters ask for by earlier rules.
    pub fn lacks(&self, limit: &str, whom: &Whom) -> Option<String> {
        let (name, whom) = self.override_name(limit, whom);
        if !self.knows(&name) || !self.has(&self.acts_on(&name, &whom).0) {
            return Some(format!("the policy has no limit {}", shown(&name)));
        }
        let Whom::Key(key) = &whom else { return None };
        let own = self.consumers.get(&name).map(|own| &**own);
        if own.is_some() && is_hash_alone(key) {
            let why = "the limit has no consumer with this key: for others, give the key that `sluicegate explain` prints";
            return Some(why.to_owned());
        }
        let consumer = consumer_of(key)?;
        let counted = self.counted_by(&name).map(|(_, of)| of);
        let entries = own.into_iter().chain(counted);
        let known: BTreeSet<_> = entries.flat_map(Consumers::names).collect();
        if known.contains(consumer) {
            return None;
        }
        let near = nearest(consumer, known.into_iter());
        let near = near.map_or(String::new(), |near| format!("; did you mean `{near}`?"));
        let (name, consumer) = (shown(&name), shown(consumer));
        Some(format!("limit {name} has no consumer {consumer}{near}"))
    }

    /// The policy file's override that acts on these.
    pub fn in_file(&self, target: &(String, Whom)) -> Option<((&str, &Whom), &Override)> {
        let all = self.limits().flat_map(|limit| {
            let overrides = limit.overrides.iter();
            overrides.map(|(whom, one)| ((limit.name.as_str(), whom), one))
        });
        let mut all = all.filter(|((limit, whom), _)| self.acts_on(limit, whom) == *target);
        all.next()
    }

    /// The key of the consumer of this limit for which that holds.
    pub fn consumer_where(&self, limit: &str, is_it: impl Fn(&str) -> bool) -> Option<String> {
        let names = self.consumers.get(self.entry_of(limit)?)?.names();
        names.map(consumer_key).find(|key| is_it(key))
    }
}
