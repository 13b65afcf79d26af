//! The clocks of this process. What is decided is timed by one that does not step; only people are told the wall's.

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// When the clocks were first read, by both.
struct Start {
    steady: Instant,
    wall: Duration,
}

static START: LazyLock<Start> = LazyLock::new(|| Start {
    steady: Instant::now(),
    wall: wall(),
});

/// Microseconds since this process first asked; never steps.
pub fn now_us() -> u64 {
    micros(START.steady.elapsed())
}

/// Microseconds since 1970 by the wall's clock at the first question and a clock that does not step from then on: for
/// fixed windows that begin where those of other machines do.
pub fn steady_unix_us() -> u64 {
    micros(START.wall + START.steady.elapsed())
}

/// Milliseconds since 1970 by this machine's clock, as people read it. May step.
pub fn unix_ms() -> u64 {
    u64::try_from(wall().as_millis()).unwrap_or(u64::MAX)
}

/// Before 1970 it is 1970.
fn wall() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_counts_from_the_start_and_the_other_two_from_1970() {
        let before = now_us();
        assert!(steady_unix_us().abs_diff(unix_ms() * 1_000) < 60_000_000);
        assert!(steady_unix_us() > 1_000_000 * now_us());
        assert!(now_us() >= before);
    }
}
