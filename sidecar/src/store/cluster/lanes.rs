//! Lanes: on a Redis Cluster a decision waits only for those of its own range of slots, so that a node that is slow or
//! dead holds up nobody else. Which decision goes in which lane, and putting the answers back together. Pure.
//!
//! A decision over subjects of several ranges waits for several nodes. Such decisions have lanes of their own, or they
//! would hold up those of one range. Decisions of a batch that share a bucket go in one lane, so that their order stays.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluicegate_engine::Batch;

use super::slots::{SLOTS, slot};
use crate::store::portion::Portion;

/// Ranges of slots. With 2, 3, 4, 6, 8, 12, 16, 24 or 48 nodes, as `redis-cli` shares out the slots, each is of one
/// node; otherwise a few are of two neighbours.
const RANGES: usize = 48;
/// Lanes: one for each range, and one for what starts in each range and does not stay there.
pub const LANES: usize = 2 * RANGES;

/// Splits a batch over lanes.
pub fn split(batch: &Arc<Batch>) -> Vec<(usize, Portion)> {
    let ranges: Vec<_> = batch
        .buckets
        .iter()
        .map(|bucket| range(slot(&bucket.key)))
        .collect();
    let mut groups = Groups::of(batch);
    // For each group of decisions that share buckets: where its first one starts, and whether all of it stays there.
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
    for (place, decision) in batch.decisions.iter().enumerate() {
        let first = decision.takes.first().map(|take| groups.root(take.bucket));
        let lane = match first.and_then(|root| homes.get(&root)) {
            Some((home, true)) => *home,
            Some((home, false)) => RANGES + *home,
            // It takes nothing, so it waits for nobody.
            None => 0,
        };
        lanes.entry(lane).or_default().push(place);
    }
    let together = lanes.len() == 1;
    let portion = |(lane, members): (usize, Vec<usize>)| {
        let portion = if together {
            Arc::clone(batch).into()
        } else {
            Portion::of(Arc::clone(batch), members)
        };
        (lane, portion)
    };
    lanes.into_iter().map(portion).collect()
}

/// The range of a slot. Rounded as `redis-cli --cluster create` rounds, or the last slots of a range would be another
/// node's.
const fn range(slot: u16) -> usize {
    (2 * slot as usize + 1) * RANGES / (2 * SLOTS as usize)
}

/// Buckets, grouped by the decisions that take from several: a forest in which each points towards its group's root.
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
            // Halves the way for whoever goes it next.
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
    use crate::store::settled::Settled;
    use crate::store::test_batches;
    use proptest::prelude::*;
    use sluicegate_engine::{Algorithm, Bucket, BucketSpec, Outcome, bucket_key};

    const SPEC: BucketSpec = BucketSpec {
        algorithm: Algorithm::SlidingLog,
        limit: 5,
        window_us: 1_000_000,
    };

    /// Decisions, each over some of these subjects.
    fn batch(subjects: &[&str], decisions: &[Vec<usize>]) -> Arc<Batch> {
        let bucket = |subject: &&str| Bucket {
            key: bucket_key(subject, "l", &SPEC),
            spec: SPEC,
        };
        Arc::new(test_batches::batch(
            subjects.iter().map(bucket).collect(),
            decisions,
        ))
    }

    /// The lanes of a batch's decisions.
    fn lanes(batch: &Arc<Batch>) -> Vec<usize> {
        let mut lanes = vec![usize::MAX; batch.decisions.len()];
        for (lane, portion) in split(batch) {
            for number in 0..portion.len() {
                lanes[portion.place(number).unwrap()] = lane;
            }
        }
        lanes
    }

    #[test]
    fn no_range_is_of_two_nodes_as_redis_cli_shares_out_the_slots() {
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
    fn what_stays_in_its_range_is_apart_from_what_does_not() {
        // alice, bob and carol are in different ranges.
        let subjects = ["alice", "bob", "carol"];
        let apart = lanes(&batch(&subjects, &[vec![0], vec![1], vec![2]]));
        assert!(apart.iter().all(|lane| *lane < RANGES));
        assert!(apart[0] != apart[1] && apart[1] != apart[2] && apart[0] != apart[2]);
        let over_two = lanes(&batch(&subjects, &[vec![0, 1], vec![2]]));
        assert_eq!(over_two, [RANGES + apart[0], apart[2]]);
        // They share bob, and bob's order stays.
        let shared = lanes(&batch(&subjects, &[vec![0, 1], vec![1], vec![2]]));
        assert_eq!(shared, [RANGES + apart[0], RANGES + apart[0], apart[2]]);
    }

    #[test]
    fn a_batch_of_one_lane_is_not_taken_apart() {
        let batch = batch(&["alice"], &vec![vec![0]; 3]);
        let portions = split(&batch);
        assert_eq!(portions.len(), 1);
        assert!(portions[0].1.is_whole() && portions[0].1.len() == 3);
    }

    fn settled(number: usize) -> Option<Settled> {
        let outcome = Outcome {
            admitted: true,
            decided_by: 0,
            remaining: 0,
            reset_us: 0,
            retry_after_us: 0,
            at_us: u64::try_from(number).unwrap(),
        };
        Some(Settled { outcome })
    }

    proptest! {
        /// Every decision goes once; those of a key go in one lane, in order; and each caller's answers come back in
        /// the caller's order.
        #[test]
        fn nothing_is_lost_and_order_stays(
            decisions in prop::collection::vec(
                prop::sample::subsequence((0..12).collect::<Vec<usize>>(), 0..4), 0..60),
        ) {
            let subjects = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"];
            let batch = batch(&subjects, &decisions);
            let mut whole = vec![None; decisions.len()];
            let mut went = vec![0; decisions.len()];
            let mut lane_of_subject = [None; 12];
            for (lane, portion) in split(&batch) {
                prop_assert!(lane < LANES && portion.len() > 0);
                let places: Vec<_> = (0..portion.len()).map(|n| portion.place(n).unwrap()).collect();
                prop_assert!(places.is_sorted());
                for (number, place) in places.iter().enumerate() {
                    went[*place] += 1;
                    prop_assert_eq!(portion.get(number), batch.decisions.get(*place));
                    for subject in &decisions[*place] {
                        prop_assert_eq!(*lane_of_subject[*subject].get_or_insert(lane), lane);
                    }
                    let ranges = decisions[*place].iter().map(|s| range(slot(&batch.buckets[*s].key)));
                    prop_assert!(lane >= RANGES || ranges.clone().all(|range| range == lane));
                }
                portion.put_back(places.into_iter().map(settled).collect(), &mut whole);
            }
            prop_assert!(went.iter().all(|times| *times == 1));
            let expected: Vec<_> = (0..decisions.len()).map(settled).collect();
            prop_assert_eq!(whole, expected);
        }
    }
}
