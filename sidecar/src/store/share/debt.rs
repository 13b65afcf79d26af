//! What a share has admitted and the store does not know: kept as records, and written back. Pure.

use sluicegate_engine::script::WriteBack;
use sluicegate_engine::{Algorithm, Bucket, BucketSpec, FleetPosition, MAX_RECORDS, Record};

/// How long the store remembers a write-back by its name. A repetition after that would be recorded twice, which never
/// admits more than the limit.
const ONCE_US: u64 = 600_000_000;

/// The admissions of a bucket that the store does not know.
#[derive(Debug)]
pub(super) struct Pending {
    /// Of the whole limit, not of the share.
    pub spec: BucketSpec,
    /// The share that the first of them was made by.
    pub position: FleetPosition,
    /// In order of time. Neighbours are merged when there are too many, with the later time of the two: what is written
    /// back may expire a little late, and never early.
    pub records: Vec<Record>,
}

/// A bucket and the records to write back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// With the whole limit's specification.
    pub bucket: Bucket,
    /// In order of time.
    pub records: Vec<Record>,
}

impl Debt {
    /// The bucket, in the same slot, that marks the call of this name as executed. On a Cluster each debt is a call of its
    /// own, so the mark is the debt's: debts of one subject share their slot.
    pub fn once(&self, name: &str) -> Bucket {
        Bucket {
            key: format!("{}:written:{name}", self.bucket.key),
            spec: BucketSpec {
                algorithm: Algorithm::SlidingLog,
                quota: 1,
                window_us: ONCE_US,
            },
        }
    }

    /// As the script's argument.
    pub fn write(&self) -> WriteBack<'_> {
        WriteBack {
            bucket: &self.bucket,
            records: &self.records,
        }
    }

    /// Whether all records are older than their window.
    pub(super) fn is_expired(&self, now_us: u64) -> bool {
        let mut records = self.records.iter();
        records.all(|record| !is_held(&self.bucket.spec, record, now_us))
    }
}

impl Pending {
    pub fn new(spec: BucketSpec, position: FleetPosition, record: Record) -> Self {
        Self {
            spec,
            position,
            records: vec![record],
        }
    }

    /// Whether nothing of it is held any more; `in_engine` returns what the share's engine holds for the bucket.
    pub fn is_over(&self, now_us: u64, in_engine: impl FnOnce() -> Vec<Record>) -> bool {
        let Some(last) = self.records.last() else {
            return true;
        };
        let is_held = is_held(&self.spec, last, now_us);
        match self.spec.algorithm {
            // Not by the engine: after a clock step it may hold nothing of a window that has not begun yet.
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => {
                self.spec.window_at(last.at_us).1 <= now_us
            }
            // A level that was low drains sooner than a whole bucket.
            Algorithm::TokenBucket { .. } => !is_held || in_engine().is_empty(),
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => !is_held,
        }
    }

    /// Adds an admission.
    pub fn add(&mut self, record: Record) {
        match self.records.last_mut() {
            // The clock stepped back: keep the later time.
            Some(last) if last.at_us >= record.at_us => {
                last.units = last.units.saturating_add(record.units);
            }
            _ => self.records.push(record),
        }
        if self.records.len() > MAX_RECORDS {
            // What has left the window need not be written back, and merging holds units longer than needed.
            let spec = self.spec;
            self.records.retain(|one| is_held(&spec, one, record.at_us));
        }
        if self.records.len() > MAX_RECORDS {
            let pairs = self.records.chunks(2);
            self.records = pairs
                .filter_map(|pair| {
                    Some(Record {
                        at_us: pair.last()?.at_us,
                        units: pair.iter().map(|record| record.units).sum(),
                    })
                })
                .collect();
        }
    }
}

/// Whether units of a record may still be held.
pub(super) fn is_held(spec: &BucketSpec, record: &Record, now_us: u64) -> bool {
    let held_for_us = spec.held_for_us(spec.most_at_once());
    record.at_us.saturating_add(held_for_us) > now_us
}

/// Whether a bucket's level is written back, and not what was admitted: each sidecar's admissions would drain by the whole rate
/// if they were sent as they were made.
pub(super) fn is_level(spec: &BucketSpec) -> bool {
    match spec.algorithm {
        Algorithm::TokenBucket { .. } => true,
        Algorithm::SlidingLog
        | Algorithm::SlidingWindow { .. }
        | Algorithm::FixedWindow
        | Algorithm::CalendarWindow(_) => false,
    }
}
