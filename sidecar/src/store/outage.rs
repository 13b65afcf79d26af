//! Decides by shares of the limits while the store is down, and writes the admissions back when it is up again.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_engine::{Batch, Bucket, Decision, FleetPosition, Guard, Outcome, Settlements};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::commands::Announced;
use super::error::StoreError;
use super::kinds::Store;
use super::position_reports::PositionReports;
use super::share::{Debt, Share, settlements};
use crate::clock::micros;
use crate::lock::lock;

/// Buckets in one write-back: a millisecond of Redis's time.
const MAX_BUCKETS: usize = 32;
/// Pause after a failed attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// After a scan for buckets that can be written back, pause for this many times as long as the scan took.
const PAUSE_FOR_LOOKING: u32 = 20;
/// Shorter pauses are added up: tokio's clock ticks once in a millisecond.
const MIN_PAUSE: Duration = Duration::from_millis(5);
/// The longest pause, because a node that returns is used again within half a second: reached with some 40,000 buckets.
const MAX_PAUSE: Duration = Duration::from_millis(250);

/// How long after the store's return: then all others have reported to it, or cannot. Connections are tried twice a second, and
/// each sidecar announces itself when it has written back what it had admitted.
const OTHERS_WITHIN: Duration = Duration::from_millis(1_500);

/// One write-back of admissions that the store does not know.
#[derive(Debug)]
struct Call {
    /// Unique among the calls of all sidecars.
    name: String,
    debts: Vec<Debt>,
}

/// Decides by shares of the limits while the store is down.
#[derive(Debug)]
pub struct Outage {
    share: Mutex<Share>,
    /// When the shares were last told the store's clock. Locked while `share` is.
    told_at: Mutex<Instant>,
    /// Rank of this sidecar and number of sidecars.
    position: Mutex<PositionReports>,
    /// Calls whose answers were lost; they are repeated unchanged, since the store may have executed them. Locked while one
    /// is made, and during a reset, so that nothing that was admitted before the reset is recorded after it.
    unanswered: tokio::sync::Mutex<VecDeque<Call>>,
    /// When the store was last seen to be away, unless it has reported since then that it knows all sidecars.
    away_at: Mutex<Option<Instant>>,
    /// Notified after a write-back.
    written: Notify,
    /// Notified when the shares have decided while something is pending.
    debt_added: Notify,
    /// Notified when a decision waits for a write-back to a store that is up.
    wanted: Notify,
}

impl Outage {
    /// The store has reported this position for long enough.
    #[cfg(test)]
    pub fn settle(&self, position: FleetPosition) {
        let list_age = Duration::from_secs(60);
        let announced = Announced { position, list_age };
        let now = Instant::now();
        for earlier_ms in [2_000, 1_000, 0] {
            let at = now - Duration::from_millis(earlier_ms);
            self.report_position(at, announced);
        }
    }

    /// Bounds the memory of the shares to about this many bytes.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            share: Mutex::new(Share::new(limit_bytes)),
            told_at: Mutex::new(Instant::now()),
            position: Mutex::default(),
            unanswered: tokio::sync::Mutex::default(),
            away_at: Mutex::default(),
            written: Notify::new(),
            debt_added: Notify::new(),
            wanted: Notify::new(),
        }
    }

    /// Takes the store's answer to an announcement, received at this time.
    pub fn report_position(&self, now: Instant, announced: Announced) {
        let Announced { position, list_age } = announced;
        let mut reports = lock(&self.position);
        reports.report(now.into_std(), position, list_age);
        if !reports.lacks_others() {
            *lock(&self.away_at) = None;
        }
    }

    /// Notes that the store is away. On a Cluster each node is, by itself.
    pub fn note_away(&self, store: &Store) {
        *lock(&self.away_at) = (!store.has_parts()).then(Instant::now);
    }

    /// Whether the store was away, and other sidecars may still have to report to it what they admitted meanwhile. A store that has
    /// lost its data would admit those units a second time; so shares go on to decide.
    pub fn awaits_others(&self) -> bool {
        let away_at = *lock(&self.away_at);
        away_at.is_some_and(|at| at.elapsed() < OTHERS_WITHIN)
            && self.position().is_some_and(|position| position.of > 1)
    }

    /// Waits until everything that is pending now has been written back, or until the time is over.
    pub async fn flush(&self, within: Duration) {
        let flushed = async {
            for _ in 0..=self.pending().div_ceil(MAX_BUCKETS) {
                let written = self.written.notified();
                tokio::pin!(written);
                written.as_mut().enable();
                if self.pending() == 0 {
                    return;
                }
                self.wanted.notify_one();
                written.await;
            }
        };
        let _ = timeout(within, flushed).await;
    }

    /// The position that the shares follow, if the fleet has been known for long enough.
    pub fn position(&self) -> Option<FleetPosition> {
        lock(&self.position).in_force()
    }

    /// Whether the store cannot make a decision: the node of one of its buckets is down, or lacks some admissions of one.
    pub fn is_out(&self, store: &Store, batch: &Batch, decision: &Decision) -> bool {
        let takes = decision.takes.iter();
        let buckets = takes.filter_map(|take| batch.buckets.get(take.bucket));
        buckets.clone().any(|bucket| store.is_down(&bucket.key)) || self.lacks_some(buckets)
    }

    /// Decides some takes of a decision, given by their indices, by this sidecar's shares. Only while the store
    /// [is out](Self::is_out) for the decision.
    pub fn decide(
        &self,
        store: &Store,
        batch: &Batch,
        decision: &Decision,
        takes: &[usize],
    ) -> Result<Outcome, NoShare> {
        let buckets = takes.iter().filter_map(|number| {
            let take = decision.takes.get(*number)?;
            batch.buckets.get(take.bucket)
        });
        let position = self.position().ok_or(NoShare::PositionUnknown)?;
        if buckets.clone().any(|bucket| store.is_down(&bucket.key)) {
            self.note_away(store);
        }
        let mut clocks = buckets.filter_map(|bucket| store.clock_us(&bucket.key));
        let now_us = clocks.next().ok_or(NoShare::PositionUnknown)?;
        let mut share = self.share_told();
        let outcome = share.decide(now_us, position, (batch, decision), takes);
        if share.pending() > 0 {
            self.debt_added.notify_one();
        }
        outcome.ok_or(NoShare::TooSmall)
    }

    /// Frees and renews slots here as well, where the store cannot.
    pub fn settle_slots(&self, store: &Store, settlements: &Settlements) {
        for one in &settlements.each {
            let bucket = one.entries.first();
            let bucket = bucket.and_then(|entry| settlements.buckets.get(entry.bucket));
            if let (Guard::Free(_) | Guard::Renew(_), Some(bucket)) = (&one.guard, bucket)
                && let Some(now_us) = store.clock_us(&bucket.key)
            {
                let is_down = store.is_down(&bucket.key);
                let mut share = self.share_told();
                share.settle_slots(now_us, one, bucket, is_down);
            }
        }
    }

    /// Tells the store of slots that it may not know, wherever it is up.
    pub async fn restore_slots(&self, store: &Store) {
        if !self.share().has_slots() {
            return;
        }
        let now_us = |key: &str| (!store.is_down(key)).then(|| store.clock_us(key))?;
        let unknown = self.share().unknown_slots(now_us);
        let (done, _) = store.settle(&unknown).await;
        if done.iter().any(Option::is_none) {
            self.share().put_back_slots(unknown);
        }
    }

    /// Whether the store lacks some admissions of one of these buckets.
    pub fn lacks_some<'a>(&self, mut buckets: impl Iterator<Item = &'a Bucket>) -> bool {
        let share = self.share();
        buckets.any(|bucket| share.is_pending(bucket))
    }

    /// Which decisions of a batch the store must not make: those over a bucket with admissions that the store does not
    /// know. Waits for a write-back of these that is under way, until `deadline`: then the store decides nevertheless, if it
    /// is up. By a share there would be one admission more to write back, for ever if many keys are busy. Empty if the store may
    /// make all.
    pub async fn held_back(&self, store: &Store, batch: &Batch, deadline: Instant) -> Vec<bool> {
        loop {
            if self.pending() == 0 {
                return Vec::new();
            }
            let written = self.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            let (mut held, mut being_written) = (Vec::with_capacity(batch.decisions.len()), false);
            {
                let share = self.share();
                for decision in &batch.decisions {
                    let takes = decision.takes.iter();
                    let buckets = takes.filter_map(|take| batch.buckets.get(take.bucket));
                    let mut is_held = false;
                    for bucket in buckets.filter(|bucket| share.is_pending(bucket)) {
                        let down = store.is_down(&bucket.key);
                        is_held |= down;
                        being_written |= !down;
                    }
                    held.push(is_held);
                }
            }
            if being_written {
                self.wanted.notify_one();
            }
            if !being_written || timeout_at(deadline, written).await.is_err() {
                return if held.contains(&true) {
                    held
                } else {
                    Vec::new()
                };
            }
        }
    }

    /// Whenever the store is up, writes back what shares have admitted, for ever. `name` is this sidecar's.
    pub async fn write_back(&self, store: &Store, name: &str) {
        let mut number = 0_u64;
        loop {
            self.debt_added.notified().await;
            let mut pause = Duration::ZERO;
            while self.pending() > 0 {
                let mut unanswered = self.unanswered.lock().await;
                number += 1;
                let began = Instant::now();
                let new = Call {
                    name: format!("{name}-{number}"),
                    debts: self.start_write_back(store),
                };
                // While a node of a Cluster is away, each scan visits all of its buckets in vain and delays decisions.
                pause = MAX_PAUSE.min(pause + began.elapsed() * PAUSE_FOR_LOOKING);
                let repeated = unanswered.pop_front();
                let mut any_written = false;
                for call in repeated.into_iter().chain([new]) {
                    if call.debts.is_empty() {
                        continue;
                    }
                    let sent = call.debts.len();
                    let rest = self.send(store, call).await;
                    any_written |= rest.debts.len() < sent;
                    if !rest.debts.is_empty() {
                        unanswered.push_back(rest);
                    }
                }
                drop(unanswered);
                self.written.notify_waiters();
                if !any_written {
                    pause = pause.max(RETRY_PAUSE);
                }
                // Buckets that the last scan has found need not wait for the next scan.
                let looks_next = !self.share().has_ready();
                if !any_written {
                    // Ends early if the store is up and a request waits for the write-back.
                    tokio::time::sleep(MIN_PAUSE).await;
                    let _ = timeout(pause - MIN_PAUSE, self.wanted.notified()).await;
                    pause = Duration::ZERO;
                } else if pause >= MIN_PAUSE && looks_next {
                    tokio::time::sleep(pause).await;
                    pause = Duration::ZERO;
                }
            }
        }
    }

    /// The debts that the store can record now.
    fn start_write_back(&self, store: &Store) -> Vec<Debt> {
        // Otherwise every attempt would ask for each bucket, of which there may be many, in the way of the decisions.
        if store.is_all_down() {
            return Vec::new();
        }
        let now_us = |key: &str| (!store.is_down(key)).then(|| store.clock_us(key))?;
        self.share().start_write_back(MAX_BUCKETS, now_us)
    }

    /// Makes a call; returns the call with the debts that have to be sent again.
    async fn send(&self, store: &Store, call: Call) -> Call {
        let settlements = settlements(&call.debts, &call.name, store.has_parts());
        let (done, _) = store.settle(&settlements).await;
        let recorded: Vec<_> = match &*done {
            [all] => vec![all.is_some(); call.debts.len()],
            each => each.iter().map(Option::is_some).collect(),
        };
        let now_us = |key: &str| store.clock_us(key);
        let debts = self.share().answered(call.debts, &recorded, now_us);
        Call { debts, ..call }
    }

    /// Resets buckets in the store, by their keys, and this sidecar's shares of them. Returns for each whether the store held
    /// anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset. Then the shares stay as they are.
    pub async fn reset(&self, store: &Store, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let mut unanswered = self.unanswered.lock().await;
        let held = store.reset(keys).await?;
        for debt in unanswered.iter_mut().flat_map(|call| &mut call.debts) {
            // The call stays, since its first bucket names it.
            if keys.contains(&debt.bucket.key) {
                debt.records.clear();
            }
        }
        let mut share = self.share();
        keys.iter().for_each(|key| share.reset(key));
        drop(share);
        self.written.notify_waiters();
        Ok(held)
    }

    /// Frees expired entries; to be called about once a second.
    pub fn sweep(&self) {
        // Locked before the time is read: a decision in between would be taken for one made long ago, and its units freed.
        let mut share = self.share();
        let since = lock(&self.told_at).elapsed();
        share.sweep(micros(since));
    }

    /// Number of buckets with admissions that the store does not know.
    pub fn pending(&self) -> usize {
        self.share().pending()
    }

    fn share(&self) -> MutexGuard<'_, Share> {
        lock(&self.share)
    }

    /// The same, to tell it the store's clock: a sweep counts from then.
    fn share_told(&self) -> MutexGuard<'_, Share> {
        let share = self.share();
        *lock(&self.told_at) = Instant::now();
        share
    }
}

/// Why the shares do not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShare {
    /// The store never reported how many sidecars there are.
    PositionUnknown,
    /// The cost is larger than the whole share.
    TooSmall,
}

#[cfg(test)]
mod tests;
