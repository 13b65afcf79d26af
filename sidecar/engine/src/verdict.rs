//! Combines the answers of a decision's buckets into its outcome.

use std::cmp::Reverse;

use crate::check::MAX_HELD;

/// The outcome of one decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// All takes had room (and, unless it was a peek, were taken).
    pub admitted: bool,
    /// Index into [`Decision::takes`](crate::Decision::takes) of the bucket that decided. If denied: the one that has room last
    /// (among several, the one with the least remaining, then with the smallest quota, then the first). If admitted: the one with the
    /// least remaining (among several, the one that resets last, then the first).
    pub decided_by: usize,
    /// Units left in that bucket now, after what was taken.
    pub remaining: u64,
    /// By how many units more than its quota it holds: what was charged, or a quota that is smaller now.
    pub over: u64,
    /// Microseconds until that bucket's whole quota is available again if nothing more is taken.
    pub reset_us: u64,
    /// Microseconds until the same decision would be admitted if nothing more is taken; 0 if admitted.
    pub retry_after_us: u64,
    /// How many slots of its buckets had ended by themselves: nobody had freed them.
    pub ended: u64,
    /// The store's clock at the decision, in microseconds; a give-back must name it.
    pub at_us: u64,
}

/// The answer of one bucket to one cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Microseconds until it has room for the cost; 0 if it has.
    pub retry_us: u64,
    /// Units left; below 0 if it holds more than its quota.
    pub remaining: i64,
    /// Microseconds until its whole quota is available again.
    pub reset_us: u64,
    /// Its quota in units.
    pub quota: u64,
}

/// Units left of a quota, below 0 if more are used. Of the most that is counted, as of a window whose count is lost, it is not known
/// by how much.
pub(crate) fn left(quota: u64, used: u64) -> i64 {
    match used < MAX_HELD {
        true => quota.cast_signed() - used.cast_signed(),
        false => quota.saturating_sub(used).cast_signed(),
    }
}

/// True if every bucket has room.
pub(crate) fn all_have_room(looks: &[Look]) -> bool {
    looks.iter().all(|look| look.retry_us == 0)
}

/// The outcome: of a denial the bucket that has room last (of several the one with least remaining, then that of
/// the smallest quota, then the first), of an admission the tightest.
#[must_use]
pub fn outcome(looks: &[Look], at_us: u64) -> Outcome {
    let admitted = all_have_room(looks);
    let rank = |look: &Look| {
        let (quota, reset_us) = if admitted {
            (0, look.reset_us)
        } else {
            (look.quota, 0)
        };
        let last_room = Reverse(look.retry_us);
        (last_room, look.remaining.max(0), quota, Reverse(reset_us))
    };
    let first = looks.iter().enumerate().min_by_key(|(_, look)| rank(look));
    let (decided_by, look) = first.map_or((0, Look::default()), |(index, look)| (index, *look));
    Outcome {
        admitted,
        decided_by,
        remaining: look.remaining.max(0).cast_unsigned(),
        over: look.remaining.min(0).unsigned_abs(),
        reset_us: look.reset_us,
        retry_after_us: look.retry_us,
        ended: 0,
        at_us,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(retry_us: u64, remaining: i64, reset_us: u64) -> Look {
        Look {
            retry_us,
            remaining,
            reset_us,
            quota: 10,
        }
    }

    #[test]
    fn of_equal_waits_the_tightest_window_is_told_wherever_it_is_listed() {
        let of = |quota| move |look: Look| Look { quota, ..look };
        let (wide, tight) = (of(7)(look(5, 3, 8)), of(11)(look(5, 0, 8)));
        assert_eq!(outcome(&[wide, tight], 0).decided_by, 1, "least remaining");
        assert_eq!(outcome(&[tight, wide], 0).decided_by, 0);
        let (large, small) = (of(11)(look(5, 0, 8)), of(7)(look(5, 0, 8)));
        assert_eq!(outcome(&[large, small], 0).decided_by, 1, "smallest quota");
        assert_eq!(outcome(&[small, large], 0).decided_by, 0);
        assert_eq!(outcome(&[small, small], 0).decided_by, 0, "the first");
    }

    #[test]
    fn a_denial_is_decided_by_the_bucket_that_has_room_last() {
        let said = outcome(&[look(0, 0, 9), look(5, 2, 7), look(4, 1, 8)], 100);
        assert!(!said.admitted);
        assert_eq!((said.decided_by, said.retry_after_us), (1, 5));
        assert_eq!((said.remaining, said.reset_us, said.at_us), (2, 7, 100));
    }

    #[test]
    fn an_admission_is_decided_by_the_tightest_bucket() {
        let by = |looks: &[Look]| outcome(looks, 0).decided_by;
        assert_eq!(by(&[look(0, 3, 9), look(0, 2, 1)]), 1, "least remaining");
        assert_eq!(by(&[look(0, 2, 1), look(0, 2, 9)]), 1, "resets last");
        assert_eq!(by(&[look(0, 2, 9), look(0, 2, 9)]), 0, "the first");
    }
}
