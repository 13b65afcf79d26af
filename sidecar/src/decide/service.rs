//! Decides, gives back, resets: reads a request, asks the store, counts and answers.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use sluicegate_protocol::{
    Answer, Check, Decision, GivenBack, Listed, Problem, Read, WasReset, read_decisions,
    read_give_backs, read_resets,
};

use super::buckets::buckets;
use super::denials::Denials;
use super::epoch::{Live, Reload};
use super::plan::Plan;
use super::receipts;
use super::settle::Settler;
use crate::clock;
use crate::store::batch::Batcher;
use crate::store::{Health, HealthState, Outage, Store, StoreError};
use crate::telemetry::events::Incidents;
use crate::telemetry::metrics::{Metrics, Now};
use crate::telemetry::traces::{Trace, Traces, of_decision};
use crate::telemetry::verdict::Source;

/// A connection that is lost for less than this is none that operators should hear of.
const REPLACED_WITHIN: Duration = Duration::from_millis(200);

/// Everything a sidecar knows.
#[derive(Debug)]
pub struct Service {
    /// Tells this process from the one before, which counted its epochs from 1 too: see [`Answer::instance`].
    instance: u64,
    /// The policy in force.
    pub live: Live,
    store: Arc<Store>,
    settler: Settler,
    denials: Denials,
    /// The steps of the store's clock that are known here.
    clock_steps: AtomicU64,
    /// What it counts.
    pub metrics: Arc<Metrics>,
    /// What has happened to it.
    pub incidents: Arc<Incidents>,
    /// Its spans; off unless somebody turns it on before it serves.
    pub traces: Traces,
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
        let instance = random_instance();
        // What is owed to the store takes up to four times what decides.
        let share_limit = live.current().policy.memory_limit / 4;
        Self {
            instance,
            settler: Settler::new(
                Arc::clone(&store),
                batcher,
                Outage::new(share_limit),
                format!("{instance:x}"),
            ),
            live,
            store,
            denials: Denials::default(),
            clock_steps: AtomicU64::new(0),
            metrics,
            incidents,
            traces: Traces::default(),
        }
    }

    /// Answers the body of `POST /v1/decide` with the body of its answer. `header` gives the call's headers, by their names
    /// in lower case.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn decide<'h>(
        &self,
        body: &[u8],
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> Result<Vec<u8>, Problem> {
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
        let traceparents = asked.iter().map(|asked| of_decision(asked.as_ref().ok()?));
        let trace = self.traces.decide(header, traceparents);
        self.void_after_step();
        let moment = self.denials.moment(epoch.number);
        let mut plan = Plan::new(&epoch.policy, &asked, |decision| {
            self.denials.covering(moment, decision)
        });
        plan.leave_receipts(&asked, receipts::secret);
        let store_asked = !plan.batch.decisions.is_empty();
        let parent = trace.as_ref().and_then(Trace::parent);
        let (settled, instead) = self.settler.settle(&plan, parent).await;
        let told = plan.verdicts(&settled, &instead);
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
        if let Some(trace) = trace {
            trace.end(&told);
        }
        let answer = Answer {
            epoch: epoch.number,
            instance: self.instance,
            verdicts: told.into_iter().map(|told| told.verdict).collect(),
        };
        Ok(json(&answer))
    }

    /// Forgets denials from before the store's clock was set back: what they waited for is later now, and the look that
    /// repairs the state must reach the store.
    fn void_after_step(&self) {
        let steps = self.store.clock_steps();
        if self.clock_steps.load(Ordering::Relaxed) != steps
            && self.clock_steps.swap(steps, Ordering::Relaxed) != steps
        {
            self.denials.void_all();
        }
    }

    fn failed(&self, error: &StoreError) {
        self.metrics.store_failed(error.kind());
        self.incidents.log.failed(error.kind(), error);
    }

    /// Answers the body of `POST /v1/give-back`.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn give_back(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.live.current();
        let asked = read_give_backs(body)?;
        let mut entries = Vec::with_capacity(asked.len());
        let read = asked.iter().map(|asked| {
            let asked = asked.as_ref().map_err(Problem::clone)?;
            entries.push(receipts::entry(&epoch.policy, asked)?);
            Ok(asked)
        });
        let read: Vec<Result<_, Problem>> = read.collect();
        let (units, error) = self.store.give_back(&entries).await;
        if let Some(error) = error {
            self.failed(&error);
        }
        let mut units = units.into_iter();
        let mut void = Vec::new();
        let outcomes = read.into_iter().map(|entry| match entry {
            Err(Problem { code, message }) => GivenBack::Error { code, message },
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
    /// The body as a whole is of no use.
    pub async fn reset(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.live.current();
        let deadline = Instant::now() + self.store.timeout() * 2;
        let asked = read_resets(body)?;
        let mut outcomes = Vec::with_capacity(asked.len());
        let mut void = Vec::new();
        for asked in &asked {
            let wanted = asked.as_ref().map_err(Problem::clone);
            let wanted = wanted
                .and_then(|asked| Ok((asked, buckets(&epoch.policy, &asked.limit, &asked.key)?)));
            let outcome = match wanted {
                Err(Problem { code, message }) => WasReset::Error { code, message },
                // However many there are, a store that hangs is not waited for again and again.
                Ok(_) if Instant::now() > deadline => WasReset::Unavailable,
                Ok((asked, buckets)) => {
                    void.push((asked.limit.as_ref(), asked.key.as_ref()));
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
            };
            outcomes.push(outcome);
        }
        self.denials.void(void);
        Ok(json(&Listed { outcomes }))
    }

    /// Frees what has expired in the store, and looks how things stand that no decision has told of lately; to be called
    /// every second or so.
    pub async fn tick(&self) {
        self.store.sweep().await;
        if self.settler.was_asked() {
            self.look_at_samples().await;
        }
        // What the store last said holds; whether it is there is told elsewhere.
        let _ = self.settler.tick().await;
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
                traceparent: None,
            })
        };
        let looks: Vec<_> = samples.iter().map(look).collect();
        let plan = Plan::new(&epoch.policy, &looks, |_| None);
        let (settled, instead) = self.settler.settle(&plan, None).await;
        let now_us = clock::now_us();
        for (told, (_, key)) in plan.verdicts(&settled, &instead).iter().zip(&samples) {
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
        let (sidecars, unwritten) = self.settler.standing();
        self.metrics.text(Now {
            certificates: self.denials.len(),
            sidecars: usize::try_from(sidecars).unwrap_or(usize::MAX),
            unwritten,
        })
    }

    /// Whether all of the store can be used, as far as is known; asks nobody.
    ///
    /// # Errors
    /// Why not.
    pub async fn store_answers(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }

    /// Tells metrics and events how the store stands, whenever that changes, for ever.
    pub async fn watch_store(&self) {
        let mut changes = self.store.health_changes();
        loop {
            let health = changes.borrow_and_update().clone();
            self.metrics.store_is_up(health.is_up());
            match &health.state {
                HealthState::Unknown => {}
                HealthState::Up => {
                    self.incidents.store_answered(clock::unix_ms());
                    self.incidents.log.succeeded();
                }
                HealthState::Down(cause) => {
                    // A connection that is replaced at once is no outage.
                    let up = changes.wait_for(Health::is_up);
                    if tokio::time::timeout(REPLACED_WITHIN, up).await.is_ok() {
                        changes.mark_changed();
                        continue;
                    }
                    let ago = u64::try_from(health.since.elapsed().as_millis()).unwrap_or(0);
                    let since_ms = clock::unix_ms().saturating_sub(ago);
                    self.incidents.store_lost(since_ms, cause);
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Tells the store what was admitted without it, for ever.
    pub async fn write_back(&self) {
        self.settler.write_back().await;
    }

    /// Says to the store that this sidecar goes.
    pub async fn leave(&self) {
        self.settler.leave().await;
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
