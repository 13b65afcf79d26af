//! Makes one store call at a time for all that wait, and answers each caller. What goes together is in `queue.rs`.
//! On a Redis Cluster there are many queues, each with its own call under way; who waits in which is in `lanes.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluicegate_engine::Batch;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use super::queue::Queue;
use crate::store::cluster::lanes::{LANES, split};
use crate::store::kinds::Store;
use crate::store::portion::Portion;
use crate::store::settled::{Settled, Settlement};
use crate::telemetry::labels::FailureKind;
use crate::telemetry::metrics::Metrics;

/// Callers that may wait in a lane. A filter asks for all its waiting requests at once, so this is a matter of Envoy
/// workers and clients, not of requests. Not one bound over all lanes: those that wait for a dead node would use it up.
const MOST_CALLERS: usize = 4_096;

/// A caller that waits.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    answer: oneshot::Sender<Vec<Option<Settled>>>,
}

/// The queues before a store: one, or as many as there are lanes.
#[derive(Debug)]
pub struct Batcher {
    lanes: Vec<mpsc::Sender<(Portion, Waiting)>>,
    shared: Arc<Shared>,
    patience: Duration,
}

/// What all lanes share.
#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    metrics: Arc<Metrics>,
}

impl Batcher {
    /// Starts making calls, in the current runtime, until this is dropped.
    pub fn start(store: Arc<Store>, metrics: Arc<Metrics>) -> Self {
        let lanes = if store.has_parts() { LANES } else { 1 };
        // At most: once for the call under way, once for its own.
        let patience = store.timeout() * 2;
        let shared = Arc::new(Shared { store, metrics });
        let start = |_| {
            let (callers, arrivals) = mpsc::channel(MOST_CALLERS);
            tokio::spawn(work(Arc::clone(&shared), arrivals));
            callers
        };
        Self {
            lanes: (0..lanes).map(start).collect(),
            shared,
            patience,
        }
    }

    /// Decides a batch, together with whatever else waits.
    pub async fn decide(&self, batch: Arc<Batch>) -> Vec<Option<Settled>> {
        let decisions = batch.decisions.len();
        if decisions == 0 {
            return Vec::new();
        }
        if let Some(settlement) = self.shared.store.decide_at_once(&batch) {
            for error in &settlement.errors {
                // Not in the log, nor an outage: it goes on with whom it knows.
                self.shared.metrics.store_failed(error.kind());
            }
            return settlement.decisions;
        }
        if let [lane] = self.lanes.as_slice() {
            return self.decide_in(lane, batch.into()).await;
        }
        let portions = split(&batch);
        let go = |(lane, portion): &(usize, Portion)| {
            let (lane, portion) = (self.lanes.get(*lane), portion.clone());
            async move { Some(self.decide_in(lane?, portion).await) }
        };
        let answers = join_all(portions.iter().map(go)).await;
        let mut whole = vec![None; decisions];
        for ((_, portion), settled) in portions.iter().zip(answers) {
            portion.put_back(settled.unwrap_or_default(), &mut whole);
        }
        whole
    }

    async fn decide_in(
        &self,
        lane: &mpsc::Sender<(Portion, Waiting)>,
        portion: Portion,
    ) -> Vec<Option<Settled>> {
        let decisions = portion.len();
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            since: Instant::now(),
            answer,
        };
        if lane.try_send((portion, waiting)).is_err() {
            self.shared.metrics.store_failed(FailureKind::Overloaded);
            return vec![None; decisions];
        }
        match tokio::time::timeout(self.patience, answered).await {
            Ok(Ok(settled)) => settled,
            // Its place in the queue is given up by the answer's being dropped.
            _ => {
                self.shared.metrics.store_failed(FailureKind::Late);
                vec![None; decisions]
            }
        }
    }
}

impl Shared {
    /// Notes how a call ended. Whether the store is up its connections tell.
    fn ended(&self, settlement: &Settlement) {
        for error in &settlement.errors {
            self.metrics.store_failed(error.kind());
            warn!(kind = %error.kind(), "store call failed: {error}");
        }
    }
}

async fn work(shared: Arc<Shared>, mut arrivals: mpsc::Receiver<(Portion, Waiting)>) {
    let mut queue: Queue<Waiting> = Queue::default();
    loop {
        if queue.is_empty() {
            let Some((portion, caller)) = arrivals.recv().await else {
                return;
            };
            queue.push(portion, caller);
        }
        while let Ok((portion, caller)) = arrivals.try_recv() {
            queue.push(portion, caller);
        }
        queue.retain(|caller| !caller.answer.is_closed());
        if queue.is_empty() {
            continue;
        }
        let call = queue.next_call();
        shared.metrics.batch_goes(call.batch().decisions.len());
        let started = Instant::now();
        for caller in queue.first_in(&call) {
            let waited = started.saturating_duration_since(caller.since);
            shared.metrics.queued_for(waited);
        }
        let settlement = shared.store.decide(call.batch()).await;
        shared.metrics.store_took(started.elapsed());
        shared.ended(&settlement);
        for (caller, settled) in queue.answer(&call, settlement.decisions) {
            // Whoever has left in the meantime does not hear it.
            let _ = caller.answer.send(settled);
        }
    }
}
