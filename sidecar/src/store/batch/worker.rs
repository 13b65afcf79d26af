//! Runs one store call at a time, batches the decisions that queue up behind it, and answers each caller. `queue.rs`
//! selects what goes together. On a Redis Cluster there are many queues, each with its own call; `lanes.rs` assigns them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use sluicegate_engine::{Batch, Outcome};
use tokio::sync::{mpsc, oneshot};

use super::queue::Queue;
use crate::store::batch_slice::BatchSlice;
use crate::store::cluster::lanes::{LANES, split};
use crate::store::error::StoreError;
use crate::store::kinds::Store;
use crate::telemetry::events::EventLog;
use crate::telemetry::labels::FailureKind;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::{Parent, StoreSpan};

/// Bound on the callers that wait in a lane. A filter asks for all its waiting requests at once, so callers are Envoy
/// workers and clients, not requests. Each lane has its own bound, or callers that wait for a dead node would use it up.
const MAX_CALLERS: usize = 4_096;

/// What a caller learns.
#[derive(Debug, Default)]
pub struct Answer {
    /// In the order of the decisions; `None` where the store did not answer.
    pub outcomes: Vec<Option<Outcome>>,
    /// The store may have carried out some of those that it did not answer.
    pub in_doubt: bool,
}

impl Answer {
    fn none(decisions: usize, in_doubt: bool) -> Self {
        Self {
            outcomes: vec![None; decisions],
            in_doubt,
        }
    }
}

/// A waiting caller.
#[derive(Debug)]
struct Waiter {
    since: Instant,
    trace: Option<Parent>,
    /// A call with some of its decisions failed in doubt.
    in_doubt: AtomicBool,
    answer: oneshot::Sender<Answer>,
}

/// The queues in front of a store: one, or one per lane.
#[derive(Debug)]
pub struct Batcher {
    lanes: Vec<mpsc::Sender<(BatchSlice, Waiter)>>,
    shared: Arc<Shared>,
    max_wait: Duration,
}

/// What all lanes share.
#[derive(Debug)]
struct Shared {
    store: Arc<Store>,
    metrics: Arc<Metrics>,
    events: Arc<EventLog>,
}

impl Batcher {
    /// Makes calls in the current runtime until this is dropped.
    pub fn start(store: Arc<Store>, metrics: Arc<Metrics>, events: Arc<EventLog>) -> Self {
        let lanes = if store.has_parts() { LANES } else { 1 };
        // At most the call in flight and the caller's own.
        let max_wait = store.timeout() * 2;
        let shared = Arc::new(Shared {
            store,
            metrics,
            events,
        });
        let start = |_| {
            let (callers, arrivals) = mpsc::channel(MAX_CALLERS);
            tokio::spawn(run_lane(Arc::clone(&shared), arrivals));
            callers
        };
        Self {
            lanes: (0..lanes).map(start).collect(),
            shared,
            max_wait,
        }
    }

    /// Decides a batch, together with other waiting decisions.
    pub async fn decide(&self, batch: Arc<Batch>, trace: Option<Parent>) -> Answer {
        let decisions = batch.decisions.len();
        if decisions == 0 {
            return Answer::default();
        }
        let started = trace.is_some().then(Instant::now);
        if let Some(reply) = self.shared.store.decide_at_once(&batch) {
            if let (Some(trace), Some(started)) = (&trace, started) {
                trace.record_store_call(started.elapsed(), &batch);
            }
            for error in &reply.errors {
                // Neither logged nor an outage: known keys are still decided.
                self.shared.metrics.count_store_failure(error.kind());
            }
            return Answer {
                outcomes: reply.decisions,
                in_doubt: false,
            };
        }
        if let [lane] = self.lanes.as_slice() {
            return self.decide_in(lane, batch.into(), trace).await;
        }
        let slices = split(&batch);
        let decide_slice = |(lane, slice): &(usize, BatchSlice)| {
            let (lane, slice) = (self.lanes.get(*lane), slice.clone());
            let trace = trace.clone();
            async move { Some(self.decide_in(lane?, slice, trace).await) }
        };
        let answers = join_all(slices.iter().map(decide_slice)).await;
        let mut whole = Answer::none(decisions, false);
        for ((_, slice), answer) in slices.iter().zip(answers) {
            let answer = answer.unwrap_or_default();
            slice.put_back(answer.outcomes, &mut whole.outcomes);
            whole.in_doubt |= answer.in_doubt;
        }
        whole
    }

    /// Records the error of a call that was made beside this queue.
    pub fn record_error(&self, error: &StoreError) {
        self.shared.record_error(error);
    }

    async fn decide_in(
        &self,
        lane: &mpsc::Sender<(BatchSlice, Waiter)>,
        slice: BatchSlice,
        trace: Option<Parent>,
    ) -> Answer {
        let decisions = slice.len();
        let (answer, answered) = oneshot::channel();
        let waiter = Waiter {
            since: Instant::now(),
            trace,
            in_doubt: AtomicBool::new(false),
            answer,
        };
        if lane.try_send((slice, waiter)).is_err() {
            self.shared.record_dropped(FailureKind::Overloaded);
            return Answer::none(decisions, false);
        }
        match tokio::time::timeout(self.max_wait, answered).await {
            Ok(Ok(answer)) => answer,
            // Dropping the receiver removes the caller from the queue. A call with its decisions may be under way.
            _ => {
                self.shared.record_dropped(FailureKind::Late);
                Answer::none(decisions, true)
            }
        }
    }
}

impl Shared {
    /// Records that a caller's decisions did not reach the store.
    fn record_dropped(&self, kind: FailureKind) {
        self.metrics.count_store_failure(kind);
        let why = "decisions waited too long behind earlier calls";
        self.events.log.failed(kind, why);
    }

    /// The connections, not the calls, determine whether the store is up.
    fn record_error(&self, error: &StoreError) {
        self.metrics.count_store_failure(error.kind());
        self.events.log.failed(error.kind(), error);
    }
}

async fn run_lane(shared: Arc<Shared>, mut arrivals: mpsc::Receiver<(BatchSlice, Waiter)>) {
    let mut queue: Queue<Waiter> = Queue::default();
    loop {
        if queue.is_empty() {
            let Some((slice, caller)) = arrivals.recv().await else {
                return;
            };
            queue.push(slice, caller);
        }
        while let Ok((slice, caller)) = arrivals.try_recv() {
            queue.push(slice, caller);
        }
        queue.retain(|caller| !caller.answer.is_closed());
        if queue.is_empty() {
            continue;
        }
        let call = queue.next_call();
        let families = &shared.metrics.families;
        let decisions = call.batch().decisions.len();
        families.batch_decisions.observe(decisions as f64);
        let started = Instant::now();
        let callers = queue.callers_in(&call);
        let traces = callers.map(|(caller, _)| caller.trace.as_ref());
        let span = StoreSpan::start(traces, call.batch());
        for (caller, _) in queue.callers_in(&call).filter(|(_, is_first)| *is_first) {
            let waited = started.saturating_duration_since(caller.since);
            families.queue_seconds.observe(waited.as_secs_f64());
            if let Some(trace) = &caller.trace {
                trace.record_queue_wait(waited, span.as_ref());
            }
        }
        let reply = shared.store.decide(call.batch()).await;
        let took = started.elapsed().as_secs_f64();
        families.store_seconds.observe(took);
        reply
            .errors
            .iter()
            .for_each(|error| shared.record_error(error));
        if let Some(span) = span {
            span.end(reply.errors.first().map(StoreError::kind));
        }
        if reply.is_in_doubt() {
            let callers = queue.callers_in(&call);
            callers.for_each(|(caller, _)| caller.in_doubt.store(true, Ordering::Relaxed));
        }
        for (caller, outcomes) in queue.answer(&call, reply.decisions) {
            let answer = Answer {
                outcomes,
                in_doubt: caller.in_doubt.into_inner(),
            };
            // The caller may have left in the meantime.
            let _ = caller.answer.send(answer);
        }
    }
}
