//! Divides settlements among calls of a store, and repeats calls whose answers were lost.

use std::collections::HashSet;

use sluicegate_engine::script::Settled;
use sluicegate_engine::{
    BatchBuilder, Entry, Guard, Held, MAX_CALL_WEIGHT, Settlement, Settlements,
};

use super::error::StoreError;
use crate::store::slots::Atomic;

/// Puts settlements, in their order, into as few calls as the bound of a call allows; none has two with one guard, or keys that one
/// call may not have. So the answers of the calls, one after the other, are those of the settlements. Pure.
pub fn calls(all: &Settlements, atomic: Atomic) -> Vec<Settlements> {
    let mut calls: Vec<(Vec<Settlement>, BatchBuilder)> = Vec::new();
    let (mut weight, mut guards, mut last_slot) = (0, HashSet::new(), None);
    for one in &all.each {
        let of_buckets = one.entries.chunk_by(|one, next| one.bucket == next.bucket);
        let visits = of_buckets.count() + 1;
        weight += visits;
        let first = one.entries.first();
        let first = first.and_then(|first| all.buckets.get(first.bucket));
        let slot = first.map(|first| atomic.group(&first.key));
        let guard = one.guard.key();
        let is_again = guard.is_some_and(|guard| !guards.insert(guard));
        if weight > MAX_CALL_WEIGHT || is_again || last_slot.is_none_or(|last| last != slot) {
            weight = visits;
            guards = guard.into_iter().collect();
            calls.push(Default::default());
        }
        last_slot = Some(slot);
        if let Some((settlements, builder)) = calls.last_mut() {
            let entry = |entry: &Entry| {
                let bucket = all.buckets.get(entry.bucket)?;
                let bucket = builder.bucket(&bucket.key, bucket.spec);
                Some(Entry { bucket, ..*entry })
            };
            settlements.push(Settlement {
                guard: one.guard.clone(),
                entries: one.entries.iter().filter_map(entry).collect(),
            });
        }
    }
    let finish = |(each, builder): (_, BatchBuilder)| Settlements {
        buckets: builder.finish().buckets,
        each,
    };
    calls.into_iter().map(finish).collect()
}

/// A settlement whose guard has spent this, in a call for each bucket, none of which may be repeated. A bucket that drains by
/// another rate than when the units were taken gets none. Pure.
pub fn apart(all: &Settlements, one: &Settlement, spent: &Settled) -> Vec<Settlements> {
    let alone = |entry: &Entry| {
        let bucket = all.buckets.get(entry.bucket)?;
        let mut alone = Entry {
            bucket: 0,
            ..*entry
        };
        if entry.at_us.is_none() {
            let now = Held::of(bucket);
            let mut of = spent.of.iter();
            let held = of.find(|held| (held.name, held.rate) == (now.name, now.rate))?;
            let units = entry.units.unsigned_abs().min(spent.units);
            alone = Entry::back(0, Some(held.at_us), units);
        }
        Some(Settlements::one(
            Guard::None,
            vec![bucket.clone()],
            vec![alone],
        ))
    };
    one.entries.iter().filter_map(alone).collect()
}

/// Makes a call, and makes it again if the connection broke meanwhile and that is harmless; a store that is silent is not waited
/// for twice. The units of each settlement; `None` where nothing was left to be done the second time, so that it is not known
/// what the first did.
///
/// # Errors
/// What was settled is not known.
pub async fn settle<F: Future<Output = Result<Vec<u64>, StoreError>>>(
    call: &Settlements,
    make: impl Fn() -> F,
) -> Result<Vec<Option<u64>>, StoreError> {
    match make().await {
        Err(StoreError::Cut(_)) if call.is_repeatable() => {
            let units = make().await?.into_iter();
            Ok(units.map(|units| (units > 0).then_some(units)).collect())
        }
        first => Ok(first?.into_iter().map(Some).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_engine::{ALL, Algorithm, Bucket, BucketSpec, bucket_key, hold_key};

    /// Settlements of these subjects, of limits with so many windows.
    fn settlements(subjects: &[(usize, u64)]) -> Settlements {
        let mut builder = BatchBuilder::new();
        let one = |(index, (subject, windows)): (usize, &(usize, u64))| {
            let subject = format!("s{subject}");
            let entry = |n: u64| {
                let spec = BucketSpec {
                    algorithm: Algorithm::FixedWindow,
                    quota: 5,
                    window_us: 1_000_000 * (n + 1),
                };
                let bucket = builder.bucket(bucket_key(&subject, "l", &spec), spec);
                Entry::back(bucket, None, 1)
            };
            Settlement {
                entries: (0..*windows).map(entry).collect(),
                guard: Guard::Spend {
                    hold: hold_key(&subject, "l", index as u128),
                    units: ALL,
                    keeps: 0,
                },
            }
        };
        let each = subjects.iter().enumerate().map(one).collect();
        let buckets = builder.finish().buckets;
        Settlements { buckets, each }
    }

    #[test]
    fn a_whole_request_of_give_backs_is_few_calls_of_a_bounded_size() {
        let subjects: Vec<_> = (0..1_024).map(|n| (n, 8)).collect();
        let all = settlements(&subjects);
        let calls = calls(&all, Atomic::Store);
        assert_eq!(calls.len(), 19);
        let each = calls.iter().map(|call| &call.each);
        let weights = each.clone().map(|each| 9 * each.len());
        assert!(weights.max() <= Some(MAX_CALL_WEIGHT));
        let guards = each.flatten().map(|one| &one.guard);
        assert!(guards.eq(all.each.iter().map(|one| &one.guard)));
    }

    #[test]
    fn a_call_names_each_bucket_and_each_guard_once() {
        let mut two = settlements(&[(1, 2), (1, 2)]);
        let one = calls(&two, Atomic::Store);
        assert_eq!(one.len(), 1);
        let buckets: &[Bucket] = &one[0].buckets;
        assert_eq!(buckets.len(), 2);
        let named = one[0].each[1].entries.iter().map(|entry| entry.bucket);
        assert!(named.eq([0, 1]));
        two.each[1].guard = two.each[0].guard.clone();
        assert_eq!(calls(&two, Atomic::Store).len(), 2);
    }

    #[test]
    fn on_a_cluster_no_call_has_two_subjects() {
        let calls = calls(&settlements(&[(1, 1), (1, 2), (2, 1)]), Atomic::Slot);
        assert!(calls.iter().map(|call| call.each.len()).eq([2, 1]));
    }

    #[tokio::test]
    async fn only_what_is_guarded_is_sent_again_and_nothing_done_then_says_nothing_of_the_first() {
        let mut call = settlements(&[(1, 1), (2, 1)]);
        let lost = || Err(StoreError::Cut((redis::ErrorKind::Io, "cut").into()));
        let tried = std::cell::Cell::new(0);
        let make = async || {
            tried.set(tried.get() + 1);
            if tried.get() == 1 {
                lost()
            } else {
                Ok(vec![0, 3])
            }
        };
        assert_eq!(settle(&call, make).await.unwrap(), [None, Some(3)]);
        if let Guard::Spend { units, .. } = &mut call.each[0].guard {
            *units = 2;
        }
        tried.set(0);
        assert!(settle(&call, make).await.is_err(), "it would return more");
        assert_eq!(tried.get(), 1);
    }
}
