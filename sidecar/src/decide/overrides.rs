//! The overrides in force: those of the policy file and those of the store, indexed for the lookup of every check. Pure.
//!
//! A snapshot belongs to an epoch and is rebuilt when the policy or the store's overrides change, so that a lookup does
//! not parse or compare: it costs one hash for a limit without overrides, three for a limit with some, a SHA-256 more where some
//! are by digits, and nothing but a reading of the clock for each request if there are no overrides.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use sluicegate_engine::BucketSpec;
use sluicegate_protocol::{Check, ListedOverride, OverrideSource, OverrideState, Whom};

use crate::policy::{Grant, Limit, Override, Policy};
use crate::store::{Mark, StoredOverrides};
use crate::telemetry::subject::Subject;

/// The effect of an override on its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// These windows replace the limit's.
    Windows(Arc<[BucketSpec]>),
    /// Every check is admitted.
    Unlimited,
    /// Every check is denied.
    Blocked,
}

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
            Grant::Quotas(quotas) => Effect::Windows(limit.with_quotas(quotas).ok()?.into()),
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

/// By limit: nearly all lookups end there.
type ByLimit = HashMap<String, LimitOverrides>;

/// The overrides of a limit, by whom they are for.
#[derive(Debug, Default)]
struct LimitOverrides {
    of: HashMap<Whom, KeyOverrides>,
    /// Whether some are for the digits of a key: otherwise no digits are computed.
    any_by_digits: bool,
}

impl LimitOverrides {
    /// The override of a key. What an operator has set for it comes before what is set for its digits, and both before the
    /// policy's for the key. What is set for all keys comes before all of them, unless they block the key.
    fn find(&self, key: &str, now_ms: u64) -> Option<&Timed> {
        let own = self.of.get(&Whom::Key(key.to_owned()));
        let store = own.and_then(|own| own.store.as_ref());
        let policy = own.and_then(|own| own.policy.as_ref());
        let mut all = [store, self.by_digits(key), policy].into_iter().flatten();
        let own = all.find(|timed| !timed.has_ended(now_ms));
        let is_blocked = own.is_some_and(|own| own.effect == Effect::Blocked);
        let all = self.of.get(&Whom::AllKeys(true));
        let all = all.filter(|_| !is_blocked);
        all.and_then(|all| all.now(now_ms)).or(own)
    }

    /// What is set for the key's digits; only the store has such overrides.
    fn by_digits(&self, key: &str) -> Option<&Timed> {
        if !self.any_by_digits || client_chooses(key) {
            return None;
        }
        let digits = Subject::of(key).to_string();
        self.of.get(&Whom::Subject(digits))?.store.as_ref()
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

/// The overrides of one key: the store's takes precedence over the policy's.
#[derive(Debug, Default)]
struct KeyOverrides {
    store: Option<Timed>,
    policy: Option<Timed>,
}

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
        let mut overrides = Self::default();
        for limit in policy.decided_limits() {
            for (whom, one) in &limit.overrides {
                let acts_on = match policy.has(&limit.name) {
                    true => policy.acts_on(&limit.name, whom),
                    // Of an earlier policy, for who still asks for this limit.
                    false => (limit.name.clone(), whom.clone()),
                };
                let (of, timed) = overrides.of(policy, acts_on, one);
                of.policy = timed;
            }
        }
        let entries = stored.iter().flat_map(|stored| &stored.entries);
        for ((limit, whom), entry) in entries.filter(|(_, entry)| entry.is_in_force()) {
            let (of, timed) = overrides.of(policy, policy.acts_on(limit, whom), &entry.one);
            of.store = timed;
        }
        overrides.stored = stored;
        overrides
    }

    /// The place of an override that acts on these, and what it does there, if anything.
    fn of(
        &mut self,
        policy: &Policy,
        (limit, whom): (String, Whom),
        one: &Override,
    ) -> (&mut KeyOverrides, Option<Timed>) {
        let of_policy = policy.limit(&limit);
        let timed = of_policy.and_then(|limit| Timed::of(limit, one));
        let of_limit = self.by_limit.entry(limit).or_default();
        of_limit.any_by_digits |= matches!(whom, Whom::Subject(_));
        (of_limit.of.entry(whom).or_default(), timed)
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
        for (_, _, one, _, state) in self.states(policy, now_ms) {
            let allowance = match (state, &one.grant) {
                (OverrideState::Unfit, _) => "unfit",
                (OverrideState::InForce | OverrideState::Restored, grant) => grant.name(),
                _ => continue,
            };
            *counts.entry(allowance).or_default() += 1;
        }
        counts
    }

    /// All overrides, including those not in force, sorted by limit, key and source.
    pub fn list(&self, policy: &Policy, now_ms: u64) -> Vec<ListedOverride> {
        let states = self.states(policy, now_ms);
        let listed =
            states.map(|(limit, whom, one, source, state)| listed(limit, whom, one, source, state));
        let mut list: Vec<_> = listed.collect();
        list.sort_by(|a, b| (&a.limit, &a.key, &a.subject).cmp(&(&b.limit, &b.key, &b.subject)));
        list
    }

    /// The names of those that do not fit the policy.
    pub fn unfit<'o>(&'o self, policy: &'o Policy, now_ms: u64) -> BTreeSet<(&'o str, &'o Whom)> {
        let states = self.states(policy, now_ms);
        let unfit = states.filter(|(.., state)| *state == OverrideState::Unfit);
        unfit.map(|(limit, whom, ..)| (limit, whom)).collect()
    }

    /// Names and terms of all overrides, where they are, and whether they are in force.
    fn states<'o>(
        &'o self,
        policy: &'o Policy,
        now_ms: u64,
    ) -> impl Iterator<
        Item = (
            &'o str,
            &'o Whom,
            &'o Override,
            OverrideSource,
            OverrideState,
        ),
    > {
        let of_policy = policy.limits().flat_map(move |limit| {
            limit.overrides.iter().map(move |(whom, one)| {
                let source = OverrideSource::Policy;
                let state = self.state(policy, (&limit.name, whom), one, source, now_ms);
                (limit.name.as_str(), whom, one, source, state)
            })
        });
        let stored = self.stored.iter().flat_map(|stored| &stored.entries);
        let stored = stored.filter(|(_, entry)| !entry.is_removal());
        let stored = stored.map(move |((limit, whom), entry)| {
            let source = OverrideSource::Store;
            let state = self.state(policy, (limit, whom), &entry.one, source, now_ms);
            let state = match (entry.mark, state) {
                (Mark::Restored, OverrideState::InForce) => OverrideState::Restored,
                (Mark::Returned, OverrideState::Unfit) => OverrideState::Returned,
                (_, state) => state,
            };
            (limit.as_str(), whom, &entry.one, source, state)
        });
        of_policy.chain(stored)
    }

    /// Whether an override of this name is in force.
    pub fn state(
        &self,
        policy: &Policy,
        (limit, whom): (&str, &Whom),
        one: &Override,
        source: OverrideSource,
        now_ms: u64,
    ) -> OverrideState {
        if one.has_ended(now_ms) {
            return OverrideState::Ended;
        }
        let lacks = policy.lacks(limit, whom).is_some();
        let (limit, whom) = policy.acts_on(limit, whom);
        let of_limit = self.by_limit.get(&limit);
        let entry = of_limit.and_then(|of_limit| of_limit.of.get(&whom));
        let own = entry.and_then(|entry| match source {
            OverrideSource::Store => entry.store.as_ref(),
            OverrideSource::Policy => entry.policy.as_ref(),
        });
        if lacks || own.is_none() {
            return OverrideState::Unfit;
        }
        let by_digits = of_limit.zip(match &whom {
            Whom::Key(key) => Some(key),
            Whom::Subject(_) | Whom::AllKeys(_) => None,
        });
        let by_digits = by_digits.and_then(|(of, key)| of.by_digits(key));
        let mut hiding = entry
            .and_then(|entry| entry.store.as_ref())
            .into_iter()
            .chain(by_digits);
        let is_hidden = hiding.any(|one| !one.has_ended(now_ms));
        if source == OverrideSource::Policy && is_hidden {
            OverrideState::Hidden
        } else {
            OverrideState::InForce
        }
    }
}

impl KeyOverrides {
    fn now(&self, now_ms: u64) -> Option<&Timed> {
        let both = [&self.store, &self.policy];
        let mut not_ended = both.into_iter().flatten();
        not_ended.find(|timed| !timed.has_ended(now_ms))
    }
}

/// The list entry of an override.
pub fn listed(
    limit: &str,
    whom: &Whom,
    one: &Override,
    source: OverrideSource,
    state: OverrideState,
) -> ListedOverride {
    ListedOverride {
        limit: limit.to_owned(),
        key: match whom {
            Whom::Key(key) => Some(key.clone()),
            Whom::Subject(_) | Whom::AllKeys(_) => None,
        },
        subject: Subject::of_whom(whom),
        all_keys: matches!(whom, Whom::AllKeys(_)),
        terms: one.terms.clone(),
        source,
        state,
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
