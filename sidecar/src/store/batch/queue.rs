//! Group commit: decisions that wait while a store call is in flight share the next one. Pure; `worker.rs` makes the calls.
//!
//! A call is bounded by the buckets that it visits, since that is what it costs Redis; a caller with more is spread over
//! several calls. Callers take turns of a bounded weight, so a caller with a thousand decisions does not delay one with a
//! single decision. A caller's decisions keep their order.

use std::collections::VecDeque;
use std::sync::Arc;

use sluicegate_engine::{Batch, BatchBuilder, Decision, MAX_CALL_WEIGHT, Outcome};

/// Bucket visits of one caller before the next caller's turn; its last decision may exceed this.
const TURN_WEIGHT: usize = MAX_CALL_WEIGHT / 8;

/// Waiting callers, in the order of their arrival. `A` is what the worker knows of a caller.
#[derive(Debug)]
pub struct Queue<A> {
    callers: VecDeque<Caller<A>>,
}

#[derive(Debug)]
struct Caller<A> {
    batch: Arc<Batch>,
    /// The indices of its decisions in that batch, in their order.
    decisions: Vec<usize>,
    /// The number of them that were sent.
    sent: usize,
    waiter: A,
}

/// The answer to a caller.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// In the order of the decisions; `None` where the store did not answer.
    pub outcomes: Vec<Option<Outcome>>,
    /// The store may have carried out some of those that it did not answer.
    pub in_doubt: bool,
}

impl Answer {
    /// The answer if the store did not answer.
    pub fn none(decisions: usize, in_doubt: bool) -> Self {
        Self {
            outcomes: vec![None; decisions],
            in_doubt,
        }
    }

    /// Takes over the answer to the decisions that follow.
    pub fn append(&mut self, next: Self) {
        self.outcomes.extend(next.outcomes);
        self.in_doubt |= next.in_doubt;
    }

    /// Takes over the answer to some decisions of the batch, which have these indices.
    pub fn add(&mut self, indices: &[usize], part: Self) {
        for (index, outcome) in indices.iter().zip(part.outcomes) {
            if let Some(place) = self.outcomes.get_mut(*index) {
                *place = outcome;
            }
        }
        self.in_doubt |= part.in_doubt;
    }
}

/// One call to the store.
#[derive(Debug, Default)]
pub struct Call {
    builder: BatchBuilder,
    /// For each decision, in order, the index of its caller in the queue.
    owners: Vec<usize>,
    /// For each caller in the queue, the number of its decisions.
    added: Vec<usize>,
}

impl<A> Default for Queue<A> {
    fn default() -> Self {
        Self {
            callers: VecDeque::new(),
        }
    }
}

impl<A> Queue<A> {
    /// Adds a caller at the end, with some decisions of a batch.
    pub fn push(&mut self, batch: Arc<Batch>, decisions: Vec<usize>, waiter: A) {
        self.callers.push_back(Caller {
            batch,
            decisions,
            sent: 0,
            waiter,
        });
    }

    /// Whether no caller waits.
    pub fn is_empty(&self) -> bool {
        self.callers.is_empty()
    }

    /// Removes callers that have left; not while a call is in flight.
    pub fn retain(&mut self, stays: impl Fn(&A) -> bool) {
        self.callers.retain(|caller| stays(&caller.waiter));
    }

    /// Selects the next call.
    pub fn next_call(&self) -> Call {
        let mut call = Call::default();
        let mut added = vec![0_usize; self.callers.len()];
        let mut before = usize::MAX;
        // Round after round, until the call is full or a round adds nothing.
        while call.weight() < MAX_CALL_WEIGHT && call.owners.len() != before {
            before = call.owners.len();
            for (index, (caller, added)) in self.callers.iter().zip(&mut added).enumerate() {
                let first = caller.sent + *added;
                let turn_ends = call.weight() + TURN_WEIGHT;
                for number in caller.decisions.iter().skip(first) {
                    let Some(decision) = caller.batch.decisions.get(*number) else {
                        break;
                    };
                    if call.weight() >= turn_ends
                        || !call.has_room(decision)
                        || !call.builder.copy(&caller.batch, decision)
                    {
                        break;
                    }
                    call.owners.push(index);
                    *added += 1;
                }
            }
        }
        call.added = added;
        call
    }

    /// The callers that have decisions in a call, before it is answered, and whether these are their first.
    pub fn callers_in<'a>(&'a self, call: &'a Call) -> impl Iterator<Item = (&'a A, bool)> {
        let callers = self.callers.iter().zip(&call.added);
        callers
            .filter(|(_, added)| **added > 0)
            .map(|(caller, _)| (&caller.waiter, caller.sent == 0))
    }

    /// Tells each caller in a call the outcomes of its decisions there, and removes those that are complete. So a later call that
    /// is late costs only its own decisions.
    pub fn answer(
        &mut self,
        call: &Call,
        outcomes: Vec<Option<Outcome>>,
        in_doubt: bool,
        mut tell: impl FnMut(&A, Answer),
    ) {
        let mut outcomes = outcomes.into_iter();
        let none = |_| Answer::none(0, in_doubt);
        let mut answers: Vec<_> = call.added.iter().map(none).collect();
        for owner in &call.owners {
            if let Some(answer) = answers.get_mut(*owner) {
                answer.outcomes.push(outcomes.next().flatten());
            }
        }
        for (caller, answer) in self.callers.iter_mut().zip(answers) {
            if !answer.outcomes.is_empty() {
                caller.sent += answer.outcomes.len();
                tell(&caller.waiter, answer);
            }
        }
        self.callers
            .retain(|caller| caller.sent < caller.decisions.len());
    }
}

impl Call {
    /// The decisions of all its callers, with each bucket once.
    pub fn batch(&self) -> &Batch {
        self.builder.batch()
    }

    fn weight(&self) -> usize {
        self.builder.weight()
    }

    /// Whether a decision fits; one too large for any call goes alone.
    fn has_room(&self, decision: &Decision) -> bool {
        self.owners.is_empty() || self.weight() + decision.weight() <= MAX_CALL_WEIGHT
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::tests as test_batches;

    use proptest::prelude::*;
    use sluicegate_engine::{Algorithm, Bucket, BucketSpec, Memory};

    fn spec(quota: u64) -> BucketSpec {
        BucketSpec {
            algorithm: Algorithm::SlidingLog,
            quota,
            window_us: 1_000_000,
        }
    }

    /// A batch of decisions of cost 1, each over some of four buckets.
    fn batch(decisions: &[Vec<usize>]) -> Batch {
        let bucket = |n: u64| Bucket {
            key: format!("sg:{{k{n}}}:l"),
            spec: spec(n + 2),
        };
        test_batches::batch((0..4).map(bucket).collect(), decisions)
    }

    /// Adds a caller with all decisions of a batch.
    fn push<A>(queue: &mut Queue<A>, batch: Batch, waiter: A) {
        let all = (0..batch.decisions.len()).collect();
        queue.push(Arc::new(batch), all, waiter);
    }

    /// Answers a call; whom it told what.
    fn answer<A: Copy>(
        queue: &mut Queue<A>,
        call: &Call,
        outcomes: Vec<Option<Outcome>>,
        in_doubt: bool,
    ) -> Vec<(A, Answer)> {
        let mut told = vec![];
        queue.answer(call, outcomes, in_doubt, |caller, answer| {
            told.push((*caller, answer))
        });
        told
    }

    /// Lets the engine decide a call.
    fn work(engine: &mut Memory, call: &Call) -> Vec<Option<Outcome>> {
        let outcomes = engine.decide(1, call.batch()).into_iter();
        outcomes.map(|outcome| Some(outcome.unwrap())).collect()
    }

    #[test]
    fn a_small_caller_does_not_wait_behind_a_large_one() {
        let mut queue = Queue::default();
        let large = batch(&vec![vec![0]; 2 * MAX_CALL_WEIGHT]);
        push(&mut queue, large, "large");
        push(&mut queue, batch(&[vec![1]]), "small");
        let call = queue.next_call();
        assert_eq!(call.batch().decisions.len(), MAX_CALL_WEIGHT);
        // A hot bucket is in the call once.
        assert_eq!(call.batch().buckets.len(), 2);
        let callers: Vec<_> = queue.callers_in(&call).collect();
        assert_eq!(callers, [(&"large", true), (&"small", true)]);
        let told = answer(&mut queue, &call, vec![None; MAX_CALL_WEIGHT], true);
        // The large caller gets the outcomes of its own part at once.
        assert!(
            told.iter()
                .map(|(caller, _)| *caller)
                .eq(["large", "small"])
        );
        assert_eq!(told[0].1, Answer::none(MAX_CALL_WEIGHT - 1, true));
        let next = queue.next_call();
        // Its first decisions were in an earlier call.
        assert!(queue.callers_in(&next).eq([(&"large", false)]));
        let mut rest = vec![];
        while !queue.is_empty() {
            let call = queue.next_call();
            let outcomes = vec![None; call.batch().decisions.len()];
            rest.extend(answer(&mut queue, &call, outcomes, false));
        }
        let last = Answer::none(1, false);
        assert_eq!(
            rest.last(),
            Some(&("large", last)),
            "of its last call alone"
        );
    }

    #[test]
    fn a_bucket_that_a_reload_has_changed_waits_for_the_next_call() {
        let mut queue = Queue::default();
        push(&mut queue, batch(&[vec![0]]), 0);
        let mut raised = batch(&[vec![0]]);
        raised.buckets[0].spec = spec(100);
        push(&mut queue, raised, 1);
        let call = queue.next_call();
        assert_eq!(call.batch().decisions.len(), 1);
        assert_eq!(answer(&mut queue, &call, vec![None], false).len(), 1);
        assert_eq!(queue.next_call().batch().buckets[0].spec, spec(100));
    }

    #[test]
    fn a_caller_that_has_left_takes_nothing() {
        let mut queue = Queue::default();
        push(&mut queue, batch(&[vec![0]]), "left");
        push(&mut queue, batch(&[vec![0]]), "stays");
        queue.retain(|answer| *answer == "stays");
        assert_eq!(queue.next_call().batch().decisions.len(), 1);
    }

    /// One decision over this many buckets, which no other caller uses.
    fn wide(name: &str, takes: usize) -> Batch {
        wides(name, takes, 1)
    }

    fn wides(name: &str, takes: usize, decisions: usize) -> Batch {
        let bucket = |n: usize| Bucket {
            key: format!("sg:{{{name}{n}}}:l"),
            spec: spec(9),
        };
        let decision = |n: usize| (n * takes..(n + 1) * takes).collect();
        let decisions: Vec<Vec<usize>> = (0..decisions).map(decision).collect();
        let buckets = (0..takes * decisions.len()).map(bucket).collect();
        test_batches::batch(buckets, &decisions)
    }

    /// The weights of the calls until the queue is empty, and the callers that each call completed.
    fn drain<'a>(queue: &mut Queue<&'a str>) -> (Vec<usize>, Vec<Vec<&'a str>>) {
        let (mut weights, mut answered) = (Vec::new(), Vec::new());
        while !queue.is_empty() {
            let call = queue.next_call();
            assert_eq!(call.weight(), call.batch().weight());
            weights.push(call.weight());
            let none = vec![None; call.owners.len()];
            let told = answer(queue, &call, none, false).into_iter();
            let waits = |caller: &&str| queue.callers.iter().any(|one| one.waiter == *caller);
            answered.push(
                told.map(|(caller, _)| caller)
                    .filter(|one| !waits(one))
                    .collect(),
            );
        }
        (weights, answered)
    }

    #[test]
    fn a_call_is_bounded_by_the_buckets_it_visits() {
        let mut queue = Queue::default();
        // 256 decisions of 4 checks with 4 windows, which were one call.
        push(&mut queue, wides("large", 16, 256), "large");
        let (weights, answered) = drain(&mut queue);
        assert_eq!(weights, vec![MAX_CALL_WEIGHT; 8]);
        assert_eq!(answered.last(), Some(&vec!["large"]));
    }

    #[test]
    fn a_large_caller_leaves_room_for_others_in_every_call() {
        let mut queue = Queue::default();
        // 256 decisions of 32 checks with 8 windows.
        push(&mut queue, wides("large", 256, 256), "large");
        push(&mut queue, wide("small", 1), "small");
        push(&mut queue, wide("wide", 200), "wide");
        let (weights, answered) = drain(&mut queue);
        assert_eq!(answered[0], ["small", "wide"], "with the first call");
        assert!(weights.iter().all(|weight| *weight <= MAX_CALL_WEIGHT));
        assert_eq!(answered.last(), Some(&vec!["large"]));
    }

    #[test]
    fn a_caller_of_light_decisions_gets_no_more_than_one_of_heavy_ones() {
        let mut queue = Queue::default();
        push(&mut queue, wides("light", 1, 2_000), "light");
        push(&mut queue, wides("heavy", 64, 40), "heavy");
        let call = queue.next_call();
        let of = |owner| {
            let owners = call.owners.iter().zip(&call.batch().decisions);
            let its = owners.filter(|(o, _)| **o == owner);
            its.map(|(_, decision)| decision.weight()).sum::<usize>()
        };
        assert_eq!((of(0), of(1)), (MAX_CALL_WEIGHT / 2, MAX_CALL_WEIGHT / 2));
    }

    #[test]
    fn a_decision_too_large_for_any_call_goes_alone() {
        let mut queue = Queue::default();
        push(&mut queue, wide("huge", MAX_CALL_WEIGHT + 1), "huge");
        push(&mut queue, wide("small", 1), "small");
        push(&mut queue, wide("wide", MAX_CALL_WEIGHT), "wide");
        let (weights, answered) = drain(&mut queue);
        assert_eq!(weights, [MAX_CALL_WEIGHT + 1, 1, MAX_CALL_WEIGHT]);
        assert_eq!(answered, [["huge"], ["small"], ["wide"]]);
    }

    proptest! {
        /// Whatever is batched, every caller gets one verdict for each decision, in order, and the verdicts are those of an
        /// engine that decides one by one in the order of the calls.
        #[test]
        fn every_caller_gets_its_own_verdicts(
            callers in prop::collection::vec(
                prop::collection::vec(prop::sample::subsequence(vec![0, 1, 2, 3], 1..=3), 1..80), 1..12),
        ) {
            let mut queue = Queue::default();
            for (number, decisions) in callers.iter().enumerate() {
                push(&mut queue, batch(decisions), number);
            }
            let (mut together, mut apart) = (Memory::default(), Memory::default());
            let mut expected = vec![Vec::new(); callers.len()];
            let mut answered = vec![Vec::new(); callers.len()];
            let mut waiting: Vec<usize> = (0..callers.len()).collect();
            while !queue.is_empty() {
                let call = queue.next_call();
                prop_assert!(!call.owners.is_empty() && call.weight() <= MAX_CALL_WEIGHT);
                for owner in &call.owners {
                    let number = waiting[*owner];
                    let next = &callers[number][expected[number].len()];
                    let single = apart.decide(1, &batch(std::slice::from_ref(next)));
                    expected[number].push(single[0].ok());
                }
                let outcomes = work(&mut together, &call);
                for (number, answer) in answer(&mut queue, &call, outcomes, false) {
                    answered[number].extend(answer.outcomes);
                    waiting.retain(|w| *w != number || answered[number].len() < callers[number].len());
                }
            }
            prop_assert_eq!(answered, expected);
        }
    }
}
