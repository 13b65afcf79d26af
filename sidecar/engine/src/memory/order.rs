//! The order in which units taken elsewhere are recorded.

use crate::batch::Record;

/// The records at the times that `at_us` makes of theirs, but none before one that it follows; those of no units
/// left out.
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
