//! Receipts: what proves that units were taken, so that they can be given back, once.
//!
//! A decision that asks for a receipt leaves one beside its buckets when it is admitted, under a key that nobody can
//! guess. A call that names this key gives back the units that the receipt still has, and subtracts them from the receipt in
//! the same step. So a receipt returns its units once, and one that was never given returns nothing.

use crate::batch::{Algorithm, Bucket, BucketSpec};

/// Units to be given back by a receipt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Return {
    /// The receipt's key.
    pub receipt: String,
    /// No more than so many.
    pub units: u64,
    /// Indices into [`Returns::buckets`] of the buckets that the units were taken from.
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
