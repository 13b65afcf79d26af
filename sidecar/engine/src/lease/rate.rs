//! How many units a key is asked for, per second: two averages that forget exponentially.

/// The time in which the quick average forgets all but 1/e (37 %) of what it knew. After a second, 2 % are left.
const QUICK_US: f64 = 250_000.0;
/// That of the slow one, for keys that are asked for so seldom that the quick one knows nothing of them.
const SLOW_US: f64 = 2_000_000.0;
/// The quick average decides from so many units on.
const ENOUGH: f64 = 8.0;

/// How often a key is asked for: if often, in the last quarter of a second, and else in the last two seconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Units, each weighted by its age.
    quick: f64,
    slow: f64,
    at_us: u64,
}

impl Rate {
    /// Adds units that are asked for at `now_us`.
    pub fn add(&mut self, now_us: u64, units: u64) {
        self.add_weights(now_us, [float(units); 2]);
    }

    /// Adds units that were asked for evenly between `since_us` and now.
    pub fn add_since(&mut self, since_us: u64, now_us: u64, units: u64) {
        let elapsed_us = float(now_us.saturating_sub(since_us).max(1));
        let remembered = |memory_us: f64| {
            let memories = elapsed_us / memory_us;
            float(units) * (1.0 - (-memories).exp()) / memories
        };
        self.add_weights(now_us, [QUICK_US, SLOW_US].map(remembered));
    }

    fn add_weights(&mut self, now_us: u64, [more_quick, more_slow]: [f64; 2]) {
        let (quick, slow) = self.weights_at(now_us);
        (self.quick, self.slow) = (quick + more_quick, slow + more_slow);
        self.at_us = self.at_us.max(now_us);
    }

    /// Units per second.
    #[must_use]
    pub fn per_s(&self, now_us: u64) -> f64 {
        self.per_s_before(now_us, 0)
    }

    /// Units per second before the request that asks for so many now: at the time of a request, an average that has it in it is too high.
    #[must_use]
    pub fn per_s_before(&self, now_us: u64, units: u64) -> f64 {
        let (quick, slow) = self.weights_at(now_us);
        let before = |weight: f64| (weight - float(units)).max(0.0);
        let (quick, slow) = (before(quick), before(slow));
        if quick >= ENOUGH {
            quick * 1e6 / QUICK_US
        } else {
            // Those that are slower than this were quick until lately.
            (slow * 1e6 / SLOW_US).min(ENOUGH * 1e6 / QUICK_US)
        }
    }

    fn weights_at(&self, now_us: u64) -> (f64, f64) {
        let age_us = float(now_us.saturating_sub(self.at_us));
        let left = |weight: f64, memory_us: f64| weight * (-age_us / memory_us).exp();
        (left(self.quick, QUICK_US), left(self.slow, SLOW_US))
    }
}

/// Exact up to 2^32 - 1, which is more than a quota or an age that matters.
pub(super) fn float(number: u64) -> f64 {
    f64::from(u32::try_from(number).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    /// Asks for a unit this many times a second, for so long; returns when it ends.
    fn ask(rate: &mut Rate, from_us: u64, per_s: u64, for_us: u64) -> u64 {
        let (step, end) = (SECOND / per_s, from_us + for_us);
        let mut now_us = from_us;
        while now_us < end {
            rate.add(now_us, 1);
            now_us += step;
        }
        end
    }

    #[test]
    fn the_average_follows_a_change_within_a_second() {
        let mut rate = Rate::default();
        let mut now_us = 7 * SECOND;
        for per_s in [2_000, 100, 10_000, 500] {
            now_us = ask(&mut rate, now_us, per_s, SECOND);
            let (is, should) = (rate.per_s(now_us), float(per_s));
            // Two percent of the earlier rate are left after a second.
            let most = should * 0.05 + 0.02 * 10_000.0;
            assert!((is - should).abs() <= most, "{is} of {should}");
        }
        assert!(rate.per_s(now_us + SECOND) <= 32.0);
        assert!(rate.per_s(now_us + 20 * SECOND) < 1.0);
    }

    #[test]
    fn a_key_of_a_few_requests_a_second_has_a_rate_too() {
        for per_s in [1, 3, 20] {
            let mut rate = Rate::default();
            let now_us = ask(&mut rate, SECOND, per_s, 10 * SECOND);
            let (is, should) = (rate.per_s(now_us), float(per_s));
            assert!((is - should).abs() <= should * 0.25, "{is} of {should}");
        }
    }

    #[test]
    fn units_that_are_told_of_later_count_as_when_they_were_asked_for() {
        for told_every_us in [1_000, 50_000, 400_000] {
            let mut rate = Rate::default();
            let mut now_us = SECOND;
            while now_us < 3 * SECOND {
                now_us += told_every_us;
                rate.add_since(now_us - told_every_us, now_us, told_every_us / 1_000);
            }
            let is = rate.per_s(now_us);
            assert!((is - 1_000.0).abs() < 5.0, "{is}");
        }
    }

    #[test]
    fn weights_count_and_the_clock_never_runs_backward_here() {
        let mut rate = Rate::default();
        rate.add(SECOND, 50);
        assert!((rate.per_s(SECOND) - 200.0).abs() < 1e-9);
        rate.add(SECOND / 2, 50);
        // An earlier time counts as now.
        assert!((rate.per_s(SECOND) - 400.0).abs() < 1e-9);
        assert!(rate.per_s(SECOND + 250_000) < 150.0);
    }
}
