//! What goes to the Lua script and what comes back: its codec, without a Redis client.
//!
//! The contract stands on top of lua/decide.lua. Whoever has a connection sends
//! `EVALSHA <sha of DECIDE> <n> <keys> <arguments>` and decodes the string of the reply here.

mod reply;

pub use reply::{BrokenState, Reply, ReplyError};

use crate::batch::{Batch, Decision};
use crate::hold::{Done, Guard, Held, Hold, Settlements, name_of};
use crate::key::Bucket;
use crate::slot_id::SlotId;
use crate::verdict::Outcome;

/// The script, whole, as a test assembles it from lua/. It takes, peeks and settles; to reset buckets, `UNLINK` their keys.
pub const DECIDE: &str = include_str!("script/assembled.lua");

const TAKE: u8 = 0;
const PEEK: u8 = 1;
const ASK: u8 = 2;
const SETTLE: u8 = 3;
const LEAVE: u8 = 4;
const STORE: u8 = 5;
const FREE: u8 = 6;
const RENEW: u8 = 7;
/// The kind of key that is a hold, and what is done with it.
const HOLD: u8 = 4;
const LEFT: u64 = 0;
const SPENT: u64 = 1;
const SETTLED: u64 = 2;

/// What one call of the script does. All of its keys must be in one slot.
pub trait Operation {
    /// The script's answer to each decision or settlement.
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

/// What became of a settlement, as the script says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settled {
    /// What it did.
    pub done: Done,
    /// Without entries, what the hold is of, each with its time, so that other calls can return the units.
    pub of: Vec<Held>,
}

impl Operation for Batch {
    type Answer = Outcome;

    fn keys(&self) -> impl Iterator<Item = &str> {
        let holds = self.decisions.iter().flat_map(Decision::leaves);
        bucket_keys(&self.buckets).chain(holds.map(|hold| hold.key.as_str()))
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, &self.buckets);
        for hold in self.decisions.iter().flat_map(Decision::leaves) {
            push_hold(&mut request, hold.units, hold.lasts_us, LEFT);
        }
        let mut next_hold = (self.buckets.len() as u64).saturating_add(1);
        for decision in &self.decisions {
            if !decision.takes.is_empty() {
                request.push(match (decision.peek, decision.asks) {
                    (true, _) => PEEK,
                    (false, true) => ASK,
                    (false, false) => TAKE,
                });
                push(&mut request, 2, decision.takes.len() as u64);
            }
            // One that only looks whether it would be admitted takes nothing in any case.
            let least = u64::from(decision.peek && decision.asks);
            for take in &decision.takes {
                push_index(&mut request, take.bucket);
                push(&mut request, 4, take.cost.max(least));
            }
            for hold in decision.leaves() {
                push_step(&mut request, LEAVE, hold.of.len(), next_hold, 0);
                for held in &hold.of {
                    push(&mut request, 4, self.index_for(decision, hold, held));
                    let rate = held.rate;
                    for number in [held.name, held.at_us, rate.per_us, rate.per_unit] {
                        push(&mut request, 7, number);
                    }
                }
                next_hold = next_hold.saturating_add(1);
            }
            for slots in decision.stores() {
                push_slots(&mut request, STORE, slots.bucket, slots.id);
            }
        }
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<Outcome>, ReplyError> {
        reply::outcomes(self, reply)
    }
}

impl Operation for Settlements {
    type Answer = Settled;

    fn keys(&self) -> impl Iterator<Item = &str> {
        let guards = self.each.iter().filter_map(|one| one.guard.key());
        bucket_keys(&self.buckets).chain(guards)
    }

    fn request(&self, not_after_us: Option<u64>) -> Vec<u8> {
        let mut request = begin(not_after_us, &self.buckets);
        for one in &self.each {
            match one.guard {
                Guard::None | Guard::Free(_) | Guard::Renew(_) => {}
                Guard::Spend { keeps, .. } => push_hold(&mut request, 0, keeps, SPENT),
                Guard::Settle { used, .. } => push_hold(&mut request, 0, used, SETTLED),
                Guard::Once { lasts_us, .. } => push_hold(&mut request, 1, lasts_us, SPENT),
            }
        }
        let mut next_guard = self.buckets.len() as u64;
        for one in &self.each {
            next_guard += u64::from(one.guard.key().is_some());
            let (guard, units) = match one.guard {
                Guard::None => (0, 0),
                Guard::Free(id) => {
                    push_slots(&mut request, FREE, one.first_bucket(), id);
                    continue;
                }
                Guard::Renew(id) => {
                    push_slots(&mut request, RENEW, one.first_bucket(), id);
                    continue;
                }
                Guard::Spend { units, .. } => (next_guard, units),
                Guard::Settle { .. } => (next_guard, 0),
                Guard::Once { .. } => (next_guard, 1),
            };
            push_step(&mut request, SETTLE, one.entries.len(), guard, units);
            for entry in &one.entries {
                push_index(&mut request, entry.bucket);
                let name = || {
                    self.buckets
                        .get(entry.bucket)
                        .map(|bucket| name_of(&bucket.key))
                };
                push(
                    &mut request,
                    7,
                    entry.at_us.or_else(name).unwrap_or_default(),
                );
                let most = 0x7f_ffff_ffff;
                let units = entry.units.clamp(-most, most).to_be_bytes();
                request.extend_from_slice(units.get(3..).unwrap_or_default());
            }
        }
        request
    }

    fn read(&self, reply: &[u8]) -> Result<Reply<Settled>, ReplyError> {
        reply::settled(self.each.len(), reply)
    }
}

impl Batch {
    /// Of a receipt, the bucket that is told of it, counted from 1; 0 if none is.
    fn index_for(&self, decision: &Decision, hold: &Hold, held: &Held) -> u64 {
        let taken = decision.takes.iter().map(|take| take.bucket);
        let mut taken = taken.filter(|_| hold.is_receipt && hold.units > 0);
        let index = taken.find(|index| self.buckets.get(*index).is_some_and(|it| held.is_of(it)));
        index.map_or(0, |index| (index as u64).saturating_add(1))
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
fn begin(not_after_us: Option<u64>, buckets: &[Bucket]) -> Vec<u8> {
    // Enough for most calls.
    let mut request = Vec::with_capacity(512);
    let is_calendar = |one: &Bucket| one.spec.algorithm.calendar().is_some();
    let not_after_us = not_after_us.unwrap_or_else(|| match buckets.iter().any(is_calendar) {
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

/// A hold to leave, and how long it lasts; without units one to spend, and how many stay in it, or to settle, and how many were
/// used.
fn push_hold(request: &mut Vec<u8>, units: u64, number: u64, what: u64) {
    request.push(HOLD);
    push(request, 4, units);
    push(request, 7, number);
    push(request, 7, what);
}

/// The beginning of what is asked for, up to its entries.
fn push_step(request: &mut Vec<u8>, what: u8, count: usize, key: u64, units: u64) {
    request.push(what);
    push(request, 2, count as u64);
    push(request, 4, key);
    push(request, 4, units);
}

/// What becomes of slots of a bucket.
fn push_slots(request: &mut Vec<u8>, what: u8, bucket: usize, id: SlotId) {
    let index = (bucket as u64).saturating_add(1);
    push_step(request, what, 1, index, id.units());
    request.extend_from_slice(&id.0);
}

/// A bucket by its index here; the script counts from 1.
fn push_index(request: &mut Vec<u8>, index: usize) {
    push(request, 4, (index as u64).saturating_add(1));
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
    use crate::hold::{Entry, Settlement};
    use crate::test;

    #[test]
    fn a_settlement_is_packed_as_the_script_says() {
        let spend = Guard::Spend {
            hold: "h".to_owned(),
            units: 9,
            keeps: 5,
        };
        let more = Entry {
            units: 3,
            ..Entry::back(0, Some(513), 0)
        };
        let mut settlements = Settlements::one(Guard::None, batch().buckets, vec![more]);
        settlements.each.push(Settlement {
            guard: spend,
            entries: vec![Entry::back(0, None, 2)],
        });
        assert_eq!(settlements.keys().collect::<Vec<_>>(), ["k", "h"]);
        let name = name_of("k").to_be_bytes();
        let expected = [
            &[4, 0, 0, 0, 0][..],
            &[0, 0, 0, 0, 0, 0, 5],
            &[0, 0, 0, 0, 0, 0, 1],
            &[3, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0],
            &[0, 0, 0, 1, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 3],
            &[3, 0, 1, 0, 0, 0, 2, 0, 0, 0, 9],
            &[0, 0, 0, 1],
            &name[1..],
            &[255, 255, 255, 255, 254],
        ];
        assert_eq!(settlements.request(None)[26..], expected.concat());
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
