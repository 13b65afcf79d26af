//! Builds a batch in which a bucket of several decisions occurs once, unless they name it with several specs.

use crate::algorithm::BucketSpec;
use crate::batch::{Batch, Decision, Take};
use crate::hold::TakenSlots;
use crate::key::Bucket;
use hashbrown::HashTable;
use std::hash::{BuildHasher, RandomState};

/// A batch that grows decision by decision.
#[derive(Debug, Default)]
pub struct BatchBuilder {
    batch: Batch,
    weight: usize,
    /// Indices into the batch's buckets with the hashes of their keys, which are not stored a second time.
    by_key: HashTable<(u64, usize)>,
    // Randomly seeded, because clients influence keys.
    hasher: RandomState,
    has_mixed_specs: bool,
}

impl BatchBuilder {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The batch so far.
    #[must_use]
    pub fn batch(&self) -> &Batch {
        &self.batch
    }

    /// The batch.
    #[must_use]
    pub fn finish(self) -> Batch {
        self.batch
    }

    /// [`Batch::weight`] of the batch so far, without recounting.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.weight
    }

    /// The index of the bucket with this key and spec; adds it if it is new. A key with two specs gets two buckets: one
    /// call of a store cannot contain both, and [`BatchBuilder::copy`] refuses the second.
    pub fn bucket(&mut self, key: impl AsRef<str> + Into<String>, spec: BucketSpec) -> usize {
        let hash = self.hasher.hash_one(key.as_ref());
        if let Some(known) = self.find(hash, key.as_ref(), |known| *known == spec) {
            return known;
        }
        self.has_mixed_specs |= self.find(hash, key.as_ref(), |_| true).is_some();
        let (key, index) = (key.into(), self.batch.buckets.len());
        self.batch.buckets.push(Bucket { key, spec });
        let entry = (hash, index);
        self.by_key.insert_unique(hash, entry, |(hash, _)| *hash);
        index
    }

    /// Whether a key is here with several specs.
    #[must_use]
    pub fn has_mixed_specs(&self) -> bool {
        self.has_mixed_specs
    }

    /// Adds a decision whose takes name buckets of this batch; its index.
    pub fn push(&mut self, decision: Decision) -> usize {
        self.weight += decision.weight();
        self.batch.decisions.push(decision);
        self.batch.decisions.len() - 1
    }

    /// Adds a decision of another batch together with its buckets; drops takes without a bucket.
    ///
    /// Returns false and adds nothing if a bucket exists with another spec, because one call cannot count the same
    /// bucket in two ways: the policy was reloaded between two callers, or two decisions request different quotas.
    #[must_use]
    pub fn copy(&mut self, from: &Batch, decision: &Decision) -> bool {
        let takes = decision.takes.iter();
        let mut buckets = takes.filter_map(|take| from.buckets.get(take.bucket));
        let is_other = |bucket: &Bucket| {
            let hash = self.hasher.hash_one(bucket.key.as_str());
            self.find(hash, &bucket.key, |known| *known != bucket.spec)
        };
        if buckets.any(|bucket| is_other(bucket).is_some()) {
            return false;
        }
        self.add(from, decision);
        true
    }

    /// The same, even if a key exists here with another spec.
    pub fn add(&mut self, from: &Batch, decision: &Decision) {
        let takes = decision.takes.iter();
        let takes = takes.filter_map(|take| {
            let bucket = from.buckets.get(take.bucket)?;
            let bucket = self.bucket(&bucket.key, bucket.spec);
            let cost = take.cost;
            Some(Take { bucket, cost })
        });
        let takes = takes.collect();
        let slots = decision.slots.iter().filter_map(|slots| {
            let bucket = from.buckets.get(slots.bucket)?;
            let bucket = self.bucket(&bucket.key, bucket.spec);
            Some(TakenSlots { bucket, ..*slots })
        });
        let slots = slots.collect();
        self.push(Decision {
            takes,
            peek: decision.peek,
            asks: decision.asks,
            holds: decision.holds.clone(),
            slots,
        });
    }

    /// The index of a bucket with this key whose spec is one that is wanted.
    fn find(&self, hash: u64, key: &str, is_wanted: impl Fn(&BucketSpec) -> bool) -> Option<usize> {
        let is_it = |(_, index): &(u64, usize)| {
            let bucket = self.batch.buckets.get(*index);
            bucket.is_some_and(|bucket| bucket.key == key && is_wanted(&bucket.spec))
        };
        self.by_key.find(hash, is_it).map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::Algorithm;
    use crate::test;

    fn spec(quota: u64) -> BucketSpec {
        test::spec(Algorithm::SlidingLog, quota, 1_000_000)
    }

    fn decision(takes: &[usize]) -> Decision {
        test::decision(takes, 1, false)
    }

    fn batch(keys: &[&str], limit: u64, decisions: &[&[usize]]) -> Batch {
        let bucket = |key: &&str| Bucket {
            key: (*key).to_owned(),
            spec: spec(limit),
        };
        Batch {
            buckets: keys.iter().map(bucket).collect(),
            decisions: decisions.iter().map(|takes| decision(takes)).collect(),
        }
    }

    fn keys(batch: &Batch) -> Vec<&str> {
        batch.buckets.iter().map(|b| b.key.as_str()).collect()
    }

    #[test]
    fn a_bucket_of_two_batches_stands_in_one_once() {
        let mut builder = BatchBuilder::new();
        let one = batch(&["a", "b"], 5, &[&[0, 1]]);
        let other = batch(&["c", "b"], 5, &[&[1, 0]]);
        assert!(builder.copy(&one, &one.decisions[0]));
        assert!(builder.copy(&other, &other.decisions[0]));
        assert_eq!(builder.weight(), 4);
        let whole = builder.finish();
        assert_eq!(keys(&whole), ["a", "b", "c"]);
        assert_eq!(whole.decisions, [decision(&[0, 1]), decision(&[1, 2])]);
    }

    #[test]
    fn a_decision_over_a_bucket_with_another_spec_adds_nothing() {
        let mut builder = BatchBuilder::new();
        let (old, new) = (batch(&["a"], 5, &[&[0]]), batch(&["b", "a"], 6, &[&[0, 1]]));
        assert!(builder.copy(&old, &old.decisions[0]));
        assert!(!builder.copy(&new, &new.decisions[0]));
        assert_eq!(builder.batch(), &old);
        assert_eq!(builder.weight(), 1);
    }

    #[test]
    fn a_take_that_names_no_bucket_is_left_out() {
        let mut builder = BatchBuilder::new();
        let short = batch(&["a"], 5, &[&[7, 0]]);
        assert!(builder.copy(&short, &short.decisions[0]));
        assert_eq!(builder.finish().decisions, [decision(&[0])]);
    }

    #[test]
    fn a_key_has_one_index_for_each_spec() {
        let mut builder = BatchBuilder::new();
        let index = |builder: &mut BatchBuilder, n: usize| builder.bucket(format!("k{n}"), spec(5));
        // Enough to make the table grow.
        for n in (0..1_000).chain(0..1_000) {
            assert_eq!(index(&mut builder, n), n);
        }
        assert_eq!(builder.bucket("k7".to_owned(), spec(9)), 1_000);
        assert_eq!(builder.bucket("k7".to_owned(), spec(5)), 7);
        builder.push(decision(&[7]));
        builder.push(decision(&[1_000]));
        let whole = builder.finish();
        assert_eq!(whole.buckets.len(), 1_001);
        let specs = [whole.buckets[7].spec, whole.buckets[1_000].spec];
        assert_eq!(specs, [spec(5), spec(9)]);
        // No call has both; a batch that is still to be divided into calls may.
        let mut call = BatchBuilder::new();
        assert!(call.copy(&whole, &whole.decisions[0]));
        assert!(!call.copy(&whole, &whole.decisions[1]));
        let mut part = BatchBuilder::new();
        whole.decisions.iter().for_each(|one| part.add(&whole, one));
        assert!(part.has_mixed_specs() && !call.has_mixed_specs());
        let part = part.finish();
        assert_eq!(part.spec_ranks(), [0, 1]);
        let of_part = part.buckets.iter().map(|bucket| bucket.spec);
        assert!(of_part.eq(specs));
        assert_eq!(part.decisions, [decision(&[0]), decision(&[1])]);
    }
}
