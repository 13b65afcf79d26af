//! The metrics of one limit. They are looked up once per decision; counting an admitted decision usually takes no lock.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use arc_swap::ArcSwap;
use prometheus::{Histogram, IntCounter};
use sluicegate_protocol::{LimitStatus, TopDenied, TopLimit, TopNearest, Verdict};

use super::decisions::DecisionCounters;
use super::families::Families;
use super::lock;
use super::of_policy::Shared;
use crate::telemetry::labels::{Outcome, Source};
use crate::telemetry::subject::Subject;
use crate::telemetry::top::{DenialCounts, Gate, Nearest, RecentKeys};

/// The metrics of one limit.
#[derive(Debug)]
pub struct LimitMetrics {
    limit: String,
    pub(super) decisions: DecisionCounters,
    pub(super) refused_quotas: IntCounter,
    used: Histogram,
    /// By the name of the shadow rule; replaced as a whole when a new rule appears.
    shadows: ArcSwap<BTreeMap<String, Shadow>>,
    subjects: Mutex<Subjects>,
    gate: Gate,
}

/// The subjects to report.
#[derive(Debug)]
struct Subjects {
    denied: DenialCounts,
    nearest: Nearest,
    keys: RecentKeys,
}

/// Verdicts of this limit for the shadow decisions of one rule.
#[derive(Clone, Debug)]
struct Shadow {
    admitted: IntCounter,
    denied: IntCounter,
    unavailable: IntCounter,
}

impl Shadow {
    fn count(&self, outcome: Outcome, count: u64) {
        match outcome {
            Outcome::Admitted => self.admitted.inc_by(count),
            Outcome::Denied => self.denied.inc_by(count),
            Outcome::Unavailable => self.unavailable.inc_by(count),
            _ => {}
        }
    }
}

impl LimitMetrics {
    /// Makes the series of a limit, at 0. `no_denials`: an empty sketch.
    pub(super) fn new(families: &Families, limit: &str, no_denials: DenialCounts) -> Self {
        let decisions = DecisionCounters::new(families.decisions.clone(), limit);
        decisions.start();
        Self {
            limit: limit.to_owned(),
            decisions,
            refused_quotas: families.refused_quotas.with_label_values(&[limit]),
            used: families.used.with_label_values(&[limit]),
            shadows: ArcSwap::default(),
            subjects: Mutex::new(Subjects {
                denied: no_denials,
                nearest: Nearest::default(),
                keys: RecentKeys::default(),
            }),
            gate: Gate::default(),
        }
    }

    /// Counts a verdict about `key`, the key of the check that decided.
    pub(super) fn count(&self, verdict: &Verdict<'_>, source: Source, key: &str, now_us: u64) {
        self.decisions.count(verdict.into(), source, 1);
        match verdict {
            // An override took nothing, so it says nothing of how much is used.
            Verdict::Admitted(status) if source != Source::Override => {
                self.note(status, key, now_us);
            }
            Verdict::Denied(status) => {
                self.count_denials(Some(key), 1, now_us);
                if source == Source::Store {
                    self.note(status, key, now_us);
                }
            }
            _ => {}
        }
    }

    /// Counts shadow decisions (evaluated, not enforced).
    pub(super) fn count_shadow(
        &self,
        shared: &Shared,
        rule: &str,
        (outcome, source): (Outcome, Source),
        count: u64,
    ) {
        self.decisions.count(outcome.as_shadow(), source, count);
        if let Some(shadow) = self.shadows.load().get(rule) {
            shadow.count(outcome, count);
        } else {
            self.add_shadow(shared, rule).count(outcome, count);
        }
    }

    fn add_shadow(&self, shared: &Shared, rule: &str) -> Shadow {
        let name = shared.shadow_rule(rule);
        let counter = |outcome: Outcome| {
            let labels = [name, &self.limit, outcome.name()];
            shared.shadow_decisions.with_label_values(&labels)
        };
        let shadow = Shadow {
            admitted: counter(Outcome::Admitted),
            denied: counter(Outcome::Denied),
            unavailable: counter(Outcome::Unavailable),
        };
        // Rules beyond the bound share `other` and are not kept, so that memory is bounded.
        if name == rule {
            self.shadows.rcu(|known| {
                let mut known = BTreeMap::clone(known);
                known.insert(rule.to_owned(), shadow.clone());
                known
            });
        }
        shadow
    }

    /// Counts denials of a key, if it is known, for [`LimitMetrics::top`].
    pub(super) fn count_denials(&self, key: Option<&str>, count: u64, now_us: u64) {
        let subject = key.map(Subject::of);
        let mut subjects = self.subjects();
        subjects.denied.count(subject, count, now_us);
        key.into_iter().for_each(|key| subjects.keys.keep(key));
    }

    /// Records how much of the quota a key's subject has used.
    pub(super) fn note(&self, status: &LimitStatus<'_>, key: &str, now_us: u64) {
        let used = status.quota.saturating_sub(status.remaining);
        let used = ratio(used, status.quota);
        self.used.observe(used);
        if !self.gate.excludes(used, now_us) {
            let mut subjects = self.subjects();
            subjects.nearest.note(key, used, now_us, &self.gate);
            subjects.keys.keep(key);
        }
    }

    /// The key with these digits, if it was denied or near the limit lately.
    pub(super) fn key_of(&self, digits: &str) -> Option<String> {
        self.subjects().keys.find(digits).map(str::to_owned)
    }

    /// The most denied subject's share of the denials: its lower bound, since an alert on it must not fire because of the
    /// sketch's error.
    pub(super) fn top_denied_ratio(&self, now_us: u64) -> f64 {
        let denied = &mut self.subjects().denied;
        let least = denied.top(now_us).first().map(|one| one.count - one.error);
        ratio(least.unwrap_or(0), denied.total(now_us))
    }

    /// The most denied subjects and those nearest to the limit.
    pub(super) fn top(&self, now_us: u64) -> TopLimit {
        let mut subjects = self.subjects();
        let most_denied = subjects.denied.top(now_us).into_iter();
        let most_denied = most_denied.map(|one| TopDenied {
            subject: one.subject.to_string(),
            count: one.count,
            error: one.error,
        });
        let nearest = subjects.nearest.top(now_us).into_iter();
        let nearest = nearest.map(|near| TopNearest {
            subject: near.subject.to_string(),
            used_ratio: near.used_ratio,
        });
        TopLimit {
            limit: self.limit.clone(),
            most_denied: most_denied.collect(),
            nearest: nearest.collect(),
            denied_total: subjects.denied.total(now_us),
            since_seconds: subjects.denied.span_us(now_us) / 1_000_000,
        }
    }

    fn subjects(&self) -> MutexGuard<'_, Subjects> {
        lock(&self.subjects)
    }
}

/// Quotas are under 2^53, where doubles are exact; of more denials, a few more or less do not show.
const fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    part as f64 / whole as f64
}
