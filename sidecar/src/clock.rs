//! The clocks of this process. Decisions use a monotonic clock; wall-clock time is only shown to people.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// Both clocks at the first reading.
struct Start {
    steady: Instant,
    wall: Duration,
}

static START: LazyLock<Start> = LazyLock::new(|| Start {
    steady: Instant::now(),
    wall: wall(),
});

/// Microseconds since the first reading of a clock in this process; monotonic.
pub fn now_us() -> u64 {
    micros(START.steady.elapsed())
}

/// Microseconds since 1970: the wall clock at the first reading plus monotonic time since. For fixed windows, which
/// must begin when those of other machines do.
pub fn steady_unix_us() -> u64 {
    micros(START.wall + START.steady.elapsed())
}

/// Milliseconds since 1970 by this machine's wall clock, for people. May step.
pub fn unix_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

/// The wall clock; a time before 1970 counts as 1970.
fn wall() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// A duration in whole microseconds.
pub fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn now_us_counts_from_the_start_and_the_other_two_from_1970() {
        let before = now_us();
        assert!(steady_unix_us().abs_diff(unix_ms() * 1_000) < 60_000_000);
        assert!(steady_unix_us() > 1_000_000 * now_us());
        assert!(now_us() >= before);
    }
}
