//! What is counted of one limit. Looked up once for each decision, and counted from there on without a lock wherever
//! nobody is denied.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use prometheus::{Gauge, Histogram, IntCounter};
use sluicegate_protocol::{Standing, TopDenied, TopLimit, TopNearest, Verdict};

use super::families::Families;
use crate::telemetry::labels::{Outcome, Source};
use crate::telemetry::subject::Subject;
use crate::telemetry::top::{Denials, Denied, Gate, Near, Nearest};

/// Counters of denials by where they came from.
#[derive(Debug)]
struct PerSource {
    store: IntCounter,
    share: IntCounter,
    certificate: IntCounter,
    filter: IntCounter,
}

impl PerSource {
    const fn of(&self, source: Source) -> &IntCounter {
        match source {
            Source::Store | Source::Request => &self.store,
            Source::Share => &self.share,
            Source::Certificate => &self.certificate,
            Source::Filter => &self.filter,
        }
    }
}

/// One limit's.
#[derive(Debug)]
pub struct Meter {
    limit: String,
    admitted: IntCounter,
    admitted_by_share: IntCounter,
    denied: PerSource,
    shadow_admitted: IntCounter,
    shadow_denied: PerSource,
    unavailable: IntCounter,
    used: Histogram,
    nearest_ratio: Gauge,
    top_denied_ratio: Gauge,
    /// By the rules that ask in the shadow; replaced as a whole when there is a new one.
    shadows: ArcSwap<BTreeMap<String, Arc<Shadow>>>,
    who: Mutex<Who>,
    gate: AtomicGate,
    /// A key that was asked for together with another limit, which decided: how this limit stands for it is not known.
    sample: Mutex<Option<String>>,
    /// There is one.
    sampled: AtomicBool,
}

/// Whom it is about.
#[derive(Debug)]
struct Who {
    denied: Denied,
    nearest: Nearest,
}

/// What a rule that only asks in the shadow would have done by this limit.
#[derive(Debug)]
struct Shadow {
    admitted: IntCounter,
    denied: IntCounter,
    unavailable: IntCounter,
}

/// A [`Gate`] that is read without a lock. Its two halves may be of different moments: then somebody is noted without
/// need, or not noted this once.
#[derive(Debug)]
struct AtomicGate {
    ratio: AtomicU64,
    until_us: AtomicU64,
}

impl AtomicGate {
    fn is_shut_for(&self, ratio: f64, now_us: u64) -> bool {
        now_us < self.until_us.load(Ordering::Relaxed)
            && ratio <= f64::from_bits(self.ratio.load(Ordering::Relaxed))
    }

    fn set(&self, gate: Gate) {
        self.ratio.store(gate.ratio.to_bits(), Ordering::Relaxed);
        self.until_us.store(gate.until_us, Ordering::Relaxed);
    }
}

impl Meter {
    /// All series of a limit, at 0 where nothing has been counted yet.
    pub(super) fn new(families: &Families, limit: &str) -> Self {
        let counter = |outcome: Outcome, source: Source| {
            families
                .decisions
                .with_label_values(&[limit, outcome.name(), source.name()])
        };
        let per_source = |outcome| PerSource {
            store: counter(outcome, Source::Store),
            share: counter(outcome, Source::Share),
            certificate: counter(outcome, Source::Certificate),
            filter: counter(outcome, Source::Filter),
        };
        Self {
            limit: limit.to_owned(),
            admitted: counter(Outcome::Admitted, Source::Store),
            admitted_by_share: counter(Outcome::Admitted, Source::Share),
            denied: per_source(Outcome::Denied),
            shadow_admitted: counter(Outcome::ShadowAdmitted, Source::Store),
            shadow_denied: per_source(Outcome::ShadowDenied),
            unavailable: counter(Outcome::Unavailable, Source::Store),
            used: families.used.with_label_values(&[limit]),
            nearest_ratio: families.nearest_ratio.with_label_values(&[limit]),
            top_denied_ratio: families.top_denied_ratio.with_label_values(&[limit]),
            shadows: ArcSwap::default(),
            who: Mutex::new(Who {
                denied: families.nobody.clone(),
                nearest: Nearest::default(),
            }),
            gate: AtomicGate {
                ratio: AtomicU64::new(0),
                until_us: AtomicU64::new(0),
            },
            sample: Mutex::default(),
            sampled: AtomicBool::new(false),
        }
    }

    /// Counts a verdict about `key`, which the check that decided names.
    pub(super) fn count(&self, verdict: &Verdict<'_>, source: Source, key: &str, now_us: u64) {
        match verdict {
            Verdict::Admitted(standing) => {
                match source {
                    Source::Share => self.admitted_by_share.inc(),
                    _ => self.admitted.inc(),
                }
                self.note(standing, key, now_us);
            }
            Verdict::Denied(standing) => {
                self.denied.of(source).inc();
                let subject = Subject::of(key);
                self.who().denied.count(Some(subject), 1, now_us);
                if source == Source::Store {
                    self.note(standing, key, now_us);
                }
            }
            Verdict::Unavailable { .. } => self.unavailable.inc(),
            // It has no limit.
            Verdict::Error { .. } => {}
        }
    }

    /// Counts a verdict that nobody heeds.
    pub(super) fn count_shadow(
        &self,
        families: &Families,
        rule: &str,
        verdict: &Verdict<'_>,
        source: Source,
    ) {
        let shadow = self.shadow(families, rule);
        match verdict {
            Verdict::Admitted(_) => {
                shadow.admitted.inc();
                self.shadow_admitted.inc();
            }
            Verdict::Denied(_) => {
                shadow.denied.inc();
                self.shadow_denied.of(source).inc();
            }
            Verdict::Unavailable { .. } => {
                shadow.unavailable.inc();
                self.unavailable.inc();
            }
            Verdict::Error { .. } => {}
        }
    }

    /// Counts what a filter has denied by its certificates.
    pub(super) fn count_denied_here(&self, key: Option<&str>, count: u64, now_us: u64) {
        self.denied.filter.inc_by(count);
        let subject = key.map(Subject::of);
        self.who().denied.count(subject, count, now_us);
    }

    /// Counts what it would have denied for a rule that only asks in the shadow.
    pub(super) fn count_shadow_denied_here(&self, families: &Families, rule: &str, count: u64) {
        self.shadow(families, rule).denied.inc_by(count);
        self.shadow_denied.filter.inc_by(count);
    }

    /// Sets the gauges that tell of subjects to what is true at `now_us`.
    pub(super) fn refresh(&self, now_us: u64) {
        let (total, denied, nearest) = {
            let mut who = self.who();
            let first = who.denied.most(now_us).first().copied();
            let nearest = who.nearest.most(now_us).first().copied();
            (who.denied.total(now_us), first, nearest)
        };
        // What is certain: an alert on it must not fire by the sketch's error.
        let least = denied.map_or(0, |one: Denials| one.count - one.error);
        self.top_denied_ratio.set(ratio(least, total));
        let nearest = nearest.map_or(0.0, |near: Near| near.used_ratio);
        self.nearest_ratio.set(nearest);
    }

    /// Who is denied and who is near the limit.
    pub(super) fn top(&self, now_us: u64) -> TopLimit {
        let mut who = self.who();
        let most_denied = who.denied.most(now_us).into_iter().map(|one| TopDenied {
            subject: one.subject.to_string(),
            count: one.count,
            error: one.error,
        });
        let most_denied = most_denied.collect();
        let nearest = who.nearest.most(now_us).into_iter().map(|near| TopNearest {
            subject: near.subject.to_string(),
            used_ratio: near.used_ratio,
        });
        let nearest = nearest.collect();
        TopLimit {
            limit: self.limit.clone(),
            denied_total: who.denied.total(now_us),
            since_seconds: who.denied.span_us(now_us) / 1_000_000,
            most_denied,
            nearest,
        }
    }

    /// Keeps the first key after each [`Meter::take_sample`].
    pub(super) fn keep_sample(&self, key: &str) {
        // Looked at before it is written: nearly always there is one, and what many write is slow.
        let sampled = &self.sampled;
        if !sampled.load(Ordering::Relaxed) && !sampled.swap(true, Ordering::Relaxed) {
            *self.sample() = Some(key.to_owned());
        }
    }

    /// The key that was kept.
    pub(super) fn take_sample(&self) -> Option<String> {
        let key = self.sample().take();
        if key.is_some() {
            self.sampled.store(false, Ordering::Relaxed);
        }
        key
    }

    fn sample(&self) -> MutexGuard<'_, Option<String>> {
        self.sample.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes how much of the limit a key's subject has used.
    pub(super) fn note(&self, standing: &Standing<'_>, key: &str, now_us: u64) {
        let used = standing.quota.saturating_sub(standing.remaining);
        let used = ratio(used, standing.quota);
        self.used.observe(used);
        if !self.gate.is_shut_for(used, now_us) {
            let mut who = self.who();
            self.gate.set(who.nearest.note(key, used, now_us));
        }
    }

    fn shadow(&self, families: &Families, rule: &str) -> Arc<Shadow> {
        if let Some(shadow) = self.shadows.load().get(rule) {
            return Arc::clone(shadow);
        }
        let name = families.shadow_rule(rule);
        let counter = |outcome: Outcome| {
            families
                .shadow_decisions
                .with_label_values(&[name, &self.limit, outcome.name()])
        };
        let shadow = Arc::new(Shadow {
            admitted: counter(Outcome::Admitted),
            denied: counter(Outcome::Denied),
            unavailable: counter(Outcome::Unavailable),
        });
        // A rule that is one of too many is looked up anew each time: what is kept is bounded.
        if name == rule {
            self.shadows.rcu(|known| {
                let mut known = BTreeMap::clone(known);
                known.insert(rule.to_owned(), Arc::clone(&shadow));
                known
            });
        }
        shadow
    }

    fn who(&self) -> MutexGuard<'_, Who> {
        // Counts are whole after each step, whatever became of the thread.
        self.who.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        return 0.0;
    }
    // Both cut to 32 bits, which a float holds exactly.
    let cut = u64::BITS
        .saturating_sub(whole.leading_zeros())
        .saturating_sub(u32::BITS);
    let float = |number: u64| f64::from(u32::try_from(number >> cut).unwrap_or(u32::MAX));
    float(part) / float(whole)
}
