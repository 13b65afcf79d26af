//! Leases: checks that are decided from units that this sidecar took in advance, without asking the store.
//!
//! | file | for |
//! |---|---|
//! | `leases/reservation.rs` | units of a decision that also asks the store: spent if it is admitted, else put back |
//! | `leases/parts.rs` | units that are lent to filters |
//! | `leases/along.rs` | leases that a question's own call takes along |
//! | `leases/keeper.rs` | the task that renews leases and returns what was not spent |
//! | `leases/lease.rs` | the decision that asks for a lease, and what its outcome grants; pure |
//!
//! An empty or ended lease never denies: then the store decides, as without leases.

mod along;
mod keeper;
mod lease;
mod parts;
mod reservation;

use std::array;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use sluicegate_engine::Outcome;
use sluicegate_engine::lease::{EndedLease, Grant, LeaseRefusal, LeaseTerms, Pool};
use tokio::sync::{mpsc, oneshot};

use super::effective::EffectiveCheck;
use crate::clock;
use crate::lock::lock;
use crate::policy::Limit;
pub use along::{Along, LeaseBasis};
pub use keeper::Keeper;
pub use lease::Lease;
use lease::useless_because;
use parts::LentPart;
pub use parts::PartRequest;
pub use reservation::Reservation;

/// Locks that keys are spread over.
const SHARDS: usize = 16;
/// Most keys in a shard, and so 16,384 in all, each with some hundred bytes. Further keys have no leases.
const MAX_KEYS: usize = 1_024;
/// A full shard is searched for idle keys no more often than this, whatever clients ask for.
const SWEEP_EVERY_US: u64 = 100_000;
/// A renewal may wait for this part of the time after which the units that are held are used up.
const RENEWAL_PART: u64 = 2;
/// Most commands that wait for the keeper.
const MAX_COMMANDS: usize = 4_096;

/// Renewals and returns wait at most this part of the longest lease for others, so that they share a call: a renewal begins when
/// what is left lasts for about a third of it.
const GROUPING_PART: u64 = 5;

/// After a policy change, old leases are returned this much later, so that one scan serves many keys.
const ENTER_WITHIN_US: u64 = 10_000;

/// What the keeper is to do.
#[derive(Debug)]
enum Command {
    /// Renew a lease.
    Renew {
        key: LeaseKey,
        /// How long it may wait for others, to share their call.
        within_us: u64,
    },
    /// Return what is left of the leases that have ended, or are of an earlier epoch, within so many microseconds.
    ReturnEnded(u64),
    /// Return leases that have ended by this time.
    ReturnAt(u64),
    /// Return units whose lease was returned while they were taken.
    Return(EndedLease<Arc<Lease>>),
    /// Drop this sender once all earlier commands have been carried out.
    Notify(oneshot::Sender<()>),
}

/// A key of a limit, under one epoch.
#[derive(Clone, Debug)]
pub struct LeaseKey {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The key.
    pub key: String,
    /// The epoch.
    pub epoch: u64,
}

/// The leases of this sidecar.
#[derive(Debug)]
pub struct Leases {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// What filters hold, by the parts' numbers.
    parts: Mutex<HashMap<u64, LentPart>>,
    commands: mpsc::Sender<Command>,
    /// The keeper's end of `commands`.
    received: tokio::sync::Mutex<mpsc::Receiver<Command>>,
    /// For a decision that also asks the store, a lease must last at least this long.
    stay_us: u64,
    /// Whether the sidecar ends: no lease is spent or asked for any more.
    closed: AtomicBool,
    /// When the keeper next looks for leases that have ended.
    looks_us: AtomicU64,
    /// How many filters share what is lent.
    filters: AtomicU64,
}

/// By limit, then by key.
#[derive(Debug, Default)]
struct Shard {
    by_limit: HashMap<String, HashMap<String, KeyPool>>,
    keys: usize,
    swept_us: u64,
}

#[derive(Debug)]
struct KeyPool {
    epoch: u64,
    pool: Pool<Arc<Lease>>,
}

impl Leases {
    /// No leases. `stay` is how long the store may take for the rest of a decision. `None`: the store is in this process, so
    /// there are no leases.
    pub fn new(stay: Option<Duration>) -> Arc<Self> {
        let (commands, received) = mpsc::channel(MAX_COMMANDS);
        Arc::new(Self {
            shards: array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            parts: Mutex::default(),
            commands,
            received: tokio::sync::Mutex::new(received),
            stay_us: stay.map_or(0, clock::micros),
            closed: AtomicBool::new(stay.is_none()),
            looks_us: AtomicU64::new(u64::MAX),
            filters: AtomicU64::new(1),
        })
    }

    /// Takes the units of a check from a lease. `None`: the store decides. `alone`: the decision has no other check.
    pub fn take(
        self: &Arc<Self>,
        check: EffectiveCheck<'_>,
        epoch: u64,
        alone: bool,
    ) -> Option<Reservation> {
        let terms = check.limit.lease?;
        if self.is_closed() {
            return None;
        }
        let mut shard = self.shard(check.key);
        // Read under the lock, right before the units are taken: a thread may have been paused before.
        let now_us = clock::now_us();
        let entry = shard.get_or_insert(check, terms, epoch, now_us)?;
        if entry.epoch > epoch {
            return None;
        }
        if entry.epoch < epoch {
            // What was leased under another policy or other overrides is returned soon: after a step of the store's clock, a
            // receipt may seem younger than a reset that came after it.
            entry.epoch = epoch;
            entry.pool.start_again(terms);
            if entry.pool.held() > 0 {
                self.send(Command::ReturnEnded(ENTER_WITHIN_US));
            }
        }
        let stay_us = if alone { 0 } else { self.stay_us };
        let taken = entry.pool.take(now_us, check.cost, stay_us)?;
        let reservation = Reservation::new(self, taken, now_us);
        if entry.pool.wants_renewal(now_us) {
            self.renew(entry, check.under(epoch), now_us);
        }
        Some(reservation)
    }

    /// Notes the store's outcome of a decision with this check; `decided`: this check decided. If it was denied although this
    /// sidecar holds units that would have sufficed, they are returned at once.
    pub fn note(&self, check: EffectiveCheck<'_>, epoch: u64, outcome: &Outcome, decided: bool) {
        let mut shard = self.shard(check.key);
        let Some(entry) = shard.in_epoch(&check.limit.name, check.key, epoch) else {
            return;
        };
        if decided {
            entry.pool.note_remaining(outcome.remaining);
        } else if outcome.admitted {
            entry.pool.note_admitted(&check.limit.windows);
        }
        let held = entry.pool.held();
        if !outcome.admitted
            && decided
            && held > 0
            && outcome.remaining.saturating_add(held) >= check.cost
        {
            entry.pool.end_all();
            entry.pool.refused(clock::now_us());
            self.send(Command::ReturnEnded(0));
        }
    }

    /// Adds a lease to its pool, or returns the units that are to be returned: all that the store may have taken. `epoch`: the
    /// one that is in force by now.
    fn install(
        &self,
        grant: Grant<Arc<Lease>>,
        outcome: Option<&Outcome>,
        epoch: u64,
    ) -> Option<EndedLease<Arc<Lease>>> {
        let (lease, now_us) = (Arc::clone(&grant.tag), clock::now_us());
        let key = &lease.key;
        let refusal = match outcome {
            // Redis may have granted it. Its units are returned as far as they were taken.
            None => Some(LeaseRefusal::Store),
            Some(outcome) if !outcome.admitted => Some(LeaseRefusal::NearLimit),
            Some(_) => {
                lease.metrics.count_granted(grant.units);
                useless_because(&grant, now_us)
            }
        };
        if let Some(refusal) = refusal {
            lease.metrics.count_refused(refusal);
        }
        let may_be_taken = outcome.is_none_or(|outcome| outcome.admitted);
        let ended = EndedLease {
            units: if may_be_taken { grant.units } else { 0 },
            tag: Arc::clone(&lease),
        };
        let mut shard = self.shard(&key.key);
        let Some(entry) = shard.get_mut(&key.limit.name, &key.key) else {
            return Some(ended);
        };
        let is_current = entry.epoch == key.epoch && key.epoch == epoch;
        if refusal.is_none() && is_current && !self.is_closed() {
            let ends_us = grant.ends_us;
            entry.pool.granted(grant);
            drop(shard);
            // Steps end at the same time for all keys.
            let return_us = ends_us.saturating_add(grouping_us(key));
            if return_us < self.looks_us.load(Ordering::Relaxed) {
                self.send(Command::ReturnAt(return_us));
            }
            return None;
        }
        entry.pool.refused(now_us);
        if let (Some(_), Some(outcome)) = (refusal, outcome) {
            entry.pool.note_remaining(outcome.remaining);
        }
        Some(ended)
    }

    /// Notes how many filters ask this sidecar.
    pub fn note_filters(&self, filters: usize) {
        self.filters.store(filters as u64, Ordering::Relaxed);
    }

    /// Ends the leases of these limits and keys: an operator reset them.
    pub fn end(&self, keys: &[(&str, &str)]) {
        for (limit, key) in keys {
            if let Some(entry) = self.shard(key).get_mut(limit, key) {
                entry.pool.end_all();
                entry.pool.forget_remaining();
                self.send(Command::ReturnEnded(0));
            }
        }
    }

    /// Returns the leases that have ended, and those of earlier epochs. A key enters an epoch with its next check; one that can
    /// have no leases any more, because of an override or another policy, never does. Call it about every second.
    pub fn return_ended(&self) {
        self.send(Command::ReturnEnded(0));
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Puts units back that were not spent; if their lease was returned meanwhile, they are returned too.
    fn put_back(&self, lease: &Arc<Lease>, units: u64) {
        let mut shard = self.shard(&lease.key.key);
        let known = shard.get_mut(&lease.key.limit.name, &lease.key.key);
        let is_theirs = |tag: &_| Arc::ptr_eq(tag, lease);
        let kept = known.is_some_and(|entry| entry.pool.put_back(units, is_theirs));
        drop(shard);
        let ended = || EndedLease {
            units,
            tag: Arc::clone(lease),
        };
        if !kept && !self.send(Command::Return(ended())) {
            lease.metrics.count_returned(units, 0);
        }
    }

    fn renew(&self, entry: &mut KeyPool, key: LeaseKey, now_us: u64) {
        let within_us = entry.pool.lasts_us(now_us) / RENEWAL_PART;
        entry.pool.asked();
        if !self.send(Command::Renew { key, within_us }) {
            entry.pool.refused(now_us);
        }
    }

    /// `false` if the keeper has too much to do. Units that are not returned count in the store for one window.
    fn send(&self, command: Command) -> bool {
        self.commands.try_send(command).is_ok()
    }

    fn shard(&self, key: &str) -> MutexGuard<'_, Shard> {
        let hash = self.hasher.hash_one(key);
        let index = usize::try_from(hash % SHARDS as u64).unwrap_or(0);
        // There are as many shards as that.
        let [first, ..] = &self.shards;
        lock(self.shards.get(index).unwrap_or(first))
    }
}

/// How long a lease of this limit may last; 0 if it has none.
pub fn longest_us(limit: &Limit) -> u64 {
    limit.lease.map_or(0, |terms| terms.longest_us)
}

/// How long a key's renewal or return waits for others.
fn grouping_us(key: &LeaseKey) -> u64 {
    longest_us(&key.limit) / GROUPING_PART
}

impl EffectiveCheck<'_> {
    fn under(&self, epoch: u64) -> LeaseKey {
        LeaseKey {
            limit: Arc::clone(self.limit),
            key: self.key.to_owned(),
            epoch,
        }
    }
}

impl Shard {
    fn get_mut(&mut self, limit: &str, key: &str) -> Option<&mut KeyPool> {
        self.by_limit.get_mut(limit)?.get_mut(key)
    }

    /// The pool of a key, unless another policy or other overrides are in force for it.
    fn in_epoch(&mut self, limit: &str, key: &str, epoch: u64) -> Option<&mut KeyPool> {
        let entry = self.get_mut(limit, key);
        entry.filter(|entry| entry.epoch == epoch)
    }

    /// Removes the leases that have ended, and those of epochs before this one. Lowers `looks_us` to when the next are to be returned.
    fn ended(&mut self, epoch: u64, looks_us: &mut u64) -> Vec<EndedLease<Arc<Lease>>> {
        let now_us = clock::now_us();
        let entries = self.by_limit.values_mut().flat_map(HashMap::values_mut);
        let ended = entries.flat_map(|entry| {
            let is_earlier = entry.epoch < epoch;
            let ended = entry.pool.ended(if is_earlier { u64::MAX } else { now_us });
            if let Some(first) = entry.pool.first() {
                let return_us = first.ends_us.saturating_add(grouping_us(&first.tag.key));
                *looks_us = return_us.min(*looks_us);
            }
            ended
        });
        ended.collect()
    }

    /// The pool of a key; a new one if there is room.
    fn get_or_insert(
        &mut self,
        check: EffectiveCheck<'_>,
        terms: LeaseTerms,
        epoch: u64,
        now_us: u64,
    ) -> Option<&mut KeyPool> {
        let limit = check.limit.name.as_str();
        if self.get_mut(limit, check.key).is_none() {
            if self.keys >= MAX_KEYS {
                self.sweep(now_us);
            }
            if self.keys >= MAX_KEYS {
                return None;
            }
            self.keys += 1;
            let entry = KeyPool {
                epoch,
                pool: Pool::new(terms),
            };
            let keys = self.by_limit.entry(limit.to_owned()).or_default();
            keys.insert(check.key.to_owned(), entry);
        }
        self.get_mut(limit, check.key)
    }

    fn sweep(&mut self, now_us: u64) {
        if now_us.saturating_sub(self.swept_us) < SWEEP_EVERY_US {
            return;
        }
        self.swept_us = now_us;
        for keys in self.by_limit.values_mut() {
            keys.retain(|_, entry| !entry.pool.is_idle(now_us));
        }
        self.by_limit.retain(|_, keys| !keys.is_empty());
        self.keys = self.by_limit.values().map(HashMap::len).sum();
    }
}

#[cfg(test)]
mod tests;
