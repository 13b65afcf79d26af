//! Leases: checks that are decided from units that this sidecar took in advance, without asking the store.
//!
//! | file | for |
//! |---|---|
//! | `leases/held.rs` | units of a decision that also asks the store: spent if it is admitted, else put back |
//! | `leases/parts.rs` | units that are lent to filters |
//! | `leases/keeper.rs` | the task that asks for leases and returns what was not spent |
//! | `leases/ask.rs` | the decision that asks for a lease, and what its outcome grants; pure |
//!
//! An empty or ended lease never denies: then the store decides, as without leases.

mod ask;
mod held;
mod keeper;
mod parts;

use std::array;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_engine::Outcome;
use sluicegate_engine::lease::{EndedLease, LeaseRefusal, LeaseTerms, Pool};
use tokio::sync::{mpsc, oneshot};

use super::wanted::Wanted;
use crate::clock;
use crate::policy::Limit;
pub use ask::{MARKER_QUOTA, Receipt, marker};
pub use held::{Held, Leased};
pub use keeper::Keeper;
pub use parts::More;
use parts::Parts;

/// Locks that keys are spread over.
const SHARDS: usize = 16;
/// Most keys in a shard, and so 16,384 in all, each with some hundred bytes. Further keys have no leases.
const MAX_KEYS: usize = 1_024;
/// A full shard is searched for idle keys no more often than this, whatever clients ask for.
const SWEEP_EVERY_US: u64 = 100_000;
/// A renewal may wait for this part of the time for which what is held lasts.
const RENEWAL_PART: u64 = 2;
/// Most asks and returns that wait for the keeper.
const MAX_WISHES: usize = 4_096;

/// What the keeper is to do.
#[derive(Debug)]
enum Wish {
    /// Ask for a lease.
    Ask {
        key: KeyOf,
        /// How long it may wait for others, to share their call.
        within_us: u64,
    },
    /// Return the leases of a key that have ended.
    Look(KeyOf),
    /// Return all leases of epochs before this one.
    LookBefore(u64),
    /// Return units whose lease was returned while they were taken.
    Return(EndedLease<Arc<Receipt>>),
    /// Drop this when everything that was wished before has been done.
    Tell(oneshot::Sender<()>),
}

/// A key of a limit, under one epoch.
#[derive(Clone, Debug)]
struct KeyOf {
    limit: Arc<Limit>,
    key: String,
    epoch: u64,
}

/// The leases of this sidecar.
#[derive(Debug)]
pub struct Leases {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// What filters hold.
    parts: Parts,
    wishes: mpsc::Sender<Wish>,
    /// For the keeper.
    wished: tokio::sync::Mutex<mpsc::Receiver<Wish>>,
    /// How long a lease must last for a decision that also asks the store.
    stay_us: u64,
    /// The epoch before which all leases are returned, or will be.
    ended_before: AtomicU64,
    /// Whether the sidecar ends: no lease is spent or asked for any more.
    closed: AtomicBool,
    /// The number of sidecars, as far as it is known.
    sidecars: AtomicU64,
}

/// By limit, then by key.
#[derive(Debug, Default)]
struct Shard {
    by_limit: HashMap<String, HashMap<String, OfKey>>,
    keys: usize,
    swept_us: u64,
}

#[derive(Debug)]
struct OfKey {
    epoch: u64,
    pool: Pool<Arc<Receipt>>,
}

impl Leases {
    /// No leases. `stay` is how long the store may take for the rest of a decision; `None`: the store is not shared, so asking
    /// it costs nothing, and there never is a lease.
    pub fn new(stay: Option<Duration>) -> Arc<Self> {
        let (wishes, wished) = mpsc::channel(MAX_WISHES);
        Arc::new(Self {
            shards: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            parts: Parts::default(),
            wishes,
            wished: tokio::sync::Mutex::new(wished),
            stay_us: stay.map_or(0, clock::micros),
            ended_before: AtomicU64::new(0),
            closed: AtomicBool::new(stay.is_none()),
            sidecars: AtomicU64::new(1),
        })
    }

    /// Takes the units of a check from a lease. `None`: the store decides. `alone`: the decision has no other check.
    pub fn take(self: &Arc<Self>, wanted: Wanted<'_>, epoch: u64, alone: bool) -> Option<Held> {
        let terms = wanted.limit.lease?;
        let terms = terms.for_one_of(self.sidecars.load(Ordering::Relaxed));
        if self.is_closed() {
            return None;
        }
        let mut shard = self.shard(wanted.key);
        // Read under the lock, right before the units are taken: a thread may have been paused before.
        let now_us = clock::now_us();
        let of_key = shard.of_key(wanted, terms, epoch, now_us)?;
        if of_key.epoch != epoch && !self.enter_epoch(of_key, wanted, terms, epoch) {
            return None;
        }
        of_key.pool.go_by(terms);
        let stay_us = if alone { 0 } else { self.stay_us };
        let taken = of_key.pool.take(now_us, wanted.cost, stay_us);
        let taken = taken.map(|taken| (taken.ends_us, taken.remaining, Arc::clone(taken.tag)));
        if taken.is_some() && of_key.pool.wants_lease(now_us) {
            self.wish_for_lease(of_key, wanted, now_us);
        }
        drop(shard);
        let (ends_us, remaining, receipt) = taken?;
        let leased = receipt.leased(remaining, now_us);
        Some(Held::new(self, wanted.cost, ends_us, leased, receipt))
    }

    /// Notes the store's outcome of a decision over this check; `decided`: this check decided. If units that this sidecar holds
    /// are why it was denied, they are returned at once. Why no lease is asked for, if that is known here: the keeper has
    /// nothing to do with keys that are asked for seldom.
    pub fn note(
        &self,
        wanted: Wanted<'_>,
        epoch: u64,
        outcome: &Outcome,
        decided: bool,
    ) -> Option<LeaseRefusal> {
        let mut shard = self.shard(wanted.key);
        let now_us = clock::now_us();
        let of_key = shard.in_epoch(&wanted.limit.name, wanted.key, epoch)?;
        of_key.pool.note_denied(decided && !outcome.admitted);
        if decided {
            of_key.pool.note_remaining(outcome.remaining);
        } else if outcome.admitted {
            of_key.pool.note_admitted(&wanted.limit.windows);
        }
        if !outcome.admitted {
            let held = of_key.pool.held();
            if decided && held > 0 && outcome.remaining.saturating_add(held) >= wanted.cost {
                of_key.pool.end_all();
                of_key.pool.refused(now_us);
                self.wish(Wish::Look(wanted.under(epoch)));
            }
        } else if of_key.pool.wants_lease(now_us) {
            let too_seldom = of_key.pool.is_too_seldom(now_us);
            if too_seldom.is_some() {
                return too_seldom;
            }
            self.wish_for_lease(of_key, wanted, now_us);
        }
        None
    }

    /// Whether the store denied the last decision over this check, because of it.
    pub fn was_denied(&self, wanted: Wanted<'_>, epoch: u64) -> bool {
        let mut shard = self.shard(wanted.key);
        let of_key = shard.in_epoch(&wanted.limit.name, wanted.key, epoch);
        of_key.is_some_and(|of_key| of_key.pool.was_denied())
    }

    /// Notes how many sidecars there are.
    pub fn note_sidecars(&self, sidecars: u64) {
        self.sidecars.store(sidecars, Ordering::Relaxed);
    }

    /// Ends the leases of these limits and keys: an operator reset them.
    pub fn end<'a>(&self, keys: impl IntoIterator<Item = (&'a Arc<Limit>, &'a str)>) {
        for (limit, key) in keys {
            let mut shard = self.shard(key);
            if let Some(of_key) = shard.known(&limit.name, key) {
                of_key.pool.end_all();
                of_key.pool.forget_remaining();
                let epoch = of_key.epoch;
                let (limit, key) = (Arc::clone(limit), key.to_owned());
                self.wish(Wish::Look(KeyOf { limit, key, epoch }));
            }
        }
    }

    /// Has the leases of epochs before this one returned, if that was not done yet. A key that is asked for enters the epoch by
    /// itself; one that has no leases any more, by an override or another policy, never does.
    pub fn end_earlier(&self, epoch: u64) {
        if self.ended_before.load(Ordering::Relaxed) != epoch && self.wish(Wish::LookBefore(epoch))
        {
            self.ended_before.store(epoch, Ordering::Relaxed);
        }
    }

    /// Units that are held, by limit.
    pub fn held(&self) -> BTreeMap<String, u64> {
        let mut held = BTreeMap::new();
        for shard in &self.shards {
            for (limit, keys) in &lock(shard).by_limit {
                let units: u64 = keys.values().map(|of_key| of_key.pool.held()).sum();
                *held.entry(limit.clone()).or_default() += units;
            }
        }
        held
    }

    fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Puts units back that were not spent; if their lease was returned meanwhile, they are returned too.
    fn put_back(&self, receipt: &Arc<Receipt>, units: u64) {
        let mut shard = self.shard(&receipt.key);
        let known = shard.known(&receipt.limit.name, &receipt.key);
        let is_theirs = |tag: &_| Arc::ptr_eq(tag, receipt);
        let kept = known.is_some_and(|of_key| of_key.pool.put_back(units, is_theirs));
        drop(shard);
        let ended = || EndedLease {
            units,
            tag: Arc::clone(receipt),
        };
        // What is to be returned stays on the way until it is.
        if kept || !self.wish(Wish::Return(ended())) {
            receipt.metrics.remove_on_the_way(units);
        }
    }

    /// Brings a key that an earlier epoch knew into this one: what it took by another policy or other overrides is returned.
    /// `false` if the key is in a later epoch.
    fn enter_epoch(
        &self,
        of_key: &mut OfKey,
        wanted: Wanted<'_>,
        terms: LeaseTerms,
        epoch: u64,
    ) -> bool {
        if of_key.epoch > epoch {
            return false;
        }
        of_key.epoch = epoch;
        of_key.pool.start_again(terms);
        if of_key.pool.held() > 0 {
            self.wish(Wish::Look(wanted.under(epoch)));
        }
        true
    }

    fn wish_for_lease(&self, of_key: &mut OfKey, wanted: Wanted<'_>, now_us: u64) {
        let within_us = of_key.pool.lasts_us(now_us) / RENEWAL_PART;
        let key = wanted.under(of_key.epoch);
        self.wish_for_lease_within(of_key, key, within_us, now_us);
    }

    fn wish_for_lease_within(&self, of_key: &mut OfKey, key: KeyOf, within_us: u64, now_us: u64) {
        of_key.pool.asked();
        if !self.wish(Wish::Ask { key, within_us }) {
            of_key.pool.refused(now_us);
        }
    }

    /// `false` if the keeper has too much to do. What is not returned is held by the store for one window.
    fn wish(&self, wish: Wish) -> bool {
        self.wishes.try_send(wish).is_ok()
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        // There are as many shards as that.
        let [first, ..] = &self.shards;
        lock(self.shards.get(index).unwrap_or(first))
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // No code under the lock panics.
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wanted<'_> {
    fn under(&self, epoch: u64) -> KeyOf {
        KeyOf {
            limit: Arc::clone(self.limit),
            key: self.key.to_owned(),
            epoch,
        }
    }
}

impl Shard {
    fn known(&mut self, limit: &str, key: &str) -> Option<&mut OfKey> {
        self.by_limit.get_mut(limit)?.get_mut(key)
    }

    /// The pool of a key, unless another policy or other overrides are in force for it.
    fn in_epoch(&mut self, limit: &str, key: &str, epoch: u64) -> Option<&mut OfKey> {
        let of_key = self.known(limit, key);
        of_key.filter(|of_key| of_key.epoch == epoch)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut OfKey> {
        self.by_limit.values_mut().flat_map(HashMap::values_mut)
    }

    /// The pool of a key; a new one if there is room.
    fn of_key(
        &mut self,
        wanted: Wanted<'_>,
        terms: LeaseTerms,
        epoch: u64,
        now_us: u64,
    ) -> Option<&mut OfKey> {
        let limit = wanted.limit.name.as_str();
        if self.known(limit, wanted.key).is_none() {
            if self.keys >= MAX_KEYS {
                self.sweep(now_us);
            }
            if self.keys >= MAX_KEYS {
                return None;
            }
            self.keys += 1;
            let of_key = OfKey {
                epoch,
                pool: Pool::new(terms),
            };
            let keys = self.by_limit.entry(limit.to_owned()).or_default();
            keys.insert(wanted.key.to_owned(), of_key);
        }
        self.known(limit, wanted.key)
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.swept_us) < SWEEP_EVERY_US {
            return;
        }
        self.swept_us = now_us;
        for keys in self.by_limit.values_mut() {
            keys.retain(|_, of_key| !of_key.pool.is_idle(now_us));
        }
        self.by_limit.retain(|_, keys| !keys.is_empty());
        self.keys = self.by_limit.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests;
