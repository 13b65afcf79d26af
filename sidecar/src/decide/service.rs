//! Makes decisions, returns units and resets limits: parses a request, asks the store, counts and answers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluicegate_protocol::{
    Answer, Check, Decision, GIVE_BACKS, GivenBack, Listed, Problem, RESETS, Read, WasReset,
    read_decisions, read_give_backs, read_resets,
};
use tokio::runtime::Handle;

use super::buckets::buckets;
use super::denials::Denials;
use super::epoch::{PolicyHandle, Reload};
use super::leases::Leases;
use super::plan::{Leasing, Plan};
use super::receipts;
use super::settle::Settler;
use crate::clock;
use crate::store::batch::Batcher;
use crate::store::{Health, HealthState, Outage, Store};
use crate::telemetry::events::EventLog;
use crate::telemetry::metrics::{GaugeReadings, Metrics, Sample};
use crate::telemetry::traces::{Trace, Traces, traceparent_of};
use crate::telemetry::verdict::Source;

mod leases;
mod overrides;

/// A connection that is replaced within this time is not reported as an outage.
const REPLACED_WITHIN: Duration = Duration::from_millis(200);

/// The state of a sidecar.
#[derive(Debug)]
pub struct Service {
    /// Distinguishes this process from an earlier one, which also counted its epochs from 1: see [`Answer::instance`].
    instance: u64,
    /// The policy in force.
    pub policy: PolicyHandle,
    store: Arc<Store>,
    settler: Settler,
    denials: Denials,
    leases: Arc<Leases>,
    /// The number of known steps of the store's clock.
    clock_steps: AtomicU64,
    /// Held while the store's overrides are read.
    reading_overrides: tokio::sync::Mutex<()>,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The events of the live page.
    pub events: Arc<EventLog>,
    /// The spans; off by default.
    pub traces: Traces,
}

impl Service {
    /// A service that applies `policy` in `store`. Requires a running runtime.
    pub fn new(policy: PolicyHandle, store: Store, metrics: Metrics) -> Self {
        let (store, metrics) = (Arc::new(store), Arc::new(metrics));
        let events = Arc::new(EventLog::default());
        events.started(clock::unix_ms(), env!("CARGO_PKG_VERSION"));
        let batcher = Batcher::start(
            Arc::clone(&store),
            Arc::clone(&metrics),
            Arc::clone(&events),
        );
        let instance = random_instance();
        // The units to write back take up to four times the memory of the share's state.
        let share_limit = policy.current().policy.memory_limit / 4;
        Self {
            instance,
            settler: Settler::new(
                Arc::clone(&store),
                batcher,
                Outage::new(share_limit),
                format!("{instance:x}"),
            ),
            policy,
            leases: Leases::new(store.is_shared().then(|| store.timeout())),
            store,
            denials: Denials::default(),
            clock_steps: AtomicU64::new(0),
            reading_overrides: tokio::sync::Mutex::default(),
            metrics,
            events,
            traces: Traces::default(),
        }
    }

    /// Answers the body of `POST /v1/decide`. `header` returns the request's headers by lower-case name.
    ///
    /// # Errors
    /// The body as a whole is invalid.
    pub async fn decide<'h>(
        &self,
        body: &[u8],
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Result<Vec<u8>, Problem> {
        let started = Instant::now();
        self.void_after_step();
        let epoch = self.policy.current();
        let Read {
            decisions: asked,
            denied,
        } = read_decisions(body)?;
        let now_us = clock::now_us();
        for denied in &denied {
            epoch.metrics.count_filter_denials(denied, now_us);
        }
        let lending = self.lending(&header, &epoch, now_us);
        if asked.is_empty() {
            lending.wait(&self.leases, self.store.timeout()).await;
        }
        let traceparents = asked
            .iter()
            .map(|asked| traceparent_of(asked.as_ref().ok()?));
        let trace = self.traces.decide(header, traceparents);
        let moment = self.denials.moment(epoch.number);
        let overrides = epoch.overrides.at(clock::unix_ms);
        let leasing = Leasing {
            leases: &self.leases,
            epoch: epoch.number,
        };
        let mut plan = Plan::new(
            &epoch.policy,
            &asked,
            overrides,
            Some(leasing),
            |decision| self.denials.covering(moment, decision),
        );
        plan.leave_receipts(&asked, receipts::secret);
        for limit in &plan.refused_quotas {
            epoch.metrics.count_refused_quota(&limit.name);
        }
        let store_asked = !plan.batch.decisions.is_empty();
        let parent = trace.as_ref().and_then(Trace::parent);
        let (outcomes, fallbacks) = self.settler.settle(&plan, parent).await;
        for (wanted, outcome, decided) in plan.for_leases(&asked, &outcomes) {
            self.leases.note(wanted, epoch.number, outcome, decided);
        }
        let decided = plan.verdicts(&outcomes, &fallbacks, clock::now_us());
        let leases = lending.lend(&self.leases, &epoch, &asked);
        for (decided, asked) in decided.iter().zip(&asked) {
            let decision = asked.as_ref().ok();
            epoch.metrics.count(decided, decision, now_us);
            if let (Source::Store, Some(decision)) = (decided.source, decision) {
                self.denials.hold(moment, decision, &decided.verdict);
            }
        }
        if store_asked
            || decided.iter().any(|decided| {
                let source = decided.source;
                matches!(
                    source,
                    Source::Certificate | Source::Override | Source::Lease
                )
            })
        {
            self.metrics
                .observe_decision(started.elapsed(), store_asked);
        }
        if let Some(trace) = trace {
            trace.end(&decided);
        }
        let answer = Answer {
            epoch: epoch.number,
            instance: self.instance,
            verdicts: decided.into_iter().map(|decided| decided.verdict).collect(),
            leases,
        };
        Ok(json(&answer))
    }

    /// Voids denials from before the store's clock was set back, the filters' too: their units become available later now,
    /// and the read that repairs the state must reach the store.
    fn void_after_step(&self) {
        let steps = self.store.clock_steps();
        if self.clock_steps.load(Ordering::Relaxed) != steps
            && self.clock_steps.swap(steps, Ordering::Relaxed) != steps
        {
            self.denials.void_all();
            self.policy.void_denials();
            self.leases.end_all();
        }
    }

    /// Answers the body of `POST /v1/give-back`.
    ///
    /// # Errors
    /// The body as a whole is invalid.
    pub async fn give_back(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.policy.current();
        let overrides = epoch.overrides.at(clock::unix_ms);
        let asked = read_give_backs(body)?;
        let mut entries = Vec::with_capacity(asked.len());
        let read = asked.iter().enumerate().map(|(index, asked)| {
            let asked = asked.as_ref().map_err(Problem::clone)?;
            let entry = receipts::entry(&epoch.policy, overrides, asked);
            entries.push(entry.map_err(|problem| problem.of_entry(GIVE_BACKS, index))?);
            Ok(asked)
        });
        let read: Vec<Result<_, Problem>> = read.collect();
        let mut units = self.settler.give_back(&entries).await.into_iter();
        let mut void = Vec::new();
        let outcomes = read.into_iter().map(|entry| match entry {
            Err(problem) => problem.into(),
            Ok(asked) => {
                let units = units.next().flatten();
                if units != Some(0) {
                    void.push((asked.limit.as_ref(), asked.key.as_ref()));
                }
                units.map_or(GivenBack::Unavailable, |units| GivenBack::GivenBack {
                    units,
                })
            }
        });
        let outcomes = outcomes.collect();
        self.denials.void(void);
        Ok(json(&Listed { outcomes }))
    }

    /// Answers the body of `POST /v1/reset`.
    ///
    /// # Errors
    /// The body as a whole is invalid.
    pub async fn reset(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.policy.current();
        let deadline = Instant::now() + self.store.timeout() * 2;
        let overrides = epoch.overrides.at(clock::unix_ms);
        let asked = read_resets(body)?;
        let mut outcomes = Vec::with_capacity(asked.len());
        let mut void = Vec::new();
        for (index, asked) in asked.iter().enumerate() {
            let wanted = asked.as_ref().map_err(Problem::clone);
            let wanted = wanted.and_then(|asked| {
                let buckets = buckets(&epoch.policy, overrides, &asked.limit, &asked.key);
                let buckets = buckets.map_err(|problem| problem.of_entry(RESETS, index))?;
                Ok((asked, buckets))
            });
            let outcome = match wanted {
                Err(problem) => problem.into(),
                // A store that hangs is waited for once, not for every entry.
                Ok(_) if Instant::now() > deadline => WasReset::Unavailable,
                Ok((asked, buckets)) => {
                    void.push((asked.limit.as_ref(), asked.key.as_ref()));
                    let keys: Vec<_> = buckets.into_iter().map(|bucket| bucket.key).collect();
                    match self.store.reset(&keys).await {
                        Ok(held) => WasReset::Reset {
                            held: held.contains(&true),
                        },
                        Err(error) => {
                            self.settler.record_error(&error);
                            WasReset::Unavailable
                        }
                    }
                }
            };
            outcomes.push(outcome);
        }
        self.end_leases(&epoch.policy, &void);
        self.denials.void(void);
        Ok(json(&Listed { outcomes }))
    }

    /// Frees what has expired in the store, and refreshes the metrics of limits that no recent verdict reported. Call it
    /// about every second.
    pub async fn tick(&self) {
        self.store.sweep().await;
        self.leases.forget_parts(clock::now_us());
        if self.settler.was_asked() {
            self.look_at_samples().await;
        }
        // On an error the last answer stays in force; `watch_store` reports whether the store is there.
        let _ = self.settler.tick().await;
    }

    /// Reads the state of limits that were checked but did not decide.
    async fn look_at_samples(&self) {
        let epoch = self.policy.current();
        let samples = epoch.metrics.samples();
        let look = |(limit, sample): &(&'_ str, Sample)| {
            Ok(Decision {
                checks: vec![Check {
                    limit: (*limit).to_owned().into(),
                    key: sample.key.clone().into(),
                    cost: 0,
                    quota: sample.quota,
                }],
                peek: true,
                receipt: false,
                shadow: None,
                traceparent: None,
            })
        };
        let looks: Vec<_> = samples.iter().map(look).collect();
        let overrides = epoch.overrides.at(clock::unix_ms);
        let plan = Plan::new(&epoch.policy, &looks, overrides, None, |_| None);
        let (outcomes, fallbacks) = self.settler.settle(&plan, None).await;
        let now_us = clock::now_us();
        for (decided, (_, sample)) in plan
            .verdicts(&outcomes, &fallbacks, now_us)
            .iter()
            .zip(&samples)
        {
            if decided.source != Source::Override {
                epoch.metrics.note(&decided.verdict, &sample.key, now_us);
            }
        }
    }

    /// The body that answers `GET /v1/top`.
    pub fn top(&self) -> Vec<u8> {
        json(&self.metrics.top())
    }

    /// The metrics as text.
    ///
    /// # Errors
    /// The metrics cannot be encoded.
    pub fn metrics_text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let (sidecars, unwritten) = self.settler.fleet_and_unwritten();
        self.metrics.text(GaugeReadings {
            certificates: self.denials.len(),
            sidecars: usize::try_from(sidecars).unwrap_or(usize::MAX),
            unwritten,
            overrides: self.override_counts(),
            leased: self.leases.held(),
            tasks: Handle::try_current().map_or(0, |runtime| runtime.metrics().num_alive_tasks()),
        })
    }

    /// Reports each change of the store's health to metrics and events. Never returns.
    pub async fn watch_store(&self) {
        let mut changes = self.store.health_changes();
        loop {
            let health = changes.borrow_and_update().clone();
            self.metrics.set_store_up(health.is_up());
            match &health.state {
                HealthState::Unknown => {}
                HealthState::Up => {
                    self.events.store_answered(clock::unix_ms());
                    self.events.log.succeeded();
                }
                HealthState::Down(cause) => {
                    // A connection that is replaced at once is not an outage.
                    let up = changes.wait_for(Health::is_up);
                    if tokio::time::timeout(REPLACED_WITHIN, up).await.is_ok() {
                        changes.mark_changed();
                        continue;
                    }
                    let ago = u64::try_from(health.since.elapsed().as_millis()).unwrap_or(0);
                    let since_ms = clock::unix_ms().saturating_sub(ago);
                    self.events.store_lost(since_ms, cause);
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Writes units that were admitted without the store back to it. Never returns.
    pub async fn write_back(&self) {
        self.settler.write_back().await;
    }

    /// The kind of store, for people.
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }

    /// Reloads the policy file and records the result.
    pub fn reload(&self) {
        match self.policy.reload(&self.metrics) {
            Reload::Unchanged => {}
            Reload::Loaded => {
                let epoch = self.policy.current().policy_number;
                self.events.policy_loaded(clock::unix_ms(), epoch);
            }
            Reload::Refused => {
                let why = self.policy.source.refusal().unwrap_or_default();
                self.events.policy_refused(clock::unix_ms(), why);
            }
        }
    }
}

/// A number from 1 to 2^53 - 1. The standard library's only random source is its hasher, whose keys come from the operating
/// system.
fn random_instance() -> u64 {
    let random = RandomState::new().build_hasher().finish();
    (random >> 11).max(1)
}

/// Strings and integers can always be encoded as JSON; clients would treat an empty body as no answer.
fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).unwrap_or_default()
}
