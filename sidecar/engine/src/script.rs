//! What goes to the Lua script and what comes back: its codec, without a Redis client.
//!
//! The contract stands on top of lua/decide.lua. Whoever has a connection sends
//! `EVALSHA <sha of DECIDE> <n> <keys> <arguments>` and decodes the string of the reply here.

mod reply;

pub use reply::{BrokenState, Reply, ReplyError};

use crate::algorithm::Record;
use crate::batch::{Batch, Bucket, Decision, Receipt};
use crate::receipt::{Return, Returns};
use crate::verdict::Outcome;
use std::collections::BTreeSet;
use std::iter;

/// The script, whole, as a test assembles it from lua/. It decides, gives back and writes back; to reset buckets, `UNLINK` their
/// keys.
pub const DECIDE: &str = include_str!("script/assembled.lua");

const TAKE: u8 = 0;
const PEEK: u8 = 1;
const GIVE_BACK: u8 = 2;
const WRITE_BACK: u8 = 3;
const RECEIPTS: u8 = 4;
const RETURN: u8 = 5;
/// The kind of key that is a receipt.
const RECEIPT: u8 = 4;

/// What one call of the script does. All of its keys must be in one slot.
pub trait Operation {
    /// The script's answer to each decision, give-back, write-back or return.
    type Answer;

    /// KEYS.
    fn keys(&self) -> impl Iterator<Item = &str>;

    /// ARGV\[1\]. If Redis's clock is later than `not_after_us`, the script does nothing. If that clock is not known, nothing is
    /// too late; but an operation with calendar windows is answered by the time, and wants to be sent again with it.
    fn request(&self, not_after_us: Option<u64>) -> Vec<u8>;

    /// Decodes the script's reply.
    ///
    /// # Errors
    /// It is not a reply to this operation.
    fn read(&self, reply: &[u8]) -> Result<Reply<Self::Answer>, ReplyError>;
}

/// Gives units back to one bucket; the answer is how many. In a call of its own, since the script gives nothing back beside
/// decisions.
#[derive(Clone, Copy, Debug)]
pub struct GiveBack<'a> {
    /// The bucket that they were taken from.
    pub bucket: &'a Bucket,
    /// How many.
    pub cost: u64,
    /// [`Outcome::at_us`](crate::Outcome::at_us) of the decision that took them.
    pub at_us: u64,
}

/// Units that were taken from one bucket elsewhere, while Redis could not be reached. A record costs about as much as a take:
/// keep a call below [`crate::MAX_CALL_WEIGHT`] records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteBack {
    /// The bucket.
    pub bucket: Bucket,
    /// The takings, oldest first; at most [`crate::MAX_RECORDS`].
    pub records: Vec<Record>,
}

/// Records what was taken elsewhere; the answer is how many units of each bucket were recorded.
#[derive(Clone, Copy, Debug)]
pub struct WriteBacks<'a> {
    /// Each bucket at most once.
    pub writes: &'a [WriteBack],
    /// If this bucket holds something, the call was made before, and records nothing; otherwise it takes a unit from it. So a
    /// call whose answer was lost can be repeated.
    pub once: Option<&'a Bucket>,
}

/// Takes units off a receipt, which other calls then give back to its buckets; the answer is how many, and when they were
/// taken: one time, or one for each bucket.
#[derive(Clone, Copy, Debug)]
pub struct Redeem<'a>(pub &'a Return);

impl Operation for Batch {
    type Answer = Outcome;

    fn keys(&self) -> impl Iterator<Item = &str> {
        let receipts = self.decisions.iter().flat_map(Decision::leaves);
        let receipts = receipts.map(|receipt| receipt.key.as_str());
        bucket_keys(&self.buckets).chain(receipts)
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, self.buckets.iter());
        for receipt in self.decisions.iter().flat_map(Decision::leaves) {
            push_receipt(&mut request, receipt);
        }
        let mut receipt = (self.buckets.len() as u64).saturating_add(1);
        for decision in &self.decisions {
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
                push_step(&mut request, RECEIPTS, receipts, receipt, 0);
                receipt = receipt.saturating_add(receipts);
            }
        }
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<Outcome>, ReplyError> {
        reply::outcomes(self, reply)
    }
}

impl Operation for Returns {
    type Answer = u64;

    fn keys(&self) -> impl Iterator<Item = &str> {
        bucket_keys(&self.buckets).chain(receipts(self))
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, self.buckets.iter());
        let receipts: Vec<_> = receipts(self).into_iter().collect();
        for _ in &receipts {
            push_receipt(&mut request, &Receipt::default());
        }
        for one in &self.returns {
            let receipt = receipts.binary_search(&one.receipt.as_str());
            let receipt = receipt.map_or(u64::MAX, |index| (self.buckets.len() + index + 1) as u64);
            let buckets = one.buckets.iter();
            let buckets = buckets.map(|bucket| (*bucket as u64).saturating_add(1));
            push_return(&mut request, receipt, one.units, buckets);
        }
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<u64>, ReplyError> {
        reply::units(self.returns.len(), reply)
    }
}

/// Each once: a key may be named only once in a call.
fn receipts(returns: &Returns) -> BTreeSet<&str> {
    returns.returns.iter().map(|r| r.receipt.as_str()).collect()
}

impl Operation for Redeem<'_> {
    type Answer = (u64, Vec<u64>);

    fn keys(&self) -> impl Iterator<Item = &str> {
        iter::once(self.0.receipt.as_str())
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, iter::empty());
        push_receipt(&mut request, &Receipt::default());
        // The receipt in place of a bucket: other calls return the units.
        push_return(&mut request, 1, self.0.units, iter::once(1));
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<Self::Answer>, ReplyError> {
        reply::redeemed(reply)
    }
}

impl Operation for GiveBack<'_> {
    type Answer = u64;

    fn keys(&self) -> impl Iterator<Item = &str> {
        iter::once(self.bucket.key.as_str())
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, iter::once(self.bucket));
        push_step(&mut request, GIVE_BACK, 1, 1, self.cost);
        push(&mut request, 7, self.at_us);
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<u64>, ReplyError> {
        reply::units(1, reply)
    }
}

impl WriteBacks<'_> {
    fn buckets(&self) -> impl Iterator<Item = &Bucket> + Clone {
        let buckets = self.writes.iter().map(|write| &write.bucket);
        buckets.chain(self.once)
    }
}

impl Operation for WriteBacks<'_> {
    type Answer = u64;

    fn keys(&self) -> impl Iterator<Item = &str> {
        bucket_keys(self.buckets())
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, self.buckets());
        let once = self.once.map_or(0, |_| self.writes.len() as u64 + 1);
        for (write, index) in self.writes.iter().zip(1u64..) {
            let records = write.records.len() as u64;
            push_step(&mut request, WRITE_BACK, records, index, once);
            for record in &write.records {
                push(&mut request, 7, record.at_us);
                push(&mut request, 4, record.units);
            }
        }
        if once > 0 {
            push_step(&mut request, TAKE, 1, once, 1);
        }
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<u64>, ReplyError> {
        let mut units = reply::units(self.buckets().count(), reply)?;
        if let Some(each) = &mut units.each {
            each.truncate(self.writes.len());
        }
        Ok(units)
    }
}

fn bucket_keys<'a>(buckets: impl IntoIterator<Item = &'a Bucket>) -> impl Iterator<Item = &'a str> {
    buckets.into_iter().map(|bucket| bucket.key.as_str())
}

/// The argument to add for a test that owns the clock.
#[must_use]
pub fn clock(now_us: u64) -> Vec<u8> {
    now_us.to_string().into_bytes()
}

/// The beginning of a request for these buckets.
///
/// Where Redis's clock is not known, nothing is ever too late. But calendar windows are sent by that clock: then the request
/// is one that is always too late, which is answered by the time.
fn begin<'a>(
    not_after_us: Option<u64>,
    buckets: impl Iterator<Item = &'a Bucket> + Clone,
) -> Vec<u8> {
    // Enough for most calls.
    let mut request = Vec::with_capacity(512);
    let is_calendar = |one: &Bucket| one.spec.algorithm.calendar().is_some();
    let not_after_us = not_after_us.unwrap_or_else(|| match buckets.clone().any(is_calendar) {
        true => 0,
        false => u64::MAX,
    });
    push(&mut request, 7, not_after_us);
    for bucket in buckets {
        let (kind, numbers, more) = bucket.spec.operands(not_after_us);
        request.push(kind);
        push(&mut request, 4, bucket.spec.most_at_once());
        for number in numbers.into_iter().chain(more.into_iter().flatten()) {
            push(&mut request, 7, number);
        }
    }
    request
}

/// A receipt to store; without units, one to read.
fn push_receipt(request: &mut Vec<u8>, receipt: &Receipt) {
    request.push(RECEIPT);
    push(request, 4, receipt.units);
    push(request, 7, receipt.lifetime_us);
    push(request, 7, receipt.taken_at_us.len() as u64);
    for at_us in &receipt.taken_at_us {
        push(request, 7, *at_us);
    }
}

fn push_return(
    request: &mut Vec<u8>,
    receipt: u64,
    units: u64,
    buckets: impl ExactSizeIterator<Item = u64>,
) {
    push_step(request, RETURN, buckets.len() as u64, receipt, units);
    for bucket in buckets {
        push(request, 4, bucket);
    }
}

/// The beginning of what is asked for, up to its first take.
fn push_step(request: &mut Vec<u8>, what: u8, count: u64, bucket: u64, cost: u64) {
    request.push(what);
    push(request, 2, count);
    push(request, 4, bucket);
    push(request, 4, cost);
}

/// Appends a number in so many bytes, big-endian. If it needs more, appends the largest number of this size instead: an index
/// without a bucket, which the script refuses, or a cost that no bucket has room for.
fn push(request: &mut Vec<u8>, bytes: usize, value: u64) {
    let most = u64::MAX >> (64 - 8 * bytes);
    let all = value.min(most).to_be_bytes();
    request.extend_from_slice(all.get(8 - bytes..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::test;

    #[test]
    fn a_write_back_is_packed_as_the_script_says() {
        let batch = batch();
        let record = Record {
            at_us: 513,
            units: 3,
        };
        let writes = &[WriteBack {
            bucket: batch.buckets[0].clone(),
            records: vec![record],
        }];
        let request = WriteBacks { writes, once: None }.request(None);
        let record = [0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 3];
        let expected = [&[3, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0], &record[..]].concat();
        assert_eq!(request[26..], expected);
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
        assert_eq!(batch().keys().collect::<Vec<_>>(), ["k"]);
        let spec = [2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 3, 232, 0, 0, 0, 0, 0, 0, 0];
        let decision = [1, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2];
        for (not_after_us, time) in [(None, [255; 7]), (Some(258), [0, 0, 0, 0, 0, 1, 2])] {
            let expected = [&time[..], &spec, &decision].concat();
            assert_eq!(batch().request(not_after_us), expected);
        }
    }
}
