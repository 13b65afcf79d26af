//! Units that are settled after they were taken, as the algorithms return and add them.

use super::TokenRate;

/// Units to return to a bucket, and what is known of their taking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Back {
    /// How many come back at most.
    pub units: u64,
    /// When they were taken.
    pub at_us: u64,
    /// How many were taken together with them, and them, that have not been returned yet.
    pub left: u64,
    /// By which rate they drained at first, if that is known.
    pub rate: TokenRate,
    /// Units of a receipt that are settled with this, those that were used included; 0 if they are of none.
    pub settled: u64,
}

/// Units taken from a bucket at some time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When, microseconds of the store's clock.
    pub at_us: u64,
    /// Number of units.
    pub units: u64,
}

/// Most records of one bucket in a settlement.
pub const MAX_RECORDS: usize = 64;

/// The records that have units, each with the time that `at_us` returns for it, or with that of the record before it if
/// that is later.
pub(super) fn in_order(
    records: &[Record],
    at_us: impl Fn(&Record) -> u64,
) -> impl Iterator<Item = Record> {
    let mut last_us = 0;
    let ordered = records.iter().map(move |record| {
        last_us = at_us(record).max(last_us);
        Record {
            at_us: last_us,
            units: record.units,
        }
    });
    ordered.filter(|record| record.units > 0)
}
