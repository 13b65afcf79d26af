//! A clock that stands still while Envoy's worker is too busy for the timer. Deadlines by it leave the sidecar's answer its
//! turn: a client that keeps the worker busy would otherwise make its own verdicts late, and with `when_unavailable: allow`
//! get past its limit.
//!
//! Times are microseconds of a clock that does not step.

/// By how much any timer may be late.
const TOLERANCE_US: u64 = 2_000;

/// The clock. It stands still until the timer is set.
#[derive(Clone, Copy, Debug, Default)]
pub struct TickClock {
    /// When the timer should have fired at the latest.
    due_us: u64,
    /// For how long the clock has stood still.
    lost_us: u64,
}

impl TickClock {
    /// The time at `now_us`.
    pub const fn at(&self, now_us: u64) -> u64 {
        let late_us = now_us.saturating_sub(self.due_us);
        now_us.saturating_sub(late_us.saturating_add(self.lost_us))
    }

    /// Whether it stands still.
    pub const fn is_late(&self, now_us: u64) -> bool {
        now_us > self.due_us
    }

    /// The timer has fired or was set, and fires next after this period.
    pub const fn timer_set(&mut self, now_us: u64, period_us: u64) {
        let late_us = now_us.saturating_sub(self.due_us);
        self.lost_us = self.lost_us.saturating_add(late_us);
        self.due_us = now_us
            .saturating_add(period_us)
            .saturating_add(TOLERANCE_US);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W2: a burst that takes Envoy 220 ms to read, with a timer of 12 ms.
    #[test]
    fn the_time_by_which_a_timer_is_late_does_not_pass() {
        let mut clock = TickClock::default();
        assert_eq!(clock.at(900_000), 0);
        clock.timer_set(1_000_000, 12_000);
        assert_eq!(clock.at(1_010_000), 10_000);
        assert_eq!(clock.at(1_100_000), 14_000, "it stands still");
        assert!(clock.is_late(1_100_000) && !clock.is_late(1_014_000));
        clock.timer_set(1_220_000, 12_000);
        assert_eq!(clock.at(1_220_000), 14_000);
        assert_eq!(clock.at(1_230_000), 24_000, "it goes on");
        // In time: nothing is lost.
        clock.timer_set(1_233_000, 12_000);
        assert_eq!(clock.at(1_240_000), 34_000);
    }
}
