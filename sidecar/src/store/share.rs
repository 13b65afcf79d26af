//! What this sidecar admits by itself while the store is down, and what it has to write back afterwards. Pure.
//!
//! The engine decides over shares of the limits. Its admissions are also kept as records of time and units, so that they
//! can be written back into the window where they belong. A bucket is *pending* from its first admission until the store
//! knows all of them; until then the store must not decide over it.

use std::collections::HashMap;
use std::sync::Arc;

use sluicegate_engine::script::WriteBack;
use sluicegate_engine::{
    Algorithm, Batch, BatchBuilder, Bucket, BucketSpec, Decision, FleetPosition, MAX_RECORDS,
    Memory, Outcome, Record, Take,
};

/// How long the store remembers a write-back by its name. A repetition after that would be recorded twice, which never
/// admits more than the limit.
const ONCE_US: u64 = 600_000_000;

/// Entries examined by one sweep: a millisecond's work.
const SWEEP_AT_MOST: usize = 1_000;

/// Shares of limits.
#[derive(Debug)]
pub struct Share {
    engine: Memory,
    pending: HashMap<Arc<str>, Pending>,
    /// Buckets that are being written back now, each with its number of calls: one whose answer was lost is repeated, and
    /// what was admitted meanwhile is another.
    writing: HashMap<Arc<str>, usize>,
    /// The store's clock when it last decided.
    now_us: u64,
    /// Which share it is. Kept until everything is written back, because a token bucket's level depends on the share's rate.
    position: Option<FleetPosition>,
}

/// The admissions of a bucket that the store does not know.
#[derive(Debug)]
struct Pending {
    /// Of the whole limit, not of the share.
    spec: BucketSpec,
    /// In order of time. Neighbours are merged when there are too many, with the later time of the two: what is written
    /// back may expire a little late, and never early.
    records: Vec<Record>,
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
    fn is_expired(&self, now_us: u64) -> bool {
        let held_for_us = longest_held_us(&self.bucket.spec);
        let mut records = self.records.iter();
        records.all(|record| record.at_us.saturating_add(held_for_us) <= now_us)
    }
}

impl Share {
    /// Bounds the memory to about this many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            engine: Memory::with_limit(limit_bytes),
            pending: HashMap::new(),
            writing: HashMap::new(),
            now_us: 0,
            position: None,
        }
    }

    /// Decides some takes of a decision, given by their indices, over their shares. `None` where a cost is larger than a
    /// whole share.
    pub fn decide(
        &mut self,
        now_us: u64,
        position: FleetPosition,
        (batch, decision): (&Batch, &Decision),
        takes: &[usize],
    ) -> Option<Outcome> {
        if self.nothing_pending() {
            self.position = None;
        }
        let position = *self.position.get_or_insert(position);
        let mut shared = BatchBuilder::new();
        let mut wholes = Vec::with_capacity(takes.len());
        let mut own = Vec::with_capacity(takes.len());
        for number in takes {
            let take = decision.takes.get(*number)?;
            let whole = batch.buckets.get(take.bucket)?;
            let spec = whole.spec.share(position)?;
            if take.cost > spec.most_at_once() {
                return None;
            }
            let bucket = shared.bucket(whole.key.clone(), spec);
            own.push(Take {
                bucket,
                cost: take.cost,
            });
            wholes.push((whole, take.cost));
        }
        shared.push(Decision {
            takes: own,
            peek: decision.peek,
            receipts: Vec::new(),
        });
        let shared = shared.finish();
        self.now_us = now_us;
        let mut outcome = self.engine.decide(now_us, &shared).pop()?.ok()?;
        outcome.decided_by = *takes.get(outcome.decided_by)?;
        if outcome.admitted && !decision.peek {
            for (whole, cost) in wholes.into_iter().filter(|(_, cost)| *cost > 0) {
                self.owe(
                    whole,
                    Record {
                        at_us: now_us,
                        units: cost,
                    },
                );
            }
        }
        Some(outcome)
    }

    fn owe(&mut self, bucket: &Bucket, record: Record) {
        match self.pending.get_mut(bucket.key.as_str()) {
            Some(pending) => {
                pending.spec = bucket.spec;
                pending.add(record);
            }
            None => {
                let pending = Pending {
                    spec: bucket.spec,
                    records: vec![record],
                };
                self.pending.insert(bucket.key.as_str().into(), pending);
            }
        }
    }

    /// Whether the store lacks some admissions of a bucket.
    pub fn is_pending(&self, bucket: &Bucket) -> bool {
        self.pending.contains_key(bucket.key.as_str())
            || self.writing.contains_key(bucket.key.as_str())
    }

    /// Whether the store knows all admissions.
    pub fn nothing_pending(&self) -> bool {
        self.pending.is_empty() && self.writing.is_empty()
    }

    /// Takes out at most this many buckets to write back now, of those whose store is up, for which `now_us` returns its
    /// clock. Records older than their window are dropped. Pass each to [`Share::written`] when the store has it.
    pub fn start_write_back(
        &mut self,
        most: usize,
        now_us: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Debt> {
        let known = self.pending.keys();
        let known = known.filter_map(|key| Some((Arc::clone(key), now_us(key)?)));
        let keys: Vec<_> = known.take(most).collect();
        let mut debts = Vec::with_capacity(keys.len());
        for (key, now_us) in keys {
            let Some(pending) = self.pending.remove(&key) else {
                continue;
            };
            let held_for_us = longest_held_us(&pending.spec);
            let bucket = Bucket {
                key: key.to_string(),
                spec: pending.spec,
            };
            let mut records = match bucket.spec.algorithm {
                // What has not drained by the share's rate: each sidecar's records would drain by the whole rate if they were
                // sent as they were taken.
                Algorithm::TokenBucket { .. } => self.engine.records(now_us, &key),
                _ => pending.records,
            };
            records.retain(|record| record.at_us.saturating_add(held_for_us) > now_us);
            if records.is_empty() {
                self.engine.reset(&key);
            } else {
                *self.writing.entry(key).or_default() += 1;
                debts.push(Debt { bucket, records });
            }
        }
        debts
    }

    /// The store has these. What they hold of the share they hold on: or each outage of a window would admit the share
    /// once more. Only a token bucket starts again, because its level is what is written back.
    pub fn written(&mut self, debts: &[Debt]) {
        for debt in debts {
            let key = debt.bucket.key.as_str();
            if let Some(calls) = self.writing.get_mut(key) {
                *calls -= 1;
                if *calls == 0 {
                    self.writing.remove(key);
                }
            }
            let Algorithm::TokenBucket { .. } = debt.bucket.spec.algorithm else {
                continue;
            };
            self.engine.reset(key);
            let after = self.pending.get(key);
            let spec = self
                .position
                .and_then(|position| debt.bucket.spec.share(position));
            if let (Some(after), Some(spec)) = (after, spec) {
                let bucket = Bucket {
                    key: key.to_owned(),
                    spec,
                };
                self.engine.write_back(self.now_us, &bucket, &after.records);
            }
        }
    }

    /// Drops these if all their records are older than their window; whether it did.
    pub fn forget_if_expired(&mut self, debts: &[Debt], now_us: Option<u64>) -> bool {
        let old = now_us.is_some_and(|now_us| debts.iter().all(|debt| debt.is_expired(now_us)));
        if old {
            self.written(debts);
        }
        old
    }

    /// Number of buckets with admissions that the store does not know.
    pub fn pending(&self) -> usize {
        self.pending.len() + self.writing.len()
    }

    /// Frees what has expired, this long after the last decision.
    pub fn sweep(&mut self, since_us: u64) {
        if !self.nothing_pending() || !self.engine.is_empty() {
            let now_us = self.now_us.saturating_add(since_us);
            self.engine.sweep(now_us, SWEEP_AT_MOST);
        }
        if self.engine.is_empty() {
            // All pending records are older than their window.
            self.pending = HashMap::new();
        }
    }
}

impl Pending {
    fn add(&mut self, record: Record) {
        match self.records.last_mut() {
            // The clock stepped back: keep the later time.
            Some(last) if last.at_us >= record.at_us => {
                last.units = last.units.saturating_add(record.units);
            }
            _ => self.records.push(record),
        }
        if self.records.len() > MAX_RECORDS {
            // What has left the window need not be written back, and merging holds units longer than needed.
            let held_for_us = longest_held_us(&self.spec);
            let expired = |one: &Record| one.at_us.saturating_add(held_for_us) <= record.at_us;
            self.records.retain(|one| !expired(one));
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

/// The longest time that taken units are held, in microseconds.
fn longest_held_us(spec: &BucketSpec) -> u64 {
    spec.held_for_us(spec.most_at_once())
}

#[cfg(test)]
mod tests;
