//! A clock that stands still while Envoy's worker is too busy for the timer. Deadlines by it leave the sidecar's answer its
//! turn: a client that keeps the worker busy would otherwise make its own verdicts late, and with `when_unavailable: allow`
//! get past its limit.
//!
//! Times are microseconds of a clock that does not step.

/// By how much any timer may be late.
const TOLERANCE_US: u64 = 2_000;

/// The clock.
#[derive(Clone, Copy, Debug)]
pub struct TickClock {
    /// When the timer should have fired at the latest.
    due_us: u64,
    /// For how long the clock has stood still.
    lost_us: u64,
    last_late_us: u64,
}

impl TickClock {
    /// The timer was set for the first time.
    pub const fn new(now_us: u64, period_us: u64) -> Self {
        Self {
            due_us: now_us
                .saturating_add(period_us)
                .saturating_add(TOLERANCE_US),
            lost_us: 0,
            last_late_us: 0,
        }
    }

    /// The time at `now_us`.
    pub const fn at(&self, now_us: u64) -> u64 {
        let late_us = now_us.saturating_sub(self.due_us);
        now_us.saturating_sub(late_us.saturating_add(self.lost_us))
    }

    /// By how much the timer is late, or was the last time.
    pub fn late_us(&self, now_us: u64) -> u64 {
        now_us.saturating_sub(self.due_us).max(self.last_late_us)
    }

    /// The timer has fired or was set again, and fires next after this period.
    pub fn timer_set(&mut self, now_us: u64, period_us: u64) {
        let late_us = now_us.saturating_sub(self.due_us);
        *self = Self {
            lost_us: self.lost_us.saturating_add(late_us),
            last_late_us: late_us,
            ..Self::new(now_us, period_us)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W2: a burst that takes Envoy 220 ms to read, with a timer of 12 ms.
    #[test]
    fn the_time_by_which_a_timer_is_late_does_not_pass() {
        let mut clock = TickClock::new(0, 1_000_000);
        assert_eq!(clock.at(900_000), 900_000);
        clock.timer_set(1_000_000, 12_000);
        assert_eq!(clock.at(1_010_000), 1_010_000);
        assert_eq!(clock.at(1_100_000), 1_014_000, "it stands still");
        assert_eq!(clock.late_us(1_100_000), 86_000);
        clock.timer_set(1_220_000, 12_000);
        assert_eq!(clock.at(1_220_000), 1_014_000);
        assert_eq!(clock.late_us(1_220_000), 206_000);
        assert_eq!(clock.at(1_230_000), 1_024_000, "it goes on");
        // In time: nothing is lost.
        clock.timer_set(1_233_000, 12_000);
        assert_eq!(clock.at(1_240_000), 1_034_000);
        assert_eq!(clock.late_us(1_240_000), 0);
    }
}
