//! Settlements of one bucket, in a word each.

use sluicegate_engine::{Bucket, Entry, Guard, Record, Settlements};

/// Returns units that were taken then.
pub fn back(bucket: &Bucket, units: u64, at_us: u64) -> Settlements {
    let entry = Entry::back(0, Some(at_us), units);
    Settlements::one(Guard::None, vec![bucket.clone()], vec![entry])
}

/// Adds units that were taken elsewhere.
pub fn more(bucket: &Bucket, guard: Guard, records: &[Record]) -> Settlements {
    let entry = |record: &Record| Entry {
        bucket: 0,
        at_us: Some(record.at_us),
        units: record.units as i64,
    };
    let entries = records.iter().map(entry).collect();
    Settlements::one(guard, vec![bucket.clone()], entries)
}
