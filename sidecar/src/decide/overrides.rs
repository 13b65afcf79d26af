//! The overrides in force: those of the policy file and those of the store, indexed for the lookup of every check. Pure.
//!
//! A snapshot belongs to an epoch and is rebuilt when the policy or the store's overrides change, so that a lookup does
//! not parse or compare: it costs one hash for a limit without overrides, three for a limit with some, a SHA-256 more where some
//! are by digits, and nothing but a reading of the clock for each request if there are no overrides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{Check, ListedOverride, OverrideSource, OverrideState, Whom};

use crate::policy::{Grant, Limit, Mark, Override, Policy};
use crate::store::StoredOverrides;
use crate::telemetry::subject::Subject;

/// The effect of an override on its key; with quotas, these windows replace the limit's.
pub type Effect = Grant<Arc<[BucketSpec]>>;

/// An effect, and when it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Timed {
    effect: Effect,
    until_ms: Option<u64>,
}

impl Timed {
    /// `None` if it does not fit the limit.
    fn of(limit: &Limit, one: &Override) -> Option<Self> {
        let effect = match &one.grant {
            Grant::Quotas(quotas) => Effect::Quotas(limit.with_quotas(quotas).ok()?.into()),
            Grant::Unlimited => Effect::Unlimited,
            Grant::Blocked => Effect::Blocked,
        };
        Some(Self {
            effect,
            until_ms: one.until_ms,
        })
    }

    fn has_ended(&self, now_ms: u64) -> bool {
        self.until_ms.is_some_and(|until_ms| until_ms <= now_ms)
    }
}

/// The first of these that has not ended.
fn first(now_ms: u64, given: [Option<&Timed>; 3]) -> Option<&Timed> {
    let mut given = given.into_iter().flatten();
    given.find(|timed| !timed.has_ended(now_ms))
}

/// By limit: nearly all lookups end there.
type ByLimit = HashMap<String, LimitOverrides>;

/// The overrides of a limit, by whom they are for.
#[derive(Debug, Default)]
struct LimitOverrides {
    of: HashMap<Whom, KeyOverrides>,
    /// Whether some are for the digits of a key: otherwise no digits are computed.
    any_by_digits: bool,
}

/// The overrides of one key: the store's takes precedence over the policy's.
#[derive(Debug, Default)]
struct KeyOverrides {
    store: Option<Timed>,
    policy: Option<Timed>,
}

impl LimitOverrides {
    /// What is set for these, in the store and in the policy.
    fn of(&self, whom: &Whom) -> (Option<&Timed>, Option<&Timed>) {
        let of = self
            .of
            .get(whom)
            .map(|of| (of.store.as_ref(), of.policy.as_ref()));
        of.unwrap_or_default()
    }

    /// The override of a key. What an operator has set for it comes before what is set for its digits, and both before the
    /// policy's for the key. What is set for all keys comes before all of them, unless they block the key.
    fn find(&self, key: &str, now_ms: u64) -> Option<&Timed> {
        let (store, policy) = self.of(&Whom::Key(key.to_owned()));
        let own = first(now_ms, [store, self.by_digits(key), policy]);
        if own.is_some_and(|own| own.effect == Effect::Blocked) {
            return own;
        }
        let (store, policy) = self.of(&Whom::AllKeys(true));
        first(now_ms, [store, policy, own])
    }

    /// What is set for the key's digits; only the store has such overrides.
    fn by_digits(&self, key: &str) -> Option<&Timed> {
        if !self.any_by_digits || client_chooses(key) {
            return None;
        }
        self.of(&Whom::Subject(Subject::of(key).to_string())).0
    }
}

/// Whether a key of the filter has a component in plain text that a client can choose: a header, cookie, parameter or path,
/// or one that is not known. Other programs' keys have no `=`, as their names are their own.
pub fn client_chooses(key: &str) -> bool {
    const NOT_CHOSEN: [&str; 8] = [
        "@address",
        "@constant",
        "@consumer",
        "@jwt",
        "@method",
        "@missing",
        "@mtls",
        "@shadow",
    ];
    let is_chosen = |component: &str| {
        let Some((name, _)) = component.split_once('=') else {
            return false;
        };
        let source = name.split('/').next().unwrap_or_default();
        !NOT_CHOSEN.contains(&source)
    };
    // The hash of a long key does not tell what is in it.
    key.starts_with('~') || key.split(';').any(is_chosen)
}

/// A limit, its keys, and where their override is.
pub type Named<'a> = (&'a str, &'a Whom, OverrideSource);

/// What the metric counts.
const ALLOWANCES: [&str; 4] = ["quota", "unlimited", "blocked", "unfit"];

/// A snapshot of all overrides.
#[derive(Debug, Default)]
pub struct Overrides {
    by_limit: ByLimit,
    /// The store's overrides as last read; `None` if they were never read.
    pub stored: Option<Arc<StoredOverrides>>,
}

impl Overrides {
    /// Builds the snapshot from the policy's overrides and the store's.
    pub fn new(policy: &Policy, stored: Option<Arc<StoredOverrides>>) -> Self {
        let of_policy = policy.decided_limits().flat_map(|limit| {
            limit.overrides.iter().map(move |(whom, one)| {
                let acts_on = match policy.has(&limit.name) {
                    true => policy.acts_on(&limit.name, whom),
                    // Of an earlier policy, for who still asks for this limit.
                    false => (limit.name.clone(), whom.clone()),
                };
                (acts_on, one, OverrideSource::Policy)
            })
        });
        let of_store = stored.iter().flat_map(|stored| &stored.entries);
        let of_store = of_store.filter(|(_, one)| one.is_in_force());
        let of_store = of_store
            .map(|((limit, whom), one)| (policy.acts_on(limit, whom), one, OverrideSource::Store));
        let mut by_limit = ByLimit::new();
        for ((limit, whom), one, source) in of_policy.chain(of_store) {
            let of_policy = policy.limit(&limit);
            let timed = of_policy.and_then(|limit| Timed::of(limit, one));
            let of_limit = by_limit.entry(limit).or_default();
            of_limit.any_by_digits |= matches!(whom, Whom::Subject(_));
            let of_key = of_limit.of.entry(whom).or_default();
            match source {
                OverrideSource::Policy => of_key.policy = timed,
                OverrideSource::Store => of_key.store = timed,
            }
        }
        Self { by_limit, stored }
    }

    /// The overrides at this time, in milliseconds since 1970.
    pub const fn at(&self, unix_ms: u64) -> OverridesNow<'_> {
        OverridesNow {
            by_limit: &self.by_limit,
            unix_ms,
        }
    }

    /// The number of overrides in force, by what they allow, and of those that do not fit the policy.
    pub fn counts(&self, policy: &Policy, now_ms: u64) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::from(ALLOWANCES.map(|allowance| (allowance, 0)));
        for (named, one) in self.all(policy) {
            let allowance = match self.state(policy, named, one, now_ms) {
                OverrideState::Unfit => "unfit",
                OverrideState::InForce | OverrideState::Restored => one.grant.name(),
                _ => continue,
            };
            *counts.entry(allowance).or_default() += 1;
        }
        counts
    }

    /// All overrides, including those not in force, sorted by limit, key and source.
    pub fn list(&self, policy: &Policy, now_ms: u64) -> Vec<ListedOverride> {
        let all = self.all(policy);
        let mut list: Vec<_> = all
            .map(|(named, one)| self.listed(policy, named, one, now_ms))
            .collect();
        list.sort_by(|a, b| (&a.limit, &a.key, &a.subject).cmp(&(&b.limit, &b.key, &b.subject)));
        list
    }

    /// The key with these digits, if the store has an override of it.
    pub fn key_of(&self, digits: &str) -> Option<String> {
        let stored = self.stored.iter().flat_map(|stored| stored.entries.keys());
        let mut keys = stored.filter_map(|(_, whom)| match whom {
            Whom::Key(key) => Some(key),
            Whom::Subject(_) | Whom::AllKeys(_) => None,
        });
        let key = keys.find(|key| Subject::of(key).to_string() == digits);
        key.cloned()
    }

    /// The names of those that do not fit the policy.
    pub fn unfit<'o>(&'o self, policy: &'o Policy, now_ms: u64) -> BTreeSet<(&'o str, &'o Whom)> {
        let is_unfit = |(named, one): &(Named<'_>, &Override)| {
            self.state(policy, *named, one, now_ms) == OverrideState::Unfit
        };
        let unfit = self.all(policy).filter(is_unfit);
        unfit.map(|((limit, whom, _), _)| (limit, whom)).collect()
    }

    /// All overrides but removals.
    fn all<'o>(&'o self, policy: &'o Policy) -> impl Iterator<Item = (Named<'o>, &'o Override)> {
        let of_policy = policy.limits().flat_map(|limit| {
            let name = limit.name.as_str();
            let overrides = limit.overrides.iter();
            overrides.map(move |(whom, one)| ((name, whom, OverrideSource::Policy), one))
        });
        let stored = self.stored.iter().flat_map(|stored| &stored.entries);
        let stored = stored.filter(|(_, one)| !one.is_removal());
        let stored =
            stored.map(|((limit, whom), one)| ((limit.as_str(), whom, OverrideSource::Store), one));
        of_policy.chain(stored)
    }

    /// Whether an override of this name is in force.
    fn state(
        &self,
        policy: &Policy,
        (limit, whom, source): Named<'_>,
        one: &Override,
        now_ms: u64,
    ) -> OverrideState {
        if one.has_ended(now_ms) {
            return OverrideState::Ended;
        }
        let lacks = policy.lacks(limit, whom).is_some();
        let (limit, whom) = policy.acts_on(limit, whom);
        let of_limit = self.by_limit.get(&limit);
        let (store, of_policy) = of_limit.map(|of| of.of(&whom)).unwrap_or_default();
        let by_digits = match (&whom, of_limit) {
            (Whom::Key(key), Some(of_limit)) => of_limit.by_digits(key),
            _ => None,
        };
        let own = match source {
            OverrideSource::Store => store,
            OverrideSource::Policy => of_policy,
        };
        let hiding = first(now_ms, [store, by_digits, None]);
        match (source, one.mark) {
            (_, Mark::Returned) => OverrideState::Returned,
            _ if lacks || own.is_none() => OverrideState::Unfit,
            (_, Mark::Restored) => OverrideState::Restored,
            (OverrideSource::Policy, _) if hiding.is_some() => OverrideState::Hidden,
            _ => OverrideState::InForce,
        }
    }

    /// The list entry of an override.
    pub fn listed(
        &self,
        policy: &Policy,
        named: Named<'_>,
        one: &Override,
        now_ms: u64,
    ) -> ListedOverride {
        let (limit, whom, source) = named;
        let acts_on = policy.limit(&policy.acts_on(limit, whom).0);
        ListedOverride {
            limit: limit.to_owned(),
            key: match whom {
                Whom::Key(key) => Some(key.clone()),
                Whom::Subject(_) | Whom::AllKeys(_) => None,
            },
            subject: Subject::of_whom(whom),
            all_keys: matches!(whom, Whom::AllKeys(_)),
            terms: one.terms.clone(),
            at_once: acts_on.is_some_and(|limit| limit.expire_us().is_some()),
            source,
            state: self.state(policy, named, one, now_ms),
        }
    }
}

/// The overrides at the time of a request, the same for all of its decisions.
#[derive(Clone, Copy, Debug)]
pub struct OverridesNow<'a> {
    by_limit: &'a ByLimit,
    /// The time, in milliseconds since 1970.
    pub unix_ms: u64,
}

impl<'a> OverridesNow<'a> {
    /// The effect of the override for a limit and key, and the milliseconds until it ends, if it has an end.
    pub fn find(self, limit: &str, key: &str) -> Option<(&'a Effect, Option<u64>)> {
        let timed = self.by_limit.get(limit)?.find(key, self.unix_ms)?;
        let left_ms = |until_ms: u64| until_ms.saturating_sub(self.unix_ms);
        Some((&timed.effect, timed.until_ms.map(left_ms)))
    }

    /// When the first override of these checks ends, in milliseconds since 1970: then what it hides decides.
    pub fn first_end_ms(self, checks: &[Check<'_>]) -> Option<u64> {
        let ends = checks.iter().filter_map(|check| {
            let (_, ends_in_ms) = self.find(&check.limit, &check.key)?;
            Some(self.unix_ms.saturating_add(ends_in_ms?))
        });
        ends.min()
    }
}

#[cfg(test)]
mod tests;
