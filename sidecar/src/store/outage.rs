//! What this sidecar does while the store is down, and how the store is told of it when it is back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_engine::{Batch, Decision, Outcome, Place};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::kinds::Store;
use super::share::Share;

/// Buckets written back in one call: a millisecond of Redis's time.
const AT_ONCE: usize = 32;
/// After an attempt that failed.
const PAUSE: Duration = Duration::from_millis(100);

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

    /// Whether the store may decide a batch. Not while it is down, or does not know what was admitted here of one of the
    /// batch's buckets; if it is just being told, this waits for it, until `deadline`.
    pub async fn store_may_decide(&self, store: &Store, batch: &Batch, deadline: Instant) -> bool {
        while self.pending.load(Ordering::Relaxed) {
            let written = self.written.notified();
            tokio::pin!(written);
            written.as_mut().enable();
            let waits_for = {
                let share = self.share();
                let mut pending = batch
                    .buckets
                    .iter()
                    .filter(|bucket| share.is_pending(bucket));
                pending.next().map(|bucket| store.is_down(&bucket.key))
            };
            match waits_for {
                None => return true,
                Some(true) => return false,
                Some(false) => {}
            }
            if timeout_at(deadline, written).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Tells the store what it does not know, as soon as it can be told, for ever.
    pub async fn write_back(&self, store: &Store) {
        loop {
            self.owed.notified().await;
            while self.pending.load(Ordering::Relaxed) {
                if !self.write_some_back(store).await {
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// One call; false if it is better to wait before the next.
    async fn write_some_back(&self, store: &Store) -> bool {
        let debts = {
            let mut share = self.share();
            let debts = share.begin(AT_ONCE, |key| {
                (!store.is_down(key)).then(|| store.clock_us(key))?
            });
            if share.is_settled() {
                self.pending.store(false, Ordering::Relaxed);
            }
            debts
        };
        if debts.is_empty() {
            self.written.notify_waiters();
            return false;
        }
        let told = store.write_back(&debts).await;
        {
            let mut share = self.share();
            match &told {
                Ok(()) => share.written(&debts),
                Err(_) => share.failed(debts),
            }
            if share.is_settled() {
                self.pending.store(false, Ordering::Relaxed);
            }
        }
        self.written.notify_waiters();
        told.is_ok()
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
