//! Lanes: on a Redis Cluster a decision queues only with those of its own range of slots, so that a slow or dead node
//! delays no other decisions. Splits a batch over lanes. Pure.
//!
//! A decision over subjects of several ranges waits for several nodes. Such decisions have separate lanes, or they would
//! delay those of one range. Decisions of a batch that share a bucket go in one lane, which keeps their order.

use std::collections::BTreeMap;

use sluicegate_engine::Batch;

use super::slots::{SLOTS, slot};

/// Ranges of slots. With 2, 3, 4, 6, 8, 12, 16, 24 or 48 nodes and the slots as `redis-cli` assigns them, each range
/// belongs to one node; otherwise a few belong to two.
const RANGES: usize = 48;
/// One lane for each range, and one for the decisions that start in each range and do not stay there.
pub const LANES: usize = 2 * RANGES;

/// Splits a batch over lanes: for each lane the indices of its decisions, in their order.
pub fn split(batch: &Batch) -> BTreeMap<usize, Vec<usize>> {
    let ranges: Vec<_> = batch
        .buckets
        .iter()
        .map(|bucket| range(slot(&bucket.key)))
        .collect();
    let mut groups = Groups::of(batch);
    // For each group of decisions that share buckets: the range of its first take, and whether all takes are in that range.
    let mut homes: BTreeMap<usize, (usize, bool)> = BTreeMap::new();
    for decision in &batch.decisions {
        for take in &decision.takes {
            let Some(range) = ranges.get(take.bucket) else {
                continue;
            };
            let (home, stays) = homes
                .entry(groups.root(take.bucket))
                .or_insert((*range, true));
            *stays &= home == range;
        }
    }
    let mut lanes: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (index, decision) in batch.decisions.iter().enumerate() {
        let first = decision.takes.first().map(|take| groups.root(take.bucket));
        let lane = match first.and_then(|root| homes.get(&root)) {
            Some((home, true)) => *home,
            Some((home, false)) => RANGES + *home,
            // It takes nothing, so any lane will do.
            None => 0,
        };
        lanes.entry(lane).or_default().push(index);
    }
    lanes
}

/// The range of a slot. Rounded as `redis-cli --cluster create` rounds, or the last slots of a range would belong to
/// another node.
const fn range(slot: u16) -> usize {
    (2 * slot as usize + 1) * RANGES / (2 * SLOTS as usize)
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
    use crate::store::tests as test_batches;
    use crate::store::tests::{SPEC, bucket};
    use proptest::prelude::*;
    use sluicegate_engine::bucket_key;

    /// Decisions, each over some of these subjects.
    fn batch(subjects: &[&str], decisions: &[Vec<usize>]) -> Batch {
        let keys = subjects.iter().map(|s| bucket_key(s, "l", &SPEC));
        test_batches::batch(keys.map(bucket).collect(), decisions)
    }

    /// The lanes of a batch's decisions.
    fn lanes(batch: &Batch) -> Vec<usize> {
        let mut lanes = vec![usize::MAX; batch.decisions.len()];
        for (lane, indices) in split(batch) {
            indices.into_iter().for_each(|index| lanes[index] = lane);
        }
        lanes
    }

    #[test]
    fn no_range_spans_two_nodes_when_redis_cli_assigns_the_slots() {
        for nodes in [2, 3, 4, 6, 8, 12, 16, 24, 48] {
            for node in 1..nodes {
                // redis-cli: a node's first slot is the rounded product.
                let first = (2 * node * usize::from(SLOTS) + nodes) / (2 * nodes);
                let first = u16::try_from(first).unwrap();
                assert_eq!(range(first), range(first - 1) + 1, "{nodes} nodes: {first}");
            }
        }
        assert_eq!((range(0), range(16_383)), (0, RANGES - 1));
    }

    #[test]
    fn decisions_in_one_range_and_over_several_ranges_have_different_lanes() {
        // alice, bob and carol are in different ranges.
        let subjects = ["alice", "bob", "carol"];
        let apart = lanes(&batch(&subjects, &[vec![0], vec![1], vec![2]]));
        assert!(apart.iter().all(|lane| *lane < RANGES));
        assert!(apart[0] != apart[1] && apart[1] != apart[2] && apart[0] != apart[2]);
        let over_two = lanes(&batch(&subjects, &[vec![0, 1], vec![2]]));
        assert_eq!(over_two, [RANGES + apart[0], apart[2]]);
        // They share bob, whose decisions keep their order.
        let shared = lanes(&batch(&subjects, &[vec![0, 1], vec![1], vec![2]]));
        assert_eq!(shared, [RANGES + apart[0], RANGES + apart[0], apart[2]]);
    }

    #[test]
    fn a_batch_of_one_lane_is_not_split() {
        let batch = batch(&["alice"], &vec![vec![0]; 3]);
        assert!(split(&batch).into_values().eq([[0, 1, 2]]));
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
            for (lane, indices) in split(&batch) {
                prop_assert!(lane < LANES && indices.is_sorted());
                for index in &indices {
                    went[*index] += 1;
                    for subject in &decisions[*index] {
                        prop_assert_eq!(*lane_of_subject[*subject].get_or_insert(lane), lane);
                    }
                    let ranges = decisions[*index].iter().map(|s| range(slot(&batch.buckets[*s].key)));
                    prop_assert!(lane >= RANGES || ranges.clone().all(|range| range == lane));
                }
            }
            prop_assert!(went.iter().all(|times| *times == 1));
        }
    }
}
