//! Divides a limit among the sidecars that enforce it while they cannot reach the common store.

use crate::algorithm::BucketSpec;

/// This sidecar's position in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FleetPosition {
    /// From 0.
    pub rank: u64,
    /// At least 1, and more than `rank`.
    pub of: u64,
}

impl FleetPosition {
    /// Its share of a number of units. The shares of all positions add up to the whole, and differ by at most one.
    #[must_use]
    pub const fn part(self, units: u64) -> u64 {
        let of = if self.of == 0 { 1 } else { self.of };
        units / of + (self.rank < units % of) as u64
    }
}

impl BucketSpec {
    /// What this sidecar may admit by itself, so that all sidecars together do not exceed the whole. `None` if it gets
    /// no unit because there are more sidecars than units.
    #[must_use]
    pub fn share(&self, position: FleetPosition) -> Option<Self> {
        let mut share = *self;
        share.quota = position.part(share.quota);
        if let Some(burst) = share.algorithm.burst_mut() {
            *burst = position.part(*burst);
        }
        // Another rate may be one that cannot be counted exactly with this burst: as bad as no share, and as rare.
        share.check().is_ok().then_some(share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;

    fn share(algorithm: Algorithm, quota: u64, rank: u64, of: u64) -> Option<BucketSpec> {
        let whole = crate::test::spec(algorithm, quota, 60_000_000);
        whole.share(FleetPosition { rank, of })
    }

    #[test]
    fn the_shares_of_all_make_up_the_limit() {
        for (limit, of) in [(1, 1), (1, 3), (10, 3), (1_000, 7), (2_147_483_647, 2)] {
            let shares = (0..of).filter_map(|rank| share(Algorithm::SlidingLog, limit, rank, of));
            assert_eq!(shares.map(|spec| spec.quota).sum::<u64>(), limit);
        }
    }

    #[test]
    fn a_token_bucket_shares_its_rate_and_its_burst() {
        let algorithm = Algorithm::TokenBucket { burst: 5 };
        let shares = [0, 1, 2].map(|rank| share(algorithm, 100, rank, 3).unwrap());
        let rates_and_bursts = shares.map(|spec| (spec.quota, spec.most_at_once()));
        assert_eq!(rates_and_bursts, [(34, 2), (33, 2), (33, 1)]);
        // Who has no unit has no share.
        assert_eq!(share(Algorithm::TokenBucket { burst: 2 }, 100, 2, 3), None);
        assert_eq!(share(Algorithm::FixedWindow, 2, 2, 3), None);
    }
}
