//! The embedded store: every bucket in this process's memory.
//!
//! The default store without Redis, the fallback while Redis is down, and the reference for tests of the Lua script:
//! the two agree to the microsecond.
//!
//! It never forgets an admission before its time. [`Memory::sweep`], which the owner calls periodically, drops what has
//! expired; a store with a memory limit refuses new entries beyond it.

mod settle;
mod stored;
mod table;

use crate::algorithm::{Record, Slots, Stored, of_stored};
use crate::batch::{Batch, Decision};
use crate::hold::Hold;
use crate::key::Bucket;
use crate::slot_id::SlotId;
use crate::verdict::{Look, Outcome, all_have_room, outcome};
use stored::{StoredBucket, StoredHold};
use table::Table;

/// The fraction of the memory limit that is reserved for existing buckets: an eighth.
const RESERVE: usize = 8;
/// Number of entries to examine for expired ones when a new entry needs room.
const MAKE_ROOM: usize = 8;

/// Buckets and their states. Times are microseconds of one clock, the caller's; it may step back.
#[derive(Debug)]
pub struct Memory {
    buckets: Table<StoredBucket>,
    holds: Table<StoredHold>,
    /// Bytes.
    limit: usize,
}

/// A decision would have been admitted, but needs more memory than the store's limit. Nothing was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the embedded store is full")]
pub struct Full;

impl Default for Memory {
    /// An empty store without a memory limit.
    fn default() -> Self {
        Self::with_limit(usize::MAX)
    }
}

impl Memory {
    /// An empty store with a memory limit of about this many bytes.
    #[must_use]
    pub fn with_limit(bytes: usize) -> Self {
        Self {
            buckets: Table::new(),
            holds: Table::new(),
            limit: bytes,
        }
    }

    /// Evaluates the decisions in order; each sees what earlier ones took. Returns one outcome each.
    ///
    /// Costs must be at most [`BucketSpec::most_at_once`], and specs must pass [`BucketSpec::check`].
    /// Takes without a bucket in the batch are ignored.
    ///
    /// With a memory limit, a decision may be [`Full`]: beyond seven eighths of the limit if it would add a bucket,
    /// beyond the limit if it would make a log longer.
    ///
    /// [`BucketSpec::most_at_once`]: crate::BucketSpec::most_at_once
    /// [`BucketSpec::check`]: crate::BucketSpec::check
    pub fn decide(&mut self, now_us: u64, batch: &Batch) -> Vec<Result<Outcome, Full>> {
        let decide = |decision| self.decide_one(now_us, &batch.buckets, decision);
        batch.decisions.iter().map(decide).collect()
    }

    fn decide_one(
        &mut self,
        now_us: u64,
        buckets: &[Bucket],
        decision: &Decision,
    ) -> Result<Outcome, Full> {
        let takes = decision.takes.iter();
        let takes = takes.filter_map(|take| Some((buckets.get(take.bucket)?, take.cost)));
        let least = u64::from(decision.asks);
        let mut looks: Vec<Look> = takes
            .clone()
            .map(|(bucket, cost)| self.look(now_us, bucket, cost.max(least)))
            .collect();
        let mut ended = 0;
        if all_have_room(&looks) && !decision.peek {
            let costly = takes.clone().filter(|(_, cost)| *cost > 0);
            self.find_memory(now_us, costly.map(|(bucket, _)| bucket))?;
            self.find_memory_for(now_us, &decision.holds)?;
            for slots in &decision.slots {
                if let Some(bucket) = buckets.get(slots.bucket) {
                    let store = |of: &mut Slots| of.store(&bucket.spec, now_us, slots.id);
                    ended += self.change_slots(now_us, bucket, store);
                }
            }
            for ((bucket, cost), look) in takes.zip(&mut looks) {
                if cost > 0 {
                    *look = self.take(now_us, bucket, cost);
                } else if decision.asks {
                    self.change(now_us, bucket, |held| {
                        of_stored!(&mut held.state, adopt(&bucket.spec, now_us));
                    });
                }
            }
            for hold in &decision.holds {
                self.leave_receipt(now_us, buckets, decision, hold);
                let left = StoredHold::new(hold, now_us);
                self.holds.insert(&hold.key, left);
            }
        }
        let outcome = outcome(&looks, now_us);
        Ok(Outcome { ended, ..outcome })
    }

    /// Changes a bucket of slots; what `change` returns, or 0 if it counts otherwise.
    fn change_slots(
        &mut self,
        now_us: u64,
        bucket: &Bucket,
        change: impl Fn(&mut Slots) -> u64,
    ) -> u64 {
        self.change(now_us, bucket, |held| held.state.slots().map_or(0, &change))
    }

    /// The ids of a bucket's slots that are in use.
    #[must_use]
    pub fn slots(&mut self, now_us: u64, key: &str) -> Vec<SlotId> {
        let ids = |held: &mut StoredBucket| {
            let slots = held.state.slots();
            slots.map_or_else(Vec::new, |slots| slots.ids(now_us).collect())
        };
        self.buckets.change(key, ids).unwrap_or_default()
    }

    /// Tells its buckets, if a hold is one that is settled by what was used.
    fn leave_receipt(&mut self, now_us: u64, buckets: &[Bucket], of: &Decision, hold: &Hold) {
        if !hold.is_receipt || hold.units == 0 {
            return;
        }
        let taken = of.takes.iter().filter_map(|take| buckets.get(take.bucket));
        for bucket in taken.filter(|bucket| hold.of.iter().any(|held| held.is_of(bucket))) {
            let leave = |held: &mut StoredBucket| {
                of_stored!(&mut held.state, leave(now_us, hold.units));
            };
            self.buckets.change(&bucket.key, leave);
        }
    }

    fn look(&mut self, now_us: u64, bucket: &Bucket, cost: u64) -> Look {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| {
            of_stored!(&mut held.state, adopt_faster(spec, now_us));
            held.look(spec, now_us, cost)
        })
    }

    /// Changes a bucket, after a repair if the clock has stepped back; adds it if it is new and holds something then.
    fn change<R>(
        &mut self,
        now_us: u64,
        bucket: &Bucket,
        change: impl Fn(&mut StoredBucket) -> R,
    ) -> R {
        let heal =
            |held: &mut StoredBucket| of_stored!(&mut held.state, heal(&bucket.spec, now_us));
        let changed = self.buckets.heal_and_change(&bucket.key, heal, &change);
        changed.unwrap_or_else(|| {
            let mut held = StoredBucket::empty(&bucket.spec);
            let result = change(&mut held);
            if held.holds_units() {
                self.buckets.insert(&bucket.key, held);
            }
            result
        })
    }

    /// Whether there is memory to take from all of these.
    fn find_memory<'a>(
        &mut self,
        now_us: u64,
        buckets: impl Iterator<Item = &'a Bucket>,
    ) -> Result<(), Full> {
        let for_new = self.for_new();
        for bucket in buckets {
            // The common case, without another lookup in the table.
            if self.bytes() < for_new / 2 {
                return Ok(());
            }
            let most = match self.buckets.get(&bucket.key) {
                None => for_new,
                Some(held) => match of_stored!(&held.state, growth(&bucket.spec, now_us)) {
                    0 => continue,
                    growth => self.limit.saturating_sub(growth),
                },
            };
            if self.bytes() >= most {
                self.buckets.make_room(&bucket.key, now_us, MAKE_ROOM);
            }
            if self.bytes() >= most {
                return Err(Full);
            }
        }
        Ok(())
    }

    /// Whether there is memory for holds, which are always new.
    fn find_memory_for(&mut self, now_us: u64, holds: &[Hold]) -> Result<(), Full> {
        let for_new = self.for_new();
        for hold in holds {
            if self.bytes() >= for_new {
                self.holds.make_room(&hold.key, now_us, MAKE_ROOM);
            }
            if self.bytes() >= for_new {
                return Err(Full);
            }
        }
        Ok(())
    }

    const fn for_new(&self) -> usize {
        self.limit - self.limit / RESERVE
    }

    /// Takes units for which there is room, and returns the bucket's status afterwards.
    fn take(&mut self, now_us: u64, bucket: &Bucket, cost: u64) -> Look {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| held.take(spec, now_us, cost))
    }

    /// What a bucket holds at `now_us`, to be written back to another store: units, and when they were taken, oldest
    /// first. At most [`crate::MAX_RECORDS`]: where there were more, neighbours are reported as taken when the later of
    /// them was, which is held longer and never over.
    ///
    /// Of a token bucket it is what has not drained yet, as if it was taken now. What was taken would not do, if
    /// several stores have shared the rate: written back one after the other, each would drain by the whole rate.
    #[must_use]
    pub fn records(&self, now_us: u64, key: &str) -> Vec<Record> {
        let held = self.buckets.get(key);
        held.map_or_else(Vec::new, |held| {
            of_stored!(&held.state, records(&held.spec, now_us))
        })
    }

    /// Resets the bucket. True if it had any state, even if only expired entries.
    pub fn reset(&mut self, key: &str) -> bool {
        // The entry stays until a sweep finds it empty.
        let held = self.buckets.change(key, StoredBucket::reset);
        held.unwrap_or(false)
    }

    /// Lets a hold live for so long from now. False if there is none.
    pub fn renew(&mut self, now_us: u64, hold: &str, for_us: u64) -> bool {
        let renewed = self.holds.change(hold, |hold| hold.renew(now_us, for_us));
        renewed.unwrap_or(false)
    }

    /// Drops buckets that are empty at `now_us`, examining at most `at_most` entries, and shrinks tables that have
    /// become too large. Call it about every second until it is done: then memory follows live traffic, and returns to
    /// nothing after traffic ends. A thousand entries take a millisecond at most. Returns whether it is done.
    pub fn sweep(&mut self, now_us: u64, at_most: usize) -> bool {
        self.buckets.sweep(now_us, at_most) && self.holds.sweep(now_us, at_most)
    }

    /// Number of buckets and holds, including empty ones that are not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len() + self.holds.len()
    }

    /// Whether the store is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocated bytes: tables, keys and states.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.buckets.bytes() + self.holds.bytes()
    }
}

#[cfg(test)]
mod tests;
