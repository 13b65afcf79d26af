//! Pauses between attempts: exponential, with full jitter so that the sidecars of a fleet do not try in step.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(10);
/// The longest pause after an attempt that failed at once: such an attempt costs Redis nothing.
const LONGEST: Duration = Duration::from_millis(500);
/// The longest pause after an attempt that failed slowly: the server may be overloaded.
const LONGEST_AFTER_SLOW: Duration = Duration::from_secs(4);

/// The next pause.
#[derive(Debug)]
pub struct Backoff {
    most: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { most: SHORTEST }
    }
}

/// A random part of this time, and not none of it.
pub fn random_part(of: Duration) -> Duration {
    // A hash whose key is another one each time.
    let thousandths = RandomState::new().hash_one(()) % 1_000 + 1;
    of.saturating_mul(u32::try_from(thousandths).unwrap_or(1)) / 1_000
}

impl Backoff {
    /// The pause before the next attempt, after one that failed slowly or at once: up to the current maximum.
    pub fn pause(&mut self, was_slow: bool) -> Duration {
        let longest = if was_slow {
            LONGEST_AFTER_SLOW
        } else {
            LONGEST
        };
        let most = self.most.min(longest);
        self.most = self.most.saturating_mul(2).min(longest);
        random_part(most)
    }

    /// Starts again with short pauses, after a success.
    pub fn reset(&mut self) {
        self.most = SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_seconds_where_attempts_are_slow_and_no_attempt_overflows() {
        for (was_slow, longest) in [(false, LONGEST), (true, LONGEST_AFTER_SLOW)] {
            let mut backoff = Backoff::default();
            assert!(backoff.pause(was_slow) <= SHORTEST);
            let pauses: Vec<_> = (0..10_000).map(|_| backoff.pause(was_slow)).collect();
            assert!(pauses.iter().all(|pause| *pause <= longest));
            let above_half = pauses.iter().filter(|pause| **pause >= longest / 2);
            assert!((4_500..5_500).contains(&above_half.count()), "full jitter");
            assert!(backoff.pause(false) <= LONGEST);
            backoff.reset();
            assert!(backoff.pause(was_slow) <= SHORTEST);
        }
    }
}
