//! The metrics of one policy: counts its decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_protocol::{CachedDenials, Check, Code, Decision, LimitStatus, Verdict};

use super::families::Families;
use super::leases::LeaseMetrics;
use super::limit::{LimitMetrics, Sample};
use crate::telemetry::labels::{Outcome, Source};
use crate::telemetry::verdict::Decided;

/// The metrics of the limits of one policy. Each policy carries its own, so that a decision finds them without a lock.
#[derive(Debug)]
pub struct PolicyMetrics {
    pub(super) families: Arc<Families>,
    pub(super) limits: BTreeMap<String, Arc<LimitMetrics>>,
    /// Of the limits with leases.
    pub(super) leases: BTreeMap<String, Arc<LeaseMetrics>>,
}

impl PolicyMetrics {
    /// Counts one verdict; `decision` is `None` if the request could not be parsed. A peek is not a decision: of it, only the
    /// state that it found is noted.
    pub fn count(&self, decided: &Decided<'_>, decision: Option<&Decision<'_>>, now_us: u64) {
        if let Some(decision) = decision.filter(|decision| decision.peek) {
            if decided.source == Source::Store {
                let key = deciding_key(&decided.verdict, &decision.checks);
                self.note(&decided.verdict, key, now_us);
            }
            return;
        }
        let shadow = decision.and_then(|decision| decision.shadow.as_deref());
        let Some(limit_metrics) = self.limits.get(decided.limit) else {
            self.count_without_limit(shadow, (&decided.verdict).into(), decided.source, 1);
            self.note_unknown_limits(&decided.verdict, decision);
            return;
        };
        match shadow {
            Some(rule) => {
                limit_metrics.count_shadow(&self.families, rule, &decided.verdict, decided.source)
            }
            None => {
                let checks = decision.map_or(&[][..], |decision| &decision.checks);
                let key = deciding_key(&decided.verdict, checks);
                limit_metrics.count(&decided.verdict, decided.source, key, now_us);
                if decided.source == Source::Store {
                    self.sample(checks, decided.limit);
                }
            }
        }
    }

    /// A verdict has the state of one limit only, the one that decided. Of each other limit, which may be almost used
    /// up, one key is kept and peeked at later.
    fn sample(&self, checks: &[Check<'_>], decided_by: &str) {
        for check in checks.iter().filter(|check| check.limit != decided_by) {
            if let Some(limit_metrics) = self.limits.get(check.limit.as_ref()) {
                limit_metrics.keep_sample(check);
            }
        }
    }

    /// Limits whose state no recent verdict reported, with a key each. The caller peeks at them about once a second
    /// and hands the answers to [`PolicyMetrics::note`].
    pub fn samples(&self) -> Vec<(&str, Sample)> {
        let known = self.limits.iter();
        known
            .filter_map(|(limit, limit_metrics)| {
                Some((limit.as_str(), limit_metrics.take_sample()?))
            })
            .collect()
    }

    /// Notes how a limit stands for a key; a look, and so not counted among the decisions.
    pub fn note(&self, verdict: &Verdict<'_>, key: &str, now_us: u64) {
        if let Some(status) = limit_status(verdict)
            && let Some(limit_metrics) = self.limits.get(status.limit.as_ref())
        {
            limit_metrics.note(status, key, now_us);
        }
    }

    /// Counts a quota that a request asked for and the limit's policy does not accept.
    pub fn count_refused_quota(&self, limit: &str) {
        if let Some(limit_metrics) = self.limits.get(limit) {
            limit_metrics.count_refused_quota();
        }
    }

    /// Counts denials that a filter answered from its cache. A limit that the policy does not have, for example because
    /// a reload removed it, is counted without its name: only the policy's names become labels.
    pub fn count_filter_denials(&self, denied: &CachedDenials<'_>, now_us: u64) {
        let limit_metrics = self.limits.get(denied.limit.as_ref());
        match (limit_metrics, denied.shadow.as_deref()) {
            (Some(limit_metrics), None) => {
                limit_metrics.count_filter_denials(denied.key.as_deref(), denied.count, now_us);
            }
            (Some(limit_metrics), Some(rule)) => {
                limit_metrics.count_shadow_filter_denials(&self.families, rule, denied.count);
            }
            (None, shadow) => {
                self.count_without_limit(shadow, Outcome::Denied, Source::Filter, denied.count);
            }
        }
    }

    /// Notes and logs the limits that a decision asks for and the policy does not have.
    fn note_unknown_limits(&self, verdict: &Verdict<'_>, decision: Option<&Decision<'_>>) {
        if matches!(verdict, Verdict::Error(problem) if problem.code == Code::UnknownLimit) {
            let checks = decision.map_or(&[][..], |decision| &decision.checks).iter();
            let unknown = checks.filter(|check| !self.limits.contains_key(check.limit.as_ref()));
            unknown.for_each(|check| self.families.note_unknown_limit(&check.limit));
        }
    }

    fn count_without_limit(
        &self,
        shadow: Option<&str>,
        outcome: Outcome,
        source: Source,
        count: u64,
    ) {
        let mut counted = outcome;
        if let Some(rule) = shadow {
            counted = outcome.as_shadow();
            let rule = self.families.shadow_rule(rule);
            self.families
                .shadow_decisions
                .with_label_values(&[rule, "", outcome.name()])
                .inc_by(count);
        }
        self.families
            .decisions
            .with_label_values(&["", counted.name(), source.name()])
            .inc_by(count);
    }
}

/// The key of the check that decided.
fn deciding_key<'a>(verdict: &Verdict<'_>, checks: &'a [Check<'_>]) -> &'a str {
    let check = limit_status(verdict).and_then(|status| checks.get(status.check));
    check.map_or("", |check| check.key.as_ref())
}

/// How the window that decided stands.
const fn limit_status<'a, 'b>(verdict: &'a Verdict<'b>) -> Option<&'a LimitStatus<'b>> {
    match verdict {
        Verdict::Admitted(status) | Verdict::Denied(status) => Some(status),
        Verdict::Unavailable { .. } | Verdict::Error(_) => None,
    }
}
