//! Splits a batch for a Redis Cluster into sub-batches, one for each subject or each key, and combines their answers. Pure.

use std::collections::BTreeMap;

use crate::store::slots::Atomic;
use sluicegate_engine::{
    ALL, Batch, BatchBuilder, Bucket, Decision, Entry, Guard, Held, Hold, Look, Outcome,
    Settlement, Settlements, Take, TakenSlots, hold_key_beside, outcome,
};

/// The takes of a batch from one subject, or from one key.
#[derive(Debug, Default)]
pub struct SubBatch {
    /// The decisions' takes.
    pub batch: Batch,
    /// For each decision of the sub-batch: the index of its decision in the batch, and the indices of its takes there.
    sources: Vec<(usize, Vec<usize>)>,
}

/// The combined answers of the sub-batches.
#[derive(Debug, Default)]
pub struct Combined {
    /// In the order of the batch; `None` where a sub-batch was not answered.
    pub decisions: Vec<Option<Outcome>>,
    /// What comes back that sub-batches took for decisions that another one denied or did not answer.
    pub to_settle: Settlements,
    /// Holds of admitted decisions that no sub-batch leaves, each in a batch of its own.
    pub to_leave: Vec<Batch>,
}

/// What one sub-batch says of a decision: the indices of its takes in the decision, what it leaves, and its outcome.
type Part<'a> = (&'a [usize], &'a [Hold], Option<Outcome>);

/// Splits a batch by which keys a call may have. Holds go with buckets of their group. A decision over several groups may be denied
/// by one of them: so what the others take is in holds for `lasts_us`, each with a secret. Where there is none, it comes back by its
/// time, by a call that must not be repeated.
pub fn split(
    batch: &Batch,
    atomic: Atomic,
    lasts_us: u64,
    mut secret: impl FnMut() -> Option<u128>,
) -> Vec<SubBatch> {
    let mut sub_batches: BTreeMap<&str, SubBatch> = BTreeMap::new();
    // For each bucket its group, and its index there.
    let mut places = Vec::with_capacity(batch.buckets.len());
    for bucket in &batch.buckets {
        let of = atomic.group(&bucket.key);
        let buckets = &mut sub_batches.entry(of).or_default().batch.buckets;
        places.push((of, buckets.len()));
        buckets.push(bucket.clone());
    }
    for (index, decision) in batch.decisions.iter().enumerate() {
        let mut parts: BTreeMap<&str, (Vec<usize>, Vec<Take>)> = BTreeMap::new();
        for (number, take) in decision.takes.iter().enumerate() {
            let Some((of, bucket)) = places.get(take.bucket).copied() else {
                continue;
            };
            let cost = take.cost;
            let (numbers, takes) = parts.entry(of).or_default();
            numbers.push(number);
            takes.push(Take { bucket, cost });
        }
        let may_come_back = parts.len() > 1 && !decision.peek;
        for (of, (numbers, takes)) in parts {
            let sub_batch = sub_batches.entry(of).or_default();
            let holds = decision.holds.iter();
            let holds = holds.filter(|hold| atomic.group(&hold.key) == of);
            let mut holds: Vec<_> = holds.cloned().collect();
            let slots = decision.slots.iter().filter_map(|slots| {
                let (group, bucket) = places.get(slots.bucket).copied()?;
                (group == of).then_some(TakenSlots { bucket, ..*slots })
            });
            if may_come_back {
                hold_rest(&mut holds, &sub_batch.batch, &takes, lasts_us, &mut secret);
            }
            sub_batch.batch.decisions.push(Decision {
                takes,
                peek: decision.peek,
                asks: decision.asks,
                holds,
                slots: slots.collect(),
            });
            sub_batch.sources.push((index, numbers));
        }
    }
    sub_batches.into_values().collect()
}

/// Adds holds of what is in none of these: one of takes with the same cost, since a hold is of as many units of each bucket.
fn hold_rest(
    holds: &mut Vec<Hold>,
    batch: &Batch,
    takes: &[Take],
    lasts_us: u64,
    mut secret: impl FnMut() -> Option<u128>,
) {
    for takes in takes.chunk_by(|one, next| one.cost == next.cost) {
        let buckets = takes.iter().filter(|take| take.cost > 0);
        let buckets = buckets.filter_map(|take| batch.buckets.get(take.bucket));
        // Slots are freed by their own name.
        let buckets = buckets.filter(|bucket| !bucket.spec.has_slots());
        let mut is_held =
            |bucket: &&Bucket| holds.iter_mut().any(|hold| hold.held(bucket).is_some());
        let rest: Vec<_> = buckets.filter(|bucket| !is_held(bucket)).collect();
        if let (Some(first), Some(take), Some(secret)) = (rest.first(), takes.first(), secret()) {
            holds.push(Hold {
                key: hold_key_beside(first, secret),
                units: take.cost,
                lasts_us,
                of: rest.into_iter().map(Held::of).collect(),
                is_receipt: false,
            });
        }
    }
}

/// Combines the answers of the sub-batches; `None` where a decision was not answered.
pub fn combine(
    batch: &Batch,
    sub_batches: &[SubBatch],
    answers: &[Vec<Option<Outcome>>],
) -> Combined {
    let mut parts: Vec<Vec<Part<'_>>> = vec![Vec::new(); batch.decisions.len()];
    for (sub_batch, answer) in sub_batches.iter().zip(answers) {
        let decisions = sub_batch.sources.iter().zip(&sub_batch.batch.decisions);
        for (index, ((source, numbers), decision)) in decisions.enumerate() {
            let outcome = answer.get(index).copied().flatten();
            if let Some(parts) = parts.get_mut(*source) {
                parts.push((numbers, &decision.holds, outcome));
            }
        }
    }
    let is_late = parts.iter().flatten().all(|(_, holds, _)| holds.is_empty());
    let mut combined = Combined::default();
    for (decision, parts) in batch.decisions.iter().zip(&parts) {
        let outcome = merge(batch, decision, parts);
        if outcome.is_none_or(|outcome| !outcome.admitted) {
            if !decision.peek {
                come_back(&mut combined.to_settle, batch, decision, parts);
            }
        } else if is_late {
            for hold in decision.leaves() {
                let mut alone = BatchBuilder::new();
                alone.push(Decision {
                    takes: Vec::new(),
                    peek: false,
                    asks: false,
                    slots: Vec::new(),
                    holds: vec![with_times(hold, batch, decision, parts)],
                });
                combined.to_leave.push(alone.finish());
            }
        }
        combined.decisions.push(outcome);
    }
    combined
}

/// Settles what the admitted sub-batches of a decision took.
fn come_back(to: &mut Settlements, batch: &Batch, decision: &Decision, parts: &[Part<'_>]) {
    for (mut takes, holds, at_us) in admitted(batch, decision, parts) {
        for slots in &decision.slots {
            let bucket = batch.buckets.get(slots.bucket);
            let taken = bucket.filter(|of| takes.iter().any(|(bucket, _)| bucket == of));
            if let Some(bucket) = taken {
                to.return_to(Guard::Free(slots.id), [bucket.clone()]);
            }
        }
        takes.retain(|(bucket, _)| !bucket.spec.has_slots());
        if takes.is_empty() {
            continue;
        }
        for hold in holds {
            let guard = Guard::Spend {
                hold: hold.key.clone(),
                units: ALL,
                keeps: 0,
            };
            to.return_to(guard, takes.iter().map(|(bucket, _)| (*bucket).clone()));
        }
        for (bucket, cost) in takes.into_iter().filter(|_| holds.is_empty()) {
            to.each.push(Settlement {
                guard: Guard::None,
                entries: vec![Entry::back(to.buckets.len(), Some(at_us), cost)],
            });
            to.buckets.push(bucket.clone());
        }
    }
}

/// A hold with the times at which its units were taken.
fn with_times(hold: &Hold, batch: &Batch, decision: &Decision, parts: &[Part<'_>]) -> Hold {
    let mut hold = hold.clone();
    for (takes, _, at_us) in admitted(batch, decision, parts) {
        for (bucket, _) in takes {
            if let Some(held) = hold.held(bucket) {
                held.at_us = at_us;
            }
        }
    }
    hold
}

/// What the admitted sub-batches of a decision took, what they left, and when.
fn admitted<'a>(
    batch: &'a Batch,
    decision: &Decision,
    parts: &[Part<'a>],
) -> impl Iterator<Item = (Vec<(&'a Bucket, u64)>, &'a [Hold], u64)> {
    parts.iter().filter_map(|(numbers, holds, outcome)| {
        let outcome = outcome.filter(|outcome| outcome.admitted)?;
        let takes = numbers
            .iter()
            .filter_map(|number| decision.takes.get(*number));
        let takes = takes.filter_map(|take| Some((batch.buckets.get(take.bucket)?, take.cost)));
        Some((
            takes.filter(|(_, cost)| *cost > 0).collect(),
            *holds,
            outcome.at_us,
        ))
    })
}

/// Merges the outcomes of a decision's sub-batches into the outcome that a single node would have given.
fn merge(batch: &Batch, decision: &Decision, parts: &[Part<'_>]) -> Option<Outcome> {
    let in_decision = |(numbers, _, outcome): &Part<'_>| {
        let mut outcome = (*outcome)?;
        outcome.decided_by = *numbers.get(outcome.decided_by)?;
        Some(outcome)
    };
    let outcomes = parts.iter().map(in_decision);
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
        remaining: one.remaining.cast_signed(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::slots::tag;
    use crate::store::tests as test_batches;
    use sluicegate_engine::hold_key;

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
            over: 0,
            reset_us: 7,
            retry_after_us,
            ended: 0,
            at_us,
        }
    }

    #[test]
    fn a_sub_batch_holds_the_takes_of_one_slot_in_order() {
        let keys = ["sg:{a}:l:1", "sg:{b}:l:1", "sg:{a}:l:2"];
        let batch = batch(&keys, &[&[0, 1, 2], &[1], &[2]]);
        let sub_batches = split(&batch, Atomic::Slot, 1, || None);
        assert_eq!(sub_batches.len(), 2);
        assert_eq!(sub_batches[0].sources, [(0, vec![0, 2]), (2, vec![0])]);
        assert_eq!(sub_batches[0].batch.buckets.len(), 2);
        assert_eq!(sub_batches[1].sources, [(0, vec![1]), (1, vec![0])]);
    }

    /// Key, units, and when they were taken.
    type Given = (String, i64, u64);

    /// What comes back by its time.
    fn given(settlements: &Settlements) -> Vec<Given> {
        let entries = settlements.each.iter().flat_map(|one| {
            assert_eq!(one.guard, Guard::None);
            &one.entries
        });
        let given = entries.map(|entry| {
            let key = settlements.buckets[entry.bucket].key.clone();
            (key, -entry.units, entry.at_us.unwrap())
        });
        given.collect()
    }

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
        // Without a secret, what comes back is told by its time.
        let combined = combine(&batch, &split(&batch, Atomic::Slot, 1, || None), &answers);
        let given = given(&combined.to_settle);
        (combined.decisions, given)
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
        let combined = combine(&batch, &split(&batch, Atomic::Slot, 1, || None), &answers);
        assert_eq!(combined.decisions[0], None);
        assert!(combined.decisions[1].is_some());
        // What the other one took.
        assert_eq!(combined.to_settle.each.len(), 1);
    }

    #[test]
    fn an_unanswered_sub_batch_leaves_no_outcome_and_the_rest_is_given_back() {
        let taken = [3, 2].map(|left| outcome(true, left, 0, 100));
        let (decisions, given) = combined(&[&[0, 1], &[0]], &[Some(&taken), None]);
        assert!(decisions[0].is_none() && decisions[1].is_some());
        assert_eq!(given.len(), 1);
    }

    /// So that the call that returns it may be repeated.
    #[test]
    fn what_one_of_several_slots_takes_is_in_a_hold_of_each_cost() {
        let keys = ["sg:{a}:l:1", "sg:{a}:l:2", "sg:{b}:l:1", "sg:{a}:m:1"];
        let mut batch = batch(&keys, &[&[0, 1, 2, 3], &[0], &[0, 2]]);
        batch.decisions[0].takes[3].cost = 5;
        batch.decisions[2].peek = true;
        let parts = split(&batch, Atomic::Slot, 7, || Some(9));
        let holds: Vec<_> = parts[0]
            .batch
            .decisions
            .iter()
            .map(|one| &one.holds)
            .collect();
        assert!(holds[1].is_empty(), "one slot");
        assert!(holds[2].is_empty(), "a peek");
        let of = holds[0]
            .iter()
            .map(|hold| (hold.units, hold.lasts_us, hold.of.len()));
        assert!(of.eq([(1, 7, 2), (5, 7, 1)]));
        assert!(holds[0].iter().all(|hold| tag(&hold.key) == "a"));
        let denied = Some(outcome(false, 0, 50, 100));
        let admitted = Some(outcome(true, 3, 0, 100));
        let answers = [vec![admitted; 3], vec![denied, admitted]];
        let combined = combine(&batch, &parts, &answers);
        let back = combined.to_settle;
        assert!(back.is_repeatable());
        let guards = back.each.iter().filter_map(|one| one.guard.key());
        assert!(guards.eq(holds[0].iter().map(|hold| &*hold.key)));
        // A hold returns units to what it is of.
        let of = back.each[1]
            .entries
            .iter()
            .map(|entry| &*back.buckets[entry.bucket].key);
        assert!(of.eq([keys[0], keys[1], keys[3]]));
    }

    #[test]
    fn a_decision_that_all_keys_admit_has_its_holds_left_with_the_time_of_each_window() {
        let keys = ["sg:{a}:l:2", "sg:{a}:l:1", "sg:{a}:m:1"];
        let mut batch = batch(&keys, &[&[0, 1, 2], &[0, 1]]);
        for (decision, secret) in batch.decisions.iter_mut().zip([7, 8]) {
            let hold = |limit, of: &[usize]| Hold {
                key: hold_key("a", limit, secret),
                of: of
                    .iter()
                    .map(|index| Held::of(&batch.buckets[*index]))
                    .collect(),
                ..Hold::default()
            };
            decision.holds = vec![hold("l", &[0, 1]), hold("m", &[2])];
        }
        let parts = split(&batch, Atomic::Key, 0, || None);
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
        assert_eq!(
            given(&combined.to_settle),
            [("sg:{a}:l:2".to_owned(), 1, 102)]
        );
        let left = combined
            .to_leave
            .iter()
            .map(|one| &one.decisions[0].holds[0]);
        let times = |hold: &Hold| hold.of.iter().map(|held| held.at_us).collect::<Vec<_>>();
        let left: Vec<_> = left.map(|hold| (&hold.key, times(hold))).collect();
        let holds = &batch.decisions[0].holds;
        assert_eq!(
            left,
            [(&holds[0].key, vec![102, 101]), (&holds[1].key, vec![100])]
        );
    }
}
