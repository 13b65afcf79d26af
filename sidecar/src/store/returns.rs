//! Batches the give-backs of one request into few calls. Pure.

use sluicegate_engine::{BatchBuilder, Bucket, MAX_CALL_WEIGHT, Return, Returns};

use super::cluster::slots::tag;

/// One give-back: all windows of a limit for a key.
#[derive(Clone, Debug)]
pub struct GiveBackEntry {
    /// The key of the receipt.
    pub receipt: String,
    /// The units to give back at most.
    pub units: u64,
    /// The buckets from which the units were taken.
    pub buckets: Vec<Bucket>,
}

/// Puts entries, in their order, into as few calls as the bound of a call allows; on a Cluster (`by_slot`), no call has two
/// subjects. So the answers of the calls, one after the other, are those of the entries.
pub fn calls(entries: &[GiveBackEntry], by_slot: bool) -> Vec<Returns> {
    let mut calls: Vec<(Vec<Return>, BatchBuilder)> = Vec::new();
    let mut weight = 0;
    for entry in entries {
        let visits = entry.buckets.len() + 1;
        weight += visits;
        let is_near = |other: &Return| tag(&other.receipt) == tag(&entry.receipt);
        let last = calls.last().and_then(|(returns, _)| returns.last());
        if weight > MAX_CALL_WEIGHT || !last.is_some_and(|last| !by_slot || is_near(last)) {
            weight = visits;
            calls.push(Default::default());
        }
        if let Some((returns, builder)) = calls.last_mut() {
            let buckets = entry.buckets.iter();
            returns.push(Return {
                receipt: entry.receipt.clone(),
                units: entry.units,
                buckets: buckets
                    .map(|bucket| builder.bucket(&bucket.key, bucket.spec))
                    .collect(),
            });
        }
    }
    let finish = |(returns, builder): (_, BatchBuilder)| Returns {
        buckets: builder.finish().buckets,
        returns,
    };
    calls.into_iter().map(finish).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_engine::{Algorithm, BucketSpec, bucket_key, receipt_key};

    fn entry(subject: usize, windows: u64) -> GiveBackEntry {
        let subject = format!("s{subject}");
        let bucket = |n: u64| {
            let spec = BucketSpec {
                algorithm: Algorithm::FixedWindow,
                quota: 5,
                window_us: 1_000_000 * (n + 1),
            };
            Bucket {
                key: bucket_key(&subject, "l", &spec),
                spec,
            }
        };
        GiveBackEntry {
            receipt: receipt_key(&subject, "l", 1),
            units: 1,
            buckets: (0..windows).map(bucket).collect(),
        }
    }

    #[test]
    fn a_whole_request_of_give_backs_is_few_calls_of_a_bounded_size() {
        let entries: Vec<_> = (0..1_024).map(|n| entry(n, 8)).collect();
        let calls = calls(&entries, false);
        assert_eq!(calls.len(), 19);
        let of_calls = calls.iter().map(|call| &call.returns);
        let weights = of_calls.clone().map(|returns| 9 * returns.len());
        assert!(weights.max() <= Some(MAX_CALL_WEIGHT));
        let returned = of_calls.flatten().map(|one| &one.receipt);
        assert!(returned.eq(entries.iter().map(|entry| &entry.receipt)));
    }

    #[test]
    fn a_call_names_each_bucket_once() {
        let calls = calls(&[entry(1, 2), entry(1, 2)], false);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].buckets.len(), 2);
        assert_eq!(calls[0].returns[1].buckets, [0, 1]);
    }

    #[test]
    fn on_a_cluster_no_call_has_two_subjects() {
        let calls = calls(&[entry(1, 1), entry(1, 2), entry(2, 1)], true);
        assert!(calls.iter().map(|call| call.returns.len()).eq([2, 1]));
    }
}
