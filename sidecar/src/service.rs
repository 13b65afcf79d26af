//! Decides: reads a request, asks the store within its deadline, counts and answers.

use std::time::{Duration, Instant};

use sluicegate_engine::Outcome;
use sluicegate_protocol::{Answer, Problem, read_request};
use tracing::warn;

use crate::metrics::Metrics;
use crate::plan::Plan;
use crate::policy::Policy;
use crate::store::{Store, StoreError};

/// Everything a sidecar knows.
#[derive(Debug)]
pub struct Service {
    policy: Policy,
    epoch: u64,
    store: Store,
    /// What it counts.
    pub metrics: Metrics,
}

impl Service {
    /// A service with the first epoch of a policy in force.
    pub fn new(policy: Policy, store: Store, metrics: Metrics) -> Self {
        let epoch = 1;
        metrics.set_epoch(epoch);
        Self {
            policy,
            epoch,
            store,
            metrics,
        }
    }

    /// Which policy is in force.
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Answers the body of `POST /v1/decide` with the body of its answer.
    ///
    /// # Errors
    /// The body as a whole is of no use.
    pub async fn decide(&self, body: &[u8]) -> Result<Vec<u8>, Problem> {
        let plan = Plan::new(&self.policy, read_request(body)?);
        let outcomes = self.ask(&plan).await;
        let verdicts = plan.verdicts(outcomes.as_deref());
        for (limit, verdict) in &verdicts {
            self.metrics.count(limit, verdict);
        }
        let answer = Answer {
            epoch: self.epoch,
            verdicts: verdicts.into_iter().map(|(_, verdict)| verdict).collect(),
        };
        // Strings and integers always can be written as JSON; an empty body would be read as no answer.
        Ok(serde_json::to_vec(&answer).unwrap_or_default())
    }

    async fn ask(&self, plan: &Plan) -> Option<Vec<Outcome>> {
        if plan.batch.decisions.is_empty() {
            return None;
        }
        let started = Instant::now();
        let answer = within(self.policy.store_timeout, self.store.decide(&plan.batch)).await;
        self.metrics.store_took(started.elapsed());
        answer
            .inspect_err(|error| {
                self.metrics.store_failed(error.kind());
                warn!(
                    kind = error.kind(),
                    decisions = plan.batch.decisions.len(),
                    "store call failed: {error}"
                );
            })
            .ok()
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
        within(self.policy.store_timeout, self.store.ping()).await
    }
}

async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(deadline, call)
        .await
        .unwrap_or(Err(StoreError::Timeout(deadline)))
}
