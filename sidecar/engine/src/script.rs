//! What goes to the Lua script and what comes back: its codec, without a Redis client.
//!
//! The contract stands on top of lua/decide.lua. Whoever has a connection sends
//! `EVALSHA <sha of DECIDE> <n> <keys> <arguments>` and decodes the string of the reply here.

use crate::batch::{Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome};
use crate::receipt::Returns;
use std::collections::BTreeSet;

/// The script, whole. It decides and gives back; to reset buckets, `UNLINK` their keys.
pub const DECIDE: &str = concat!(
    include_str!("../../../lua/rare.lua"),
    include_str!("../../../lua/decide.lua")
);

const TAKE: u8 = 0;
const PEEK: u8 = 1;
const GIVE_BACK: u8 = 2;
const RECEIPTS: u8 = 4;
const RETURN: u8 = 5;
/// The kind of key that is a receipt.
const RECEIPT: u8 = 4;
/// Bytes of the reply for each entry of the request: said 4, remaining 4, reset 7, retry-after 7, time 7.
const ROW: usize = 29;

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
    #[error("the script sent {got} bytes for {decisions} decisions, not {want}")]
    Length {
        /// Bytes received.
        got: usize,
        /// Decisions asked about.
        decisions: usize,
        /// Bytes that this many decisions have.
        want: usize,
    },
    /// The take that it says decided is not there.
    #[error("the script says that take {said} decided decision {decision}, of {takes}")]
    DecidedBy {
        /// What was sent: from 1, negative if denied.
        said: i32,
        /// Index of the decision.
        decision: usize,
        /// Takes that it has.
        takes: usize,
    },
}

/// KEYS for a batch.
pub fn keys(batch: &Batch) -> impl Iterator<Item = &str> {
    let buckets = batch.buckets.iter().map(|bucket| bucket.key.as_str());
    let receipts = batch.decisions.iter().flat_map(Decision::leaves);
    buckets.chain(receipts.map(|receipt| receipt.key.as_str()))
}

/// ARGV for a batch, by Redis's own clock.
#[must_use]
pub fn arguments(batch: &Batch) -> Vec<Vec<u8>> {
    let mut request = Vec::with_capacity(19 * batch.buckets.len() + 11 * batch.decisions.len());
    for bucket in &batch.buckets {
        push_spec(&mut request, &bucket.spec);
    }
    for receipt in batch.decisions.iter().flat_map(Decision::leaves) {
        push_receipt(&mut request, receipt.units, receipt.lifetime_us);
    }
    let mut receipt = (batch.buckets.len() as u64).saturating_add(1);
    for decision in &batch.decisions {
        request.push(if decision.peek { PEEK } else { TAKE });
        push(&mut request, 2, decision.takes.len() as u64);
        for take in &decision.takes {
            push(&mut request, 4, (take.bucket as u64).saturating_add(1));
            push(&mut request, 4, take.cost);
        }
        if !decision.leaves().is_empty() {
            let receipts = decision.leaves().len() as u64;
            request.push(RECEIPTS);
            push(&mut request, 2, receipts);
            push(&mut request, 4, receipt);
            push(&mut request, 4, 0);
            receipt = receipt.saturating_add(receipts);
        }
    }
    vec![request]
}

/// KEYS for returns.
pub fn return_keys(returns: &Returns) -> impl Iterator<Item = &str> {
    let buckets = returns.buckets.iter().map(|bucket| bucket.key.as_str());
    buckets.chain(receipt_keys(returns))
}

/// The receipts of returns, each once: a key may be named only once in a call.
fn receipt_keys(returns: &Returns) -> Vec<&str> {
    let keys: BTreeSet<_> = returns.returns.iter().map(|r| r.receipt.as_str()).collect();
    keys.into_iter().collect()
}

/// ARGV for returns.
#[must_use]
pub fn return_arguments(returns: &Returns) -> Vec<Vec<u8>> {
    let mut request = Vec::new();
    for bucket in &returns.buckets {
        push_spec(&mut request, &bucket.spec);
    }
    let receipts = receipt_keys(returns);
    for _ in &receipts {
        push_receipt(&mut request, 0, 0);
    }
    for one in &returns.returns {
        let receipt = receipts.binary_search(&one.receipt.as_str());
        let receipt = receipt.map_or(u64::MAX, |place| (returns.buckets.len() + place + 1) as u64);
        request.push(RETURN);
        push(&mut request, 2, one.buckets.len() as u64);
        push(&mut request, 4, receipt);
        push(&mut request, 4, one.units);
        for bucket in &one.buckets {
            push(&mut request, 4, (*bucket as u64).saturating_add(1));
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

/// A receipt to be left, or one of no units, which is to be read.
fn push_receipt(request: &mut Vec<u8>, units: u64, lifetime_us: u64) {
    request.push(RECEIPT);
    push(request, 4, units);
    push(request, 7, lifetime_us);
    push(request, 7, 0);
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
pub fn outcomes(batch: &Batch, reply: &[u8]) -> Result<Vec<Outcome>, ReplyError> {
    let rows = rows(reply, batch.decisions.iter().map(rows_of).sum())?;
    let mut next = 0;
    let first_rows = batch.decisions.iter().filter_map(|decision| {
        let row = rows.get(next);
        next += rows_of(decision);
        row
    });
    let rows = first_rows.zip(&batch.decisions).enumerate();
    rows.map(|(index, (row, decision))| {
        let row = Row::read(row);
        let takes = decision.takes.len();
        let decided_by = usize::try_from(row.said.unsigned_abs()).unwrap_or(usize::MAX);
        if !(1..=takes).contains(&decided_by) {
            return Err(ReplyError::DecidedBy {
                said: row.said,
                decision: index,
                takes,
            });
        }
        Ok(Outcome {
            admitted: row.said > 0,
            decided_by: decided_by - 1,
            remaining: row.remaining,
            reset_us: row.reset_us,
            retry_after_us: row.retry_after_us,
            at_us: row.at_us,
        })
    })
    .collect()
}

/// Units that each give-back returned, from the script's reply.
///
/// # Errors
/// The reply is not one to so many give-backs.
pub fn returned(returns: &[GiveBack<'_>], reply: &[u8]) -> Result<Vec<u64>, ReplyError> {
    let rows = rows(reply, returns.len())?;
    Ok(rows.iter().map(|row| Row::read(row).remaining).collect())
}

/// Units that each return gave back, from the script's reply: to the window that most were given back to.
///
/// # Errors
/// The reply is not one to so many returns.
pub fn returned_units(returns: &Returns, reply: &[u8]) -> Result<Vec<u64>, ReplyError> {
    let rows = rows(reply, returns.returns.len())?;
    Ok(rows.iter().map(|row| Row::read(row).remaining).collect())
}

/// A decision has a row, and another if it leaves receipts.
fn rows_of(decision: &Decision) -> usize {
    1 + usize::from(!decision.leaves().is_empty())
}

fn rows(reply: &[u8], decisions: usize) -> Result<&[[u8; ROW]], ReplyError> {
    match reply.as_chunks() {
        (rows, []) if rows.len() == decisions => Ok(rows),
        _ => Err(ReplyError::Length {
            got: reply.len(),
            decisions,
            want: ROW * decisions,
        }),
    }
}

/// What the script says of one decision.
struct Row {
    said: i32,
    remaining: u64,
    reset_us: u64,
    retry_after_us: u64,
    at_us: u64,
}

impl Row {
    fn read(row: &[u8; ROW]) -> Self {
        let number = |from: usize, to: usize| {
            let bytes = row.iter().take(to).skip(from);
            bytes.fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Row {
            said: i32::from_be_bytes([row[0], row[1], row[2], row[3]]),
            remaining: number(4, 8),
            reset_us: number(8, 15),
            retry_after_us: number(15, 22),
            at_us: number(22, 29),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Take;

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
            decisions: vec![Decision {
                takes,
                peek: true,
                receipts: Vec::new(),
            }],
        }
    }

    #[test]
    fn a_request_is_packed_as_the_script_says() {
        assert_eq!(keys(&batch()).collect::<Vec<_>>(), ["k"]);
        let spec = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 0, 0, 0];
        let decision = [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2];
        assert_eq!(arguments(&batch()), [[&spec[..], &decision[..]].concat()]);
    }

    fn row(said: i32) -> Vec<u8> {
        let mut row = said.to_be_bytes().to_vec();
        for (bytes, value) in [(4, 4), (7, 100), (7, 50), (7, 1_790_000_000_123_456)] {
            push(&mut row, bytes, value);
        }
        row
    }

    #[test]
    fn a_reply_is_an_outcome_for_each_decision() {
        let denied = Outcome {
            admitted: false,
            decided_by: 0,
            remaining: 4,
            reset_us: 100,
            retry_after_us: 50,
            at_us: 1_790_000_000_123_456,
        };
        assert_eq!(outcomes(&batch(), &row(-1)), Ok(vec![denied]));
    }

    #[test]
    fn a_reply_that_is_not_the_scripts_is_refused() {
        for wrong in [&[][..], &row(1)[..28], &[row(1), row(1)].concat()] {
            let error = outcomes(&batch(), wrong).unwrap_err();
            assert!(matches!(error, ReplyError::Length { want: ROW, .. }));
        }
        for said in [0, 2, -2, i32::MIN] {
            let error = outcomes(&batch(), &row(said)).unwrap_err();
            assert!(error.to_string().contains("decided decision 0, of 1"));
        }
    }
}
