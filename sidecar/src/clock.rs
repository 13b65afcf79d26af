//! The clocks of this process. Waits, leases and cached denials are timed by the monotonic clock; the wall clock is that of the
//! embedded store and of overrides, and is shown to people.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time since the first reading of a clock in this process; monotonic.
pub fn monotonic() -> Duration {
    START.elapsed()
}

/// The monotonic time in microseconds.
pub fn now_us() -> u64 {
    micros(monotonic())
}

/// Microseconds since 1970 by this machine's wall clock, for windows that must begin when those of other machines do. May
/// step.
pub fn unix_us() -> u64 {
    micros(wall())
}

/// Milliseconds since 1970 by this machine's wall clock, for people. May step.
pub fn unix_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock; a time before 1970 counts as 1970.
fn wall() -> Duration {
    let wall = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    #[cfg(test)]
    let wall = tests::stepped(wall);
    wall
}

/// A duration in whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
pub(crate) mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// How far steps have moved this thread's wall clock, in microseconds.
        static STEPS_US: Cell<i128> = const { Cell::new(0) };
    }

    /// Sets this thread's wall clock forward, or back.
    pub fn step_us(by_us: i128) {
        STEPS_US.set(STEPS_US.get() + by_us);
    }

    pub(super) fn stepped(wall: Duration) -> Duration {
        let wall_us = i128::from(micros(wall)) + STEPS_US.get();
        Duration::from_micros(u64::try_from(wall_us).unwrap_or(0))
    }

    #[test]
    fn now_us_counts_from_the_start_and_the_other_two_from_1970() {
        let before = now_us();
        assert!(unix_us().abs_diff(unix_ms() * 1_000) < 60_000_000);
        assert!(unix_us() > 1_000_000 * now_us());
        assert!(now_us() >= before);
    }
}
