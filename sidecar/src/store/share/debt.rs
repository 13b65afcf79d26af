//! What a share has admitted and the store does not know: kept as records, and written back. Pure.

use sluicegate_engine::{
    Bucket, BucketSpec, Entry, FleetPosition, Guard, MAX_RECORDS, Record, Settlement, Settlements,
};

/// How long the store remembers a write-back by its name. A repetition after that would be recorded twice, which never
/// admits more than the limit.
const ONCE_US: u64 = 600_000_000;

/// Parts of a sliding window: of more admissions than fit a write-back, those in one part become one record. What is held at a
/// time, with the steps of a precision shorter than a part, lies in [`MAX_RECORDS`] parts at most.
const PARTS: u64 = 60;

/// The admissions of a bucket that the store does not know.
#[derive(Debug)]
pub(super) struct Pending {
    /// Of the whole limit, not of the share.
    pub spec: BucketSpec,
    /// The share that the first of them was made by.
    pub position: FleetPosition,
    /// In order of time. One for each window that has edges, and one for a token bucket, which is written back by its level.
    /// Of a sliding window, those in one of its [`PARTS`] are merged when there are too many, with the latest time of them:
    /// what is written back may expire one part late, and never early.
    pub records: Vec<Record>,
}

/// Units that were taken from one bucket while the store could not be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// The bucket.
    pub bucket: Bucket,
    /// The takings, oldest first; at most [`MAX_RECORDS`].
    pub records: Vec<Record>,
}

/// What records these debts once, under this name: `apart` each by itself, otherwise all together.
pub fn settlements(debts: &[Debt], name: &str, apart: bool) -> Settlements {
    let one = |debts: &[(usize, &Debt)]| {
        let (_, first) = debts.first()?;
        let entries = debts.iter().flat_map(|(bucket, debt)| {
            debt.records.iter().map(|record| Entry {
                bucket: *bucket,
                at_us: Some(record.at_us),
                units: i64::try_from(record.units).unwrap_or(i64::MAX),
            })
        });
        Some(Settlement {
            guard: Guard::Once {
                // In the same slot.
                key: format!("{}:written:{name}", first.bucket.key),
                lasts_us: ONCE_US,
            },
            entries: entries.collect(),
        })
    };
    let numbered: Vec<_> = debts.iter().enumerate().collect();
    let together = if apart { 1 } else { numbered.len().max(1) };
    Settlements {
        buckets: debts.iter().map(|debt| debt.bucket.clone()).collect(),
        each: numbered.chunks(together).filter_map(one).collect(),
    }
}

impl Pending {
    /// Whether nothing of it is held any more; `in_engine` returns what the share's engine holds for the bucket.
    pub fn is_over(&self, now_us: u64, in_engine: impl FnOnce() -> Vec<Record>) -> bool {
        let mut records = self.records.iter();
        let is_held = records.any(|record| is_held(&self.spec, record, now_us));
        // A level that was low drains sooner than a whole bucket.
        !is_held || self.spec.is_level() && in_engine().is_empty()
    }

    /// Adds an admission, and drops what has left its window by then.
    pub fn add(&mut self, record: Record) {
        let spec = self.spec;
        self.records.retain(|one| is_held(&spec, one, record.at_us));
        match self.records.last_mut() {
            // The clock stepped back: keep the later time.
            Some(last)
                if last.at_us >= record.at_us
                    || spec.part(last.at_us, 1) == spec.part(record.at_us, 1) =>
            {
                merge(last, record);
            }
            _ => self.records.push(record),
        }
        if self.records.len() > MAX_RECORDS {
            let part = |record: &Record| spec.part(record.at_us, spec.window_us.div_ceil(PARTS));
            self.records.dedup_by(|later, kept| {
                let is_one = part(later) == part(kept);
                if is_one {
                    merge(kept, *later);
                }
                is_one
            });
        }
    }
}

fn merge(kept: &mut Record, later: Record) {
    kept.at_us = kept.at_us.max(later.at_us);
    kept.units = kept.units.saturating_add(later.units);
}

/// Whether units of a record may still be held.
pub(super) fn is_held(spec: &BucketSpec, record: &Record, now_us: u64) -> bool {
    let held_us = || (record.at_us).saturating_add(spec.held_for_us(spec.most_at_once()));
    let until_us = (spec.window_at(record.at_us)).map_or_else(held_us, |(_, end_us)| end_us);
    until_us > now_us
}
