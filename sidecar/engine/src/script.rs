//! What goes to the Lua script and what comes back: its codec, without a Redis client.
//!
//! The contract stands on top of lua/decide.lua. Whoever has a connection sends
//! `EVALSHA <sha of DECIDE> <n> <keys> <arguments>` and decodes the integers of the reply here.

use crate::batch::{Algorithm, Batch, Bucket, BucketSpec, Outcome};

/// The script, whole. It decides and gives back; to reset buckets, `UNLINK` their keys.
pub const DECIDE: &str = include_str!("../../../lua/decide.lua");

const TAKE: u8 = 0;
const PEEK: u8 = 1;
const GIVE_BACK: u8 = 2;
/// Integers of the reply for each decision, after one for the time.
const PER_DECISION: usize = 4;

/// Units to return to one bucket.
#[derive(Clone, Copy, Debug)]
pub struct GiveBack<'a> {
    /// The bucket that they were taken from.
    pub bucket: &'a Bucket,
    /// How many.
    pub cost: u64,
    /// [`Outcome::at_us`] of the decision that took them.
    pub at_us: u64,
}

/// A reply that the script of this version does not send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReplyError {
    /// Not the script's answer to this batch.
    #[error("the script sent {got} integers for {decisions} decisions, not {want}")]
    Length {
        /// Integers received.
        got: usize,
        /// Decisions asked about.
        decisions: usize,
        /// Integers that this many decisions have.
        want: usize,
    },
    /// A number that cannot be.
    #[error("the script sent {value} for `{field}` of decision {decision}")]
    Number {
        /// Which of the decision's numbers.
        field: &'static str,
        /// What was sent.
        value: i64,
        /// Index of the decision.
        decision: usize,
    },
}

/// KEYS for a batch.
pub fn keys(batch: &Batch) -> impl Iterator<Item = &str> {
    batch.buckets.iter().map(|bucket| bucket.key.as_str())
}

/// ARGV for a batch, by Redis's own clock.
#[must_use]
pub fn arguments(batch: &Batch) -> Vec<Vec<u8>> {
    let mut request = Vec::with_capacity(19 * batch.buckets.len() + 11 * batch.decisions.len());
    for bucket in &batch.buckets {
        push_spec(&mut request, &bucket.spec);
    }
    for decision in &batch.decisions {
        request.push(if decision.peek { PEEK } else { TAKE });
        push(&mut request, 2, decision.takes.len() as u64);
        for take in &decision.takes {
            push(&mut request, 4, (take.bucket as u64).saturating_add(1));
            push(&mut request, 4, take.cost);
        }
    }
    vec![request]
}

/// KEYS for give-backs.
pub fn give_back_keys<'a>(returns: &'a [GiveBack<'a>]) -> impl Iterator<Item = &'a str> {
    returns.iter().map(|give| give.bucket.key.as_str())
}

/// ARGV for give-backs. They name each bucket once at most.
#[must_use]
pub fn give_back_arguments(returns: &[GiveBack<'_>]) -> Vec<Vec<u8>> {
    let mut request = Vec::with_capacity(37 * returns.len());
    for give in returns {
        push_spec(&mut request, &give.bucket.spec);
    }
    for (give, index) in returns.iter().zip(1u64..) {
        request.push(GIVE_BACK);
        push(&mut request, 2, 1);
        push(&mut request, 4, index);
        push(&mut request, 4, give.cost);
        push(&mut request, 7, give.at_us);
    }
    vec![request]
}

/// The argument to add for a test that owns the clock.
#[must_use]
pub fn clock(now_us: u64) -> Vec<u8> {
    now_us.to_string().into_bytes()
}

fn push_spec(request: &mut Vec<u8>, spec: &BucketSpec) {
    let rate = spec.token_rate();
    let (kind, a, b) = match spec.algorithm {
        Algorithm::SlidingLog => (1, spec.window_us, 1),
        Algorithm::SlidingWindow { precision_us } => (1, spec.window_us, precision_us),
        Algorithm::FixedWindow => (2, spec.window_us, 0),
        Algorithm::TokenBucket { .. } => (3, rate.per_us, rate.per_unit),
    };
    request.push(kind);
    push(request, 4, spec.most_at_once());
    push(request, 7, a);
    push(request, 7, b);
}

/// The last `bytes` bytes, the highest first. What does not fit becomes the largest that does: a bucket
/// that is not there, which the script refuses, or a cost that no bucket has room for.
fn push(request: &mut Vec<u8>, bytes: usize, value: u64) {
    let most = u64::MAX >> (64 - 8 * bytes);
    request.extend_from_slice(&value.min(most).to_be_bytes()[8 - bytes..]);
}

/// The outcomes of `batch`, from the script's reply.
///
/// # Errors
/// The reply is not one to this batch.
pub fn outcomes(batch: &Batch, reply: &[i64]) -> Result<Vec<Outcome>, ReplyError> {
    let (at_us, rows) = rows(reply, batch.decisions.len())?;
    let outcome = |(decision, row): (usize, &[i64; PER_DECISION])| {
        let number = |field, value: i64| {
            let wrong = ReplyError::Number {
                field,
                value,
                decision,
            };
            u64::try_from(value).map_err(|_| wrong)
        };
        let [said, remaining, reset_us, retry_after_us] = *row;
        let takes = batch.decisions.get(decision).map_or(0, |d| d.takes.len());
        let decided_by = usize::try_from(said.unsigned_abs()).unwrap_or(usize::MAX);
        if !(1..=takes).contains(&decided_by) {
            return Err(ReplyError::Number {
                field: "decided_by",
                value: said,
                decision,
            });
        }
        Ok(Outcome {
            admitted: said > 0,
            decided_by: decided_by - 1,
            remaining: number("remaining", remaining)?,
            reset_us: number("reset", reset_us)?,
            retry_after_us: number("retry_after", retry_after_us)?,
            at_us,
        })
    };
    rows.iter().enumerate().map(outcome).collect()
}

/// Units that each give-back returned, from the script's reply.
///
/// # Errors
/// The reply is not one to so many give-backs.
pub fn returned(returns: &[GiveBack<'_>], reply: &[i64]) -> Result<Vec<u64>, ReplyError> {
    let (_, rows) = rows(reply, returns.len())?;
    let units = |(decision, &[_, value, _, _]): (usize, &[i64; PER_DECISION])| {
        u64::try_from(value).map_err(|_| ReplyError::Number {
            field: "returned",
            value,
            decision,
        })
    };
    rows.iter().enumerate().map(units).collect()
}

/// The time, and the integers of each decision.
fn rows(reply: &[i64], decisions: usize) -> Result<(u64, &[[i64; PER_DECISION]]), ReplyError> {
    let wrong = ReplyError::Length {
        got: reply.len(),
        decisions,
        want: 1 + PER_DECISION * decisions,
    };
    match reply.split_first().map(|(at, rest)| (at, rest.as_chunks())) {
        Some((at, (rows, []))) if rows.len() == decisions => {
            let at_us = u64::try_from(*at).map_err(|_| ReplyError::Number {
                field: "time",
                value: *at,
                decision: 0,
            })?;
            Ok((at_us, rows))
        }
        _ => Err(wrong),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::{Decision, Take};

    fn batch() -> Batch {
        let spec = BucketSpec {
            algorithm: Algorithm::FixedWindow,
            limit: 5,
            window_us: 1_000,
        };
        let key = "k".to_owned();
        let takes = vec![Take { bucket: 0, cost: 2 }];
        Batch {
            buckets: vec![Bucket { key, spec }],
            decisions: vec![Decision { takes, peek: true }],
        }
    }

    #[test]
    fn a_request_is_packed_as_the_script_says() {
        assert_eq!(keys(&batch()).collect::<Vec<_>>(), ["k"]);
        let spec = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 0, 0, 0];
        let decision = [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(arguments(&batch()), [[&spec[..], &decision[..]].concat()]);
    }

    #[test]
    fn a_reply_is_an_outcome_for_each_decision() {
        let outcomes = outcomes(&batch(), &[900, -1, 4, 100, 50]).unwrap();
        let denied = Outcome {
            admitted: false,
            decided_by: 0,
            remaining: 4,
            reset_us: 100,
            retry_after_us: 50,
            at_us: 900,
        };
        assert_eq!(outcomes, [denied]);
    }

    #[test]
    fn a_reply_that_is_not_the_scripts_is_refused() {
        for short in [&[][..], &[900], &[900, 1, 4, 100], &[900, 1, 2, 3, 4, 5]] {
            let error = outcomes(&batch(), short).unwrap_err();
            assert!(matches!(error, ReplyError::Length { want: 5, .. }));
        }
        for said in [0, 2, -2, i64::MIN] {
            let error = outcomes(&batch(), &[900, said, 0, 0, 0]).unwrap_err();
            assert!(error.to_string().contains("`decided_by` of decision 0"));
        }
        assert!(outcomes(&batch(), &[900, 1, -3, 0, 0]).is_err());
    }
}
