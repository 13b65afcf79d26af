//! What Prometheus is told, and who is denied. No label ever holds a key.
//!
//! | file | for |
//! |---|---|
//! | `metrics/families.rs` | every metric's name, help and buckets |
//! | `metrics/meter.rs` | what is counted of one limit |
//! | `metrics/totals.rs` | what was decided so far, for the live page |

mod families;
mod meter;
mod totals;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use prometheus::core::Collector;
use prometheus::{Encoder, TextEncoder};
use sluicegate_protocol::{Check, Decision, DeniedHere, Standing, Top, Verdict};

use crate::clock;
use crate::policy::Policy;
use crate::telemetry::history::Counts;
use crate::telemetry::labels::{FailureKind, Outcome, Source};
use crate::telemetry::verdict::Told;
pub use families::Failed;
use families::Families;
use meter::Meter;

/// The sidecar's metrics.
#[derive(Debug)]
pub struct Metrics {
    families: Arc<Families>,
    /// Of every limit that the policy in force has.
    meters: Mutex<BTreeMap<String, Arc<Meter>>>,
}

/// What is not counted but looked at when somebody asks.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Denials held.
    pub certificates: usize,
    /// That share the store; 0 if that is not known.
    pub sidecars: usize,
    /// Buckets that the store has yet to be told of.
    pub unwritten: usize,
}

/// What is counted of the limits of one policy. Who decides by a policy counts by its meters, which need no lock to be
/// found.
#[derive(Debug)]
pub struct Meters {
    families: Arc<Families>,
    limits: BTreeMap<String, Arc<Meter>>,
}

impl Metrics {
    /// Registers them all.
    ///
    /// # Errors
    /// Two metrics have the same name, which is a defect of this file.
    pub fn new() -> Result<Self, Failed> {
        Ok(Self {
            families: Arc::new(Families::new()?),
            meters: Mutex::default(),
        })
    }

    /// Notes how long a call to the store took, whether or not it succeeded.
    pub fn store_took(&self, duration: Duration) {
        self.families.store_seconds.observe(duration.as_secs_f64());
    }

    /// Notes how many decisions go to the store together.
    pub fn batch_goes(&self, decisions: usize) {
        self.families
            .batch_decisions
            .observe(u32::try_from(decisions).unwrap_or(u32::MAX).into());
    }

    /// Notes how long a caller waited before its first decision went to the store.
    pub fn queued_for(&self, duration: Duration) {
        self.families.queue_seconds.observe(duration.as_secs_f64());
    }

    /// Notes how long a caller waited for its decisions, and whether the store had to be asked for any.
    pub fn decided_within(&self, duration: Duration, store_asked: bool) {
        let seconds = if store_asked {
            &self.families.decision_seconds_store
        } else {
            &self.families.decision_seconds_certificate
        };
        seconds.observe(duration.as_secs_f64());
    }

    /// Counts a failed call to the store, or decisions that did not get as far.
    pub fn store_failed(&self, kind: FailureKind) {
        let errors = &self.families.store_errors;
        errors.with_label_values(&[kind.name()]).inc();
    }

    /// Says whether the store answered when it was last asked.
    pub fn store_is_up(&self, up: bool) {
        self.families.store_up.set(up.into());
    }

    /// Says which policy is in force from now on, and gives what to count by while it is. A limit that it does not have
    /// any more keeps its counters, so that what was counted last is scraped too; its gauges go, as they would stand
    /// still, and so does what was known of its subjects.
    pub fn policy_loaded(&self, epoch: u64, policy: &Policy) -> Meters {
        self.families
            .epoch
            .set(i64::try_from(epoch).unwrap_or(i64::MAX));
        self.families.reload_successful.set(1);
        let now = Duration::from_millis(clock::unix_ms());
        self.families.reload_time.set(now.as_secs_f64());
        if epoch > 1 {
            self.families.reloads_loaded.inc();
        }
        let mut known = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        let mut limits = BTreeMap::new();
        for limit in policy.limits() {
            let meter = known
                .remove(&limit.name)
                .unwrap_or_else(|| Arc::new(Meter::new(&self.families, &limit.name)));
            limits.insert(limit.name.clone(), meter);
        }
        for gone in known.keys() {
            // They are there, or the limit would not be known; and if not, all the better.
            let _ = self.families.nearest_ratio.remove_label_values(&[gone]);
            let _ = self.families.top_denied_ratio.remove_label_values(&[gone]);
        }
        known.clone_from(&limits);
        Meters {
            families: Arc::clone(&self.families),
            limits,
        }
    }

    /// Says that the policy file cannot be used.
    pub fn policy_refused(&self) {
        self.families.reload_successful.set(0);
        self.families.reloads_refused.inc();
    }

    /// Decisions so far, by limit.
    pub fn totals(&self) -> BTreeMap<String, Counts> {
        totals::by_limit(&self.families.decisions.collect())
    }

    /// Who is denied and who is near a limit, for every limit in force.
    pub fn top(&self) -> Top {
        let now_us = clock::now_us();
        Top {
            limits: self.known().iter().map(|meter| meter.top(now_us)).collect(),
        }
    }

    /// All of them in Prometheus's text format.
    ///
    /// # Errors
    /// A metric cannot be written as text.
    pub fn text(&self, now: Now) -> Result<Vec<u8>, prometheus::Error> {
        let gauge = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.families.certificates.set(gauge(now.certificates));
        self.families.sidecars.set(gauge(now.sidecars));
        self.families.unwritten.set(gauge(now.unwritten));
        let now_us = clock::now_us();
        for meter in self.known() {
            meter.refresh(now_us);
        }
        let mut text = Vec::new();
        TextEncoder::new().encode(&self.families.registry.gather(), &mut text)?;
        Ok(text)
    }

    fn known(&self) -> Vec<Arc<Meter>> {
        let known = self.meters.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(Arc::clone).collect()
    }
}

impl Meters {
    /// Counts one verdict, of a decision if it could be read.
    pub fn count(&self, told: &Told<'_>, decision: Option<&Decision<'_>>, now_us: u64) {
        let shadow = decision.and_then(|decision| decision.shadow.as_deref());
        let Some(meter) = self.limits.get(told.limit) else {
            self.count_nameless(told, shadow);
            return;
        };
        match shadow {
            Some(rule) => meter.count_shadow(&self.families, rule, &told.verdict, told.source),
            None => {
                let checks = decision.map_or(&[][..], |decision| &decision.checks);
                let key = standing(&told.verdict).and_then(|standing| checks.get(standing.check));
                let key = key.map_or("", |check| check.key.as_ref());
                meter.count(&told.verdict, told.source, key, now_us);
                if told.source == Source::Store {
                    self.sample(checks, told.limit);
                }
            }
        }
    }

    /// A verdict tells of one limit only, that which decided. Of the others, which may be about to bind, a key each is
    /// kept, to be asked for later.
    fn sample(&self, checks: &[Check<'_>], decided_by: &str) {
        for check in checks.iter().filter(|check| check.limit != decided_by) {
            if let Some(meter) = self.limits.get(check.limit.as_ref()) {
                meter.keep_sample(&check.key);
            }
        }
    }

    /// Limits, with a key each, of which it is not known how they stand: looked at every second or so, and the answers
    /// given to [`Meters::note`].
    pub fn samples(&self) -> Vec<(&str, String)> {
        let known = self.limits.iter();
        known
            .filter_map(|(limit, meter)| Some((limit.as_str(), meter.take_sample()?)))
            .collect()
    }

    /// Notes how a limit stands for a key; a look, and so not counted among the decisions.
    pub fn note(&self, verdict: &Verdict<'_>, key: &str, now_us: u64) {
        if let Some(standing) = standing(verdict)
            && let Some(meter) = self.limits.get(standing.limit.as_ref())
        {
            meter.note(standing, key, now_us);
        }
    }

    /// Counts what a filter has denied by its own certificates. A limit that the policy does not have, which a reload
    /// may have taken away, is counted without its name: labels are bounded by what operators write.
    pub fn count_denied_here(&self, denied: &DeniedHere<'_>, now_us: u64) {
        let meter = self.limits.get(denied.limit.as_ref());
        match (meter, denied.shadow.as_deref()) {
            (Some(meter), None) => {
                meter.count_denied_here(denied.key.as_deref(), denied.count, now_us);
            }
            (Some(meter), Some(rule)) => {
                meter.count_shadow_denied_here(&self.families, rule, denied.count);
            }
            (None, shadow) => {
                self.nameless(shadow, Outcome::Denied, Source::Filter, denied.count);
            }
        }
    }

    /// Nearly always an error: only those have no limit.
    fn count_nameless(&self, told: &Told<'_>, shadow: Option<&str>) {
        self.nameless(shadow, (&told.verdict).into(), told.source, 1);
    }

    fn nameless(&self, shadow: Option<&str>, outcome: Outcome, source: Source, count: u64) {
        let mut counted = outcome;
        if let Some(rule) = shadow {
            counted = outcome.in_shadow();
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

/// How the window that decided stands.
const fn standing<'a, 'b>(verdict: &'a Verdict<'b>) -> Option<&'a Standing<'b>> {
    match verdict {
        Verdict::Admitted(standing) | Verdict::Denied(standing) => Some(standing),
        Verdict::Unavailable { .. } | Verdict::Error { .. } => None,
    }
}
