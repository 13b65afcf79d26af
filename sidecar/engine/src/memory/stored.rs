//! What the embedded store keeps of a bucket, whichever its algorithm, and of a receipt.
//!
//! An empty bucket and none at all mean the same, so dropping one never changes an answer. Decisions expect a bucket without
//! times later than now: `heal` comes first.

use super::table::Ends;
use crate::algorithm::{BucketSpec, Record, Stored, of_stored};
use crate::batch::Receipt;
use crate::verdict::Look;

/// A bucket. The methods take the spec of the call: another one than before, where the policy has changed.
#[derive(Debug)]
pub(super) struct StoredBucket {
    pub state: Stored,
    /// As last named with the bucket.
    pub spec: BucketSpec,
}

impl StoredBucket {
    pub(super) fn empty(spec: &BucketSpec) -> Self {
        Self {
            state: spec.empty(),
            spec: *spec,
        }
    }

    pub(super) fn look(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        self.spec = *spec;
        of_stored!(&self.state, look(spec, now_us, cost))
    }

    /// Takes units, and returns the bucket's status afterwards.
    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        of_stored!(&mut self.state, take(spec, now_us, cost));
        of_stored!(&self.state, look(spec, now_us, 0))
    }

    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        self.spec = *spec;
        of_stored!(&mut self.state, write_back(spec, now_us, records))
    }

    /// Whether it holds anything, even if only expired entries.
    pub(super) fn holds_units(&self) -> bool {
        self.ends_us() > 0
    }

    /// Empties it; whether it held anything.
    pub(super) fn reset(&mut self) -> bool {
        let held_units = self.holds_units();
        *self = Self::empty(&self.spec);
        held_units
    }
}

impl Ends for StoredBucket {
    fn ends_us(&self) -> u64 {
        of_stored!(&self.state, ends_us(&self.spec))
    }

    fn heap_bytes(&self) -> usize {
        of_stored!(&self.state, heap_bytes())
    }
}

/// A receipt.
#[derive(Debug)]
pub(super) struct StoredReceipt {
    /// Units that it can still return, and when they were taken.
    left: Record,
    ends_us: u64,
}

impl StoredReceipt {
    pub(super) fn new(receipt: &Receipt, now_us: u64) -> Self {
        Self {
            left: Record {
                at_us: now_us,
                units: receipt.units,
            },
            ends_us: now_us.saturating_add(receipt.lifetime_us),
        }
    }

    /// Takes off up to so many units; how many, and what it had before. None if the clock stepped back behind the taking:
    /// nothing can be returned yet.
    pub(super) fn take_off(&mut self, now_us: u64, units: u64) -> (u64, Record) {
        let left = self.left;
        if left.at_us > now_us {
            return (0, left);
        }
        let units = units.min(left.units);
        self.left.units -= units;
        if self.left.units == 0 {
            self.ends_us = 0;
        }
        (units, left)
    }
}

impl Ends for StoredReceipt {
    fn ends_us(&self) -> u64 {
        self.ends_us
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
