//! Lanes: on a Redis Cluster a decision queues only with those of the same primary, so that a slow or dead node delays no other
//! decisions. Splits a batch over lanes. Pure.
//!
//! A decision over subjects of several primaries waits for all of them. Such decisions have separate lanes, or they would delay
//! those of one primary. Decisions of a batch that share a bucket go in one lane, which keeps their order.

use std::collections::BTreeMap;

use sluicegate_engine::Batch;

/// Of more primaries, some share a lane.
const HOMES: usize = 48;
/// One lane for each primary, and one for the decisions that start at each primary and do not stay there.
pub const LANES: usize = 2 * HOMES;

/// Splits some decisions of a batch, by their indices, over lanes, by the number of the primary that has a key; in their order.
pub fn split(
    batch: &Batch,
    some: &[usize],
    home: impl Fn(&str) -> usize,
) -> BTreeMap<usize, Vec<usize>> {
    let homes = batch.buckets.iter().map(|one| home(&one.key) % HOMES);
    let homes: Vec<_> = homes.collect();
    let mut groups = Groups::of(batch);
    // For each group of decisions that share buckets: the primary of its first take, and whether all takes are there.
    let mut lanes_of: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
    let decisions = || {
        some.iter()
            .filter_map(|index| Some((*index, batch.decisions.get(*index)?)))
    };
    for take in decisions().flat_map(|(_, decision)| &decision.takes) {
        if let Some(at) = homes.get(take.bucket) {
            let of_group = lanes_of.entry(groups.root(take.bucket));
            let (first, stays) = of_group.or_insert((*at, true));
            *stays &= first == at;
        }
    }
    let mut lanes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, decision) in decisions() {
        let first = decision.takes.first().map(|take| groups.root(take.bucket));
        let lane = match first.and_then(|root| lanes_of.get(&root)) {
            Some((home, true)) => *home,
            Some((home, false)) => HOMES + *home,
            // It takes nothing, so any lane will do.
            None => 0,
        };
        lanes.entry(lane).or_default().push(index);
    }
    lanes
}

/// Buckets, grouped by the decisions that take from several: a disjoint-set forest, in which each points to its parent.
struct Groups(Vec<usize>);

impl Groups {
    fn of(batch: &Batch) -> Self {
        let mut groups = Self((0..batch.buckets.len()).collect());
        for decision in &batch.decisions {
            for pair in decision.takes.windows(2) {
                if let [one, other] = pair {
                    let (one, other) = (groups.root(one.bucket), groups.root(other.bucket));
                    if let Some(parent) = groups.0.get_mut(other) {
                        *parent = one;
                    }
                }
            }
        }
        groups
    }

    fn root(&mut self, bucket: usize) -> usize {
        let mut at = bucket;
        while let Some(parent) = self.0.get(at).copied().filter(|parent| *parent != at) {
            let above = self.0.get(parent).copied().unwrap_or(parent);
            // Path halving.
            if let Some(link) = self.0.get_mut(at) {
                *link = above;
            }
            at = above;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::slots::slot;
    use crate::store::tests as test_batches;
    use crate::store::tests::{SPEC, bucket};
    use proptest::prelude::*;
    use sluicegate_engine::bucket_key;

    /// Decisions, each over some of these subjects.
    fn batch(subjects: &[&str], decisions: &[Vec<usize>]) -> Batch {
        let keys = subjects.iter().map(|s| bucket_key(s, "l", &SPEC));
        test_batches::batch(keys.map(bucket).collect(), decisions)
    }

    /// The primary of a key, of 16 with as many slots each.
    fn home(key: &str) -> usize {
        usize::from(slot(key)) / 1_024
    }

    fn split_all(batch: &Batch) -> BTreeMap<usize, Vec<usize>> {
        let all: Vec<_> = (0..batch.decisions.len()).collect();
        split(batch, &all, home)
    }

    /// The lanes of a batch's decisions.
    fn lanes(batch: &Batch) -> Vec<usize> {
        let mut lanes = vec![usize::MAX; batch.decisions.len()];
        for (lane, indices) in split_all(batch) {
            indices.into_iter().for_each(|index| lanes[index] = lane);
        }
        lanes
    }

    #[test]
    fn decisions_at_one_primary_and_over_several_have_different_lanes() {
        // alice, bob and carol are at different primaries.
        let subjects = ["alice", "bob", "carol"];
        let apart = lanes(&batch(&subjects, &[vec![0], vec![1], vec![2]]));
        assert!(apart.iter().all(|lane| *lane < HOMES));
        assert!(apart[0] != apart[1] && apart[1] != apart[2] && apart[0] != apart[2]);
        let over_two = lanes(&batch(&subjects, &[vec![0, 1], vec![2]]));
        assert_eq!(over_two, [HOMES + apart[0], apart[2]]);
        // They share bob, whose decisions keep their order.
        let shared = lanes(&batch(&subjects, &[vec![0, 1], vec![1], vec![2]]));
        assert_eq!(shared, [HOMES + apart[0], HOMES + apart[0], apart[2]]);
    }

    #[test]
    fn a_batch_of_one_lane_is_not_split() {
        let batch = batch(&["alice"], &vec![vec![0]; 3]);
        assert!(split_all(&batch).into_values().eq([[0, 1, 2]]));
    }

    proptest! {
        /// Every decision goes once, and those of a key go in one lane, in order.
        #[test]
        fn every_decision_goes_once_and_in_order(
            decisions in prop::collection::vec(
                prop::sample::subsequence((0..12).collect::<Vec<usize>>(), 0..4), 0..60),
        ) {
            let subjects = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
            let batch = batch(&subjects, &decisions);
            let mut went = vec![0; decisions.len()];
            let mut lane_of_subject = [None; 12];
            for (lane, indices) in split_all(&batch) {
                prop_assert!(lane < LANES && indices.is_sorted());
                for index in &indices {
                    went[*index] += 1;
                    for subject in &decisions[*index] {
                        prop_assert_eq!(*lane_of_subject[*subject].get_or_insert(lane), lane);
                    }
                    let homes = decisions[*index].iter().map(|s| home(&batch.buckets[*s].key));
                    prop_assert!(lane >= HOMES || homes.clone().all(|home| home == lane));
                }
            }
            prop_assert!(went.iter().all(|times| *times == 1));
        }
    }
}
