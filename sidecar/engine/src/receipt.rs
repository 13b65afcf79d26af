//! Receipts: what proves that units were taken, so that they can be given back, once.
//!
//! A decision that asks for it leaves a receipt beside its buckets when it is admitted, under a key that nobody can
//! guess. Whoever names the key gets back what the receipt still stands for, which the same step takes off it. So the
//! same receipt returns nothing a second time, and one that was never given returns nothing at all.

use crate::batch::{Algorithm, Bucket, BucketSpec};

/// Units to be given back by a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// The receipt's key.
    pub receipt: String,
    /// No more than so many.
    pub units: u64,
    /// Indices into [`Returns::buckets`]: those that the units were taken from. Where there are none, the receipt is 0 if other
    /// calls return the units to its buckets.
    pub buckets: Vec<usize>,
}

/// Units to be given back together, in order, each seeing what those before it returned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Returns {
    /// Every bucket that is named, each once.
    pub buckets: Vec<Bucket>,
    /// What to return.
    pub returns: Vec<Return>,
}

impl BucketSpec {
    /// The longest time, in microseconds, for which units that are taken at once can be given back.
    #[must_use]
    pub fn held_for_us(&self, units: u64) -> u64 {
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                self.window_us
            }
            Algorithm::SlidingWindow {
                precision_us,
                leased,
            } => {
                // After a clock step, units of a leased limit may be stamped one step later.
                let steps = if leased { 2 } else { 1 };
                let late_us = precision_us.saturating_mul(steps);
                self.window_us.saturating_add(late_us)
            }
            Algorithm::TokenBucket { .. } => {
                let rate = self.token_rate();
                units
                    .saturating_mul(rate.per_unit)
                    .div_ceil(rate.per_us.max(1))
            }
        }
    }
}
