//! Decides, gives back, resets: reads a request, asks the store, counts and answers.

use std::sync::Arc;

use serde::Serialize;
use sluicegate_engine::script::GiveBack;
use sluicegate_protocol::{
    Answer, GivenBack, Listed, Problem, Read, WasReset, read_decisions, read_give_backs,
    read_resets,
};
use tracing::warn;

use crate::batcher::Batcher;
use crate::denials::Denials;
use crate::live::Live;
use crate::metrics::Metrics;
use crate::plan::{Plan, Source, buckets};
use crate::store::{Store, StoreError};

/// Everything a sidecar knows.
#[derive(Debug)]
pub struct Service {
    /// The policy in force.
    pub live: Live,
    store: Arc<Store>,
    batcher: Batcher,
    denials: Denials,
    /// What it counts.
    pub metrics: Arc<Metrics>,
}

impl Service {
    /// A service that decides by `live` in `store`. To be made in a runtime.
    pub fn new(live: Live, store: Store, metrics: Metrics) -> Self {
        let (store, metrics) = (Arc::new(store), Arc::new(metrics));
        let batcher = Batcher::start(Arc::clone(&store), Arc::clone(&metrics));
        Self {
            live,
            store,
            batcher,
            denials: Denials::default(),
            metrics,
        }
    }

    /// Answers the body of `POST /v1/decide` with the body of its answer.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn decide(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let epoch = self.live.current();
        let Read {
            decisions: asked,
            denied,
        } = read_decisions(body)?;
        for denied in &denied {
            self.metrics
                .count_denied_here(denied, epoch.policy.limit(&denied.limit).is_some());
        }
        let moment = self.denials.moment(epoch.number);
        let plan = Plan::new(&epoch.policy, &asked, |decision| {
            self.denials.covering(moment, decision)
        });
        let settled = self.batcher.decide(Arc::clone(&plan.batch)).await;
        let told = plan.verdicts(&settled);
        for (told, asked) in told.iter().zip(&asked) {
            let decision = asked.as_ref().ok();
            match decision.and_then(|decision| decision.shadow.as_deref()) {
                Some(rule) => self.metrics.count_shadow(rule, told),
                None => self.metrics.count(told),
            }
            if let (Source::Store, Some(decision)) = (told.source, decision) {
                self.denials.hold(moment, decision, &told.verdict);
            }
        }
        let answer = Answer {
            epoch: epoch.number,
            verdicts: told.into_iter().map(|told| told.verdict).collect(),
        };
        Ok(json(&answer))
    }

    fn failed(&self, error: &StoreError) {
        self.metrics.store_failed(error.kind());
        warn!(kind = error.kind(), "store call failed: {error}");
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

    /// Frees what has expired in the store; to be called every second or so.
    pub fn sweep(&self) {
        self.store.sweep();
    }

    /// Whether the store answers within its deadline.
    ///
    /// # Errors
    /// Why not.
    pub async fn store_answers(&self) -> Result<(), StoreError> {
        self.store.ping().await
    }
}

/// Strings and integers always can be written as JSON; an empty body would be read as no answer.
fn json(answer: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(answer).unwrap_or_default()
}
