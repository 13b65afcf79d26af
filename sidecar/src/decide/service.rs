//! Decides, gives back, resets: reads a request, asks the store, counts and answers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use sluicegate_engine::script::GiveBack;
use sluicegate_protocol::{
    Answer, Check, Decision, GivenBack, Listed, Problem, Read, WasReset, WithoutStore,
    read_decisions, read_give_backs, read_resets,
};
use tracing::warn;

use super::denials::Denials;
use super::epoch::{Live, Reload};
use super::instead::{Instead, Mode};
use super::plan::{Plan, buckets};
use crate::clock;
use crate::store::batch::Batcher;
use crate::store::{Settled, Store, StoreError};
use crate::telemetry::events::Incidents;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::verdict::Source;

/// Everything a sidecar knows.
#[derive(Debug)]
pub struct Service {
    /// Tells this process from the one before, which counted its epochs from 1 too: see [`Answer::instance`].
    instance: u64,
    /// The policy in force.
    pub live: Live,
    store: Arc<Store>,
    batcher: Batcher,
    denials: Denials,
    /// The store was asked for something since the last tick.
    store_asked: AtomicBool,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What has happened to it.
    pub incidents: Arc<Incidents>,
}

impl Service {
    /// A service that decides by `live` in `store`. To be made in a runtime.
    pub fn new(live: Live, store: Store, metrics: Metrics) -> Self {
        let (store, metrics) = (Arc::new(store), Arc::new(metrics));
        let incidents = Arc::new(Incidents::default());
        incidents.started(clock::unix_ms(), env!("CARGO_PKG_VERSION"));
        let batcher = Batcher::start(
            Arc::clone(&store),
            Arc::clone(&metrics),
            Arc::clone(&incidents),
        );
        Self {
            instance: random_instance(),
            live,
            store,
            batcher,
            denials: Denials::default(),
            store_asked: AtomicBool::new(false),
            metrics,
            incidents,
        }
    }

    /// Answers the body of `POST /v1/decide` with the body of its answer.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn decide(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let started = Instant::now();
        let epoch = self.live.current();
        let Read {
            decisions: asked,
            denied,
        } = read_decisions(body)?;
        let now_us = clock::now_us();
        for denied in &denied {
            epoch.meters.count_denied_here(denied, now_us);
        }
        let moment = self.denials.moment(epoch.number);
        let plan = Plan::new(&epoch.policy, &asked, |decision| {
            self.denials.covering(moment, decision)
        });
        let store_asked = !plan.batch.decisions.is_empty();
        if store_asked {
            self.store_asked.store(true, Ordering::Relaxed);
        }
        let settled = self.batcher.decide(Arc::clone(&plan.batch)).await;
        let told = plan.verdicts(&settled, &instead(&plan, &settled));
        for (told, asked) in told.iter().zip(&asked) {
            let decision = asked.as_ref().ok();
            epoch.meters.count(told, decision, now_us);
            if let (Source::Store, Some(decision)) = (told.source, decision) {
                self.denials.hold(moment, decision, &told.verdict);
            }
        }
        if store_asked || told.iter().any(|told| told.source == Source::Certificate) {
            self.metrics.decided_within(started.elapsed(), store_asked);
        }
        let answer = Answer {
            epoch: epoch.number,
            instance: self.instance,
            verdicts: told.into_iter().map(|told| told.verdict).collect(),
        };
        Ok(json(&answer))
    }

    fn failed(&self, error: &StoreError) {
        self.incidents.store_failed(clock::unix_ms(), error);
        self.metrics.store_failed(error.kind());
        warn!(kind = %error.kind(), "store call failed: {error}");
    }

    /// Answers the body of `POST /v1/give-back`.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn give_back(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.live.current();
        let mut outcomes = Vec::new();
        for entry in read_give_backs(body)? {
            outcomes.push(
                match entry.and_then(|entry| {
                    Ok((buckets(&epoch.policy, &entry.limit, &entry.key)?, entry))
                }) {
                    Err(Problem { code, message }) => GivenBack::Error { code, message },
                    Ok((buckets, entry)) => {
                        let give = |bucket| GiveBack {
                            bucket,
                            cost: entry.cost,
                            at_us: entry.taken_at_us,
                        };
                        let returns: Vec<_> = buckets.iter().map(give).collect();
                        match self.store.give_back(&returns).await {
                            Ok(units) => GivenBack::GivenBack {
                                units: units.into_iter().max().unwrap_or(0),
                            },
                            Err(error) => {
                                self.failed(&error);
                                GivenBack::Unavailable
                            }
                        }
                    }
                },
            );
        }
        self.denials.void();
        Ok(json(&Listed { outcomes }))
    }

    /// Answers the body of `POST /v1/reset`.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn reset(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.live.current();
        let mut outcomes = Vec::new();
        for entry in read_resets(body)? {
            outcomes.push(
                match entry.and_then(|entry| buckets(&epoch.policy, &entry.limit, &entry.key)) {
                    Err(Problem { code, message }) => WasReset::Error { code, message },
                    Ok(buckets) => {
                        let keys: Vec<_> = buckets.into_iter().map(|bucket| bucket.key).collect();
                        match self.store.reset(&keys).await {
                            Ok(held) => WasReset::Reset {
                                held: held.contains(&true),
                            },
                            Err(error) => {
                                self.failed(&error);
                                WasReset::Unavailable
                            }
                        }
                    }
                },
            );
        }
        self.denials.void();
        Ok(json(&Listed { outcomes }))
    }

    /// Frees what has expired in the store, and looks how things stand that no decision has told of lately; to be called
    /// every second or so.
    pub async fn tick(&self) {
        self.store.sweep().await;
        let asked = self.store_asked.swap(false, Ordering::Relaxed);
        if asked {
            self.look_at_samples().await;
        }
        // On a Cluster what failed may not be what is asked for now.
        if !asked || self.batcher.is_failing() {
            // Whoever needs it hears why; here a gauge says so.
            let _ = self.store_answers().await;
        }
    }

    /// Asks how limits stand that decisions asked for and others decided.
    async fn look_at_samples(&self) {
        let epoch = self.live.current();
        let samples = epoch.meters.samples();
        let look = |(limit, key): &(&'_ str, String)| {
            Ok(Decision {
                checks: vec![Check {
                    limit: (*limit).to_owned().into(),
                    key: key.clone().into(),
                    cost: 0,
                }],
                peek: true,
                receipt: false,
                shadow: None,
            })
        };
        let looks: Vec<_> = samples.iter().map(look).collect();
        let plan = Plan::new(&epoch.policy, &looks, |_| None);
        let settled = self.batcher.decide(Arc::clone(&plan.batch)).await;
        let now_us = clock::now_us();
        for (told, (_, key)) in plan.verdicts(&settled, &[]).iter().zip(&samples) {
            epoch.meters.note(&told.verdict, key, now_us);
        }
    }

    /// The body that answers `GET /v1/top`.
    pub fn top(&self) -> Vec<u8> {
        json(&self.metrics.top())
    }

    /// The metrics as text.
    ///
    /// # Errors
    /// One of them cannot be written as text.
    pub fn metrics_text(&self) -> Result<Vec<u8>, prometheus::Error> {
        self.metrics.text(self.denials.len())
    }

    /// Whether the store answers within its deadline.
    ///
    /// # Errors
    /// Why not.
    pub async fn store_answers(&self) -> Result<(), StoreError> {
        let answered = self.store.ping().await;
        self.metrics.store_is_up(answered.is_ok());
        match &answered {
            Ok(()) => {
                self.batcher.store_answers();
                self.incidents.probe_answered(clock::unix_ms());
            }
            Err(error) => self.incidents.probe_failed(clock::unix_ms(), error),
        }
        answered
    }

    /// What the store is, for people.
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }

    /// Reads the policy file again, and remembers what came of it.
    pub fn reload(&self) {
        match self.live.reload(&self.metrics) {
            Reload::Unchanged => {}
            Reload::Loaded => {
                let epoch = self.live.current().number;
                self.incidents.policy_loaded(clock::unix_ms(), epoch);
            }
            Reload::Refused => {
                let why = self.live.source.refusal().unwrap_or_default();
                self.incidents.policy_refused(clock::unix_ms(), why);
            }
        }
    }
}

/// What decides where the store did not answer; nothing, if it did everywhere.
fn instead(plan: &Plan, settled: &[Option<Settled>]) -> Vec<Instead> {
    if settled.iter().all(Option::is_some) {
        return Vec::new();
    }
    let instead = |(_, limits)| match Mode::of(limits) {
        Mode::Allow => Instead::Say(Some(WithoutStore::Allow)),
        Mode::Deny => Instead::Say(Some(WithoutStore::Deny)),
        Mode::Share => Instead::Say(None),
    };
    plan.takes().map(instead).collect()
}

/// A number from 1 to 2^53 - 1. The standard library's hasher is the one source of randomness that it has: its keys are the
/// operating system's.
fn random_instance() -> u64 {
    let random = RandomState::new().build_hasher().finish();
    (random >> 11).max(1)
}

/// Strings and integers always can be written as JSON; an empty body would be read as no answer.
fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).unwrap_or_default()
}
