//! Histories: what could happen to a handful of buckets, small when printed. `history.rs` and the fuzzer (tests/fuzz) make them.

use sluicegate_engine::BucketSpec;

/// Long enough that no key's real expiry comes into a history, which takes milliseconds.
pub const WINDOWS_US: std::ops::Range<u64> = 20_000_000..40_000_000;

/// Zones whose clocks change by an hour, by half of one, at midnight, and never.
pub const ZONES: [&str; 5] = [
    "Europe/Berlin",
    "Australia/Lord_Howe",
    "Africa/Cairo",
    "Asia/Beirut",
    "UTC",
];

/// What happens to the buckets of one world.
#[derive(Clone, Debug)]
pub struct History {
    pub world: Vec<BucketSpec>,
    /// Records in a block of the script's log: small ones make long logs of short histories.
    pub block: usize,
    pub steps: Vec<Step>,
}

/// Buckets are named by index modulo the world's size, costs are cut to what the bucket allows.
#[derive(Clone, Debug)]
pub enum Step {
    /// One batch.
    Ask(Vec<Ask>),
    /// So many single takes, with a pause before each: fills logs, and the groups of a token bucket's receipts.
    Run {
        bucket: usize,
        times: u8,
        pause_us: u64,
        cost: u64,
        receipts: bool,
    },
    /// Time passes, or steps back.
    Clock(Clock),
    /// The take that was admitted so many takes ago returns units; if it has a receipt, that is settled, with more than was taken
    /// if this returns more than that. It may have been settled before.
    GiveBack { ago: usize, cost: u64 },
    /// Another store took these: how long before now (negative: after), in percent of the window, and units.
    WriteBack {
        bucket: usize,
        taken: Vec<(i64, u64)>,
    },
    /// An operator makes a bucket whole.
    Reset(usize),
    /// A new policy: another limit for the same bucket.
    Relimit { bucket: usize, limit: u64 },
    /// Another burst for the same token bucket; nothing for other buckets.
    Reburst { bucket: usize, burst: u64 },
}

/// One decision.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Buckets and costs; of a bucket named twice the first counts.
    pub takes: Vec<(usize, u64)>,
    pub peek: bool,
    /// Whether each take leaves a receipt.
    pub receipts: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum Clock {
    ForwardUs(u64),
    /// By percent of a bucket's window.
    Windows {
        bucket: usize,
        percent: u64,
    },
    /// To the time that the last denial promised.
    Promised,
    /// One microsecond before it.
    JustBeforePromised,
    /// By percent of a bucket's window.
    BackWindows {
        bucket: usize,
        percent: u64,
    },
    BackUs(u64),
}
