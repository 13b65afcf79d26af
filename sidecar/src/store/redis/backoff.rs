//! Pauses between attempts to connect: exponential, with jitter so that sidecars do not retry in step.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

const SHORTEST: Duration = Duration::from_millis(10);
const LONGEST: Duration = Duration::from_millis(250);

/// The next pause.
#[derive(Debug)]
pub struct Backoff {
    next: Duration,
    random: RandomState,
    count: u64,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            next: SHORTEST,
            random: RandomState::new(),
            count: 0,
        }
    }
}

impl Backoff {
    /// The pause before the next attempt: between half of the current maximum and all of it.
    pub fn pause(&mut self) -> Duration {
        let most = self.next;
        self.next = most.saturating_mul(2).min(LONGEST);
        self.count = self.count.wrapping_add(1);
        // The standard library's keyed hash of a counter is random enough to be out of step.
        let mut hasher = self.random.build_hasher();
        hasher.write_u64(self.count);
        let thousandths = u32::try_from(hasher.finish() % 500).unwrap_or(0) + 500;
        most.saturating_mul(thousandths) / 1_000
    }

    /// Starts again with short pauses, after a success.
    pub fn reset(&mut self) {
        self.next = SHORTEST;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_quarter_of_a_second_and_no_attempt_overflows() {
        let mut backoff = Backoff::default();
        assert!(backoff.pause() <= SHORTEST);
        let pauses: Vec<_> = (0..10_000).map(|_| backoff.pause()).collect();
        assert!(pauses.iter().all(|pause| *pause >= SHORTEST / 2));
        assert!(pauses.iter().all(|pause| *pause <= LONGEST));
        assert!(pauses[100..].iter().all(|pause| *pause >= LONGEST / 2));
        let apart = pauses[9_000..].windows(2).filter(|two| two[0] != two[1]);
        assert!(apart.count() > 900);
        backoff.reset();
        assert!(backoff.pause() <= SHORTEST);
    }
}
