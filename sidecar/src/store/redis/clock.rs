//! An estimate of a store's clock from its replies, so that a call can carry its deadline in Redis's time, and so that steps
//! of that clock are noticed. Pure.
//!
//! A reply with the time `t`, requested at `sent` and here at `received`, proves that Redis's clock is ahead of ours by at
//! least `t - received` and at most `t - sent`. The largest lower bound is used, so that a deadline in Redis's time comes
//! early, never late. Bounds that contradict each other prove a step. Ours is the monotonic clock.

use std::time::{Duration, Instant};

/// How long a reply is used: clocks drift.
const BELIEVED: Duration = Duration::from_secs(10);

/// A smaller difference is drift, not a step.
const STEP_US: i128 = 10_000;

/// How far the store's clock is ahead of ours, in microseconds: at least, and at most.
type Ahead = (i128, i128);

/// The estimate of one store's clock.
#[derive(Clone, Debug)]
pub struct Clock {
    /// Our clock's zero.
    origin: Instant,
    /// Of this period and of the previous one.
    ahead: [Option<Ahead>; 2],
    period_began: Instant,
}

impl Clock {
    /// An estimate without any reply.
    pub fn new(now: Instant) -> Self {
        Self {
            origin: now,
            ahead: [None; 2],
            period_began: now,
        }
    }

    /// Adds a reply's time; whether it proves that the clock stepped, or that another Redis answers now.
    pub fn observe(&mut self, redis_us: u64, sent: Instant, received: Instant) -> bool {
        if received.saturating_duration_since(self.period_began) >= BELIEVED / 2 {
            self.ahead = [None, self.ahead[0]];
            self.period_began = received;
        }
        let least = i128::from(redis_us) - self.ours(received);
        let most = i128::from(redis_us) - self.ours(sent);
        let back_or_forward = |known: Ahead| (known.0 - most).max(least - known.1);
        let step_us = self.ahead().map_or(0, back_or_forward);
        if step_us > 0 {
            // The estimate contradicts this reply.
            self.ahead = [None; 2];
        }
        let [so_far, _] = self.ahead;
        self.ahead[0] = Some(both(so_far.unwrap_or((least, most)), (least, most)));
        step_us >= STEP_US
    }

    /// One of our instants in Redis's clock, in microseconds; never late. `None` before the first reply.
    pub fn at(&self, moment: Instant) -> Option<u64> {
        let at = self.ours(moment) + self.ahead()?.0;
        Some(u64::try_from(at).unwrap_or(0))
    }

    fn ahead(&self) -> Option<Ahead> {
        self.ahead.into_iter().flatten().reduce(both)
    }

    fn ours(&self, moment: Instant) -> i128 {
        let since = |a: Instant, b: Instant| {
            i128::try_from(a.saturating_duration_since(b).as_micros()).unwrap_or(i128::MAX)
        };
        since(moment, self.origin) - since(self.origin, moment)
    }
}

/// What two replies prove.
fn both(one: Ahead, other: Ahead) -> Ahead {
    (one.0.max(other.0), one.1.min(other.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn the_estimate_is_early_and_never_late() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        assert_eq!(clock.at(start), None);
        // Redis's clock is 5 s ahead; answers take 1 ms there and 3 ms back, then 1 and 1.
        let redis_us =
            |moment: Instant| u64::try_from((moment - start).as_micros()).unwrap() + 5_000_000;
        let mut now = start;
        for back in [3, 1, 7] {
            clock.observe(redis_us(now + MS), now, now + (1 + back) * MS);
            now += 20 * MS;
        }
        assert_eq!(clock.at(now), Some(redis_us(now) - 1_000));
    }

    #[test]
    fn a_clock_step_is_followed_at_once() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        clock.observe(9_000_000, start, start + MS);
        // Forward.
        assert!(clock.observe(90_000_000, start + 10 * MS, start + 11 * MS));
        assert_eq!(clock.at(start + 11 * MS), Some(90_000_000));
        // And back.
        assert!(clock.observe(1_000_000, start + 20 * MS, start + 21 * MS));
        assert_eq!(clock.at(start + 21 * MS), Some(1_000_000));
        assert!(!clock.observe(1_010_000, start + 30 * MS, start + 31 * MS));
    }

    #[test]
    fn a_slow_answer_is_no_step_and_hides_none_that_is_longer() {
        let start = Instant::now();
        for (step_ms, is_step) in [(-111, true), (-99, false), (99, false), (111, true)] {
            let mut clock = Clock::new(start);
            // The first takes 100 ms there or back, and the second as well: nobody knows which way.
            assert!(!clock.observe(1_000_000, start, start + 100 * MS));
            let second = u64::try_from(2_000_000 + 1_000 * step_ms).unwrap();
            let (sent, received) = (start + 1_000 * MS, start + 1_100 * MS);
            assert_eq!(clock.observe(second, sent, received), is_step, "{step_ms}");
        }
    }

    #[test]
    fn an_old_reply_is_forgotten() {
        let start = Instant::now();
        let mut clock = Clock::new(start);
        clock.observe(1_000_000, start, start);
        let mut now = start;
        for step in 1..=30_u64 {
            // Slow answers, and a clock that loses a tenth of a millisecond each second.
            now = start + Duration::from_secs(step);
            clock.observe(1_000_000 + step * 999_900, now - 50 * MS, now);
        }
        let true_us = 1_000_000 + 30 * 999_900;
        let estimate = clock.at(now).unwrap();
        assert!(estimate <= true_us + 1_000, "{estimate} {true_us}");
    }
}
