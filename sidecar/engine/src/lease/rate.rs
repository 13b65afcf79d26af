//! How many units a key is asked for, per second: an average that forgets exponentially.

/// The time in which the average forgets all but 1/e (37 %) of what it knew. After a second, 2 % are left.
const MEMORY_US: f64 = 250_000.0;

/// An average of the units asked for in the last quarter of a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rate {
    /// Units, each weighted by its age.
    weight: f64,
    at_us: u64,
}

impl Rate {
    /// Adds units that are asked for at `now_us`.
    pub fn add(&mut self, now_us: u64, units: u64) {
        self.add_weight(now_us, float(units));
    }

    /// Adds units that were asked for evenly between `since_us` and now.
    pub fn add_since(&mut self, since_us: u64, now_us: u64, units: u64) {
        let memories = float(now_us.saturating_sub(since_us).max(1)) / MEMORY_US;
        let remembered = (1.0 - (-memories).exp()) / memories;
        self.add_weight(now_us, float(units) * remembered);
    }

    fn add_weight(&mut self, now_us: u64, weight: f64) {
        self.weight = self.weight_at(now_us) + weight;
        self.at_us = self.at_us.max(now_us);
    }

    /// Units per second.
    #[must_use]
    pub fn per_s(&self, now_us: u64) -> f64 {
        self.weight_at(now_us) * 1e6 / MEMORY_US
    }

    fn weight_at(&self, now_us: u64) -> f64 {
        let age_us = now_us.saturating_sub(self.at_us);
        self.weight * (-float(age_us) / MEMORY_US).exp()
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
        assert!(rate.per_s(now_us + 3 * SECOND) < 1.0);
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
