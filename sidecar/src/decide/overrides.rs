//! The overrides in force: those of the policy file and those of the store, indexed for the lookup of every check. Pure.
//!
//! A snapshot belongs to an epoch and is rebuilt when the policy or the store's overrides change, so that a lookup does
//! not parse or compare: it costs one hash for a limit without overrides, three for a limit with some, a SHA-256 more where some
//! are by digits, and nothing but a reading of the clock for each request if there are no overrides.

use std::collections::HashMap;
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
                overrides.for_whom(&limit.name, whom).policy = Timed::of(limit, one);
            }
        }
        let entries = stored.iter().flat_map(|stored| &stored.entries);
        for ((limit, whom), entry) in entries.filter(|(_, entry)| entry.is_in_force()) {
            let of_policy = policy.limit(limit);
            let timed = of_policy.and_then(|limit| Timed::of(limit, &entry.one));
            overrides.for_whom(limit, whom).store = timed;
        }
        overrides.stored = stored;
        overrides
    }

    fn for_whom(&mut self, limit: &str, whom: &Whom) -> &mut KeyOverrides {
        let of_limit = self.by_limit.entry(limit.to_owned()).or_default();
        of_limit.any_by_digits |= matches!(whom, Whom::Subject(_));
        of_limit.of.entry(whom.clone()).or_default()
    }

    /// The overrides at this time, in milliseconds since 1970.
    pub const fn at(&self, unix_ms: u64) -> OverridesNow<'_> {
        OverridesNow {
            by_limit: &self.by_limit,
            unix_ms,
        }
    }

    /// The number of overrides in force, by what they allow.
    pub fn counts(&self, now_ms: u64) -> [(&'static str, usize); 3] {
        let [mut quota, mut unlimited, mut blocked] = [0; 3];
        let by_limit = self.by_limit.values();
        for entry in by_limit.flat_map(|of_limit| of_limit.of.values()) {
            match entry.now(now_ms).map(|timed| &timed.effect) {
                Some(Effect::Windows(_)) => quota += 1,
                Some(Effect::Unlimited) => unlimited += 1,
                Some(Effect::Blocked) => blocked += 1,
                None => {}
            }
        }
        [
            ("quota", quota),
            ("unlimited", unlimited),
            ("blocked", blocked),
        ]
    }

    /// All overrides, including those not in force, sorted by limit, key and source.
    pub fn list(&self, policy: &Policy, now_ms: u64) -> Vec<ListedOverride> {
        let of_policy = policy.limits().flat_map(|limit| {
            let listed = move |(whom, one): (&Whom, _)| {
                self.listed(&limit.name, whom, one, OverrideSource::Policy, now_ms)
            };
            limit.overrides.iter().map(listed)
        });
        let stored = self.stored.iter().flat_map(|stored| &stored.entries);
        let stored = stored.filter(|(_, entry)| !entry.is_removal());
        let stored = stored.map(|((limit, whom), entry)| {
            let listed = self.listed(limit, whom, &entry.one, OverrideSource::Store, now_ms);
            let state = match (entry.mark, listed.state) {
                (Mark::Restored, OverrideState::InForce) => OverrideState::Restored,
                (Mark::Returned, OverrideState::Unfit) => OverrideState::Returned,
                (_, state) => state,
            };
            ListedOverride { state, ..listed }
        });
        let mut list: Vec<_> = of_policy.chain(stored).collect();
        list.sort_by(|a, b| (&a.limit, &a.key, &a.subject).cmp(&(&b.limit, &b.key, &b.subject)));
        list
    }

    /// The list entry of an override.
    pub fn listed(
        &self,
        limit: &str,
        whom: &Whom,
        one: &Override,
        source: OverrideSource,
        now_ms: u64,
    ) -> ListedOverride {
        let key = match whom {
            Whom::Key(key) => Some(key),
            Whom::Subject(_) | Whom::AllKeys(_) => None,
        };
        let of_limit = self.by_limit.get(limit);
        let entry = of_limit.and_then(|of_limit| of_limit.of.get(whom));
        let store = entry.and_then(|entry| entry.store.as_ref());
        let by_digits = of_limit.zip(key).and_then(|(of, key)| of.by_digits(key));
        let (own, hiding) = match source {
            OverrideSource::Store => (store, [None, None]),
            OverrideSource::Policy => (
                entry.and_then(|entry| entry.policy.as_ref()),
                [store, by_digits],
            ),
        };
        let mut hiding = hiding.into_iter().flatten();
        let state = if one.has_ended(now_ms) {
            OverrideState::Ended
        } else if own.is_none() {
            OverrideState::Unfit
        } else if hiding.any(|one| !one.has_ended(now_ms)) {
            OverrideState::Hidden
        } else {
            OverrideState::InForce
        };
        ListedOverride {
            limit: limit.to_owned(),
            key: key.cloned(),
            subject: Subject::of_whom(whom),
            all_keys: matches!(whom, Whom::AllKeys(_)),
            terms: one.terms.clone(),
            source,
            state,
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
mod tests {
    use super::*;
    use crate::store::StoredOverride;

    const POLICY: &str = "
limits:
  l:
    algorithm: sliding_log
    windows: [{ quota: 5, per: 1s }]
    overrides:
      - { key: a, quota: 50 }
      - { key: b, blocked: true, until: 1970-01-01T00:00:05Z }
  m: { algorithm: sliding_log, windows: [{ quota: 5, per: 1s }] }
";

    fn stored(entries: &[(&str, &str, &str)]) -> Option<Arc<StoredOverrides>> {
        let entry = |(limit, key, terms): &(&str, &str, &str)| {
            let terms = serde_json::from_str(terms).unwrap();
            let entry = StoredOverride {
                version: 1,
                mark: Mark::Set,
                one: Override::read(terms).unwrap(),
            };
            let whom = match *key {
                "" => Whom::AllKeys(true),
                key => match key.strip_prefix('#') {
                    Some(digits) => Whom::Subject(digits.to_owned()),
                    None => Whom::Key(key.to_owned()),
                },
            };
            (((*limit).to_owned(), whom), entry)
        };
        Some(Arc::new(StoredOverrides {
            version: 1,
            entries: entries.iter().map(entry).collect(),
            ..StoredOverrides::default()
        }))
    }

    fn quota(effect: Option<(&Effect, Option<u64>)>) -> Option<u64> {
        match effect {
            Some((Effect::Windows(windows), _)) => Some(windows[0].quota),
            _ => None,
        }
    }

    #[test]
    fn the_stores_override_comes_before_the_policys_until_it_ends() {
        let policy = Policy::parse(POLICY).unwrap();
        let ends = r#"{"unlimited":true,"until":"1970-01-01T00:00:03Z"}"#;
        let stored = stored(&[("l", "a", ends), ("m", "a", r#"{"quota":7}"#)]);
        let overrides = Overrides::new(&policy, stored);
        let at = |now_ms| overrides.at(now_ms);
        let unlimited = (&Effect::Unlimited, Some(2_000));
        assert_eq!(at(1_000).find("l", "a"), Some(unlimited));
        assert_eq!(quota(at(3_000).find("l", "a")), Some(50), "it has ended");
        assert_eq!(quota(at(1_000).find("m", "a")), Some(7));
        assert_eq!(at(1_000).find("m", "b"), None);
        assert_eq!(at(4_999).find("l", "b"), Some((&Effect::Blocked, Some(1))));
        assert_eq!(at(5_000).find("l", "b"), None);
        let counts = [("quota", 1), ("unlimited", 1), ("blocked", 1)];
        assert_eq!(overrides.counts(0), counts);
    }

    #[test]
    fn a_list_says_which_overrides_have_an_effect() {
        use OverrideSource::{Policy as InPolicy, Store};
        use OverrideState::{Ended, Hidden, InForce, Unfit};
        let policy = Policy::parse(POLICY).unwrap();
        let stored = stored(&[
            ("l", "a", r#"{"unlimited":true}"#),
            ("l", "c", r#"{"windows":[{"quota":5,"per":"1h"}]}"#),
            ("gone", "a", r#"{"quota":7}"#),
        ]);
        let overrides = Overrides::new(&policy, stored);
        let list = overrides.list(&policy, 6_000);
        let states = list.iter();
        let states = states.map(|one| {
            let key = one.key.as_deref().unwrap_or("");
            (&*one.limit, key, one.source, one.state)
        });
        assert!(states.eq([
            ("gone", "a", Store, Unfit),
            ("l", "a", InPolicy, Hidden),
            ("l", "a", Store, InForce),
            ("l", "b", InPolicy, Ended),
            ("l", "c", Store, Unfit),
        ]));
        assert_eq!(list[0].subject, Some(Subject::of("a").to_string()));
    }

    const UNLIMITED: &str = r#"{"unlimited":true}"#;
    const BLOCKED: &str = r#"{"blocked":true}"#;

    #[test]
    fn digits_match_their_key_unless_a_client_can_choose_its_text() {
        let hash = "ab3f1704f76fd869f6c1c98eb2dd779e";
        let hashed = format!("x-tenant#{hash}");
        let composed = format!("@address=192.0.2.1;@cookie/a#{hash};@mtls/spiffe=a");
        let shadow = format!("@shadow=r;{hashed}");
        let matched = ["worker-7", "@jwt/sub=s:alice", &hashed, &composed, &shadow];
        let partly = format!("{hashed};x-team=a");
        let whole = format!("~{hash}");
        let refused = [
            "x-tenant=acme",
            "@cookie/sid=a",
            "@query/account=a",
            "@path=/a",
            "@template/id=a",
            "@host=a",
            "@metadata/a/b=a",
            "@attribute/request.path=a",
            "@addressed=a",
            &partly,
            &whole,
        ];
        let policy = Policy::parse(POLICY).unwrap();
        for (keys, expected) in [(&matched[..], true), (&refused, false)] {
            for key in keys {
                let digits = format!("#{}", Subject::of(key));
                let stored = stored(&[("m", &digits, UNLIMITED)]);
                let overrides = Overrides::new(&policy, stored);
                let now = overrides.at(1_000);
                assert_eq!(now.find("m", key).is_some(), expected, "{key}");
                assert_eq!(now.find("m", "another"), None);
                assert_eq!(now.find("l", key), None, "of another limit");
            }
        }
    }

    #[test]
    fn what_is_set_by_digits_comes_between_the_keys_own_in_the_store_and_in_the_policy() {
        let policy = Policy::parse(POLICY).unwrap();
        let digits = format!("#{}", Subject::of("a"));
        let ends = r#"{"quota":9,"until":"1970-01-01T00:00:02Z"}"#;
        let stored = stored(&[("l", "a", ends), ("l", &digits, r#"{"quota":7}"#)]);
        let overrides = Overrides::new(&policy, stored);
        let at = |now_ms| quota(overrides.at(now_ms).find("l", "a"));
        assert_eq!((at(1_000), at(2_000)), (Some(9), Some(7)));
        let list = overrides.list(&policy, 2_000);
        let states: Vec<_> = list.iter().map(|one| (one.source, one.state)).collect();
        let hidden = (OverrideSource::Policy, OverrideState::Hidden);
        assert!(states.contains(&hidden), "{states:?}");
    }

    #[test]
    fn what_is_set_for_all_keys_comes_first_except_before_blocks() {
        let policy = POLICY.replace("  m: {", "  m: { enforce: false,");
        let policy = Policy::parse(&policy).unwrap();
        let ends = r#"{"unlimited":true,"until":"1970-01-01T00:00:02Z"}"#;
        let digits = format!("#{}", Subject::of("d"));
        let stored = stored(&[
            ("l", "", ends),
            ("m", "c", BLOCKED),
            ("m", &digits, BLOCKED),
        ]);
        let overrides = Overrides::new(&policy, stored);
        let at = |now_ms| overrides.at(now_ms);
        let unlimited = Some((&Effect::Unlimited, Some(1_000)));
        assert_eq!(at(1_000).find("l", "a"), unlimited);
        assert_eq!(at(1_000).find("l", "anybody"), unlimited);
        assert_eq!(
            at(1_000).find("l", "b"),
            Some((&Effect::Blocked, Some(4_000)))
        );
        assert_eq!(quota(at(2_000).find("l", "a")), Some(50), "it has ended");
        assert_eq!(at(2_000).find("l", "anybody"), None);
        assert_eq!(
            at(9_000).find("m", "anybody"),
            Some((&Effect::Unlimited, None))
        );
        for blocked in ["c", "d"] {
            assert_eq!(at(9_000).find("m", blocked), Some((&Effect::Blocked, None)));
        }
        assert_eq!(overrides.counts(1_000)[1], ("unlimited", 2));
        let list = overrides.list(&policy, 1_000);
        let all: Vec<_> = list.iter().filter(|one| one.all_keys).collect();
        assert_eq!((all.len(), all[0].source), (2, OverrideSource::Store));
        assert_eq!(
            (&*all[1].limit, all[1].source),
            ("m", OverrideSource::Policy)
        );
        assert!(all.iter().all(|one| one.state == OverrideState::InForce));
    }
}
