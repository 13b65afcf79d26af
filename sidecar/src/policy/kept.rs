//! Limits, entries and rules of earlier policies, for filters that still ask by those rules. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use sluicegate_protocol::{MAX_EARLIER, list_of};

use super::consumers::{Consumers, ConsumersByLimit};
use super::files::MAX_BYTES;
use super::limits::Limit;
use super::rules::RuleSets;

/// How long everything is kept: filters have new rules a second later, and other programs may ask as well.
const KEPT_US: u64 = 60_000_000;
/// Most that is kept: limits and their overrides, entries of `consumers` and their keys.
const MAX_KEPT: usize = 10_000;
/// Most bytes of texts for a restart: as JSON they are a file that is read.
const MAX_TEXT_BYTES: usize = MAX_BYTES as usize / 2;

/// A policy's text, which may contain the store's password.
#[derive(Clone, PartialEq)]
pub(super) struct Text(pub Arc<str>);

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Text(..)")
    }
}

/// The limits and entries for which filters may ask a policy, and the policy's text.
#[derive(Clone, Copy)]
pub(super) struct Asked<'a> {
    pub text: &'a Text,
    pub limits: &'a BTreeMap<String, Arc<Limit>>,
    pub consumers: &'a ConsumersByLimit,
    pub rules: &'a RuleSets,
}

/// Limits, entries of `consumers` and rules that the policy does not have any more.
#[derive(Clone, Debug, Default)]
pub(super) struct Kept {
    pub limits: BTreeMap<String, Arc<Limit>>,
    pub consumers: BTreeMap<String, Arc<Consumers>>,
    /// Since when the policy has no limit or entry of this name.
    since_us: BTreeMap<String, u64>,
    /// Oldest first.
    past: Vec<Past>,
}

/// A policy of before.
#[derive(Clone, Debug, PartialEq)]
struct Past {
    text: Text,
    /// The digest of its rules, if the policy in force has other rules.
    digest: Option<String>,
    /// The limits and entries that its rules ask for.
    names: Arc<BTreeSet<String>>,
    /// Since when it is not in force, and no filter has its rules.
    since_us: u64,
    /// Whether a filter is known to have these rules.
    is_used: bool,
}

impl Kept {
    /// Everything that has to be kept once `next` has replaced `before`: what this keeps, and what the change removes.
    ///
    /// # Errors
    /// It is too much.
    pub fn after(&self, before: Asked<'_>, next: Asked<'_>, now_us: u64) -> Result<Self, String> {
        let mut kept = self.clone();
        kept.limits = gone([&kept.limits, before.limits], next.limits);
        kept.consumers = gone([&kept.consumers, before.consumers], next.consumers);
        let names = kept.limits.keys().chain(kept.consumers.keys());
        let since = |name: &String| kept.since_us.get(name).copied().unwrap_or(now_us);
        kept.since_us = names.map(|name| (name.clone(), since(name))).collect();
        kept.past.retain(|past| past.text != *before.text);
        kept.past.push(Past {
            text: before.text.clone(),
            digest: before.rules.told(),
            names: Arc::clone(&before.rules.names),
            since_us: now_us,
            is_used: false,
        });
        kept.past.retain(|past| past.text != *next.text);
        for past in &mut kept.past {
            past.digest.take_if(|digest| *digest == next.rules.digest);
        }
        if kept.past.len() > MAX_EARLIER {
            let unused = kept.past.iter().position(|past| !past.is_used);
            kept.past.remove(unused.unwrap_or(0));
        }
        let size = kept.size();
        if size > MAX_KEPT {
            return Err(format!(
                "filters may still ask for {size} limits, overrides and consumers' keys that this policy does not have, and {MAX_KEPT} are kept: change fewer names at a time; the file is read again when less is kept, after a minute or when `sluicegate rollout` lists no filter with earlier rules any more"
            ));
        }
        Ok(kept)
    }

    fn size(&self) -> usize {
        let limits = self.limits.values().map(|limit| 1 + limit.overrides.len());
        let consumers = self.consumers.values().map(|entry| 1 + entry.keys.len());
        limits.chain(consumers).sum()
    }

    /// How much is kept, as a part of the most that may be kept.
    pub fn ratio(&self) -> f64 {
        self.size() as f64 / MAX_KEPT as f64
    }

    /// The digests of the rules, as answers have them.
    pub fn earlier(&self) -> String {
        list_of(self.past.iter().filter_map(|past| past.digest.as_deref()))
    }

    /// The texts of the policies that this is from, oldest first: the newest, if all are too much.
    pub fn texts(&self) -> Vec<Arc<str>> {
        let mut bytes = 0;
        let newest = self.past.iter().rev().map(|past| Arc::clone(&past.text.0));
        let mut texts: Vec<_> = newest
            .take_while(|text| {
                bytes += text.len();
                bytes <= MAX_TEXT_BYTES
            })
            .collect();
        texts.reverse();
        texts
    }

    /// Drops limits and rules that no filter should ask for any more: gone for long, and not named by the rules of a filter. Returns
    /// whether anything changed, and whether that was more than what answers list.
    pub fn drop_unused(&mut self, is_used: impl Fn(&str) -> bool, now_us: u64) -> (bool, bool) {
        let is_over = |since_us: u64| now_us.saturating_sub(since_us) >= KEPT_US;
        let (past, names) = (self.past.clone(), self.since_us.len());
        for past in &mut self.past {
            let was_used = past.is_used;
            past.is_used = past.digest.as_deref().is_some_and(&is_used);
            if was_used && !past.is_used {
                // Filters that have left these rules come back to them if a sidecar returns that lacks the others.
                past.since_us = now_us;
            }
        }
        self.past
            .retain(|past| past.is_used || !is_over(past.since_us));
        let is_named = |name: &String| self.past.iter().any(|past| past.names.contains(name));
        let is_recent =
            |name: &String| self.since_us.get(name).is_none_or(|since| !is_over(*since));
        let stays = |name: &String| is_recent(name) || is_named(name);
        self.consumers.retain(|name, _| stays(name));
        let of_consumers: BTreeSet<_> = self
            .consumers
            .values()
            .flat_map(|entry| entry.limits())
            .collect();
        self.limits
            .retain(|name, _| stays(name) || of_consumers.contains(name));
        let (limits, consumers) = (&self.limits, &self.consumers);
        self.since_us
            .retain(|name, _| limits.contains_key(name) || consumers.contains_key(name));
        let has_fewer = names != self.since_us.len();
        (has_fewer || past != self.past, has_fewer)
    }
}

/// The entries of earlier policies that the present one lacks.
fn gone<T>(
    before: [&BTreeMap<String, Arc<T>>; 2],
    now: &BTreeMap<String, Arc<T>>,
) -> BTreeMap<String, Arc<T>> {
    let gone = before.into_iter().flatten();
    let gone = gone.filter(|(name, _)| !now.contains_key(*name));
    gone.map(|(name, one)| (name.clone(), Arc::clone(one)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Policy;

    const S: u64 = 1_000_000;

    /// A policy whose rules ask for the first of these limits.
    fn policy(limits: &[&str]) -> Policy {
        let mut text = "limits:\n".to_owned();
        for name in limits {
            text += &format!(
                "  {name}: {{ algorithm: fixed_window, windows: [{{ quota: 1, per: 1h }}] }}\n"
            );
        }
        let asked = limits[0];
        text += &format!(
            "rules: {{ s: {{ rules: [{{ name: r, checks: [{{ limit: {asked}, key: [{{ host: true }}] }}], when_unavailable: deny }}] }} }}"
        );
        Policy::parse(&text).unwrap()
    }

    fn has(policy: &Policy, limits: &[&str]) -> bool {
        limits.iter().all(|name| policy.limit(name).is_some())
    }

    #[test]
    fn what_is_gone_is_kept_for_a_minute_and_while_a_filter_has_rules_that_name_it() {
        let first = policy(&["a", "x"]);
        let digest = first.rules.digest.clone();
        let second = first.may_become(policy(&["b"]), S).unwrap();
        assert!(has(&second, &["a", "b", "x"]));
        assert_eq!(second.earlier().as_deref(), digest.get(..6));
        // Other changes do not keep it for longer.
        let third = second.may_become(policy(&["c"]), 30 * S).unwrap();
        assert!(third.without_unused(|_| false, 60 * S).is_none());
        let (policy, has_fewer) = third.without_unused(|used| used == digest, 61 * S).unwrap();
        assert!(has_fewer && has(&policy, &["a", "b", "c"]));
        assert!(policy.limit("x").is_none(), "no rule names it");
        // The filter keeps its rules for a day.
        let (policy, _) = policy
            .without_unused(|used| used == digest, 86_400 * S)
            .unwrap();
        assert!(has(&policy, &["a", "c"]) && policy.limit("b").is_none());
        // Then it has left them, and may come back.
        let (policy, has_fewer) = policy.without_unused(|_| false, 86_401 * S).unwrap();
        assert!(!has_fewer && has(&policy, &["a"]));
        assert_eq!(policy.earlier().as_deref(), digest.get(..6));
        assert!(policy.without_unused(|_| false, 86_460 * S).is_none());
        let (policy, has_fewer) = policy.without_unused(|_| false, 86_461 * S).unwrap();
        assert!(has_fewer && policy.limit("a").is_none() && policy.earlier().is_none());
    }

    #[test]
    fn the_old_file_is_a_rollback() {
        let (first, second) = (policy(&["a"]), policy(&["b"]));
        let [of_first, of_second] =
            [&first, &second].map(|one| one.rules.digest.get(..6).unwrap().to_owned());
        let second = first.may_become(second, S).unwrap();
        let again = second.may_become(first, 2 * S).unwrap();
        assert!(has(&again, &["a", "b"]));
        assert_eq!(again.earlier().unwrap(), of_second);
        let again = again.may_become(policy(&["b"]), 3 * S).unwrap();
        assert_eq!(again.earlier().unwrap(), of_first);
    }

    #[test]
    fn a_thousand_changes_of_rules_forget_none_that_a_filter_has() {
        let mut newest = policy(&["a"]);
        let digest = newest.rules.digest.clone();
        for n in 0..1_000 {
            let next = policy(&[&format!("l{n}")]);
            newest = newest.may_become(next, S).unwrap();
            let with_use = newest.without_unused(|used| used == digest, 2 * S);
            newest = with_use.map_or(newest, |(policy, _)| policy);
        }
        let earlier = newest.earlier().unwrap();
        assert!(earlier.contains(digest.get(..6).unwrap()), "{earlier}");
        assert!(earlier.len() < MAX_EARLIER * 7);
    }

    #[test]
    fn a_change_after_which_too_much_would_be_kept_is_refused() {
        let names: Vec<_> = (0..=MAX_KEPT).map(|n| format!("l{n}")).collect();
        let all: Vec<_> = names.iter().map(String::as_str).collect();
        let large = policy(&all);
        let why = large.may_become(policy(&["a"]), S).unwrap_err();
        assert!(
            why.contains("10001 limits") && why.contains("fewer names"),
            "{why}"
        );
        let most = policy(&all[..MAX_KEPT])
            .may_become(policy(&["a"]), S)
            .unwrap();
        assert!((most.kept_ratio() - 1.0).abs() < f64::EPSILON);
        assert!(most.may_become(policy(&["b"]), 2 * S).is_err());
        let (later, _) = most.without_unused(|_| false, 61 * S).unwrap();
        assert!(later.may_become(policy(&["b"]), 62 * S).is_ok());
    }
}
