//! Splits a batch for a Redis Cluster into sub-batches, one for each subject or each key, and combines their answers. Pure.

use std::collections::BTreeMap;

use sluicegate_engine::script::GiveBack;
use sluicegate_engine::{
    Batch, BatchBuilder, Decision, Look, Outcome, Take, outcome, receipt_is_for,
};

/// The takes of a batch from one subject, or from one key.
#[derive(Debug, Default)]
pub struct SubBatch {
    builder: BatchBuilder,
    /// For each decision of the sub-batch: the index of its decision in the batch, and the indices of its takes there.
    sources: Vec<(usize, Vec<usize>)>,
}

impl SubBatch {
    /// The decisions' takes.
    pub fn batch(&self) -> &Batch {
        self.builder.batch()
    }
}

/// The combined answers of the sub-batches.
#[derive(Debug, Default)]
pub struct Combined<'a> {
    /// In the order of the batch; `None` where a sub-batch was not answered.
    pub decisions: Vec<Option<Outcome>>,
    /// What sub-batches took for decisions that another one denied or did not answer.
    pub to_give_back: Vec<GiveBack<'a>>,
    /// Receipts of admitted decisions that no sub-batch leaves, each in a batch of its own.
    pub to_leave: Vec<Batch>,
}

/// Splits a batch by what `group` finds of its keys: the hash tag, or the whole key. Receipts go with buckets of their group.
pub fn split(batch: &Batch, group: impl Fn(&str) -> &str) -> Vec<SubBatch> {
    let mut sub_batches: BTreeMap<&str, SubBatch> = BTreeMap::new();
    for (index, decision) in batch.decisions.iter().enumerate() {
        let mut parts: BTreeMap<&str, Part> = BTreeMap::new();
        for (number, take) in decision.takes.iter().enumerate() {
            let Some(bucket) = batch.buckets.get(take.bucket) else {
                continue;
            };
            let of = group(&bucket.key);
            let sub_batch = sub_batches.entry(of).or_default();
            let bucket = sub_batch.builder.bucket(&bucket.key, bucket.spec);
            let cost = take.cost;
            let (numbers, takes) = parts.entry(of).or_default();
            numbers.push(number);
            takes.push(Take { bucket, cost });
        }
        for (of, (numbers, takes)) in parts {
            let sub_batch = sub_batches.entry(of).or_default();
            // If another sub-batch denies, its receipt stays until it expires, unknown to anyone.
            let receipts = decision.receipts.iter();
            let receipts = receipts.filter(|receipt| group(&receipt.key) == of);
            sub_batch.builder.push(Decision {
                takes,
                peek: decision.peek,
                receipts: receipts.cloned().collect(),
            });
            sub_batch.sources.push((index, numbers));
        }
    }
    sub_batches.into_values().collect()
}

/// A decision's takes from one group: their indices in the decision, and in the sub-batch.
type Part = (Vec<usize>, Vec<Take>);

/// Combines the answers of the sub-batches; `None` where a decision was not answered.
pub fn combine<'a>(
    batch: &'a Batch,
    sub_batches: &[SubBatch],
    answers: &[Vec<Option<Outcome>>],
) -> Combined<'a> {
    let mut outcomes: Vec<Vec<(&[usize], Option<Outcome>)>> =
        vec![Vec::new(); batch.decisions.len()];
    for (sub_batch, answer) in sub_batches.iter().zip(answers) {
        for (index, (source, numbers)) in sub_batch.sources.iter().enumerate() {
            let outcome = answer.get(index).copied().flatten();
            if let Some(outcomes) = outcomes.get_mut(*source) {
                outcomes.push((numbers, outcome));
            }
        }
    }
    let mut combined = Combined::default();
    let mut parts = sub_batches.iter().flat_map(|one| &one.batch().decisions);
    let is_late = parts.all(|part| part.receipts.is_empty());
    for (decision, outcomes) in batch.decisions.iter().zip(&mut outcomes) {
        let outcome = merge(batch, decision, outcomes);
        if outcome.is_some_and(|outcome| outcome.admitted) {
            // In the order of its takes.
            outcomes.sort_by_key(|(numbers, _)| numbers.first());
            for receipt in decision.leaves().iter().filter(|_| is_late) {
                let taken = give_backs(batch, decision, outcomes).into_iter();
                let taken = taken.filter(|one| receipt_is_for(&receipt.key, &one.bucket.key));
                let mut receipt = receipt.clone();
                receipt.taken_at_us = taken.map(|one| one.at_us).collect();
                let mut alone = BatchBuilder::new();
                alone.push(Decision {
                    takes: Vec::new(),
                    peek: false,
                    receipts: vec![receipt],
                });
                combined.to_leave.push(alone.finish());
            }
        } else if !decision.peek {
            combined
                .to_give_back
                .extend(give_backs(batch, decision, outcomes));
        }
        combined.decisions.push(outcome);
    }
    combined
}

/// Merges the outcomes of a decision's sub-batches into the outcome that a single node would have given.
fn merge(
    batch: &Batch,
    decision: &Decision,
    outcomes: &[(&[usize], Option<Outcome>)],
) -> Option<Outcome> {
    let in_decision = |(numbers, outcome): &(&[usize], Option<Outcome>)| {
        let mut outcome = (*outcome)?;
        outcome.decided_by = *numbers.get(outcome.decided_by)?;
        Some(outcome)
    };
    let outcomes = outcomes.iter().map(in_decision);
    let mut outcomes: Vec<_> = outcomes.collect::<Option<_>>()?;
    outcomes.sort_by_key(|outcome| outcome.decided_by);
    let quota = |outcome: &Outcome| {
        let take = decision.takes.get(outcome.decided_by);
        let bucket = take.and_then(|take| batch.buckets.get(take.bucket));
        bucket.map_or(0, |bucket| bucket.spec.most_at_once())
    };
    // Ends and resets are compared as times of the nodes' clocks: the nodes decide some microseconds apart, so waits until the
    // same edge differ.
    let as_bucket = |one: &Outcome| Look {
        retry_us: if one.admitted {
            0
        } else {
            one.at_us.saturating_add(one.retry_after_us)
        },
        remaining: one.remaining,
        reset_us: one.at_us.saturating_add(one.reset_us),
        quota: quota(one),
    };
    let looks: Vec<_> = outcomes.iter().map(as_bucket).collect();
    let mut merged = *outcomes.get(outcome(&looks, 0).decided_by)?;
    // The longest of all, should the nodes' clocks differ by more than their answers. A lease must be spent before the first
    // step of a window ends in which some of its units were taken.
    let waits_us = outcomes.iter().map(|outcome| outcome.retry_after_us);
    merged.retry_after_us = waits_us.max().unwrap_or_default();
    if merged.admitted {
        let times_us = outcomes.iter().map(|outcome| outcome.at_us);
        merged.at_us = times_us.min().unwrap_or_default();
    }
    Some(merged)
}

/// What the admitted sub-batches of a decision took.
fn give_backs<'a>(
    batch: &'a Batch,
    decision: &'a Decision,
    outcomes: &[(&[usize], Option<Outcome>)],
) -> Vec<GiveBack<'a>> {
    let admitted = outcomes.iter().filter_map(|(numbers, outcome)| {
        let outcome = outcome.filter(|outcome| outcome.admitted)?;
        Some((numbers, outcome.at_us))
    });
    let each = admitted.flat_map(|(numbers, at_us)| {
        numbers.iter().filter_map(move |number| {
            let take = decision.takes.get(*number)?;
            let (bucket, cost) = (batch.buckets.get(take.bucket)?, take.cost);
            (cost > 0).then_some(GiveBack {
                bucket,
                cost,
                at_us,
            })
        })
    });
    each.collect()
}

#[cfg(test)]
mod tests {
    use super::super::slots::tag;
    use super::*;
    use crate::store::tests as test_batches;
    use sluicegate_engine::{Receipt, receipt_key};

    /// Decisions over keys, each take of cost 1.
    fn batch(keys: &[&str], decisions: &[&[usize]]) -> Batch {
        let buckets = keys.iter().copied().map(test_batches::bucket);
        test_batches::batch(buckets.collect(), decisions)
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
    fn a_sub_batch_holds_the_takes_of_one_slot_in_order() {
        let keys = ["sg:{a}:l:1", "sg:{b}:l:1", "sg:{a}:l:2"];
        let batch = batch(&keys, &[&[0, 1, 2], &[1], &[2]]);
        let sub_batches = split(&batch, tag);
        assert_eq!(sub_batches.len(), 2);
        assert_eq!(sub_batches[0].sources, [(0, vec![0, 2]), (2, vec![0])]);
        assert_eq!(sub_batches[0].batch().buckets.len(), 2);
        assert_eq!(sub_batches[1].sources, [(0, vec![1]), (1, vec![0])]);
    }

    type Given = (String, u64, u64);

    /// What becomes of decisions over keys `a`, `b` and so on, each in a slot of its own, with these answers; and what is
    /// given back: key, cost and time.
    fn combined(
        decisions: &[&[usize]],
        answers: &[Option<&[Outcome]>],
    ) -> (Vec<Option<Outcome>>, Vec<Given>) {
        let keys = ["sg:{a}:l", "sg:{b}:l", "sg:{c}:l"];
        let batch = batch(&keys[..answers.len()], decisions);
        let all = |each: &[Outcome]| each.iter().copied().map(Some).collect();
        let answers = answers
            .iter()
            .map(|answer| answer.map_or_else(Vec::new, all));
        let answers: Vec<_> = answers.collect();
        let combined = combine(&batch, &split(&batch, tag), &answers);
        let given = combined.to_give_back.iter();
        let given = given.map(|g| (g.bucket.key.clone(), g.cost, g.at_us));
        (combined.decisions.clone(), given.collect())
    }

    #[test]
    fn a_denied_sub_batch_denies_the_decision_and_gives_back_what_others_took() {
        let admitted = [outcome(true, 3, 0, 100)];
        let denied = [outcome(false, 0, 50, 101)];
        let longer = [outcome(false, 0, 90, 102)];
        let answers = [&admitted, &denied, &longer].map(|one| Some(&one[..]));
        let (decisions, given) = combined(&[&[0, 1, 2]], &answers);
        let outcome = decisions[0].unwrap();
        assert_eq!((outcome.admitted, outcome.decided_by), (false, 2));
        assert_eq!(outcome.retry_after_us, 90);
        assert_eq!(given, [("sg:{a}:l".to_owned(), 1, 100)]);
    }

    #[test]
    fn the_tightest_sub_batch_decides_an_admission_and_a_denial_of_equal_waits() {
        for (admitted, wait_us) in [(false, 50), (true, 0)] {
            let [loose, tight] = [3, 0].map(|left| [outcome(admitted, left, wait_us, 100)]);
            let (decisions, given) = combined(&[&[0, 1]], &[Some(&loose), Some(&tight)]);
            let outcome = decisions[0].unwrap();
            assert_eq!((outcome.decided_by, outcome.remaining), (1, 0));
            assert!(given.is_empty());
        }
    }

    #[test]
    fn waits_until_the_same_edge_are_equal_whenever_their_nodes_decided() {
        for (first_us, second_us) in [(100, 103), (103, 100)] {
            let until_edge = |left, at_us| [outcome(false, left, 500 - at_us, at_us)];
            let (loose, tight) = (until_edge(5, first_us), until_edge(0, second_us));
            let (decisions, _) = combined(&[&[0, 1]], &[Some(&loose), Some(&tight)]);
            let outcome = decisions[0].unwrap();
            assert_eq!(
                (outcome.decided_by, outcome.remaining),
                (1, 0),
                "{first_us}"
            );
            assert_eq!(outcome.retry_after_us, 400, "the longer wait");
        }
    }

    #[test]
    fn a_denial_waits_for_all_although_the_nodes_clocks_differ() {
        let ahead = [outcome(false, 5, 50, 1_000_000)];
        let behind = [outcome(false, 0, 90, 100)];
        let (decisions, _) = combined(&[&[0, 1]], &[Some(&ahead), Some(&behind)]);
        assert_eq!(decisions[0].unwrap().retry_after_us, 90);
    }

    #[test]
    fn resets_at_the_same_edge_are_equal_too() {
        let admitted = |at_us| Outcome {
            reset_us: 500 - at_us,
            ..outcome(true, 0, 0, at_us)
        };
        let (one, other) = ([admitted(103)], [admitted(100)]);
        let (decisions, _) = combined(&[&[0, 1]], &[Some(&one), Some(&other)]);
        assert_eq!(decisions[0].unwrap().decided_by, 0, "the first");
    }

    #[test]
    fn a_broken_key_leaves_only_its_own_decision_without_an_outcome() {
        let batch = batch(&["sg:{a}:l", "sg:{b}:l"], &[&[0, 1], &[1]]);
        let taken = [3, 2].map(|left| Some(outcome(true, left, 0, 100)));
        let answers = [vec![None], taken.to_vec()];
        let combined = combine(&batch, &split(&batch, tag), &answers);
        assert_eq!(combined.decisions[0], None);
        assert!(combined.decisions[1].is_some());
        // What the other one took.
        assert_eq!(combined.to_give_back.len(), 1);
    }

    #[test]
    fn an_unanswered_sub_batch_leaves_no_outcome_and_the_rest_is_given_back() {
        let taken = [3, 2].map(|left| outcome(true, left, 0, 100));
        let (decisions, given) = combined(&[&[0, 1], &[0]], &[Some(&taken), None]);
        assert!(decisions[0].is_none() && decisions[1].is_some());
        assert_eq!(given.len(), 1);
    }

    #[test]
    fn a_decision_that_all_keys_admit_has_its_receipts_left_with_the_time_of_each_window() {
        let keys = ["sg:{a}:l:2", "sg:{a}:l:1", "sg:{a}:m:1"];
        let mut batch = batch(&keys, &[&[0, 1, 2], &[0, 1]]);
        for (decision, secret) in batch.decisions.iter_mut().zip([7, 8]) {
            let receipt = |limit| Receipt {
                key: receipt_key("a", limit, secret),
                ..Receipt::default()
            };
            decision.receipts = ["l", "m"].map(receipt).to_vec();
        }
        let parts = split(&batch, |key| key);
        let admitted = |at_us| Some(outcome(true, 3, 0, at_us));
        // In the order of keys.
        let denied = Some(outcome(false, 0, 50, 100));
        let answers = [
            vec![admitted(101), denied],
            vec![admitted(102); 2],
            vec![admitted(100)],
        ];
        let combined = combine(&batch, &parts, &answers);
        assert_eq!(combined.decisions[0].unwrap().at_us, 100, "the first");
        assert!(!combined.decisions[1].unwrap().admitted);
        let given: Vec<_> = combined
            .to_give_back
            .iter()
            .map(|g| &*g.bucket.key)
            .collect();
        assert_eq!(given, ["sg:{a}:l:2"]);
        let left = combined
            .to_leave
            .iter()
            .map(|one| &one.decisions[0].receipts[0]);
        let left: Vec<_> = left.map(|r| (&r.key, &*r.taken_at_us)).collect();
        let receipts = &batch.decisions[0].receipts;
        assert_eq!(
            left,
            [
                (&receipts[0].key, &[102, 101][..]),
                (&receipts[1].key, &[100])
            ]
        );
    }
}
