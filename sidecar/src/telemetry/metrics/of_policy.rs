//! The metrics of one policy: counts its decisions.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use prometheus::IntCounterVec;
use sluicegate_protocol::{
    CachedDenials, Check, Code, Decision, LimitStatus, Settle, Settled, Verdict,
};
use tracing::warn;

use super::decisions::DecisionCounters;
use super::limit::LimitMetrics;
use super::{Limits, lock};
use crate::clock;
use crate::policy::{Policy, is_name};
use crate::telemetry::labels::{Outcome, Source};
use crate::telemetry::recent::Recent;
use crate::telemetry::verdict::Decided;

/// The metrics of the limits of one policy. Each policy carries its own, so that a decision finds them without a lock.
#[derive(Debug)]
pub struct PolicyMetrics {
    pub(super) shared: Arc<Shared>,
    pub(super) limits: Limits,
}

/// What the metrics of all policies share: names that come over the wire, and decisions without a limit.
#[derive(Debug)]
pub struct Shared {
    pub without_limit: DecisionCounters,
    pub shadow_decisions: IntCounterVec,
    /// The shadow rules that some policy has had, with their limits. Other names come over the wire, from anybody.
    pub shadows: Mutex<BTreeMap<String, BTreeSet<String>>>,
    /// Limits that requests asked for and the policy of that moment did not have.
    pub unknown: Mutex<Recent<String>>,
}

impl PolicyMetrics {
    /// Counts one verdict; `decision` is `None` if the request could not be parsed. A peek is not a decision: of it, only the
    /// state that it found is noted.
    pub fn count(&self, decided: &Decided, decision: Option<&Decision<'_>>, now_us: u64) {
        let (source, verdict) = (&decided.source, &decided.verdict);
        let limit_metrics = self.limits.get(decided.limit());
        let checks = decision.map_or(&[][..], |decision| &decision.checks);
        let status = limit_status(verdict);
        let key = status.and_then(|status| checks.get(status.check));
        let key = key.map_or("", |check| check.key.as_ref());
        if decision.is_some_and(|decision| decision.peek) {
            if let (Some(limit_metrics), Some(status), Source::Store) =
                (limit_metrics, status, source)
            {
                limit_metrics.note(status, key, now_us);
            }
            return;
        }
        let outcome = Outcome::from(verdict);
        let shadow = decision.and_then(|decision| decision.shadow.as_deref());
        match (limit_metrics, shadow) {
            (_, Some(rule)) => self.count_shadow(limit_metrics, rule, (outcome, *source), 1),
            (Some(limit_metrics), None) => limit_metrics.count(verdict, *source, key, now_us),
            (None, None) => self.shared.without_limit.count(outcome, *source, 1),
        }
        let is_unknown =
            matches!(verdict, Verdict::Error(problem) if problem.code == Code::UnknownLimit);
        if is_unknown || status.is_some_and(|status| !status.unknown.is_empty()) {
            self.note_unknown_limits(checks);
        }
    }

    /// Counts a quota that a request asked for and the limit's policy does not accept.
    pub fn count_refused_quota(&self, limit: &str) {
        if let Some(limit_metrics) = self.limits.get(limit) {
            limit_metrics.refused_quotas.inc();
        }
    }

    /// Counts what became of a receipt that was to be settled.
    pub fn count_settled(&self, asked: &Settle<'_>, settled: &Settled, now_us: u64) {
        if let Some(limit_metrics) = self.limits.get(asked.limit.as_ref()) {
            limit_metrics.count_settled(settled, asked.units.unwrap_or_default(), now_us);
        }
    }

    /// Counts denials that a filter answered from its cache. A limit that the policy does not have, for example because
    /// a reload removed it, is counted without its name: only the policy's names become labels.
    pub fn count_filter_denials(&self, denied: &CachedDenials<'_>, now_us: u64) {
        let limit_metrics = self.limits.get(denied.limit.as_ref());
        let (outcome, source, count) = (Outcome::Denied, Source::Filter, denied.count);
        match (limit_metrics, denied.shadow.as_deref()) {
            (_, Some(rule)) => self.count_shadow(limit_metrics, rule, (outcome, source), count),
            (Some(limit_metrics), None) => {
                limit_metrics.decisions.count(outcome, source, count);
                limit_metrics.count_denials(denied.key.as_deref(), count, now_us);
            }
            (None, None) => self.shared.without_limit.count(outcome, source, count),
        }
    }

    /// Counts shadow decisions (evaluated, not enforced) of a rule.
    fn count_shadow(
        &self,
        limit_metrics: Option<&Arc<LimitMetrics>>,
        rule: &str,
        (outcome, source): (Outcome, Source),
        count: u64,
    ) {
        let without_limit = &self.shared.without_limit;
        let decisions = limit_metrics.map_or(without_limit, |of_limit| &of_limit.decisions);
        decisions.count(outcome.as_shadow(), source, count);
        self.shared
            .count_shadow(rule, &decisions.limit, outcome, count);
    }

    /// Notes the limits that a decision asks for and the policy does not have, and logs those that are new. What cannot be a
    /// limit's name may be a secret.
    fn note_unknown_limits(&self, checks: &[Check<'_>]) {
        let limits = checks.iter().map(|check| check.limit.as_ref());
        for limit in limits.filter(|limit| is_name(limit) && !self.limits.contains_key(*limit)) {
            let is_new = lock(&self.shared.unknown).note(limit.to_owned(), clock::monotonic());
            if is_new {
                warn!(
                    "requests ask for the limit {limit:?}, which the policy does not have: they get no verdict, and each rule's \
                     `when_unavailable` decides; compare rules and policy with `sluicegate check-config`"
                );
            }
        }
    }
}

impl Shared {
    /// Counts shadow decisions of a rule. One that no policy has had asks for this limit is `other`.
    fn count_shadow(&self, rule: &str, limit: &str, outcome: Outcome, count: u64) {
        let known = lock(&self.shadows);
        let asks = known
            .get(rule)
            .is_some_and(|of| limit.is_empty() || of.contains(limit));
        let labels = [if asks { rule } else { "other" }, limit, outcome.name()];
        let shadow_decisions = &self.shadow_decisions;
        shadow_decisions.with_label_values(&labels).inc_by(count);
    }

    /// Makes the usual series of a policy's shadow rules, so that their rates are right from the first decision on.
    pub fn know_shadows(&self, policy: &Policy) {
        for (rule, limit) in policy.shadows().filter(|(_, limit)| policy.has(limit)) {
            let mut known = lock(&self.shadows);
            known
                .entry(rule.clone())
                .or_default()
                .insert(limit.to_owned());
            drop(known);
            for usual in [Outcome::Admitted, Outcome::Denied, Outcome::Unavailable] {
                self.count_shadow(rule, limit, usual, 0);
            }
        }
    }
}

/// How the window that decided stands.
const fn limit_status<'a, 'b>(verdict: &'a Verdict<'b>) -> Option<&'a LimitStatus<'b>> {
    match verdict {
        Verdict::Admitted(status) | Verdict::Denied(status) => Some(status),
        Verdict::Unavailable { .. } | Verdict::Error(_) => None,
    }
}
