//! What this sidecar admits by itself while the store is down, and what it has to write back afterwards. Pure.
//!
//! The engine decides over shares of the limits. Its admissions are also kept as records of time and units, so that they
//! can be written back into the window where they belong. A bucket is *pending* from its first admission until the store
//! knows all of them; until then a decision over it waits.

mod debt;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use sluicegate_engine::{
    Batch, BatchBuilder, Bucket, BucketSpec, Decision, FleetPosition, Guard, Memory, Outcome,
    Record, Settlement, Settlements, Take, TakenSlots,
};

pub use debt::{Debt, settlements};
use debt::{Pending, is_held};

/// Pending buckets above which those that have left their window are dropped, if there are twice as many as the engine has.
const PURGE_ABOVE: usize = 1_000;

/// Buckets found by one look: a millisecond's work, besides passing those that cannot be written back.
const MAX_READY: usize = 4_000;

/// Entries examined by one sweep: a millisecond's work.
const SWEEP_AT_MOST: usize = 1_000;

/// Shares of limits.
#[derive(Debug)]
pub struct Share {
    engine: Memory,
    pending: HashMap<Arc<str>, Pending>,
    /// Keys of pending buckets whose store was up at the last look. One look finds many, because it may have to pass all the
    /// buckets of a Cluster's node that is away.
    ready: VecDeque<Arc<str>>,
    /// Buckets that are being written back now.
    writing: HashMap<Arc<str>, Writing>,
    /// The store's clock when it was last told.
    now_us: u64,
    /// Buckets with slots that the store may not know, because they were taken or renewed meanwhile.
    slots: HashMap<Arc<str>, BucketSpec>,
}

/// A bucket that is being written back.
#[derive(Debug)]
struct Writing {
    /// The number of calls: one whose answer was lost is repeated, and what was admitted meanwhile is another.
    calls: usize,
    /// The share that its admissions were made by.
    position: FleetPosition,
}

impl Share {
    /// Bounds the memory to about this many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            engine: Memory::with_limit(limit_bytes),
            pending: HashMap::new(),
            ready: VecDeque::new(),
            writing: HashMap::new(),
            now_us: 0,
            slots: HashMap::new(),
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
        let mut shared = BatchBuilder::new();
        let mut wholes = Vec::with_capacity(takes.len());
        let mut own = Vec::with_capacity(takes.len());
        let mut slots = Vec::new();
        for number in takes {
            let take = decision.takes.get(*number)?;
            let whole = batch.buckets.get(take.bucket)?;
            let position = self.position_of(whole, position);
            let spec = whole.spec.share(position)?;
            if take.cost > spec.most_at_once() {
                return None;
            }
            let bucket = shared.bucket(whole.key.clone(), spec);
            let taken = decision.slots.iter().find(|of| of.bucket == take.bucket);
            slots.extend(taken.map(|of| TakenSlots { bucket, ..*of }));
            own.push(Take {
                bucket,
                cost: take.cost,
            });
            wholes.push((whole, position, take.cost));
        }
        shared.push(Decision {
            takes: own,
            peek: decision.peek,
            asks: decision.asks,
            holds: Vec::new(),
            slots,
        });
        let shared = shared.finish();
        self.now_us = now_us;
        let mut outcome = self.engine.decide(now_us, &shared).pop()?.ok()?;
        outcome.decided_by = *takes.get(outcome.decided_by)?;
        if outcome.admitted && !decision.peek {
            for (whole, position, units) in wholes {
                let record = Record {
                    at_us: now_us,
                    units,
                };
                if whole.spec.has_slots() {
                    self.slots.insert(whole.key.as_str().into(), whole.spec);
                } else if units > 0 {
                    self.owe(whole, position, record);
                }
            }
        }
        Some(outcome)
    }

    /// Frees or renews slots here too, as far as the store is down, or what it may not know is freed.
    pub fn settle_slots(&mut self, now_us: u64, one: &Settlement, bucket: &Bucket, is_down: bool) {
        self.now_us = now_us;
        let is_renewal = matches!(one.guard, Guard::Renew(_));
        let is_known = self.slots.contains_key(bucket.key.as_str());
        if is_renewal && is_down {
            self.slots.insert(bucket.key.as_str().into(), bucket.spec);
        } else if is_renewal || !is_known {
            return;
        }
        let mut alone = Settlements::default();
        alone.return_to(one.guard.clone(), [bucket.clone()]);
        self.engine.settle(now_us, &alone);
    }

    /// Takes out the slots that the store may not know, of buckets whose store is up: `now_us` returns its clock.
    pub fn unknown_slots(&mut self, now_us: impl Fn(&str) -> Option<u64>) -> Settlements {
        let mut unknown = Settlements::default();
        self.slots.retain(|key, spec| {
            let Some(now_us) = now_us(key) else {
                return true;
            };
            for id in self.engine.slots(now_us, key) {
                let bucket = Bucket {
                    key: key.to_string(),
                    spec: *spec,
                };
                unknown.return_to(Guard::Renew(id), [bucket]);
            }
            false
        });
        unknown
    }

    /// Puts them back: the store has not learnt them.
    pub fn put_back_slots(&mut self, unknown: Settlements) {
        let buckets = unknown.buckets.into_iter();
        self.slots
            .extend(buckets.map(|bucket| (bucket.key.as_str().into(), bucket.spec)));
    }

    /// Whether the store may lack slots.
    pub fn has_slots(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Which share of a bucket it is, given what it is now. That of a token bucket stays until its level is written back,
    /// because the level depends on the share's rate.
    fn position_of(&self, bucket: &Bucket, now: FleetPosition) -> FleetPosition {
        if !bucket.spec.is_level() {
            return now;
        }
        let key = bucket.key.as_str();
        let writing = || self.writing.get(key).map(|writing| writing.position);
        let pending = self.pending.get(key).map(|pending| pending.position);
        pending.or_else(writing).unwrap_or(now)
    }

    fn owe(&mut self, bucket: &Bucket, position: FleetPosition, record: Record) {
        let pending = self.pending.entry(bucket.key.as_str().into());
        let pending = pending.or_insert(Pending {
            spec: bucket.spec,
            position,
            records: Vec::new(),
        });
        pending.spec = bucket.spec;
        pending.add(record);
    }

    /// Whether the store lacks some admissions of a bucket.
    pub fn is_pending(&self, bucket: &Bucket) -> bool {
        self.pending.contains_key(bucket.key.as_str())
            || self.writing.contains_key(bucket.key.as_str())
    }

    /// Takes out at most this many buckets to write back now, of those whose store is up, for which `now_us` returns its
    /// clock. Records older than their window are dropped. Pass them to [`Share::answered`] when the store has answered.
    pub fn start_write_back(
        &mut self,
        most: usize,
        now_us: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Debt> {
        if self.ready.is_empty() {
            self.find_ready(&now_us);
        }
        let mut debts = Vec::new();
        while debts.len() < most
            && let Some(key) = self.ready.pop_front()
        {
            let store_us = now_us(&key);
            debts.extend(store_us.and_then(|now_us| self.take_out(&key, now_us)));
        }
        debts
    }

    /// Whether the next write-back finds its buckets without a look at all that is pending.
    pub fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Finds buckets that can be written back now, and drops those of which nothing is held any more.
    fn find_ready(&mut self, now_us: impl Fn(&str) -> Option<u64>) {
        // Expired entries do not count towards the bound; otherwise they would starve the live ones.
        let mut over = Vec::new();
        for (key, pending) in &self.pending {
            // The store does not have the last level yet.
            let waits = pending.spec.is_level() && self.writing.contains_key(key);
            let Some(now_us) = now_us(key).filter(|_| !waits) else {
                continue;
            };
            if pending.is_over(now_us, || self.engine.records(now_us, key)) {
                over.push(Arc::clone(key));
                continue;
            }
            self.ready.push_back(Arc::clone(key));
            if self.ready.len() == MAX_READY {
                break;
            }
        }
        for key in over {
            self.pending.remove(&key);
        }
    }

    /// Takes out a bucket to write it back. `None` if it was dropped meanwhile.
    fn take_out(&mut self, key: &Arc<str>, now_us: u64) -> Option<Debt> {
        let pending = self.pending.remove(key)?;
        let mut records = pending.records;
        if pending.spec.is_level() {
            // The share holds what was written back before, too, and that has drained first.
            let owed = records.iter().map(|record| record.units).sum();
            records = self.engine.records(now_us, key);
            for record in &mut records {
                record.units = record.units.min(owed);
            }
        }
        records.retain(|record| is_held(&pending.spec, record, now_us));
        if records.is_empty() {
            return None;
        }
        let writing = self.writing.entry(Arc::clone(key)).or_insert(Writing {
            calls: 0,
            position: pending.position,
        });
        writing.calls += 1;
        let bucket = Bucket {
            key: key.to_string(),
            spec: pending.spec,
        };
        Some(Debt { bucket, records })
    }

    /// The store has recorded those of these debts that are marked so; returns the others, which are to be repeated. None are if
    /// all their records are older than their window by the store's clock, which `now_us` returns for a key.
    ///
    /// What was recorded still holds what it held of the share, or each outage of a window would admit the share once more.
    pub fn answered(
        &mut self,
        debts: Vec<Debt>,
        recorded: &[bool],
        now_us: impl Fn(&str) -> Option<u64>,
    ) -> Vec<Debt> {
        let mut recorded = recorded.iter();
        let is_recorded = |_: &Debt| recorded.next().is_some_and(|recorded| *recorded);
        let (mut done, mut rest): (Vec<_>, Vec<_>) = debts.into_iter().partition(is_recorded);
        let has_expired = |debt: &Debt| {
            let (spec, mut records) = (&debt.bucket.spec, debt.records.iter());
            now_us(&debt.bucket.key)
                .is_some_and(|now_us| !records.any(|record| is_held(spec, record, now_us)))
        };
        if rest.iter().all(has_expired) {
            done.append(&mut rest);
        }
        for debt in &done {
            let key = debt.bucket.key.as_str();
            if let Some(writing) = self.writing.get_mut(key) {
                writing.calls -= 1;
                if writing.calls == 0 {
                    self.writing.remove(key);
                }
            }
        }
        rest
    }

    /// Forgets what it has admitted of a bucket, and what it owes of that. What is being written back is still to be answered.
    pub fn reset(&mut self, key: &str) {
        self.engine.reset(key);
        self.pending.remove(key);
    }

    /// Number of buckets with admissions that the store does not know.
    pub fn pending(&self) -> usize {
        self.pending.len() + self.writing.len()
    }

    /// Frees what has expired, this long after it was last told the store's clock.
    pub fn sweep(&mut self, since_us: u64) {
        let now_us = self.now_us.saturating_add(since_us);
        self.engine.sweep(now_us, SWEEP_AT_MOST);
        if self.engine.is_empty() {
            // All pending records are older than their window.
            self.pending = HashMap::new();
        }
        // Every admission in its window is in the engine, so at least half is dropped.
        if self.pending.len() > PURGE_ABOVE.max(2 * self.engine.len()) {
            let engine = &self.engine;
            self.pending
                .retain(|key, pending| !pending.is_over(now_us, || engine.records(now_us, key)));
            self.pending.shrink_to(2 * self.pending.len());
        }
    }
}

#[cfg(test)]
mod tests;
