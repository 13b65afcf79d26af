//! Records of units taken elsewhere, as the algorithms add them.

use crate::batch::Record;

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
