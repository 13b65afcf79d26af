//! The embedded store: every bucket in this process's memory.
//!
//! The default store without Redis, the fallback while Redis is down, and the reference for tests of the Lua script:
//! the two agree to the microsecond.
//!
//! It never forgets an admission before its time. [`Memory::sweep`], which the owner calls periodically, drops what has
//! expired; a store with a memory limit refuses new entries beyond it.

mod stored;
mod table;

use crate::algorithm::{Record, Stored, of_stored};
use crate::batch::{Batch, Bucket, Decision, Receipt};
use crate::receipt::{Return, Returns};
use crate::verdict::{Look, Outcome, all_have_room, outcome};
use stored::{StoredBucket, StoredReceipt};
use table::Table;

/// The fraction of the memory limit that is reserved for existing buckets: an eighth.
const RESERVE: usize = 8;
/// Number of entries to examine for expired ones when a new entry needs room.
const MAKE_ROOM: usize = 8;

/// Buckets and their states. Times are microseconds of one clock, the caller's; it may step back.
#[derive(Debug)]
pub struct Memory {
    buckets: Table<StoredBucket>,
    receipts: Table<StoredReceipt>,
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
            receipts: Table::new(),
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
        let mut looks: Vec<Look> = takes
            .clone()
            .map(|(bucket, cost)| self.look(now_us, bucket, cost))
            .collect();
        if all_have_room(&looks) && !decision.peek {
            let costly = takes.clone().filter(|(_, cost)| *cost > 0);
            self.find_memory(now_us, costly.map(|(bucket, _)| bucket))?;
            self.find_memory_for(now_us, &decision.receipts)?;
            for ((bucket, cost), look) in takes.zip(&mut looks) {
                if cost > 0 {
                    *look = self.take(now_us, bucket, cost);
                }
            }
            for receipt in &decision.receipts {
                let left = StoredReceipt::new(receipt, now_us);
                self.receipts.insert(&receipt.key, left);
            }
        }
        Ok(outcome(&looks, now_us))
    }

    fn look(&mut self, now_us: u64, bucket: &Bucket, cost: u64) -> Look {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| held.look(spec, now_us, cost))
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

    /// Whether there is memory for receipts, which are always new.
    fn find_memory_for(&mut self, now_us: u64, receipts: &[Receipt]) -> Result<(), Full> {
        let for_new = self.for_new();
        for receipt in receipts {
            if self.bytes() >= for_new {
                self.receipts.make_room(&receipt.key, now_us, MAKE_ROOM);
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

    /// Gives back up to `cost` units that a decision took from `bucket`. Returns how many:
    /// none if they have come back by themselves, or if the bucket was reset since. `taken`: the units that were taken
    /// together and are not given back yet, and when they were taken.
    pub fn give_back(&mut self, now_us: u64, bucket: &Bucket, cost: u64, taken: Record) -> u64 {
        self.change(now_us, bucket, |held| {
            of_stored!(
                &mut held.state,
                give_back(&bucket.spec, now_us, cost, taken)
            )
        })
    }

    /// Gives back units by receipt. For each return: how many, in the bucket that got most. None if the receipt does
    /// not exist or is used up, or if its units have come back by themselves.
    pub fn return_units(&mut self, now_us: u64, returns: &Returns) -> Vec<u64> {
        let give = |one: &Return| {
            let take_off = |left: &mut StoredReceipt| left.take_off(now_us, one.units);
            let taken_off = self.receipts.change(&one.receipt, take_off);
            let (units, taken) = taken_off.unwrap_or_default();
            let buckets = one.buckets.iter();
            let buckets = buckets.filter_map(|index| returns.buckets.get(*index));
            let returned = buckets.map(|bucket| self.give_back(now_us, bucket, units, taken));
            returned.max().unwrap_or(0)
        };
        returns.returns.iter().map(give).collect()
    }

    /// Records units that were taken from `bucket` elsewhere, oldest first, whatever its limit; how many units. Each
    /// counts as if it had been taken here at its time (now, if that is later), so what had come back since is not
    /// recorded, nor is what would make a bucket hold more than [`crate::MAX_HELD`].
    pub fn write_back(&mut self, now_us: u64, bucket: &Bucket, records: &[Record]) -> u64 {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| {
            held.write_back(spec, now_us, records)
        })
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

    /// Drops buckets that are empty at `now_us`, examining at most `at_most` entries, and shrinks tables that have
    /// become too large. Call it about every second until it is done: then memory follows live traffic, and returns to
    /// nothing after traffic ends. A thousand entries take a millisecond at most. Returns whether it is done.
    pub fn sweep(&mut self, now_us: u64, at_most: usize) -> bool {
        self.buckets.sweep(now_us, at_most) && self.receipts.sweep(now_us, at_most)
    }

    /// Number of buckets and receipts, including empty ones that are not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.buckets.len() + self.receipts.len()
    }

    /// Whether the store is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Allocated bytes: tables, keys and states.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.buckets.bytes() + self.receipts.bytes()
    }
}

#[cfg(test)]
mod tests;
