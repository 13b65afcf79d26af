//! The leases of one key: units are taken from them, lent to filters, put back into them, and returned when they end.
//!
//! Every time is one of a monotonic clock. An empty pool never denies: it says nothing, and the store is asked.

use sluicegate_certificates::{Grant, Held, Ledger, Taken};

use super::rate::{Rate, float};
use super::terms::{LeaseRefusal, LeaseTerms, SMALLEST_RENEWAL, reserve, units_to_spend};
use crate::algorithm::BucketSpec;

/// Most leases of a key at once: one that is spent, and the one that renews it.
const MAX_LEASES: usize = 2;
/// After a refusal, this part of the longest lease passes before the next attempt.
const RETRY_PART: u64 = 20;

/// The leases of one key. `T` is what their owner needs to return them.
#[derive(Debug)]
pub struct Pool<T> {
    terms: LeaseTerms,
    rate: Rate,
    /// Each with what the store had left afterwards, in the tightest window.
    leases: Ledger<T>,
    /// Units that filters hold, as far as they have said.
    lent: u64,
    /// Units that the store had left, as it last said.
    remaining: Option<u64>,
    asking: bool,
    next_try_us: u64,
}

/// A lease that has ended.
#[derive(Debug, PartialEq, Eq)]
pub struct EndedLease<T> {
    /// The units that were not spent; may be 0.
    pub units: u64,
    /// Its tag.
    pub tag: T,
}

impl<T> Pool<T> {
    /// A pool without a lease.
    #[must_use]
    pub fn new(terms: LeaseTerms) -> Self {
        Self {
            terms,
            rate: Rate::default(),
            leases: Ledger::default(),
            lent: 0,
            remaining: None,
            asking: false,
            next_try_us: 0,
        }
    }

    /// Takes units, all from one lease that lasts for at least `stay_us` more. `None`: ask the store.
    ///
    /// To be called for every request for the key, since the rate is measured here.
    pub fn take(&mut self, now_us: u64, cost: u64, stay_us: u64) -> Option<Taken<'_, T>> {
        self.rate.add(now_us, cost);
        self.leases.take(cost, now_us, stay_us)
    }

    /// Lends units of the lease that lasts longest to a filter that holds `held` of this key: as many as it will spend until the
    /// lease ends, if it says how many those are a second; else what is there, divided by `filters`.
    pub fn lend(
        &mut self,
        now_us: u64,
        per_s: Option<u64>,
        held: u64,
        filters: u64,
    ) -> Option<Taken<'_, T>> {
        let mut leases = self.leases.all_mut().iter_mut().rev();
        let lease = leases.find(|lease| lease.is_live(now_us))?;
        let wanted = |per_s| units_to_spend(float(per_s), lease.grant.ends_us - now_us);
        let units = match per_s {
            Some(per_s) => wanted(per_s).saturating_sub(held).min(lease.left),
            None => lease.left.div_ceil(filters.max(1)),
        };
        if units == 0 {
            return None;
        }
        self.lent += units;
        Some(lease.take(units))
    }

    /// Whether [`Pool::lend`] would lend most of what a filter needs for half of the longest time of a lease.
    #[must_use]
    pub fn can_lend(&self, now_us: u64, per_s: u64, held: u64) -> bool {
        let half_us = self.terms.longest_us / 2;
        let needed = units_to_spend(float(per_s), half_us).saturating_sub(held);
        let mut leases = self.leases.all().iter();
        leases.any(|lease| {
            lease.left >= needed.max(1) && now_us.saturating_add(half_us) < lease.grant.ends_us
        })
    }

    /// Notes that a filter has spent so many units of those that it was lent since it last said so, or will not spend them.
    pub fn spent_by_filter(&mut self, since_us: u64, now_us: u64, spent: u64, unspent: u64) {
        self.rate.add_since(since_us, now_us, spent);
        self.lent = self.lent.saturating_sub(spent).saturating_sub(unspent);
    }

    /// Puts units back that were not spent after all, into the lease whose tag is theirs. `false` if that was returned
    /// meanwhile: then they are to be returned, too.
    pub fn put_back(&mut self, units: u64, is_theirs: impl Fn(&T) -> bool) -> bool {
        let lease = self.leases.of(is_theirs);
        lease.map(|lease| lease.left += units).is_some()
    }

    /// Notes what the store has left in the tightest window, as an ordinary decision said.
    pub fn note_remaining(&mut self, remaining: u64) {
        self.remaining = Some(remaining);
    }

    /// Notes that the store admitted a decision over this key, and another limit was the tightest: enough for the smallest renewal
    /// is assumed to be left. What is granted tells more.
    pub fn note_admitted(&mut self, windows: &[BucketSpec]) {
        let smallest = reserve(&self.terms, windows).saturating_add(2 * SMALLEST_RENEWAL);
        self.remaining.get_or_insert(smallest);
    }

    /// Whether it is time to ask the store for a lease before the last one is spent: the newest is half spent.
    #[must_use]
    pub fn wants_renewal(&self, now_us: u64) -> bool {
        let live = self.leases.all().iter();
        let live = live.filter(|lease| lease.is_live(now_us));
        let newest = live.clone().next_back();
        self.may_ask(now_us)
            && live.count() < MAX_LEASES
            && newest.is_some_and(|newest| newest.left <= newest.grant.units / 2)
    }

    /// Whether the store may be asked for a lease now, however much is held.
    #[must_use]
    pub fn may_ask(&self, now_us: u64) -> bool {
        !self.asking && now_us >= self.next_try_us && self.remaining.is_some()
    }

    /// Whether a lease is being asked for.
    #[must_use]
    pub fn is_asking(&self) -> bool {
        self.asking
    }

    /// The lease that is wanted will be asked for: [`Pool::ask`], then [`Pool::granted`] or [`Pool::refused`] follow.
    pub fn asked(&mut self) {
        self.asking = true;
    }

    /// How many units to ask for, at least `least`, beside a request for so many. After this, [`Pool::granted`] or [`Pool::refused`]
    /// follows. `store_us` is the store's clock, if it is known.
    ///
    /// # Errors
    /// No such lease can be granted at present; the error says why.
    pub fn ask(
        &mut self,
        windows: &[BucketSpec],
        now_us: u64,
        store_us: Option<u64>,
        least: u64,
        beside: u64,
    ) -> Result<u64, LeaseRefusal> {
        self.asking = true;
        let at_us = store_us.ok_or(LeaseRefusal::Store)?;
        let remaining = self.remaining.unwrap_or(0);
        let per_s = self.rate.per_s_before(now_us, beside);
        let held = self.leases.left(now_us).saturating_add(self.lent);
        self.terms
            .size(windows, per_s, (held, remaining), at_us, least)
    }

    /// The store has granted a lease.
    pub fn granted(&mut self, grant: Grant<T>) {
        self.asking = false;
        self.remaining = Some(grant.remaining);
        self.leases.add(grant);
    }

    /// There is no lease now. The next attempt comes a little later.
    pub fn refused(&mut self, now_us: u64) {
        self.asking = false;
        self.next_try_us = now_us.saturating_add(self.terms.longest_us / RETRY_PART);
    }

    /// Removes the leases that have ended.
    pub fn ended(&mut self, now_us: u64) -> Vec<EndedLease<T>> {
        let ended = self.leases.end(|lease| lease.grant.ends_us <= now_us);
        let ended = ended.map(|Held { grant, left }| EndedLease {
            units: left,
            tag: grant.tag,
        });
        ended.collect()
    }

    /// The lease that ends first.
    #[must_use]
    pub fn first(&self) -> Option<&Grant<T>> {
        self.leases.all().first().map(|lease| &lease.grant)
    }

    /// Ends all leases, so that [`Pool::ended`] returns them now.
    pub fn end_all(&mut self) {
        for lease in self.leases.all_mut() {
            lease.grant.ends_us = 0;
        }
    }

    /// Forgets what the store had left: the bucket was reset, or the store's clock has stepped.
    pub fn forget_remaining(&mut self) {
        self.remaining = None;
    }

    /// Ends all leases; the next ones have other terms. Keeps the rate.
    pub fn start_again(&mut self, terms: LeaseTerms) {
        self.end_all();
        self.forget_remaining();
        self.terms = terms;
    }

    /// Units that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.leases.all().iter().map(|lease| lease.left).sum()
    }

    /// For how long what is held lasts at the present rate, in microseconds; 0 if there is no lease to spend.
    #[must_use]
    pub fn lasts_us(&self, now_us: u64) -> u64 {
        let lasts_us = float(self.leases.left(now_us)) * 1e6 / self.rate.per_s(now_us).max(1.0);
        // Not negative, and a cast of a float saturates.
        lasts_us as u64
    }

    /// Whether it can be dropped: it holds nothing, and the key is asked for less than once in two seconds.
    #[must_use]
    pub fn is_idle(&self, now_us: u64) -> bool {
        self.leases.all().is_empty()
            && !self.asking
            && self.lent == 0
            && self.rate.per_s(now_us) < 0.5
    }
}

#[cfg(test)]
mod tests;
