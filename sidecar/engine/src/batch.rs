//! The batch of decisions that a store evaluates.
//!
//! One window of one limit for one subject is a *bucket*, the unit of state.
//! Times are microseconds of the store's clock, the unit of Redis's TIME; values
//! for callers are rounded up to milliseconds.

use std::collections::HashMap;

use crate::hold::{Hold, TakenSlots};
use crate::key::Bucket;

/// Most bucket visits in one call of a store ([`Batch::weight`]); a single decision with more gets its own call. They
/// block Redis for 1.3 ms (counters) to 2.4 ms (logs) if each visits another bucket, and for 0.5 ms if all visit the
/// same one; measured with Redis 7.0 on two shared cores.
pub const MAX_CALL_WEIGHT: usize = 512;
/// Most bucket visits that one request may ask for: its checks, each counted once for each window of its limit.
/// Eight calls, because the caller waits for all of them.
pub const MAX_REQUEST_WEIGHT: usize = 8 * MAX_CALL_WEIGHT;

/// Units to take from one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Index into [`Batch::buckets`].
    pub bucket: usize,
    /// Units; 0 only reads, and is never denied unless the decision asks.
    pub cost: u64,
}

/// Takes that are admitted together or not at all. No bucket appears twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// At least one, unless its holds are all that a call of the script is for.
    pub takes: Vec<Take>,
    /// Evaluate without taking anything.
    pub peek: bool,
    /// Takes of no units are denied too, unless there is room for one.
    pub asks: bool,
    /// What it leaves if it is admitted and not a peek, each in the slot of its buckets.
    pub holds: Vec<Hold>,
    /// Names the slots that it takes; without a name they would be in use by nobody.
    pub slots: Vec<TakenSlots>,
}

impl Decision {
    /// The holds to store if it is admitted.
    #[must_use]
    pub fn leaves(&self) -> &[Hold] {
        if self.peek { &[] } else { &self.holds }
    }

    /// The slots to store likewise.
    #[must_use]
    pub fn stores(&self) -> &[TakenSlots] {
        if self.peek { &[] } else { &self.slots }
    }

    /// Its cost for a store in bucket visits: one for each take (at least 1), and one for each hold and name of slots.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.takes.len().max(1) + self.leaves().len() + self.stores().len()
    }
}

/// Decisions, evaluated in order; each sees what earlier ones took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Every bucket that a decision names, each once. A batch that goes to Redis in one call has each key once, too.
    pub buckets: Vec<Bucket>,
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Batch {
    /// Its cost for a store in bucket visits; see [`crate::MAX_CALL_WEIGHT`].
    #[must_use]
    pub fn weight(&self) -> usize {
        self.decisions.iter().map(Decision::weight).sum()
    }

    /// For each decision, how many other specs of one of its keys come earlier among the buckets. No two decisions of the
    /// same rank ask for one key with two specs, unless they have several keys.
    #[must_use]
    pub fn spec_ranks(&self) -> Vec<usize> {
        let mut specs_of: HashMap<&str, usize> = HashMap::new();
        let ranks = self.buckets.iter().map(|bucket| {
            let known = specs_of.entry(&bucket.key).or_default();
            *known += 1;
            *known - 1
        });
        let ranks: Vec<_> = ranks.collect();
        let of = |decision: &Decision| {
            let takes = decision.takes.iter();
            let ranks = takes.filter_map(|take| ranks.get(take.bucket).copied());
            ranks.max().unwrap_or(0)
        };
        self.decisions.iter().map(of).collect()
    }
}
