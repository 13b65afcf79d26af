//! A batch for a Redis Cluster: split into parts, one for each subject, and the parts' answers combined. Pure.

use std::collections::BTreeMap;

use sluicegate_engine::script::{BrokenState, GiveBack};
use sluicegate_engine::{Batch, BatchBuilder, Decision, Outcome, Receipt};

use super::slots::tag;
use crate::store::settled::Settled;

/// What is asked of one slot.
#[derive(Debug, Default)]
pub struct Part {
    builder: BatchBuilder,
    /// For each decision of the part: which decision of the whole it is of, and which of its takes these are.
    sources: Vec<(usize, Vec<usize>)>,
}

impl Part {
    /// The decisions' takes in this slot.
    pub fn batch(&self) -> &Batch {
        self.builder.batch()
    }
}

/// The parts' answers put together.
#[derive(Debug, Default)]
pub struct Combined<'a> {
    /// In the order of the whole batch; nothing where a part was not answered.
    pub decisions: Vec<Option<Settled>>,
    /// What parts took of decisions that others denied or did not answer.
    pub to_give_back: Vec<GiveBack<'a>>,
}

/// Splits a batch by the hash tags of its keys.
pub fn split(batch: &Batch) -> Vec<Part> {
    let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
    let mut places = vec![None; batch.buckets.len()];
    for (index, decision) in batch.decisions.iter().enumerate() {
        for (number, take) in decision.takes.iter().enumerate() {
            let (Some(bucket), Some(place)) =
                (batch.buckets.get(take.bucket), places.get_mut(take.bucket))
            else {
                continue;
            };
            let part = parts.entry(tag(&bucket.key)).or_default();
            if part
                .sources
                .last()
                .is_none_or(|(source, _)| *source != index)
            {
                part.sources.push((index, Vec::new()));
                part.builder.push(Decision {
                    takes: Vec::new(),
                    peek: decision.peek,
                    receipts: of_tag(&decision.receipts, tag(&bucket.key)),
                });
            }
            part.builder.extend_last(place, bucket, take.cost);
            if let Some((_, numbers)) = part.sources.last_mut() {
                numbers.push(number);
            }
        }
    }
    parts.into_values().collect()
}

/// The receipts that belong in a slot. If another part denies, theirs stays until it ends: nobody is told of it.
fn of_tag(receipts: &[Receipt], of: &str) -> Vec<Receipt> {
    let mine = receipts.iter().filter(|receipt| tag(&receipt.key) == of);
    mine.cloned().collect()
}

/// Puts the parts' answers together; `None` where a part was not answered.
pub fn combine<'a>(
    batch: &'a Batch,
    parts: &[Part],
    answers: &[Option<Vec<Result<Outcome, BrokenState>>>],
) -> Combined<'a> {
    let mut said: Vec<Vec<(&[usize], Option<Outcome>)>> = vec![Vec::new(); batch.decisions.len()];
    for (part, answer) in parts.iter().zip(answers) {
        for (place, (source, numbers)) in part.sources.iter().enumerate() {
            let outcome = answer.as_ref().and_then(|each| (*each.get(place)?).ok());
            if let Some(said) = said.get_mut(*source) {
                said.push((numbers, outcome));
            }
        }
    }
    let mut combined = Combined::default();
    for (decision, said) in batch.decisions.iter().zip(&said) {
        let settled = settle(batch, decision, said);
        if !decision.peek
            && settled
                .as_ref()
                .is_none_or(|settled| !settled.outcome.admitted)
        {
            combined.to_give_back.extend(taken(batch, decision, said));
        }
        combined.decisions.push(settled);
    }
    combined
}

/// One outcome of a decision's parts, as a store in one place would have told it.
fn settle(
    batch: &Batch,
    decision: &Decision,
    said: &[(&[usize], Option<Outcome>)],
) -> Option<Settled> {
    let quota = |outcome: &Outcome| {
        let take = decision.takes.get(outcome.decided_by);
        let bucket = take.and_then(|take| batch.buckets.get(take.bucket));
        bucket.map_or(0, |bucket| bucket.spec.most_at_once())
    };
    let mut deciding: Option<Outcome> = None;
    for (numbers, outcome) in said {
        let mut outcome = (*outcome)?;
        // From a place in the part to one in the whole.
        outcome.decided_by = *numbers.get(outcome.decided_by)?;
        if deciding
            .as_ref()
            .is_none_or(|so_far| decides_before(&outcome, so_far, quota))
        {
            deciding = Some(outcome);
        }
    }
    Some(Settled { outcome: deciding? })
}

/// Denials before admissions, the last to have room first. Then the least remaining, and of denials the smallest
/// quota, of admissions the last to reset; then the first.
fn decides_before(a: &Outcome, b: &Outcome, quota: impl Fn(&Outcome) -> u64) -> bool {
    use std::cmp::Reverse;
    let rank = |outcome: &Outcome| {
        let among_equals = if outcome.admitted {
            (outcome.reset_us, Reverse(0))
        } else {
            (0, Reverse(quota(outcome)))
        };
        (
            !outcome.admitted,
            outcome.retry_after_us,
            Reverse(outcome.remaining),
            among_equals,
            Reverse(outcome.decided_by),
        )
    };
    rank(a) > rank(b)
}

/// What the admitted parts of a decision took.
fn taken<'a>(
    batch: &'a Batch,
    decision: &'a Decision,
    said: &[(&[usize], Option<Outcome>)],
) -> Vec<GiveBack<'a>> {
    let mut taken = Vec::new();
    for (numbers, outcome) in said {
        let Some(outcome) = outcome.filter(|outcome| outcome.admitted) else {
            continue;
        };
        for number in *numbers {
            let Some(take) = decision.takes.get(*number).filter(|take| take.cost > 0) else {
                continue;
            };
            let Some(bucket) = batch.buckets.get(take.bucket) else {
                continue;
            };
            taken.push(GiveBack {
                bucket,
                cost: take.cost,
                at_us: outcome.at_us,
            });
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::test_batches;
    use sluicegate_engine::{Algorithm, Bucket, BucketSpec};

    const SPEC: BucketSpec = BucketSpec {
        algorithm: Algorithm::SlidingLog,
        limit: 5,
        window_us: 1_000_000,
    };

    /// Decisions over keys, each take of cost 1.
    fn batch(keys: &[&str], decisions: &[&[usize]]) -> Batch {
        let bucket = |key: &&str| Bucket {
            key: (*key).to_owned(),
            spec: SPEC,
        };
        test_batches::batch(keys.iter().map(bucket).collect(), decisions)
    }

    fn outcome(admitted: bool, remaining: u64, retry_after_us: u64, at_us: u64) -> Outcome {
        Outcome {
            admitted,
            decided_by: 0,
            remaining,
            reset_us: 7,
            retry_after_us,
            at_us,
        }
    }

    #[test]
    fn a_part_holds_what_shares_a_slot_and_keeps_the_order() {
        let batch = batch(
            &["sg:{a}:l:1", "sg:{b}:l:1", "sg:{a}:l:2"],
            &[&[0, 1, 2], &[1], &[2]],
        );
        let parts = split(&batch);
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[0].sources, [(0, vec![0, 2]), (2, vec![0])]);
        assert_eq!(parts[0].batch().buckets.len(), 2);
        assert_eq!(parts[1].sources, [(0, vec![1]), (1, vec![0])]);
    }

    #[test]
    fn a_denied_part_denies_the_whole_and_gives_back_what_others_took() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l", "sg:{c}:l"], &[&[0, 1, 2]]);
        let parts = split(&batch);
        let answers = [
            Some(vec![Ok(outcome(true, 3, 0, 100))]),
            Some(vec![Ok(outcome(false, 0, 50, 101))]),
            Some(vec![Ok(outcome(false, 0, 90, 102))]),
        ];
        let combined = combine(&batch, &parts, &answers);
        let settled = combined.decisions[0].clone().unwrap();
        assert_eq!(
            (settled.outcome.admitted, settled.outcome.decided_by),
            (false, 2)
        );
        assert_eq!(settled.outcome.retry_after_us, 90);
        let given: Vec<_> = combined
            .to_give_back
            .iter()
            .map(|g| (g.bucket.key.as_str(), g.cost, g.at_us))
            .collect();
        assert_eq!(given, [("sg:{a}:l", 1, 100)]);
    }

    #[test]
    fn s27_of_parts_with_equal_waits_the_tightest_is_told() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l"], &[&[0, 1]]);
        let parts = split(&batch);
        let answers = [
            Some(vec![Ok(outcome(false, 3, 50, 100))]),
            Some(vec![Ok(outcome(false, 0, 50, 101))]),
        ];
        let combined = combine(&batch, &parts, &answers);
        let settled = combined.decisions[0].clone().unwrap();
        assert_eq!(settled.outcome.decided_by, 1);
    }

    #[test]
    fn s16_a_part_over_a_broken_key_leaves_only_its_decision_open() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l"], &[&[0, 1], &[1]]);
        let parts = split(&batch);
        let answers = [
            Some(vec![Err(BrokenState)]),
            Some(vec![
                Ok(outcome(true, 3, 0, 100)),
                Ok(outcome(true, 2, 0, 100)),
            ]),
        ];
        let combined = combine(&batch, &parts, &answers);
        assert_eq!(combined.decisions[0], None);
        assert!(combined.decisions[1].is_some());
        assert_eq!(combined.to_give_back.len(), 1, "what the other part took");
    }

    #[test]
    fn a_part_without_an_answer_leaves_the_decision_open_and_gives_back_the_rest() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l"], &[&[0, 1], &[0]]);
        let parts = split(&batch);
        let answers = [
            Some(vec![
                Ok(outcome(true, 3, 0, 100)),
                Ok(outcome(true, 2, 0, 100)),
            ]),
            None,
        ];
        let combined = combine(&batch, &parts, &answers);
        assert_eq!(combined.decisions[0], None);
        assert!(combined.decisions[1].is_some());
        assert_eq!(combined.to_give_back.len(), 1);
    }

    #[test]
    fn an_admitted_whole_tells_of_its_tightest_part() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l"], &[&[0, 1]]);
        let parts = split(&batch);
        let answers = [
            Some(vec![Ok(outcome(true, 3, 0, 100))]),
            Some(vec![Ok(outcome(true, 1, 0, 200))]),
        ];
        let combined = combine(&batch, &parts, &answers);
        let settled = combined.decisions[0].clone().unwrap();
        assert_eq!(
            (settled.outcome.decided_by, settled.outcome.remaining),
            (1, 1)
        );
        assert!(combined.to_give_back.is_empty());
    }
}
