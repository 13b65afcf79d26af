//! Whose denials end in the caches of filters when one policy replaces another. Pure. Names no key.

use std::collections::BTreeSet;

use super::consumers::{Consumers, DEFAULT};
use super::contents::Policy;

/// Digits of a consumer's hashed key by which a filter recognizes the cached denials that end.
const KEY_DIGITS: usize = 8;

/// Limits and keys as filters name them: a limit, an entry of `consumers`, or `NAME#DIGITS` for one key of an entry.
pub type Ended = BTreeSet<String>;

impl Policy {
    /// What `next` decides in another way; `None`: everything.
    pub fn ended_by(&self, next: &Self) -> Option<Ended> {
        if self.denial_ttl != next.denial_ttl {
            return None;
        }
        let limits = self.decided_limits().chain(next.decided_limits());
        let limits = limits.map(|limit| limit.name.as_str());
        let changed: BTreeSet<_> = limits
            .filter(|name| self.limit(name) != next.limit(name))
            .collect();
        let mut ended: Ended = changed.iter().copied().map(str::to_owned).collect();
        let kept = self.kept.consumers.keys();
        for name in kept
            .chain(self.consumers.keys())
            .chain(next.consumers.keys())
        {
            let entries = self.entry(name).zip(next.entry(name));
            match entries.and_then(|(before, after)| after.moved(before, &changed)) {
                Some(keys) => ended.extend(keys.map(|hash| format!("{name}#{hash}"))),
                None => _ = ended.insert(name.clone()),
            }
        }
        Some(ended)
    }
}

impl Consumers {
    /// The heads of the hashed keys that are counted in another way than by an earlier entry; `None`: those of strangers are, too.
    fn moved<'a>(
        &'a self,
        before: &'a Self,
        changed: &'a BTreeSet<&str>,
    ) -> Option<impl Iterator<Item = &'a str>> {
        let is_same = move |owner: &str| {
            let limit = self.limit_of(owner);
            limit == before.limit_of(owner) && !changed.contains(limit)
        };
        let keys = self.keys.keys().chain(before.keys.keys());
        let moved = keys.filter(move |hash| {
            let owner = self.keys.get(*hash);
            owner != before.keys.get(*hash) || owner.is_some_and(|owner| !is_same(owner))
        });
        let heads = moved.filter_map(|hash| hash.get(..KEY_DIGITS));
        (self.pepper == before.pepper && is_same(DEFAULT)).then_some(heads)
    }
}
