//! What the embedded store keeps of a bucket, whichever its algorithm, and of a hold.
//!
//! An empty bucket and none at all mean the same, so dropping one never changes an answer. Decisions expect a bucket without
//! times later than now: `heal` comes first.

use super::table::Ends;
use crate::algorithm::{Back, BucketSpec, Record, Stored, of_stored};
use crate::hold::{Held, Hold, name_of};
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

    pub(super) fn record(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        self.spec = *spec;
        of_stored!(&mut self.state, record(spec, now_us, records))
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

/// A hold.
#[derive(Debug)]
pub(super) struct StoredHold {
    /// Units that it still stands for.
    left: u64,
    /// When it was left.
    at_us: u64,
    of: Vec<Held>,
    ends_us: u64,
}

impl StoredHold {
    pub(super) fn new(hold: &Hold, now_us: u64) -> Self {
        Self {
            left: hold.units,
            at_us: now_us,
            of: hold.of.clone(),
            ends_us: now_us.saturating_add(hold.lasts_us),
        }
    }

    /// Takes off up to so many units of those that need not stay: how many. None if the clock stepped back behind the taking:
    /// nothing can be returned yet.
    pub(super) fn take_off(&mut self, now_us: u64, units: u64, keeps: u64) -> u64 {
        if self.at_us > now_us {
            return 0;
        }
        let units = units.min(self.left.saturating_sub(keeps));
        self.left -= units;
        if self.left == 0 {
            self.ends_us = 0;
        }
        units
    }

    /// Ends it, of which so many units were used; what it stood for. None if it has ended before.
    pub(super) fn end(&mut self, now_us: u64, used: u64) -> Option<u64> {
        if self.ends_us <= now_us {
            return None;
        }
        self.ends_us = 0;
        let left = self.left;
        self.left = left.min(used);
        Some(left)
    }

    /// Lets it live for so long from now; false if it has ended.
    pub(super) fn renew(&mut self, now_us: u64, for_us: u64) -> bool {
        let lives = self.ends_us > now_us;
        if lives {
            self.ends_us = now_us.saturating_add(for_us);
        }
        lives
    }

    /// Of units that were just taken off, those that come back to the bucket of this key, if some were taken from it.
    pub(super) fn back(&self, key: &str, spent: u64, units: u64, ends: bool) -> Option<Back> {
        let name = name_of(key);
        let held = self.of.iter().find(|held| held.name == name)?;
        let left = self.left.saturating_add(spent);
        Some(Back {
            units: units.min(spent),
            at_us: match held.at_us {
                0 => self.at_us,
                at_us => at_us,
            },
            left,
            rate: held.rate,
            // Of what other calls have taken, the buckets do not know.
            settled: if ends && held.at_us == 0 { left } else { 0 },
        })
    }
}

impl Ends for StoredHold {
    fn ends_us(&self) -> u64 {
        self.ends_us
    }

    fn heap_bytes(&self) -> usize {
        self.of.capacity() * size_of::<Held>()
    }
}
