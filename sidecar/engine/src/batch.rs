//! The batch of decisions that a store takes, and the outcomes that it answers.
//!
//! One window of one limit for one subject is a *bucket*, the unit that has state of its own.
//! Times are microseconds of the store's clock, since that is what Redis's TIME gives; whoever shows
//! them to a caller rounds up to milliseconds.

/// Most bucket visits in one call of a store ([`Batch::weight`]); a single decision of more goes alone.
/// So many hold Redis for 1.3 ms (counters) to 2.4 ms (logs) if every one is of another bucket, and for 0.5 ms if all
/// are of one; measured with Redis 7.0 on two shared cores.
pub const MAX_CALL_WEIGHT: usize = 512;
/// Most bucket visits that one request may ask for: its checks, each counted once for each window of its limit.
/// Eight calls, since whoever asks waits for all of them.
pub const MAX_REQUEST_WEIGHT: usize = 8 * MAX_CALL_WEIGHT;

/// How a bucket counts. See lua/README.md for what each one promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Exact: remembers each admission to the microsecond.
    SlidingLog,
    /// As `SlidingLog`, with admissions rounded up to the next multiple of `precision_us`:
    /// bounded memory, never over, and a unit may be held up to one precision longer.
    SlidingWindow {
        /// Width of one step, in microseconds; at least 1, at most the window.
        precision_us: u64,
    },
    /// One counter per window aligned to the store's clock; up to twice the limit around an edge.
    FixedWindow,
    /// GCRA: `limit` units flow back per window, evenly; at most `burst` can be taken at once.
    TokenBucket {
        /// Units a full bucket holds; at least 1.
        burst: u64,
    },
}

/// One window of a limit: how much, per how long, counted how.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BucketSpec {
    /// How it counts.
    pub algorithm: Algorithm,
    /// Units per window; at least 1.
    pub limit: u64,
    /// Length of the window in microseconds; at least 1.
    pub window_us: u64,
}

/// One window of one limit for one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// The whole key under which a store keeps it, unlike any other bucket's.
    pub key: String,
    /// What is counted there. The key names every part of it that the stored state depends on.
    pub spec: BucketSpec,
}

/// Units to take from one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Take {
    /// Index into [`Batch::buckets`].
    pub bucket: usize,
    /// Units; 0 looks without taking and is never denied.
    pub cost: u64,
}

/// What an admission is to leave behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The whole key under which a store keeps it; see [`crate::receipt_key`].
    pub key: String,
    /// Units that it stands for.
    pub units: u64,
    /// How long, in microseconds: what was taken has come back by itself then.
    pub lifetime_us: u64,
}

/// Takes that are admitted together or not at all. No bucket appears twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// At least one.
    pub takes: Vec<Take>,
    /// Answer as if to take, and take nothing.
    pub peek: bool,
    /// To be left behind if it is admitted and no peek; each beside its buckets, in their slot.
    pub receipts: Vec<Receipt>,
}

impl Decision {
    /// The receipts that it leaves behind when it is admitted.
    #[must_use]
    pub fn leaves(&self) -> &[Receipt] {
        if self.peek { &[] } else { &self.receipts }
    }

    /// What it costs a store, in visits of buckets: its takes, and 1 at least, and a write for each receipt.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.takes.len().max(1) + self.leaves().len()
    }
}

/// Decisions to be made in order, each seeing what those before it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Every bucket that a decision names, each once.
    pub buckets: Vec<Bucket>,
    /// The decisions.
    pub decisions: Vec<Decision>,
}

impl Batch {
    /// What it costs a store, in visits of buckets; see [`crate::MAX_CALL_WEIGHT`].
    #[must_use]
    pub fn weight(&self) -> usize {
        self.decisions.iter().map(Decision::weight).sum()
    }
}

/// Units taken from a bucket at some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, microseconds of the store's clock.
    pub at_us: u64,
    /// How many.
    pub units: u64,
}

/// Most records of one bucket in a write-back.
pub const MAX_RECORDS: usize = 64;

/// What became of one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// All takes had room (and, unless it was a peek, were taken).
    pub admitted: bool,
    /// Index into [`Decision::takes`] of the bucket that decided: when denied, the one that has room last
    /// (of several the one with least remaining, then that of the smallest quota, then the first);
    /// when admitted, the one with least remaining (of equals the one that resets last, then the first).
    pub decided_by: usize,
    /// Units left in that bucket now, after what was taken.
    pub remaining: u64,
    /// Microseconds until that bucket is whole again if nobody asks.
    pub reset_us: u64,
    /// Microseconds until the same decision would be admitted if nobody else asks; 0 when admitted.
    pub retry_after_us: u64,
    /// The store's clock at the decision, microseconds: what a give-back has to name.
    pub at_us: u64,
}
