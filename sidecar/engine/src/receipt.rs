//! Receipts: what proves that units were taken, so that they can be given back, once.
//!
//! A decision that asks for a receipt leaves one beside its buckets when it is admitted, under a key that nobody can
//! guess. A call that names this key gives back the units that the receipt still has, and subtracts them from the receipt in
//! the same step. So a receipt returns its units once, and one that was never given returns nothing.

use crate::batch::Bucket;

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
