//! What this sidecar admits by itself while the store is down, and what the store has to be told of it afterwards. Pure.
//!
//! The engine decides, over shares of the limits. What it admitted is kept apart, as records of when and how much, so that
//! it can be written back into the window where it belongs. A bucket is *pending* from its first admission until the store
//! knows of all of them; as long as it is, the store must not decide over it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::cluster::slots::tag;
use sluicegate_engine::script::WriteBack;
use sluicegate_engine::{
    Algorithm, Batch, BatchBuilder, Bucket, BucketSpec, Decision, MAX_RECORDS, Memory, Outcome,
    Place, Record, Take,
};

/// For how long a call is remembered that was made. Who repeats it later than that would record it twice, which is never
/// over.
const ONCE_US: u64 = 600_000_000;

/// Entries looked at by one sweep: a millisecond's work.
const SWEEP_AT_MOST: usize = 1_000;

/// Shares of limits.
#[derive(Debug)]
pub struct Share {
    engine: Memory,
    pending: HashMap<Arc<str>, Pending>,
    /// Being written back now.
    writing: HashSet<Arc<str>>,
    /// The store's clock when it last decided.
    now_us: u64,
    /// Which share it is: kept until all is written back, for what a token bucket holds is counted in units of its rate.
    place: Option<Place>,
}

/// What the store does not know of a bucket.
#[derive(Debug)]
struct Pending {
    /// The whole limit's, not the share's.
    spec: BucketSpec,
    /// In their order. Neighbours are put together when there are too many, as of the later of the two: what is written
    /// back may stay a little longer than it should, and never goes sooner.
    records: Vec<Record>,
}

/// A bucket and what the store is to be told of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Debt {
    /// As the store knows it.
    pub bucket: Bucket,
    /// In their order.
    pub records: Vec<Record>,
}

impl Debt {
    /// The bucket that says, beside this one, that the call of this name was made.
    pub fn once(&self, name: &str) -> Bucket {
        Bucket {
            key: format!("sg:{{{}}}:written:{name}", tag(&self.bucket.key)),
            spec: BucketSpec {
                algorithm: Algorithm::SlidingLog,
                limit: 1,
                window_us: ONCE_US,
            },
        }
    }

    /// For the store.
    pub fn write(&self) -> WriteBack<'_> {
        WriteBack {
            bucket: &self.bucket,
            records: &self.records,
        }
    }

    /// What is older than its window is of no interest any more.
    fn is_old(&self, now_us: u64) -> bool {
        let lasts_us = lasts_us(&self.bucket.spec);
        let mut records = self.records.iter();
        records.all(|record| record.at_us.saturating_add(lasts_us) <= now_us)
    }
}

impl Share {
    /// Holds about this many bytes at most.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            engine: Memory::with_limit(limit_bytes),
            pending: HashMap::new(),
            writing: HashSet::new(),
            now_us: 0,
            place: None,
        }
    }

    /// Decides over the shares of some takes of a decision, which are named by their places in it. Nothing, where a
    /// share cannot ever hold what is asked for.
    pub fn decide(
        &mut self,
        now_us: u64,
        place: Place,
        (batch, decision): (&Batch, &Decision),
        takes: &[usize],
    ) -> Option<Outcome> {
        if self.is_settled() {
            self.place = None;
        }
        let place = *self.place.get_or_insert(place);
        let mut shared = BatchBuilder::new();
        let mut wholes = Vec::with_capacity(takes.len());
        let mut own = Vec::with_capacity(takes.len());
        for number in takes {
            let take = decision.takes.get(*number)?;
            let whole = batch.buckets.get(take.bucket)?;
            let spec = whole.spec.share(place)?;
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

    /// The store does not know all of it.
    pub fn is_pending(&self, bucket: &Bucket) -> bool {
        self.pending.contains_key(bucket.key.as_str()) || self.writing.contains(bucket.key.as_str())
    }

    /// Nothing is pending.
    pub fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.writing.is_empty()
    }

    /// Buckets to be written back now, so many at most, of those that can be told to the store, for which `now_us` says its
    /// clock. What is older than its window is forgotten. Each is to be given to [`Share::written`] when the
    /// store knows of it.
    pub fn begin(&mut self, most: usize, now_us: impl Fn(&str) -> Option<u64>) -> Vec<Debt> {
        let known = self.pending.keys();
        let known = known.filter_map(|key| Some((Arc::clone(key), now_us(key)?)));
        let keys: Vec<_> = known.take(most).collect();
        let mut debts = Vec::with_capacity(keys.len());
        for (key, now_us) in keys {
            let Some(pending) = self.pending.remove(&key) else {
                continue;
            };
            let lasts_us = lasts_us(&pending.spec);
            let bucket = Bucket {
                key: key.to_string(),
                spec: pending.spec,
            };
            let mut records = match bucket.spec.algorithm {
                // By the rate of the share: each sidecar's would drain by the whole rate if it were told as it was taken.
                Algorithm::TokenBucket { .. } => self.engine.records(now_us, &key),
                _ => pending.records,
            };
            records.retain(|record| record.at_us.saturating_add(lasts_us) > now_us);
            if records.is_empty() {
                self.engine.reset(&key);
            } else {
                self.writing.insert(key);
                debts.push(Debt { bucket, records });
            }
        }
        debts
    }

    /// The store knows of these: what they held here is forgotten, but for what was admitted meanwhile.
    pub fn written(&mut self, debts: &[Debt]) {
        for debt in debts {
            let key = debt.bucket.key.as_str();
            self.writing.remove(key);
            self.engine.reset(key);
            let after = self.pending.get(key);
            let spec = self.place.and_then(|place| debt.bucket.spec.share(place));
            if let (Some(after), Some(spec)) = (after, spec) {
                let bucket = Bucket {
                    key: key.to_owned(),
                    spec,
                };
                self.engine.write_back(self.now_us, &bucket, &after.records);
            }
        }
    }

    /// Whether it is too late for all of these to be told: then they are forgotten.
    pub fn are_old(&mut self, debts: &[Debt], now_us: Option<u64>) -> bool {
        let old = now_us.is_some_and(|now_us| debts.iter().all(|debt| debt.is_old(now_us)));
        if old {
            self.written(debts);
        }
        old
    }

    /// Buckets that the store does not know all of.
    pub fn pending(&self) -> usize {
        self.pending.len() + self.writing.len()
    }

    /// Frees what had expired when it was last asked.
    pub fn sweep(&mut self) {
        if !self.is_settled() || !self.engine.is_empty() {
            self.engine.sweep(self.now_us, SWEEP_AT_MOST);
        }
        if self.engine.is_empty() {
            // All that is owed is older than its window.
            self.pending = HashMap::new();
        }
    }
}

impl Pending {
    fn add(&mut self, record: Record) {
        match self.records.last_mut() {
            // A clock that stepped back: as of the later time.
            Some(last) if last.at_us >= record.at_us => {
                last.units = last.units.saturating_add(record.units);
            }
            _ => self.records.push(record),
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

/// Until when what was taken matters at the latest.
fn lasts_us(spec: &BucketSpec) -> u64 {
    use Algorithm::{FixedWindow, SlidingLog, SlidingWindow, TokenBucket};
    match spec.algorithm {
        SlidingLog | FixedWindow => spec.window_us,
        SlidingWindow { precision_us } => spec.window_us.saturating_add(precision_us),
        TokenBucket { burst } => {
            let rate = spec.token_rate();
            burst
                .saturating_mul(rate.per_unit)
                .div_ceil(rate.per_us.max(1))
        }
    }
}

#[cfg(test)]
mod tests;
