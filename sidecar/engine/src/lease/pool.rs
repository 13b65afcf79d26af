//! The leases of one key: units are taken from them, put back into them, and returned when they end.
//!
//! Every time is one of a monotonic clock. An empty pool never denies: it says nothing, and the store is asked.

use super::rate::Rate;
use super::terms::{LeaseRefusal, LeaseTerms, SMALLEST_LEASE, reserve};
use crate::batch::BucketSpec;

/// Most leases of a key at once: one that is spent, and the one that renews it.
const MAX_LEASES: usize = 2;
/// After a refusal, this part of the longest lease passes before the next attempt.
const RETRY_PART: u64 = 20;

/// A lease that the store has granted.
#[derive(Clone, Debug)]
pub struct Grant<T> {
    /// Its units.
    pub units: u64,
    /// When it ends: the moment before the call was sent, and [`LeaseTerms::length_us`] of the store's time.
    pub ends_us: u64,
    /// What the store had left afterwards, in the tightest window.
    pub remaining: u64,
    /// What its owner needs to return it.
    pub tag: T,
}

/// The leases of one key. `T` is what their owner needs to return them.
#[derive(Debug)]
pub struct Pool<T> {
    terms: LeaseTerms,
    rate: Rate,
    /// In the order in which they end.
    leases: Vec<Lease<T>>,
    /// Units that the store had left, as it last said.
    remaining: Option<u64>,
    /// The most units of the next lease: half as many after one that came back.
    most: u64,
    asking: bool,
    next_try_us: u64,
    last_id: u64,
}

#[derive(Debug)]
struct Lease<T> {
    id: u64,
    units: u64,
    left: u64,
    ends_us: u64,
    remaining: u64,
    tag: T,
}

/// Units that were taken from a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Taken<'a, T> {
    /// The lease, to put them back.
    pub lease: u64,
    /// When the lease ends: they must be spent before.
    pub ends_us: u64,
    /// What is left: of this lease, and of the store's when it granted it.
    pub remaining: u64,
    /// The lease's tag.
    pub tag: &'a T,
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
            leases: Vec::new(),
            remaining: None,
            most: terms.most,
            asking: false,
            next_try_us: 0,
            last_id: 0,
        }
    }

    /// Takes units, all from one lease that lasts for at least `stay_us` more. `None`: ask the store.
    ///
    /// To be called for every request for the key, since the rate is measured here.
    pub fn take(&mut self, now_us: u64, cost: u64, stay_us: u64) -> Option<Taken<'_, T>> {
        self.rate.add(now_us, cost);
        let until_us = now_us.saturating_add(stay_us);
        let mut leases = self.leases.iter_mut();
        let lease = leases.find(|lease| lease.left >= cost && until_us < lease.ends_us)?;
        lease.left -= cost;
        Some(Taken {
            lease: lease.id,
            ends_us: lease.ends_us,
            remaining: lease.remaining.saturating_add(lease.left),
            tag: &lease.tag,
        })
    }

    /// Puts units back that were not spent after all. `false` if their lease was returned meanwhile: then they are to be
    /// returned, too.
    pub fn put_back(&mut self, lease: u64, units: u64) -> bool {
        let lease = self.leases.iter_mut().find(|known| known.id == lease);
        lease.is_some_and(|lease| {
            lease.left += units;
            true
        })
    }

    /// Notes what the store has left in the tightest window, as an ordinary decision said.
    pub fn note_remaining(&mut self, remaining: u64) {
        self.remaining = Some(remaining);
    }

    /// Notes that the store admitted a decision over this key, and another limit was the tightest: enough for the smallest lease
    /// is assumed to be left. What is granted tells more.
    pub fn note_admitted(&mut self, windows: &[BucketSpec]) {
        let smallest = reserve(&self.terms, windows).saturating_add(2 * SMALLEST_LEASE);
        self.remaining.get_or_insert(smallest);
    }

    /// Whether it is time to ask the store for a lease: there is none, or the newest is half spent.
    #[must_use]
    pub fn wants_lease(&self, now_us: u64) -> bool {
        if self.asking || now_us < self.next_try_us || self.remaining.is_none() {
            return false;
        }
        let mut live = self.leases.iter().filter(|lease| now_us < lease.ends_us);
        let newest = live.clone().next_back();
        live.by_ref().count() < MAX_LEASES
            && newest.is_none_or(|newest| newest.left <= newest.units / 2)
    }

    /// The lease that is wanted will be asked for: [`Pool::ask`], then [`Pool::granted`] or [`Pool::refused`] follow.
    pub fn asked(&mut self) {
        self.asking = true;
    }

    /// How many units to ask for. After this, [`Pool::granted`] or [`Pool::refused`] follows. `store_us` is the store's
    /// clock, if it is known.
    ///
    /// # Errors
    /// None now.
    pub fn ask(
        &mut self,
        windows: &[BucketSpec],
        now_us: u64,
        store_us: Option<u64>,
    ) -> Result<u64, LeaseRefusal> {
        self.asking = true;
        let at_us = store_us.ok_or(LeaseRefusal::Store)?;
        let remaining = self.remaining.unwrap_or(0);
        let per_s = self.rate.per_s(now_us);
        let live = self.leases.iter().filter(|lease| now_us < lease.ends_us);
        let held = live.map(|lease| lease.left).sum();
        let units = self.terms.size(windows, per_s, held, remaining, at_us)?;
        Ok(units.min(self.most.max(SMALLEST_LEASE)))
    }

    /// The store has granted a lease.
    pub fn granted(&mut self, grant: Grant<T>) {
        self.asking = false;
        self.remaining = Some(grant.remaining);
        self.last_id += 1;
        self.leases.push(Lease {
            id: self.last_id,
            units: grant.units,
            left: grant.units,
            ends_us: grant.ends_us,
            remaining: grant.remaining,
            tag: grant.tag,
        });
        self.leases.sort_by_key(|lease| lease.ends_us);
    }

    /// There is no lease now. The next attempt comes a little later.
    pub fn refused(&mut self, now_us: u64) {
        self.asking = false;
        self.next_try_us = now_us.saturating_add(self.terms.longest_us / RETRY_PART);
    }

    /// Removes the leases that have ended. If more than half of one came back, the next has half as many units; otherwise
    /// it may have twice as many.
    pub fn ended(&mut self, now_us: u64) -> Vec<EndedLease<T>> {
        let ended = self.leases.extract_if(.., |lease| lease.ends_us <= now_us);
        let mut units_and_left = Vec::new();
        let ended = ended.map(|lease| {
            units_and_left.push((lease.units, lease.left));
            EndedLease {
                units: lease.left,
                tag: lease.tag,
            }
        });
        let ended = ended.collect();
        for (units, left) in units_and_left {
            self.most = if left > units / 2 {
                (units / 2).max(SMALLEST_LEASE)
            } else {
                self.most.max(units).saturating_mul(2).min(self.terms.most)
            };
        }
        ended
    }

    /// Ends all leases, so that [`Pool::ended`] returns them now.
    pub fn end_all(&mut self) {
        for lease in &mut self.leases {
            lease.ends_us = 0;
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
        (self.terms, self.most) = (terms, terms.most);
    }

    /// Units that are held.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.leases.iter().map(|lease| lease.left).sum()
    }

    /// Whether there is no lease to spend.
    #[must_use]
    pub fn is_dry(&self, now_us: u64) -> bool {
        let mut leases = self.leases.iter();
        !leases.any(|lease| now_us < lease.ends_us && lease.left > 0)
    }

    /// Whether it can be dropped: it holds nothing, and the key is asked for less than once a second.
    #[must_use]
    pub fn is_idle(&self, now_us: u64) -> bool {
        self.leases.is_empty() && !self.asking && self.rate.per_s(now_us) < 1.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Algorithm;

    const TERMS: LeaseTerms = LeaseTerms {
        longest_us: 100_000,
        most: 400,
        from_per_s: 50,
    };
    const WINDOWS: [BucketSpec; 1] = [BucketSpec {
        algorithm: Algorithm::SlidingWindow {
            precision_us: 1_000_000,
            leased: true,
        },
        quota: 600_000,
        window_us: 60_000_000,
    }];
    /// A second, by the pool's clock and by the store's.
    const START: u64 = 1_000_001;

    /// A pool that has been asked for 4,000 units a second until [`START`].
    fn hot() -> Pool<&'static str> {
        let mut pool = Pool::new(TERMS);
        for ask in 0..4_000 {
            assert!(pool.take(START - 1_000_000 + ask * 250, 1, 0).is_none());
        }
        pool.note_remaining(600_000);
        pool
    }

    fn grant(units: u64, ends_us: u64) -> Grant<&'static str> {
        Grant {
            units,
            ends_us,
            remaining: 100_000,
            tag: "receipt",
        }
    }

    #[test]
    fn units_are_spent_until_the_end_and_not_a_microsecond_later() {
        let mut pool = hot();
        pool.granted(grant(10, START + 50));
        let taken = pool.take(START + 49, 4, 0).unwrap();
        assert_eq!((taken.remaining, taken.ends_us), (100_006, START + 50));
        assert!(
            pool.take(START + 49, 1, 1).is_none(),
            "it must last a little longer"
        );
        assert!(pool.take(START + 50, 1, 0).is_none());
        assert_eq!(pool.held(), 6, "until it is returned");
        let ended = pool.ended(START + 50);
        assert_eq!((ended.len(), ended[0].units), (1, 6));
        assert!(pool.ended(START + 60).is_empty());
    }

    #[test]
    fn an_empty_lease_says_nothing_and_a_cost_is_not_split() {
        let mut pool = hot();
        pool.granted(grant(10, START + 50));
        assert!(pool.take(START, 11, 0).is_none());
        assert!(pool.take(START, 10, 0).is_some());
        assert!(pool.take(START, 1, 0).is_none());
        pool.granted(grant(3, START + 90));
        pool.granted(grant(3, START + 80));
        assert!(pool.take(START, 4, 0).is_none(), "3 and 3 are not 4");
        assert_eq!(
            pool.take(START, 3, 0).unwrap().ends_us,
            START + 80,
            "the first to end"
        );
    }

    #[test]
    fn what_is_put_back_can_be_spent_or_is_returned() {
        let mut pool = hot();
        pool.granted(grant(10, START + 50));
        let lease = pool.take(START, 10, 0).unwrap().lease;
        assert!(pool.put_back(lease, 10));
        let lease = pool.take(START, 10, 0).unwrap().lease;
        assert_eq!(pool.ended(START + 50)[0].units, 0);
        assert!(!pool.put_back(lease, 10), "the rest was returned already");
    }

    #[test]
    fn a_lease_is_asked_for_once_and_renewed_at_half_spent() {
        let mut pool = hot();
        assert!(pool.wants_lease(START));
        let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
        assert!((390..=400).contains(&units), "{units}");
        assert!(!pool.wants_lease(START), "it is being asked for");
        pool.granted(grant(400, START + 99_000));
        pool.take(START, 199, 0).unwrap();
        assert!(!pool.wants_lease(START));
        pool.take(START, 1, 0).unwrap();
        assert!(pool.wants_lease(START));
        pool.granted(grant(400, START + 99_500));
        pool.take(START, 200, 0).unwrap();
        pool.take(START, 200, 0).unwrap();
        assert!(!pool.wants_lease(START), "two at most");
        pool.ended(START + 99_000);
        assert!(pool.wants_lease(START + 99_000));
    }

    #[test]
    fn after_a_refusal_there_is_a_pause() {
        let mut pool = hot();
        assert_eq!(pool.ask(&WINDOWS, START, None), Err(LeaseRefusal::Store));
        pool.refused(START);
        assert!(!pool.wants_lease(START + 4_999) && pool.wants_lease(START + 5_000));
    }

    #[test]
    fn nothing_is_asked_for_before_the_store_said_what_is_left() {
        let mut pool = Pool::<()>::new(TERMS);
        for ask in 0..4_000 {
            pool.take(START + ask * 250, 1, 0);
        }
        assert!(!pool.wants_lease(START + 1_000_000));
        pool.note_remaining(10);
        assert!(pool.wants_lease(START + 1_000_000));
        let refused = pool.ask(&WINDOWS, START + 1_000_000, Some(START));
        assert_eq!(refused, Err(LeaseRefusal::NearLimit));
    }

    #[test]
    fn where_another_limit_is_the_tightest_the_first_lease_is_the_smallest() {
        let mut pool = hot();
        pool.forget_remaining();
        pool.note_admitted(&WINDOWS);
        assert!(pool.wants_lease(START));
        assert_eq!(pool.ask(&WINDOWS, START, Some(START)), Ok(SMALLEST_LEASE));
        pool.note_remaining(100_000);
        pool.note_admitted(&WINDOWS);
        assert!(
            pool.ask(&WINDOWS, START, Some(START)).unwrap() > 300,
            "what is known stays"
        );
    }

    #[test]
    fn the_next_lease_is_half_as_large_if_more_than_half_came_back() {
        let mut pool = hot();
        let mut sizes = Vec::new();
        // Nothing is spent: halves, down to the smallest.
        for round in 0..7 {
            let now_us = START + round;
            let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
            sizes.push(units);
            pool.granted(grant(units, now_us));
            pool.ended(now_us);
        }
        assert!(
            sizes.windows(2).all(|pair| pair[1] == (pair[0] / 2).max(8)),
            "{sizes:?}"
        );
        assert_eq!(sizes.last(), Some(&8));
        // All is spent: doubles again, up to what the rate allows.
        for round in 10..18 {
            let now_us = START + round;
            let units = pool.ask(&WINDOWS, START, Some(START)).unwrap();
            sizes.push(units);
            pool.granted(grant(units, now_us + 1));
            pool.take(now_us, units, 0).unwrap();
            pool.ended(now_us + 1);
        }
        assert!(*sizes.last().unwrap() > 350, "{sizes:?}");
    }

    #[test]
    fn a_pool_that_is_ended_returns_everything_at_once() {
        let mut pool = hot();
        pool.granted(grant(10, START + 50));
        pool.granted(grant(10, START + 60));
        pool.end_all();
        assert!(pool.take(START, 1, 0).is_none());
        let units: u64 = pool.ended(START).iter().map(|one| one.units).sum();
        assert_eq!((units, pool.held()), (20, 0));
        assert!(!pool.is_idle(START) && pool.is_idle(START + 10_000_000));
    }
}
