//! The embedded store: every bucket in this process's memory.
//!
//! The default when no Redis is named, what enforces when Redis is away, and the yardstick that the Lua
//! is tested against: the two agree to the microsecond.
//!
//! It never sheds state by itself while deciding; whoever owns it calls [`Memory::sweep`] now and then.

mod fixed;
mod log;
mod state;
mod token;

use crate::batch::{Batch, Bucket, BucketSpec, Decision, Outcome};
use crate::verdict::{Look, all_have_room, outcome};
use state::State;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::Arc;

/// Buckets and their states. Times are microseconds of one clock, the caller's; it may step back.
#[derive(Debug, Default)]
pub struct Memory {
    buckets: HashMap<Arc<str>, Held>,
    /// Each held bucket once, by a time before which it need not be looked at again.
    due: BinaryHeap<Reverse<(u64, Arc<str>)>>,
}

#[derive(Debug)]
struct Held {
    state: State,
    /// As last named with the bucket: what tells when the state is empty.
    spec: BucketSpec,
}

impl Memory {
    /// A store that holds nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes the decisions in order, each seeing what those before it took. One outcome each.
    ///
    /// Costs are to be at most [`BucketSpec::most_at_once`], the specs to pass [`BucketSpec::check`].
    /// A take that names no bucket of the batch is passed over.
    pub fn decide(&mut self, now_us: u64, batch: &Batch) -> Vec<Outcome> {
        let decide = |decision| self.decide_one(now_us, &batch.buckets, decision);
        batch.decisions.iter().map(decide).collect()
    }

    fn decide_one(&mut self, now_us: u64, buckets: &[Bucket], decision: &Decision) -> Outcome {
        let takes = decision.takes.iter();
        let takes = takes.filter_map(|take| Some((buckets.get(take.bucket)?, take.cost)));
        let mut looks: Vec<Look> = takes
            .clone()
            .map(|(bucket, cost)| self.look(now_us, bucket, cost))
            .collect();
        if all_have_room(&looks) && !decision.peek {
            for ((bucket, cost), look) in takes.zip(&mut looks) {
                if cost > 0 {
                    *look = self.take(now_us, bucket, cost);
                }
            }
        }
        outcome(&looks, now_us)
    }

    fn look(&mut self, now_us: u64, bucket: &Bucket, cost: u64) -> Look {
        match self.buckets.get_mut(bucket.key.as_str()) {
            Some(held) => {
                held.spec = bucket.spec;
                held.state.heal(&bucket.spec, now_us);
                held.state.look(&bucket.spec, now_us, cost)
            }
            None => State::empty(&bucket.spec).look(&bucket.spec, now_us, cost),
        }
    }

    /// Takes what a look has found room for, and says how the bucket stands then.
    fn take(&mut self, now_us: u64, bucket: &Bucket, cost: u64) -> Look {
        let spec = &bucket.spec;
        if let Some(held) = self.buckets.get_mut(bucket.key.as_str()) {
            held.state.take(spec, now_us, cost);
            return held.state.look(spec, now_us, 0);
        }
        let mut state = State::empty(spec);
        state.take(spec, now_us, cost);
        let look = state.look(spec, now_us, 0);
        let key: Arc<str> = bucket.key.as_str().into();
        let due_us = state.empty_at_us(spec);
        self.due.push(Reverse((due_us, Arc::clone(&key))));
        self.buckets.insert(key, Held { state, spec: *spec });
        look
    }

    /// Returns up to `cost` units that a decision took from `bucket` at `at_us` (its outcome's), and says
    /// how many: none if they have come back by themselves or the bucket was reset since.
    pub fn give_back(&mut self, now_us: u64, bucket: &Bucket, cost: u64, at_us: u64) -> u64 {
        let Some(held) = self.buckets.get_mut(bucket.key.as_str()) else {
            return 0;
        };
        held.state.heal(&bucket.spec, now_us);
        held.state.give_back(&bucket.spec, now_us, cost, at_us)
    }

    /// Makes the bucket whole. True if it held anything, be it only what had expired.
    pub fn reset(&mut self, key: &str) -> bool {
        // Its place in `due` stays, and finds the bucket empty when its time comes.
        self.buckets.get_mut(key).is_some_and(|held| {
            let held_units = held.state.empty_at_us(&held.spec) > 0;
            held.state = State::empty(&held.spec);
            held_units
        })
    }

    /// Drops buckets that hold nothing at `now_us`, looking at no more than `at_most`; says how many it
    /// dropped. Calling it every second with a few thousand keeps memory in step with live traffic, and
    /// brings it to nothing after the traffic ends.
    pub fn sweep(&mut self, now_us: u64, at_most: usize) -> usize {
        let mut dropped = 0;
        for _ in 0..at_most {
            match self.due.peek() {
                Some(Reverse((due_us, _))) if *due_us <= now_us => {}
                _ => break,
            }
            let Some(Reverse((_, key))) = self.due.pop() else {
                break;
            };
            let Some(held) = self.buckets.get(&key) else {
                continue;
            };
            let empty_at_us = held.state.empty_at_us(&held.spec);
            if empty_at_us > now_us {
                self.due.push(Reverse((empty_at_us, key)));
            } else {
                self.buckets.remove(&key);
                dropped += 1;
            }
        }
        if self.buckets.is_empty() {
            // A burst of keys must not leave its tables behind.
            *self = Self::default();
        }
        dropped
    }

    /// Buckets held, those that hold nothing and were not swept yet included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// True if nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}

#[cfg(test)]
mod tests;
