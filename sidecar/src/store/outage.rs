//! What this sidecar does while the store is down, and how the store is told of it when it is back.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_engine::{Batch, Decision, Outcome, Place};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::kinds::Store;
use super::share::{Debt, Share};

/// Buckets written back in one call: a millisecond of Redis's time.
const AT_ONCE: usize = 32;
/// After an attempt that failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A call that tells the store what was admitted without it.
#[derive(Debug)]
struct Call {
    /// Unlike any other call's of any sidecar.
    name: String,
    debts: Vec<Debt>,
}

/// Decides by shares of the limits while the store is down.
#[derive(Debug)]
pub struct Outage {
    share: Mutex<Share>,
    /// Something is pending: read by every decision, so without a lock.
    pending: AtomicBool,
    /// Which of how many sidecars this is, as the store last said.
    place: Mutex<Option<Place>>,
    /// Something has been written back.
    written: Notify,
    /// Something is pending that was not.
    owed: Notify,
}

impl Outage {
    /// Keeps about so many bytes of shares at most.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            share: Mutex::new(Share::new(limit_bytes)),
            pending: AtomicBool::new(false),
            place: Mutex::default(),
            written: Notify::new(),
            owed: Notify::new(),
        }
    }

    /// The store has said which of how many sidecars this is.
    pub fn placed(&self, place: Place) {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner) = Some(place);
    }

    /// Which of how many, as far as is known.
    pub fn place(&self) -> Option<Place> {
        *self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides some takes of a decision, named by their places in it, by this sidecar's shares.
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
        let mut share = self.share();
        let mut down = buckets.clone();
        if !down.any(|bucket| store.is_down(&bucket.key) || share.is_pending(bucket)) {
            return Err(NoShare::NotDown);
        }
        let place = self.place().ok_or(NoShare::NotPlaced)?;
        let now_us = buckets
            .clone()
            .find_map(|bucket| store.clock_us(&bucket.key));
        let now_us = now_us.ok_or(NoShare::NotPlaced)?;
        let outcome = share.decide(now_us, place, (batch, decision), takes);
        if !share.is_settled() && !self.pending.swap(true, Ordering::Relaxed) {
            self.owed.notify_one();
        }
        outcome.ok_or(NoShare::TooSmall)
    }

    /// Which decisions of a batch the store may not make: those over a bucket of which it does not know what was admitted
    /// here. While it is being told, this waits for it, until `deadline`. Empty if it may make all of them.
    pub async fn held_back(&self, store: &Store, batch: &Batch, deadline: Instant) -> Vec<bool> {
        loop {
            if !self.pending.load(Ordering::Relaxed) {
                return Vec::new();
            }
            let written = self.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            let (mut held, mut being_told) = (Vec::with_capacity(batch.decisions.len()), false);
            {
                let share = self.share();
                for decision in &batch.decisions {
                    let takes = decision.takes.iter();
                    let buckets = takes.filter_map(|take| batch.buckets.get(take.bucket));
                    let mut pending = buckets.filter(|bucket| share.is_pending(bucket)).peekable();
                    held.push(pending.peek().is_some());
                    being_told |= pending.any(|bucket| !store.is_down(&bucket.key));
                }
            }
            if !held.contains(&true) {
                return Vec::new();
            }
            if !being_told || timeout_at(deadline, written).await.is_err() {
                return held;
            }
        }
    }

    /// Tells the store what it does not know, as soon as it can be told, for ever. `name` is this sidecar's.
    pub async fn write_back(&self, store: &Store, name: &str) {
        let mut number = 0_u64;
        loop {
            self.owed.notified().await;
            // Calls whose answers were lost: they are repeated as they were, since the store may have made them.
            let mut unanswered: VecDeque<Call> = VecDeque::new();
            while self.pending.load(Ordering::Relaxed) {
                number += 1;
                let new = Call {
                    name: format!("{name}-{number}"),
                    debts: self.begin(store),
                };
                let repeated = unanswered.pop_front();
                let mut any_told = false;
                for call in repeated.into_iter().chain([new]) {
                    if call.debts.is_empty() {
                        continue;
                    }
                    match self.tell(store, &call).await {
                        true => any_told = true,
                        false => unanswered.push_back(call),
                    }
                }
                self.written.notify_waiters();
                if !any_told {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// What can be told now.
    fn begin(&self, store: &Store) -> Vec<Debt> {
        let mut share = self.share();
        let now_us = |key: &str| (!store.is_down(key)).then(|| store.clock_us(key))?;
        let debts = share.begin(AT_ONCE, now_us);
        self.note(&share);
        debts
    }

    /// Whether nothing of a call is owed any more.
    async fn tell(&self, store: &Store, call: &Call) -> bool {
        let told = store.write_back(&call.debts, &call.name).await.is_ok();
        let mut share = self.share();
        if told {
            share.written(&call.debts);
        }
        let first = call.debts.first().map(|debt| debt.bucket.key.as_str());
        let now_us = first.and_then(|key| store.clock_us(key));
        let done = told || share.are_old(&call.debts, now_us);
        self.note(&share);
        done
    }

    fn note(&self, share: &Share) {
        if share.is_settled() {
            self.pending.store(false, Ordering::Relaxed);
        }
    }

    /// Frees what has expired; to be called every second or so.
    pub fn sweep(&self) {
        self.share().sweep();
    }

    /// Buckets that the store does not know all of.
    pub fn pending(&self) -> usize {
        self.share().pending()
    }

    fn share(&self) -> MutexGuard<'_, Share> {
        // Nothing that is done under it panics.
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a share does not decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoShare {
    /// The store is not known to be down: it may have taken what it did not answer for.
    NotDown,
    /// The store never said how many sidecars there are.
    NotPlaced,
    /// The share cannot ever hold so much.
    TooSmall,
}
