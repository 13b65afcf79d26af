//! What comes back from the script.

use super::Settled;
use crate::algorithm::TokenRate;
use crate::batch::{Batch, Decision};
use crate::hold::{Done, Held};
use crate::verdict::Outcome;

/// Bytes of a row of the reply: result 4, remaining 5, reset 7, retry-after 7, time 7.
const ROW: usize = 30;
/// Bytes of the reply of a call that came too late: the time.
const CLOCK: usize = 7;

/// The script's answer to one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<T> {
    /// Redis's clock when the script ran, microseconds.
    pub now_us: u64,
    /// For each decision or settlement what became of it, in order. `None`: the script ran after its not-after
    /// time, and has taken nothing and written nothing.
    pub each: Option<Vec<Result<T, BrokenState>>>,
}

/// A key holds something that this version of the script did not write. Decisions that touch it take nothing;
/// those beside them in the call are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a key in Redis holds something that this version did not write: reset the limit for that key"
)]
pub struct BrokenState;

/// A reply that the script of this version does not send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the script {0}")]
pub struct ReplyError(pub String);

/// The outcomes of a batch.
pub(super) fn outcomes(batch: &Batch, reply: &[u8]) -> Result<Reply<Outcome>, ReplyError> {
    // Each hold that it leaves has a row, which says nothing, and each name of slots one that says how many others had ended.
    let rows_of = |decision: &Decision| {
        let takes = usize::from(!decision.takes.is_empty());
        takes + decision.leaves().len() + decision.stores().len()
    };
    let rows = batch.decisions.iter().map(rows_of);
    read(reply, rows, |index, result, outcome, more| {
        let decision = batch.decisions.get(index);
        let takes = decision.map_or(0, |decision| decision.takes.len().max(1));
        if outcome.decided_by < takes {
            let stores = decision.map_or(0, |decision| decision.stores().len());
            let stored = more.iter().rev().take(stores);
            let ended = stored.map(|row| read_row(row).1.retry_after_us).sum();
            return Ok(Outcome { ended, ..outcome });
        }
        Err(ReplyError(format!(
            "says that take {result} decided decision {index}, of {takes}"
        )))
    })
}

/// What became of so many settlements. What a hold is of comes before its row: the time when it was left, and its buckets.
pub(super) fn settled(settlements: usize, reply: &[u8]) -> Result<Reply<Settled>, ReplyError> {
    let (hold, rows) = match settlements {
        1 => reply.split_at(reply.len().saturating_sub(ROW)),
        _ => (&[][..], reply),
    };
    let (left, of) = hold.split_at_checked(CLOCK).unwrap_or_default();
    let held = |bytes: &[u8]| {
        let [name, at_us, per_us, per_unit] =
            [0, 1, 2, 3].map(|index| bytes.chunks(CLOCK).nth(index).map_or(0, number));
        Held {
            name,
            at_us: if at_us > 0 { at_us } else { number(left) },
            rate: TokenRate { per_us, per_unit },
        }
    };
    let of: Vec<_> = of.chunks(4 * CLOCK).map(held).collect();
    read(
        rows,
        std::iter::repeat_n(1, settlements),
        |_, result, row, _| {
            let done = match result {
                1 => Done::Returned(row.remaining),
                2 => Done::Added(row.remaining),
                _ => Done::Nothing,
            };
            let of = of.clone();
            Ok(Settled { done, of })
        },
    )
}

/// What the rows of each entry say, of those that have so many each: the first, and more.
fn read<T>(
    reply: &[u8],
    rows_of: impl Iterator<Item = usize> + Clone,
    each: impl Fn(usize, i32, Outcome, &[[u8; ROW]]) -> Result<T, ReplyError>,
) -> Result<Reply<T>, ReplyError> {
    if reply.len() == CLOCK {
        let now_us = number(reply);
        return Ok(Reply { now_us, each: None });
    }
    let (decisions, (rows, rest)) = (rows_of.clone().sum::<usize>(), reply.as_chunks::<ROW>());
    let Some(first) = rows
        .first()
        .filter(|_| rest.is_empty() && rows.len() == decisions)
    else {
        return Err(ReplyError(format!(
            "sent {} bytes for {decisions} decisions, not {}",
            reply.len(),
            ROW * decisions
        )));
    };
    let of_each = rows_of.scan(0, |next, rows_of| {
        let rows = rows.get(*next..*next + rows_of)?;
        *next += rows_of;
        rows.split_first()
    });
    let read = |(index, (row, more))| match read_row(row) {
        (0, _) => Ok(Err(BrokenState)),
        (result, outcome) => each(index, result, outcome, more).map(Ok),
    };
    Ok(Reply {
        now_us: read_row(first).1.at_us,
        each: Some(of_each.enumerate().map(read).collect::<Result<_, _>>()?),
    })
}

fn number(bytes: &[u8]) -> u64 {
    let digits = bytes.iter();
    digits.fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// What the script says of one decision: its result, and what that means.
fn read_row(row: &[u8; ROW]) -> (i32, Outcome) {
    let result = i32::from_be_bytes([row[0], row[1], row[2], row[3]]);
    // The sign of the fifth byte is that of the number.
    let left = i64::from(row[4].cast_signed()) << 32 | number(&row[5..9]).cast_signed();
    let outcome = Outcome {
        admitted: result > 0,
        decided_by: (result.unsigned_abs() as usize).wrapping_sub(1),
        remaining: left.max(0).cast_unsigned(),
        over: left.min(0).unsigned_abs(),
        reset_us: number(&row[9..16]),
        retry_after_us: number(&row[16..23]),
        ended: 0,
        at_us: number(&row[23..30]),
    };
    (result, outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test::decision;

    const NOW_US: u64 = 1_790_000_000_123_456;

    /// Of so many decisions with a take each. Replies do not depend on the buckets.
    fn batch(decisions: usize) -> Batch {
        Batch {
            buckets: Vec::new(),
            decisions: vec![decision(&[0], 2, false); decisions],
        }
    }

    fn row(result: i32) -> Vec<u8> {
        let mut row = result.to_be_bytes().to_vec();
        row.extend([0, 0, 0, 0, 4]);
        for value in [100, 50, NOW_US] {
            row.extend_from_slice(&value.to_be_bytes()[1..]);
        }
        row
    }

    fn denied() -> Outcome {
        Outcome {
            admitted: false,
            decided_by: 0,
            remaining: 4,
            over: 0,
            reset_us: 100,
            retry_after_us: 50,
            ended: 0,
            at_us: NOW_US,
        }
    }

    #[test]
    fn a_reply_is_an_outcome_for_each_decision() {
        let reply = outcomes(&batch(1), &row(-1)).unwrap();
        let each = Some(vec![Ok(denied())]);
        let now_us = NOW_US;
        assert_eq!(reply, Reply { now_us, each });
    }

    #[test]
    fn what_remains_below_zero_is_over() {
        let mut row = row(-1);
        row[4..9].copy_from_slice(&(-3_i64).to_be_bytes()[3..]);
        let each = outcomes(&batch(1), &row).unwrap().each.unwrap();
        let (remaining, over) = (0, 3);
        assert_eq!(
            each,
            [Ok(Outcome {
                remaining,
                over,
                ..denied()
            })]
        );
    }

    #[test]
    fn a_reply_that_is_only_a_time_says_that_the_call_came_too_late() {
        let reply = outcomes(&batch(3), &NOW_US.to_be_bytes()[1..]);
        let (now_us, each) = (NOW_US, None);
        assert_eq!(reply, Ok(Reply { now_us, each }));
    }

    #[test]
    fn a_decision_over_a_broken_key_leaves_the_others_their_outcomes() {
        let reply = [row(0), row(-1)].concat();
        let each = outcomes(&batch(2), &reply).unwrap().each.unwrap();
        assert_eq!(each, [Err(BrokenState), Ok(denied())]);
    }

    #[test]
    fn a_reply_that_is_not_the_scripts_is_refused() {
        for wrong in [&[][..], &row(1)[..29], &[row(1), row(1)].concat()] {
            let error = outcomes(&batch(1), wrong).unwrap_err();
            assert!(error.to_string().contains("bytes for 1 decisions"));
        }
        for result in [2, -2, i32::MIN] {
            let error = outcomes(&batch(1), &row(result)).unwrap_err();
            assert!(error.to_string().contains("decided decision 0, of 1"));
        }
    }
}
