//! What must hold in a world of sidecars with leases.

use std::collections::BTreeMap;

use sluicegate_engine::{Algorithm, BucketSpec};

use super::lease_world::{MEMORY_US, Run, SIDECARS, TERMS};

impl Run<'_> {
    /// 2 x D x L: D is how many units a second the fleet was asked for, on the average of a quarter of a second, at some time
    /// in the last L.
    pub fn bound(&self) -> u64 {
        let since = self.now.saturating_sub(TERMS.longest_us);
        let first = self.first_asked(since);
        let weights = self.asked[first..].iter().map(|(.., weight)| *weight);
        let rate = weights.fold(self.weight_at(first, since), f64::max) * 1e6 / MEMORY_US;
        (2.0 * rate * TERMS.longest_us as f64 / 1e6) as u64
    }

    /// The first request since a time.
    fn first_asked(&self, since: u64) -> usize {
        self.asked.partition_point(|(at, ..)| *at < since)
    }

    /// Units that sidecars hold.
    pub fn held(&self, sidecars: impl Iterator<Item = usize>) -> u64 {
        let of = |sidecar: usize| {
            let one = &self.sidecars[sidecar];
            one.pool.held() + one.tentative + self.held_by_filters(sidecar)
        };
        sidecars.map(of).sum()
    }

    /// When the store denies, what is idle elsewhere is within the bound. And unless demand is more than twice the limit's own
    /// rate, every lease has ended.
    pub fn check_idle(&mut self, denied: usize, cost: u64) {
        let others = (0..SIDECARS).filter(|other| *other != denied);
        let (idle, bound) = (self.held(others.clone()), self.bound());
        assert!(idle <= bound, "{idle} are idle elsewhere, over {bound}");
        self.seen.most_idle = self.seen.most_idle.max(idle);
        let since = self.now.saturating_sub(TERMS.longest_us);
        let recent = &self.asked[self.first_asked(since)..];
        let asked: u64 = recent.iter().map(|(_, units, _)| units).sum();
        let of_rate = |spec: &BucketSpec| 2 * TERMS.longest_us * spec.quota / spec.window_us;
        let twice_the_rate = self.world.windows.iter().map(of_rate).max().unwrap_or(0);
        if asked.max(cost) <= twice_the_rate && self.world.steps.is_empty() {
            for other in others {
                let lasts_us = self.sidecars[other].pool.lasts_us(self.clock(other));
                assert_eq!(lasts_us, 0, "sidecar {other} holds a lease at a denial");
            }
        }
    }

    /// The units of the first so many requests, weighted by their age at a time.
    pub fn weight_at(&self, requests: usize, at: u64) -> f64 {
        let last = requests.checked_sub(1).map(|last| self.asked[last]);
        last.map_or(0.0, |(asked, _, weight)| {
            weight * (-((at - asked) as f64) / MEMORY_US).exp()
        })
    }

    pub fn check_never_over(&mut self) {
        for spec in &self.world.windows {
            if let Algorithm::TokenBucket { burst } = spec.algorithm {
                self.check_bucket(spec, burst);
                continue;
            }
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut first, mut sum) = (0, 0);
            for &(at, store_us, units) in &self.admitted {
                if spec.algorithm == Algorithm::FixedWindow {
                    *sums.entry(store_us / spec.window_us).or_default() += units;
                    continue;
                }
                sum += units;
                while self.admitted[first].0 + spec.window_us <= at {
                    sum -= self.admitted[first].2;
                    first += 1;
                }
                assert!(sum <= spec.quota, "{sum} of {} until {at}", spec.quota);
            }
            for (window, sum) in sums {
                let (over, held) = (sum.saturating_sub(spec.quota), self.held_at_steps);
                assert!(over <= held, "{over} over in {window}, {held} were held");
                self.seen.most_over = self.seen.most_over.max(over);
            }
        }
    }

    /// Whatever is admitted fits into a bucket of the burst that a policy says, which drains at the quota's rate.
    fn check_bucket(&self, spec: &BucketSpec, enforced: u64) {
        let per_us = spec.quota as f64 / spec.window_us as f64;
        let burst = enforced as f64 + (per_us * TERMS.longest_us as f64).ceil();
        let (mut level, mut last) = (0.0_f64, 0);
        for &(at, _, units) in &self.admitted {
            level = (level - per_us * (at - last) as f64).max(0.0) + units as f64;
            last = at;
            // The store rounds its times to microseconds.
            assert!(level <= burst + 0.01, "{level} of {burst} at {at}");
        }
    }

    pub fn check_every_unit(&self) {
        for (index, one) in self.sidecars.iter().enumerate() {
            let held = one.pool.held() + one.tentative + self.lent(index);
            let accounted = one.spent + one.returned + held;
            assert_eq!(one.granted, accounted, "sidecar {index}: {one:?}");
            assert_eq!(held, 0, "sidecar {index} holds units after the end");
        }
    }
}
