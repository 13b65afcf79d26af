//! What goes to the Lua script and what comes back: its codec, without a Redis client.
//!
//! The contract stands on top of lua/decide.lua. Whoever has a connection sends
//! `EVALSHA <sha of DECIDE> <n> <keys> <arguments>` and decodes the string of the reply here.

mod reply;

pub use reply::{
    BrokenState, Reply, ReplyError, outcomes, redeemed, returned, returned_units, written,
};

use crate::batch::{Algorithm, Batch, Bucket, BucketSpec, Decision, Receipt, Record};
use crate::receipt::Returns;
use std::collections::BTreeSet;

/// The script, whole. It decides, gives back and writes back; to reset buckets, `UNLINK` their keys.
pub const DECIDE: &str = concat!(
    include_str!("../../../lua/slow_path.lua"),
    include_str!("../../../lua/decide.lua")
);

const TAKE: u8 = 0;
const PEEK: u8 = 1;
const GIVE_BACK: u8 = 2;
const WRITE_BACK: u8 = 3;
const RECEIPTS: u8 = 4;
const RETURN: u8 = 5;
/// The kind of key that is a receipt.
const RECEIPT: u8 = 4;

/// Units to return to one bucket.
#[derive(Clone, Copy, Debug)]
pub struct GiveBack<'a> {
    /// The bucket that they were taken from.
    pub bucket: &'a Bucket,
    /// How many.
    pub cost: u64,
    /// [`Outcome::at_us`](crate::Outcome::at_us) of the decision that took them.
    pub at_us: u64,
}

/// What was taken of one bucket elsewhere, while Redis could not be asked. A record costs about what a take does:
/// calls are to be kept below [`crate::MAX_CALL_WEIGHT`] records.
#[derive(Clone, Copy, Debug)]
pub struct WriteBack<'a> {
    /// The bucket.
    pub bucket: &'a Bucket,
    /// The takings, oldest first; at most [`crate::MAX_RECORDS`].
    pub records: &'a [Record],
}

/// KEYS for a batch.
pub fn keys(batch: &Batch) -> impl Iterator<Item = &str> {
    let buckets = batch.buckets.iter().map(|bucket| bucket.key.as_str());
    let receipts = batch.decisions.iter().flat_map(Decision::leaves);
    buckets.chain(receipts.map(|receipt| receipt.key.as_str()))
}

/// ARGV for a batch, to be decided by Redis's own clock and, if that is later than `not_after_us`, not at all. A batch with a
/// calendar window wants to be called again where that is not known: it is answered by the time.
#[must_use]
pub fn arguments(batch: &Batch, not_after_us: Option<u64>) -> Vec<Vec<u8>> {
    let takes = batch.weight();
    let size = 19 * batch.buckets.len() + 3 * batch.decisions.len() + 8 * takes;
    let mut request = begin(not_after_us, size, batch.buckets.iter());
    for receipt in batch.decisions.iter().flat_map(Decision::leaves) {
        push_receipt(&mut request, receipt);
    }
    let mut receipt = (batch.buckets.len() as u64).saturating_add(1);
    for decision in &batch.decisions {
        if !decision.takes.is_empty() {
            request.push(if decision.peek { PEEK } else { TAKE });
            push(&mut request, 2, decision.takes.len() as u64);
        }
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
pub fn return_arguments(returns: &Returns, not_after_us: Option<u64>) -> Vec<Vec<u8>> {
    let size = 19 * (returns.buckets.len() + returns.returns.len()) + 11 * returns.returns.len();
    let mut request = begin(not_after_us, size, returns.buckets.iter());
    let receipts = receipt_keys(returns);
    let to_read = Receipt::default();
    for _ in &receipts {
        push_receipt(&mut request, &to_read);
    }
    for one in &returns.returns {
        let receipt = receipts.binary_search(&one.receipt.as_str());
        let receipt = receipt.map_or(u64::MAX, |index| (returns.buckets.len() + index + 1) as u64);
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

/// ARGV for give-backs. They name each bucket once at most. Nothing is returned after `not_after_us`.
#[must_use]
pub fn give_back_arguments(returns: &[GiveBack<'_>], not_after_us: Option<u64>) -> Vec<Vec<u8>> {
    let buckets = returns.iter().map(|give| give.bucket);
    let mut request = begin(not_after_us, 37 * returns.len(), buckets);
    for (give, index) in returns.iter().zip(1u64..) {
        request.push(GIVE_BACK);
        push(&mut request, 2, 1);
        push(&mut request, 4, index);
        push(&mut request, 4, give.cost);
        push(&mut request, 7, give.at_us);
    }
    vec![request]
}

/// KEYS for write-backs, and the bucket that says that they were done.
pub fn write_back_keys<'a>(
    writes: &'a [WriteBack<'a>],
    once: Option<&'a Bucket>,
) -> impl Iterator<Item = &'a str> {
    let buckets = writes.iter().map(|write| write.bucket).chain(once);
    buckets.map(|bucket| bucket.key.as_str())
}

/// ARGV for write-backs. They name each bucket once at most. Nothing is recorded after `not_after_us`, and nothing if the
/// bucket `once` holds something; a unit is taken from it. So a call whose answer was lost can be made again.
#[must_use]
pub fn write_back_arguments(
    writes: &[WriteBack<'_>],
    once: Option<&Bucket>,
    not_after_us: Option<u64>,
) -> Vec<Vec<u8>> {
    let records: usize = writes.iter().map(|write| write.records.len()).sum();
    let size = 30 * (writes.len() + 1) + 11 * records;
    let buckets = writes.iter().map(|write| write.bucket).chain(once);
    let mut request = begin(not_after_us, size, buckets);
    let last = writes.len() as u64 + 1;
    for (write, index) in writes.iter().zip(1u64..) {
        request.push(WRITE_BACK);
        push(&mut request, 2, write.records.len() as u64);
        push(&mut request, 4, index);
        push(&mut request, 4, if once.is_some() { last } else { 0 });
        for record in write.records {
            push(&mut request, 7, record.at_us);
            push(&mut request, 4, record.units);
        }
    }
    if once.is_some() {
        request.push(TAKE);
        push(&mut request, 2, 1);
        push(&mut request, 4, last);
        push(&mut request, 4, 1);
    }
    vec![request]
}

/// The argument to add for a test that owns the clock.
#[must_use]
pub fn clock(now_us: u64) -> Vec<u8> {
    now_us.to_string().into_bytes()
}

/// A request of so many bytes, with what it says of these buckets.
///
/// Where Redis's clock is not known, nothing is ever too late. But calendar windows are sent by that clock: then the request
/// is one that is always too late, which is answered by the time.
fn begin<'a>(
    not_after_us: Option<u64>,
    size: usize,
    buckets: impl Iterator<Item = &'a Bucket> + Clone,
) -> Vec<u8> {
    let mut request = Vec::with_capacity(7 + size);
    let not_after_us = not_after_us.unwrap_or_else(|| {
        let is_calendar =
            |bucket: &Bucket| matches!(bucket.spec.algorithm, Algorithm::CalendarWindow(_));
        if buckets.clone().any(is_calendar) {
            0
        } else {
            u64::MAX
        }
    });
    push(&mut request, 7, not_after_us);
    for bucket in buckets {
        push_spec(&mut request, &bucket.spec, not_after_us);
    }
    request
}

fn push_spec(request: &mut Vec<u8>, spec: &BucketSpec, not_after_us: u64) {
    let (kind, a, b, more) = match spec.algorithm {
        Algorithm::SlidingLog => (1, spec.window_us, 1, None),
        Algorithm::SlidingWindow {
            precision_us,
            leased,
        } => {
            let kind = if leased { 6 } else { 1 };
            (kind, spec.window_us, precision_us, None)
        }
        Algorithm::FixedWindow => (2, spec.window_us, 0, None),
        Algorithm::TokenBucket { .. } => {
            let rate = spec.token_rate();
            (3, rate.per_us, rate.per_unit, None)
        }
        // The script runs at this time at the latest, so in this window or in the one before.
        Algorithm::CalendarWindow(calendar) => {
            let [before, start, end, after] = calendar.edges(not_after_us);
            (5, before, start, Some([end, after]))
        }
    };
    request.push(kind);
    push(request, 4, spec.most_at_once());
    push(request, 7, a);
    push(request, 7, b);
    for edge_us in more.into_iter().flatten() {
        push(request, 7, edge_us);
    }
}

/// A receipt to be left, or one of no units, which is to be read.
fn push_receipt(request: &mut Vec<u8>, receipt: &Receipt) {
    request.push(RECEIPT);
    push(request, 4, receipt.units);
    push(request, 7, receipt.lifetime_us);
    push(request, 7, receipt.taken_at_us.len() as u64);
    for at_us in &receipt.taken_at_us {
        push(request, 7, *at_us);
    }
}

/// The last `bytes` bytes, the highest first. What does not fit becomes the largest that does: a bucket
/// that is not there, which the script refuses, or a cost that no bucket has room for.
fn push(request: &mut Vec<u8>, bytes: usize, value: u64) {
    let most = u64::MAX >> (64 - 8 * bytes);
    let all = value.min(most).to_be_bytes();
    request.extend_from_slice(all.get(8 - bytes..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test;

    #[test]
    fn a_write_back_is_packed_as_the_script_says() {
        let batch = batch();
        let records = [Record {
            at_us: 513,
            units: 3,
        }];
        let write = WriteBack {
            bucket: &batch.buckets[0],
            records: &records,
        };
        let [request] = &write_back_arguments(&[write], None, None)[..] else {
            panic!("one argument");
        };
        let record = [0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 3];
        let said = [&[3, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0], &record[..]].concat();
        assert_eq!(request[26..], said);
    }

    fn batch() -> Batch {
        let spec = test::spec(Algorithm::FixedWindow, 5, 1_000);
        let key = "k".to_owned();
        Batch {
            buckets: vec![Bucket { key, spec }],
            decisions: vec![test::decision(&[0], 2, true)],
        }
    }

    #[test]
    fn a_request_is_packed_as_the_script_says() {
        assert_eq!(keys(&batch()).collect::<Vec<_>>(), ["k"]);
        let spec = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 0, 0, 0];
        let decision = [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2];
        for (not_after_us, time) in [(None, [255; 7]), (Some(258), [0, 0, 0, 0, 0, 1, 2])] {
            let expected = [[&time[..], &spec, &decision].concat()];
            assert_eq!(arguments(&batch(), not_after_us), expected);
        }
    }
}
