//! Flies: one store call at a time for all that wait, and answers each caller. What goes together is in `flight.rs`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluicegate_engine::Batch;
use tokio::sync::{mpsc, oneshot};
use tracing::warn;

use crate::flight::Queue;
use crate::incidents::{Incidents, now_ms};
use crate::metrics::Metrics;
use crate::store::{Settled, Store};

/// Callers that may wait. A filter asks for all its waiting requests at once, so this is a matter of Envoy workers
/// and clients, not of requests.
const MOST_CALLERS: usize = 4_096;
/// Reasons for which decisions are not made before they reach the store; values of a metric's label.
const OVERLOADED: &str = "overloaded";
const LATE: &str = "late";

/// A caller that waits.
#[derive(Debug)]
struct Waiting {
    since: Instant,
    answer: oneshot::Sender<Vec<Option<Settled>>>,
}

/// A queue before a store.
#[derive(Debug)]
pub struct Batcher {
    callers: mpsc::Sender<(Arc<Batch>, Waiting)>,
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    patience: Duration,
}

impl Batcher {
    /// Starts flying, in the current runtime, until this is dropped.
    pub fn start(store: Arc<Store>, metrics: Arc<Metrics>, incidents: Arc<Incidents>) -> Self {
        let (callers, arrivals) = mpsc::channel(MOST_CALLERS);
        // At most: once for the call under way, once for its own.
        let patience = store.timeout() * 2;
        tokio::spawn(fly(
            Arc::clone(&store),
            Arc::clone(&metrics),
            incidents,
            arrivals,
        ));
        Self {
            callers,
            store,
            metrics,
            patience,
        }
    }

    /// Decides a batch, together with whatever else waits.
    pub async fn decide(&self, batch: Arc<Batch>) -> Vec<Option<Settled>> {
        let decisions = batch.decisions.len();
        if decisions == 0 {
            return Vec::new();
        }
        if let Some(settlement) = self.store.decide_at_once(&batch) {
            return settlement.decisions;
        }
        let (answer, answered) = oneshot::channel();
        let waiting = Waiting {
            since: Instant::now(),
            answer,
        };
        if self.callers.try_send((batch, waiting)).is_err() {
            self.metrics.store_failed(OVERLOADED);
            return vec![None; decisions];
        }
        match tokio::time::timeout(self.patience, answered).await {
            Ok(Ok(settled)) => settled,
            // Its place in the queue is given up by the answer's being dropped.
            _ => {
                self.metrics.store_failed(LATE);
                vec![None; decisions]
            }
        }
    }
}

async fn fly(
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    incidents: Arc<Incidents>,
    mut arrivals: mpsc::Receiver<(Arc<Batch>, Waiting)>,
) {
    let mut queue: Queue<Waiting> = Queue::default();
    loop {
        if queue.is_empty() {
            let Some((batch, caller)) = arrivals.recv().await else {
                return;
            };
            queue.push(batch, caller);
        }
        while let Ok((batch, caller)) = arrivals.try_recv() {
            queue.push(batch, caller);
        }
        queue.retain(|caller| !caller.answer.is_closed());
        if queue.is_empty() {
            continue;
        }
        let flight = queue.board();
        metrics.batch_flies(flight.batch.decisions.len());
        let started = Instant::now();
        for caller in queue.first_boarding(&flight) {
            metrics.queued_for(started.saturating_duration_since(caller.since));
        }
        let settlement = store.decide(&flight.batch).await;
        metrics.store_took(started.elapsed());
        metrics.store_is_up(settlement.errors.is_empty());
        if settlement.errors.is_empty() {
            incidents.store_answered(now_ms());
        }
        for error in &settlement.errors {
            incidents.store_failed(now_ms(), error);
            metrics.store_failed(error.kind());
            warn!(kind = error.kind(), "store call failed: {error}");
        }
        for (caller, settled) in queue.land(&flight, settlement.decisions) {
            // Whoever has left in the meantime does not hear it.
            let _ = caller.answer.send(settled);
        }
    }
}
