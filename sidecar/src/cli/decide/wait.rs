//! How long to sleep before asking again. Pure.

use std::time::Duration;

/// Upper bound of the jitter.
const MOST_JITTER: Duration = Duration::from_secs(1);

/// The pause after a denial without a time.
const NO_TIME: Duration = Duration::from_secs(1);

/// How long to sleep if the units become available after `due` and `left` remains of the wait; `None` if that is too
/// late. `chance` (0 to 1) scales the jitter, so that jobs that were denied together do not all ask again together.
pub fn pause(due: Duration, left: Duration, chance: f64) -> Option<Duration> {
    // Without a minimum, a denial without a time would be retried in a busy loop.
    let due = if due.is_zero() { NO_TIME } else { due };
    let spare = left.checked_sub(due)?;
    let jitter = (due / 10).min(MOST_JITTER).mul_f64(chance.clamp(0.0, 1.0));
    Some(due + jitter.min(spare))
}

/// A random number from 0 to 1; 0 if the system's random source fails.
pub fn chance() -> f64 {
    let random = getrandom::u32().unwrap_or(0);
    f64::from(random) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_wait_is_never_shorter_than_the_retry_after_and_hardly_longer() {
        for (retry_after, left, jitter, expected) in [
            (200, 1_000, 0.0, Some(ms(200))),
            (200, 1_000, 1.0, Some(ms(220))),
            (3_600_000, 7_200_000, 1.0, Some(ms(3_601_000))),
            (0, 5_000, 0.0, Some(NO_TIME)),
            // What comes free too late is not waited for.
            (1_001, 1_000, 0.0, None),
            (1, 0, 1.0, None),
            // The jitter is cut.
            (995, 1_000, 1.0, Some(ms(1_000))),
        ] {
            let waits = pause(ms(retry_after), ms(left), jitter);
            assert_eq!(waits, expected, "{retry_after} {left}");
        }
    }
}
