//! Runs one store call at a time, batches the decisions that queue up behind it, and answers each caller. `queue.rs`
//! selects what goes together. On a Redis Cluster there are several queues, each with its own call; `lanes.rs` assigns them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;
use sluicegate_engine::{Batch, Done, Settlements};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use super::queue::{Answer, Queue};
use super::settles;
use super::shared::Shared;
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
/// Why a caller's decisions did not reach the store.
const WAITED: &str = "decisions waited too long behind earlier calls";

/// Some decisions of a batch, by their indices, and who waits for them.
type Arrival = (Arc<Batch>, Vec<usize>, Waiter);

/// A waiting caller.
#[derive(Debug)]
struct Waiter {
    since: Instant,
    trace: Option<Parent>,
    /// One answer for each call that has some of its decisions.
    answers: mpsc::UnboundedSender<Answer>,
}

/// The queues in front of a store: one, or one per lane.
pub struct Batcher {
    lanes: Vec<mpsc::Sender<Arrival>>,
    settles: mpsc::Sender<settles::Arrival>,
    shared: Arc<Shared>,
}

impl Batcher {
    /// Makes calls in the current runtime until this is dropped.
    pub fn start(store: Arc<Store>, metrics: Arc<Metrics>, events: Arc<EventLog>) -> Self {
        let lanes = if store.has_parts() { LANES } else { 1 };
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
        let (settles, arrivals) = mpsc::channel(MAX_CALLERS);
        tokio::spawn(settles::run(Arc::clone(&shared), arrivals));
        Self {
            lanes: (0..lanes).map(start).collect(),
            settles,
            shared,
        }
    }

    /// Decides a batch, or these decisions of it in this order, together with other waiting decisions.
    pub async fn decide(
        &self,
        batch: Arc<Batch>,
        some: Option<Vec<usize>>,
        trace: Option<Parent>,
    ) -> Answer {
        let started = trace.is_some().then(Instant::now);
        if some.is_none()
            && let Some(reply) = self.shared.store.decide_at_once(&batch)
        {
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
        let (is_whole, count) = (some.is_none(), batch.decisions.len());
        let all = some.unwrap_or_else(|| (0..count).collect());
        let lanes = match self.lanes.as_slice() {
            _ if all.is_empty() => BTreeMap::new(),
            [lane] if is_whole => return self.decide_in(lane, (batch, all), trace).await,
            [_] => BTreeMap::from([(0, all)]),
            _ => split(&batch, &all, self.shared.store.homes()),
        };
        let decide_in = |(lane, some): (&usize, &Vec<usize>)| {
            let (lane, trace) = (self.lanes.get(*lane), trace.clone());
            let some = (Arc::clone(&batch), some.clone());
            async move { Some(self.decide_in(lane?, some, trace).await) }
        };
        let answers = join_all(lanes.iter().map(decide_in)).await;
        let mut whole = Answer::none(count, false);
        for (indices, answer) in lanes.values().zip(answers) {
            whole.add(indices, answer.unwrap_or_default());
        }
        whole
    }

    /// Settles receipts, together with those of other callers: what became of each, `None` where that is unknown.
    pub async fn settle(&self, settlements: Settlements) -> Vec<Option<Done>> {
        let count = settlements.each.len();
        let (caller, done) = oneshot::channel();
        if self.settles.try_send((settlements, caller)).is_err() {
            self.shared.record_failure(FailureKind::Overloaded, WAITED);
        }
        done.await.unwrap_or_else(|_| vec![None; count])
    }

    /// Records the error of a call that was made beside this queue.
    pub fn record_error(&self, error: &StoreError) {
        self.shared.record_failure(error.kind(), error);
    }

    async fn decide_in(
        &self,
        lane: &mpsc::Sender<Arrival>,
        (batch, some): (Arc<Batch>, Vec<usize>),
        trace: Option<Parent>,
    ) -> Answer {
        let decisions = some.len();
        let (answers, mut answered) = mpsc::unbounded_channel();
        let waiter = Waiter {
            since: Instant::now(),
            trace,
            answers,
        };
        if lane.try_send((batch, some, waiter)).is_err() {
            self.shared.record_failure(FailureKind::Overloaded, WAITED);
            return Answer::none(decisions, false);
        }
        // For each of its calls: at most the one in flight and its own.
        let max_wait = self.shared.store.timeout() * 2;
        let mut answer = Answer::default();
        while answer.outcomes.len() < decisions {
            let Ok(Some(next)) = timeout(max_wait, answered.recv()).await else {
                // Dropping the receiver removes the caller from the queue. A call with its decisions may be under way.
                self.shared.record_failure(FailureKind::Late, WAITED);
                answer.append(Answer::none(decisions - answer.outcomes.len(), true));
                break;
            };
            answer.append(next);
        }
        answer
    }
}

async fn run_lane(shared: Arc<Shared>, mut arrivals: mpsc::Receiver<Arrival>) {
    let mut queue: Queue<Waiter> = Queue::default();
    loop {
        if queue.is_empty() {
            let Some((batch, some, caller)) = arrivals.recv().await else {
                return;
            };
            queue.push(batch, some, caller);
        }
        while let Ok((batch, some, caller)) = arrivals.try_recv() {
            queue.push(batch, some, caller);
        }
        queue.retain(|caller| !caller.answers.is_closed());
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
        for error in &reply.errors {
            shared.record_failure(error.kind(), error);
        }
        if let Some(span) = span {
            span.end(reply.errors.first().map(StoreError::kind));
        }
        let in_doubt = reply.is_in_doubt();
        queue.answer(&call, reply.decisions, in_doubt, |caller, answer| {
            // The caller may have left in the meantime.
            let _ = caller.answers.send(answer);
        });
    }
}
