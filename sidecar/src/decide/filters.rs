//! The filters that get rules from this sidecar, and which rules each has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sluicegate_protocol::{FilterState, RulesReport, RulesState};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::clock;
use crate::lock::lock;
use crate::policy::{Policy, is_name};

/// Most filters that are known, and most that wait for news at the same time; the others are answered at once and ask again.
const MAX_FILTERS: usize = 4_096;
const MAX_WAITING: usize = 1_024;
/// How long a filter is known after it was last heard of.
const FORGET_AFTER_US: u64 = 60_000_000;
/// A filter asks again after five seconds at the latest, or has ended.
const GONE_AFTER_US: u64 = 10_000_000;
/// Most filters for which the sidecar reports why they do not take the rules.
pub const MAX_TOLD: usize = 4;
/// Most bytes that are kept of a filter's report.
const MAX_TEXT: usize = 256;

/// The filters by [`RulesReport::vm`].
#[derive(Debug)]
pub struct Filters {
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    waiting: Arc<Semaphore>,
    stopping: watch::Sender<bool>,
    /// When a filter was last not listed, because there are too many.
    unlisted_us: AtomicU64,
}

#[derive(Debug)]
struct Known {
    state: FilterState,
    since_us: u64,
    seen_us: u64,
    /// Its requests that are waiting.
    waiting: usize,
}

/// A filter waits for news until this is dropped.
#[derive(Debug)]
pub struct Waits {
    vm: String,
    known: Arc<Mutex<BTreeMap<String, Known>>>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Waits {
    fn drop(&mut self) {
        if let Some(known) = lock(&self.known).get_mut(&self.vm) {
            known.waiting = known.waiting.saturating_sub(1);
            known.seen_us = clock::now_us();
        }
    }
}

impl Default for Filters {
    fn default() -> Self {
        Self {
            known: Arc::default(),
            waiting: Arc::new(Semaphore::new(MAX_WAITING)),
            stopping: watch::Sender::new(false),
            unlisted_us: AtomicU64::new(0),
        }
    }
}

impl Filters {
    /// Has at most this many filters wait. Each takes a connection that cannot be closed for one with decisions.
    pub fn wait_at_most(&self, filters: usize) {
        let surplus = MAX_WAITING.saturating_sub(filters);
        self.waiting.forget_permits(surplus);
    }

    /// A filter asks for rules and reports which it has. Its request may wait for as long as the returned value lives; `None`: it may
    /// not wait.
    pub fn asks(&self, report: &RulesReport<'_>, version: &str, now_us: u64) -> Option<Waits> {
        let permit = Arc::clone(&self.waiting).try_acquire_owned().ok();
        let is_listed = self.hears(report, version, now_us, usize::from(permit.is_some()));
        Some(Waits {
            vm: report.vm.to_string(),
            known: Arc::clone(&self.known),
            _permit: permit.filter(|_| is_listed)?,
        })
    }

    /// A filter reports which rules it has, in `waiting` requests that may wait. `false`: there are too many filters.
    pub fn hears(
        &self,
        report: &RulesReport<'_>,
        version: &str,
        now_us: u64,
        waiting: usize,
    ) -> bool {
        let mut filters = lock(&self.known);
        if filters.len() >= MAX_FILTERS && !filters.contains_key(report.vm.as_ref()) {
            self.unlisted_us.store(now_us, Ordering::Relaxed);
            return false;
        }
        // Anybody may have sent it, and people read it on their terminals. A filter writes ASCII.
        let plain = |c: char| if matches!(c, ' '..='~') { c } else { '?' };
        let text = |text: &str| text.chars().take(MAX_TEXT).map(plain).collect::<String>();
        let named = report.sets.iter().filter(|set| is_name(set));
        let state = FilterState {
            vm: report.vm.to_string(),
            node: text(&report.node),
            version: text(version),
            sets: named.take(16).map(|set| text(set)).collect(),
            serves: report.serves,
            state: RulesState::None,
            digest: report.in_force.as_deref().map(str::to_owned),
            since_seconds: 0,
            refused: report.refused.as_deref().map(str::to_owned),
            why: report.why.as_deref().map(text),
            held_by: report.held_by.as_deref().map(text),
            pepper: report.pepper.as_deref().map(str::to_owned),
            other_pepper: false,
            seen_seconds: 0,
        };
        let before = filters.get(report.vm.as_ref());
        let same = before.filter(|before| before.state.digest == state.digest);
        let known = Known {
            since_us: same.map_or(now_us, |same| same.since_us),
            seen_us: now_us,
            waiting: before.map_or(0, |before| before.waiting) + waiting,
            state,
        };
        filters.insert(report.vm.to_string(), known);
        true
    }

    /// Completes when the sidecar stops: no request should wait any longer.
    pub async fn stopping(&self) {
        // The sender is a field of this.
        let _ = self
            .stopping
            .subscribe()
            .wait_for(|stopping| *stopping)
            .await;
    }

    /// The sidecar stops.
    pub fn stop(&self) {
        self.stopping.send_replace(true);
    }

    /// Whether there were more than can be listed, lately.
    pub fn has_unlisted(&self, now_us: u64) -> bool {
        let last_us = self.unlisted_us.load(Ordering::Relaxed);
        last_us > 0 && now_us.saturating_sub(last_us) < FORGET_AFTER_US
    }

    /// Forgets filters that have not been heard of for long.
    pub fn forget(&self, now_us: u64) {
        lock(&self.known).retain(|_, known| {
            known.waiting > 0 || now_us.saturating_sub(known.seen_us) < FORGET_AFTER_US
        });
    }

    /// How many of them serve requests.
    pub fn serving(&self) -> usize {
        let known = lock(&self.known);
        known.values().filter(|known| known.state.serves).count()
    }

    /// The digests of the rules that they have.
    pub fn digests(&self) -> BTreeSet<String> {
        let known = lock(&self.known);
        let digests = known.values().map(|known| known.state.digest.clone());
        digests.flatten().collect()
    }

    /// How many filters are in which state.
    pub fn states(&self, rules: &str, now_us: u64) -> BTreeMap<&'static str, usize> {
        let mut states = BTreeMap::new();
        for known in lock(&self.known).values() {
            *states.entry(known.state(rules, now_us).name()).or_insert(0) += 1;
        }
        states
    }

    /// How many filters keep the rules with this digest because this sidecar has them in force, and another one has newer ones.
    pub fn held_by(&self, sidecar: &str, rules: &str, now_us: u64) -> usize {
        let known = lock(&self.known);
        let held = known.values().filter(|known| {
            known.state(rules, now_us) == RulesState::InForce
                && known.state.held_by.as_deref() == Some(sidecar)
        });
        held.count()
    }

    /// The filters that do not take the policy's rules, and why. At time 0, none is gone yet.
    pub fn apart(&self, sidecar: &str, policy: &Policy, now_us: u64) -> Vec<String> {
        let may_be = |known: &Known| known.state.refused.is_some() || known.state.held_by.is_some();
        let filters = self.list_where(may_be, sidecar, policy, now_us);
        let told = filters.into_iter().filter_map(|filter| {
            let why = match (filter.state, filter.why, filter.held_by) {
                (RulesState::Refused, Some(why), _) => format!("refuses these: {why}"),
                (_, _, Some(by)) => format!("waits for sidecar {by}, which has them in force"),
                _ => return None,
            };
            let keeps = |digest| format!("keeps rules {digest}");
            let keeps = filter
                .digest
                .map_or_else(|| "has no rules".to_owned(), keeps);
            let vm = filter.vm.get(..8)?;
            Some(format!(
                "filter {vm} of `{}` {keeps}: it {why}",
                filter.node
            ))
        });
        told.collect()
    }

    /// The filters that list a set which this policy does not have; not all of many.
    pub fn without_set(&self, policy: &Policy) -> Vec<String> {
        let filters = lock(&self.known);
        let told = filters.values().filter_map(|Known { state, .. }| {
            let is_gone = |set: &&String| !policy.rules.sets.contains_key(*set);
            let (vm, set) = (state.vm.get(..8)?, state.sets.iter().find(is_gone)?);
            Some(format!(
                "filter {vm} of `{}` lists the rule set {set}, which the policy does not have: it keeps the rules that it has",
                state.node
            ))
        });
        told.take(MAX_TOLD).collect()
    }

    /// How many filters have another pepper than this policy's consumers.
    pub fn with_other_pepper(&self, policy: &Policy) -> usize {
        let filters = lock(&self.known);
        let others = filters.values();
        let others = others.filter(|known| has_other_pepper(&known.state, policy));
        others.count()
    }

    /// All known filters, by node, compared with a policy.
    pub fn list(&self, sidecar: &str, policy: &Policy, now_us: u64) -> Vec<FilterState> {
        self.list_where(|_| true, sidecar, policy, now_us)
    }

    /// The node id of the Envoy of this filter.
    pub fn node_of(&self, vm: &str) -> Option<String> {
        let filters = lock(&self.known);
        filters.get(vm).map(|known| known.state.node.clone())
    }

    fn list_where(
        &self,
        is_listed: impl Fn(&Known) -> bool,
        sidecar: &str,
        policy: &Policy,
        now_us: u64,
    ) -> Vec<FilterState> {
        let filters = lock(&self.known);
        let told = filters.values().filter(|known| is_listed(known));
        let told = told.map(|known| {
            let seconds = |since_us: u64| now_us.saturating_sub(since_us) / 1_000_000;
            let state = known.state(&policy.rules.digest, now_us);
            // It may have said so before the sidecars changed.
            let waits = |by: &&String| state == RulesState::Behind && *by != sidecar;
            FilterState {
                state,
                held_by: known.state.held_by.as_ref().filter(waits).cloned(),
                other_pepper: has_other_pepper(&known.state, policy),
                since_seconds: seconds(known.since_us),
                seen_seconds: if known.waiting > 0 {
                    0
                } else {
                    seconds(known.seen_us)
                },
                ..known.state.clone()
            }
        });
        let mut list: Vec<_> = told.collect();
        list.sort_by(|a, b| (&a.node, &a.vm).cmp(&(&b.node, &b.vm)));
        list
    }
}

fn has_other_pepper(filter: &FilterState, policy: &Policy) -> bool {
    let pepper = filter.pepper.as_deref();
    pepper.is_some_and(|pepper| policy.peppers().any(|other| other != pepper))
}

impl Known {
    fn state(&self, rules: &str, now_us: u64) -> RulesState {
        match (&self.state.digest, &self.state.refused) {
            _ if self.waiting == 0 && now_us.saturating_sub(self.seen_us) >= GONE_AFTER_US => {
                RulesState::Gone
            }
            (Some(digest), _) if digest == rules => RulesState::InForce,
            (_, Some(refused)) if refused == rules => RulesState::Refused,
            (Some(_), _) => RulesState::Behind,
            (None, _) => RulesState::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: &str = "limits: { l: { algorithm: fixed_window, windows: [{ quota: 1, per: 1s }] } }
rules: { default: { rules: [{ name: r, checks: [{ limit: l, key: [{ constant: everyone }] }], when_unavailable: allow }] } }
";

    #[test]
    fn a_filter_waits_only_with_other_rules_and_for_another_sidecar_and_none_that_is_gone_is_counted()
     {
        let policy = Policy::parse(POLICY).unwrap();
        let (these, others) = (policy.rules.digest.as_str(), "aaaaaaaaaaaa");
        for (has, waits_for, after_s, told, counted) in [
            (these, "1", 1, None, 1),
            (these, "1", 10, None, 0),
            (these, "2", 1, None, 0),
            (others, "1", 1, None, 0),
            (others, "2", 1, Some("2"), 0),
            (others, "2", 10, None, 0),
        ] {
            let filters = Filters::default();
            let report = RulesReport {
                vm: "0123456789abcdef0123456789abcdef".into(),
                in_force: Some(has.into()),
                held_by: Some(waits_for.into()),
                ..RulesReport::default()
            };
            assert!(filters.hears(&report, "0.1.0", 1, 0));
            let now_us = after_s * 1_000_000 + 1;
            let list = filters.list("1", &policy, now_us);
            let what = format!("has {has}, waits for {waits_for}, {after_s} s ago");
            assert_eq!(list[0].held_by.as_deref(), told, "{what}");
            assert_eq!(filters.held_by("1", these, now_us), counted, "{what}");
            let apart = filters.apart("1", &policy, now_us);
            let says = "filter 01234567 of `` keeps rules aaaaaaaaaaaa: it waits for sidecar 2, which has them in force";
            assert_eq!(apart, told.map(|_| says.to_owned()).as_slice(), "{what}");
        }
    }

    #[test]
    fn a_filter_that_refuses_its_first_rules_has_none() {
        let policy = Policy::parse(POLICY).unwrap();
        let filters = Filters::default();
        let report = RulesReport {
            vm: "0123456789abcdef0123456789abcdef".into(),
            refused: Some(policy.rules.digest.as_str().into()),
            why: Some("why".into()),
            ..RulesReport::default()
        };
        assert!(filters.hears(&report, "0.1.0", 1, 0));
        let says = "filter 01234567 of `` has no rules: it refuses these: why";
        assert_eq!(filters.apart("1", &policy, 2), [says]);
    }
}
