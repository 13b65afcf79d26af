//! How many units a lease is for, until when it may be spent, and why there is none.

use super::rate::float;
use crate::algorithm::BucketSpec;

/// Fewer units are not worth a call of their own. A lease that the call of a question takes along is worth it if one more such
/// request is expected.
pub const SMALLEST_RENEWAL: u64 = 8;
/// Part of a lease's time that is not used: two clocks may differ by this much in speed, or twice what NTP allows.
const DRIFT: u64 = 1_000;

/// A limit's terms for leases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// The longest time for which units are held, in microseconds: L.
    pub longest_us: u64,
}

/// Why a key has no lease now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseRefusal {
    /// Too few requests are expected in the time that is left of the step or window.
    Seldom,
    /// Less than the reserve would remain in a window, or the store denied it.
    NearLimit,
    /// The answer came when the lease had ended.
    Late,
    /// The store did not answer, is down, or its clock is not known yet.
    Store,
}

/// The time of the store's clock until which units that are taken at `at_us` may be spent: nothing is over in any window,
/// whenever they are spent until then. Where windows have edges, only while that clock does not step: the owner of a lease
/// ends it ([`Pool::end_all`](super::Pool::end_all)) as soon as an answer shows a step. `None` for algorithms that have no
/// such time.
#[must_use]
pub fn spend_by_us(windows: &[BucketSpec], at_us: u64) -> Option<u64> {
    let each = windows.iter().map(|spec| spec.spend_by_us(at_us));
    each.min()?
}

/// The units that must remain in every window after a lease was taken: twice what the tightest window returns in the
/// longest time of a lease. So unless demand is more than twice the limit's own rate, every lease has ended before the
/// store denies.
#[must_use]
pub fn reserve(terms: &LeaseTerms, windows: &[BucketSpec]) -> u64 {
    let each = windows.iter().map(|spec| {
        let units = 2 * u128::from(terms.longest_us) * u128::from(spec.quota);
        units.div_ceil(u128::from(spec.window_us).max(1))
    });
    let most = each.max().unwrap_or(u128::MAX);
    u64::try_from(most).unwrap_or(u64::MAX)
}

/// As much of a time by one clock as another one certainly counts, too.
#[must_use]
pub fn less_drift(us: u64) -> u64 {
    us - us.div_ceil(DRIFT)
}

impl LeaseTerms {
    /// How many microseconds of the store's clock a lease that is taken at `at_us` has, less what the clocks may differ.
    #[must_use]
    pub fn length_us(&self, windows: &[BucketSpec], at_us: u64) -> u64 {
        let left_us = spend_by_us(windows, at_us).map_or(0, |end_us| end_us.saturating_sub(at_us));
        let length_us = left_us.min(self.longest_us);
        less_drift(length_us)
    }

    /// The units of a lease for a key that is asked for `per_s` units a second, of which `held` are held already and the store
    /// has `remaining` left: at least `least`.
    ///
    /// # Errors
    /// No such lease can be granted at present; the error says why.
    pub fn size(
        &self,
        windows: &[BucketSpec],
        per_s: f64,
        (held, remaining): (u64, u64),
        at_us: u64,
        least: u64,
    ) -> Result<u64, LeaseRefusal> {
        let (least, length_us) = (least.max(1), self.length_us(windows, at_us));
        let units = units_to_spend(per_s, length_us).saturating_sub(held);
        if units < least || expected(per_s, length_us) < float(least) {
            return Err(LeaseRefusal::Seldom);
        }
        let spare = remaining.saturating_sub(reserve(self, windows)) / 2;
        if spare < least {
            return Err(LeaseRefusal::NearLimit);
        }
        Ok(units.min(spare))
    }
}

fn expected(per_s: f64, length_us: u64) -> f64 {
    per_s * float(length_us) / 1e6
}

/// How many units are spent in a time of a key that is asked for `per_s` units a second. Requests come by chance, so one standard
/// deviation more than are expected: then five of six leases last to their end.
pub(super) fn units_to_spend(per_s: f64, length_us: u64) -> u64 {
    let expected = expected(per_s, length_us);
    // Not negative, and a cast of a float saturates.
    (expected + expected.sqrt()) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::calendar::{Calendar, CalendarUnit};
    use crate::test::{sliding, spec};

    const TERMS: LeaseTerms = LeaseTerms {
        longest_us: 100_000,
    };

    fn minute(quota: u64) -> BucketSpec {
        spec(sliding(1_000_000, true), quota, 60_000_000)
    }

    #[test]
    fn units_may_be_spent_until_the_first_of_all_steps_and_windows_ends() {
        let windows = [
            minute(10),
            spec(sliding(300_000, true), 10, 9_000_000),
            spec(Algorithm::FixedWindow, 10, 2_000_000),
        ];
        assert_eq!(spend_by_us(&windows, 1_000_001), Some(1_200_000));
        assert_eq!(spend_by_us(&windows[..1], 1_000_001), Some(2_000_000));
        assert_eq!(spend_by_us(&windows[2..], 3_999_999), Some(4_000_000));
        let none_left = spend_by_us(&windows[..1], 2_000_000);
        assert_eq!(none_left, Some(2_000_000), "no time at all");
        let day = Calendar::new(CalendarUnit::Day, "UTC").unwrap();
        let day = spec(Algorithm::CalendarWindow(day), 5, day.longest_us());
        let noon_us = 20_000 * 86_400_000_000 + 43_200_000_000;
        assert_eq!(spend_by_us(&[day], noon_us), Some(20_001 * 86_400_000_000));
    }

    #[test]
    fn a_token_bucket_gives_out_less_by_what_drains_while_units_are_held() {
        let bucket = spec(Algorithm::TokenBucket { burst: 100 }, 600, 60_000_000);
        assert_eq!(spend_by_us(&[bucket], 1), Some(u64::MAX));
        assert_eq!(TERMS.length_us(&[bucket], 1), 99_900);
        for (longest_us, left) in [
            (100_000, Some(99)),
            (100_001, Some(98)),
            (9_900_000, Some(1)),
            (9_900_001, None),
            (u64::MAX, None),
        ] {
            let leased = bucket.leased(longest_us).ok();
            let burst = left.map(|burst| Algorithm::TokenBucket { burst });
            assert_eq!(leased, burst, "{longest_us}");
        }
    }

    #[test]
    fn a_log_and_a_window_without_the_mark_have_no_leases() {
        for algorithm in [Algorithm::SlidingLog, sliding(1_000, false)] {
            let windows = [minute(1_000_000), spec(algorithm, 1_000_000, 60_000_000)];
            assert_eq!(spend_by_us(&windows, 1), None);
            let size = TERMS.size(&windows, 1e6, (0, 1_000_000), 1, 1);
            assert_eq!(size, Err(LeaseRefusal::Seldom), "{algorithm:?}");
        }
        assert_eq!(spend_by_us(&[], 1), None);
    }

    #[test]
    fn a_lease_ends_before_its_step_does() {
        let windows = [minute(10)];
        let length_us = |now_us| TERMS.length_us(&windows, now_us);
        assert_eq!(length_us(1_000_000), 0);
        assert_eq!(length_us(1_000_001), 99_900, "as long as the terms say");
        assert_eq!(length_us(1_950_000), 49_950, "less than the step is long");
    }

    #[test]
    fn the_size_is_what_will_be_spent_and_never_more_than_half_of_what_is_to_spare() {
        let (windows, at) = ([minute(60_000)], 1_000_001);
        assert_eq!(reserve(&TERMS, &windows), 200);
        let size = |per_s, remaining, least| TERMS.size(&windows, per_s, (0, remaining), at, least);
        assert_eq!(size(2_000.0, 60_000, 1), Ok(213), "200 and their deviation");
        let renewed = TERMS.size(&windows, 2_000.0, (66, 60_000), at, 8);
        assert_eq!(renewed, Ok(147), "what is held is spent first");
        assert_eq!(size(2_000.0, 400, 1), Ok(100), "half of what is to spare");
        assert_eq!(size(2_000.0, 215, 8), Err(LeaseRefusal::NearLimit));
        assert_eq!(size(2_000.0, 216, 8), Ok(8));
        assert_eq!(size(2_000.0, 0, 1), Err(LeaseRefusal::NearLimit));
        // A tenth of a second: of nine a second less than one more request.
        assert_eq!(size(9.0, 60_000, 1), Err(LeaseRefusal::Seldom));
        assert_eq!(size(11.0, 60_000, 1), Ok(2));
        assert_eq!(size(75.0, 60_000, 8), Err(LeaseRefusal::Seldom));
        assert_eq!(size(85.0, 60_000, 8), Ok(11));
        let near_the_end = TERMS.size(&windows, 2_000.0, (0, 60_000), 1_960_000, 1);
        assert_eq!(near_the_end, Ok(88), "of 40 ms");
        let end_of_step = TERMS.size(&windows, 2_000.0, (0, 60_000), 1_999_900, 1);
        assert_eq!(end_of_step, Err(LeaseRefusal::Seldom));
    }

    #[test]
    fn the_reserve_is_that_of_the_fastest_window() {
        let second = spec(sliding(10_000, true), 3_001, 1_000_000);
        let windows = [minute(60_000), second];
        assert_eq!(reserve(&TERMS, &windows), 601);
    }
}
