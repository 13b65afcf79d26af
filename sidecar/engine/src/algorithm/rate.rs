//! The rate at which a token bucket drains.

use super::BucketSpec;
use crate::check::{MAX_HELD, greatest_common_divisor};

/// The rate of a token bucket in lowest terms, which makes its arithmetic exact in integers.
///
/// A bucket's backlog is counted in fine units: a unit taken adds `per_unit`, a microsecond drains `per_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenRate {
    /// Fine units that return each microsecond: `quota / gcd(quota, window_us)`.
    pub per_us: u64,
    /// Fine units that one unit weighs: `window_us / gcd(quota, window_us)`.
    pub per_unit: u64,
}

impl Default for TokenRate {
    /// Of what holds nothing, for which any rate would do.
    fn default() -> Self {
        let (per_us, per_unit) = (1, 1);
        Self { per_us, per_unit }
    }
}

impl TokenRate {
    /// Of what does not drain.
    pub const NONE: Self = Self {
        per_us: 0,
        per_unit: 0,
    };

    /// Largest backlog in fine units: sums of two stay exact in a double.
    pub(crate) const MAX_BACKLOG: u64 = 1 << 52;

    /// Most fine units after a write-back of units taken elsewhere.
    pub(super) fn max_backlog(self) -> u64 {
        Self::MAX_BACKLOG.min(MAX_HELD.saturating_mul(self.per_unit))
    }

    /// Whether more units return in a time than by another rate.
    pub(super) fn is_faster_than(self, other: Self) -> bool {
        let units = u128::from(self.per_us) * u128::from(other.per_unit);
        units > u128::from(other.per_us) * u128::from(self.per_unit)
    }
}

impl BucketSpec {
    /// The rate in lowest terms, for token buckets.
    #[must_use]
    pub fn token_rate(&self) -> TokenRate {
        let divisor = greatest_common_divisor(self.quota, self.window_us).max(1);
        TokenRate {
            per_us: self.quota / divisor,
            per_unit: self.window_us / divisor,
        }
    }
}
