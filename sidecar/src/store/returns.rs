//! Batches the give-backs of one request into few calls. Pure.

use std::collections::BTreeMap;

use sluicegate_engine::{BatchBuilder, Bucket, MAX_CALL_WEIGHT, Return, Returns};

use super::cluster::slots::tag;

/// One give-back: all windows of a limit for a key.
#[derive(Clone, Debug)]
pub struct GiveBackEntry {
    /// The key of the receipt.
    pub receipt: String,
    /// The units to give back at most.
    pub units: u64,
    /// What the units were taken from.
    pub buckets: Vec<Bucket>,
}

/// One call.
#[derive(Debug, Default)]
pub struct ReturnCall {
    /// For the script or the engine.
    pub returns: Returns,
    /// The index of each return's entry.
    pub entries: Vec<usize>,
    weight: usize,
}

/// Puts entries into as few calls as the bound of a call allows; on a Cluster (`by_slot`), each subject has its own calls.
/// Entries with the same receipt keep their order.
pub fn calls(entries: &[GiveBackEntry], by_slot: bool) -> Vec<ReturnCall> {
    let mut open: BTreeMap<&str, (ReturnCall, BatchBuilder)> = BTreeMap::new();
    let mut full = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let group = if by_slot { tag(&entry.receipt) } else { "" };
        let (call, builder) = open.entry(group).or_default();
        let weight = entry.buckets.len() + 1;
        if call.weight > 0 && call.weight + weight > MAX_CALL_WEIGHT {
            full.push(finish(std::mem::take(call), std::mem::take(builder)));
        }
        let buckets = entry.buckets.iter();
        let buckets = buckets.map(|bucket| builder.bucket(bucket.key.clone(), bucket.spec));
        let buckets = buckets.collect();
        call.returns.returns.push(Return {
            receipt: entry.receipt.clone(),
            units: entry.units,
            buckets,
        });
        call.entries.push(number);
        call.weight += weight;
    }
    full.extend(
        open.into_values()
            .map(|(call, builder)| finish(call, builder)),
    );
    full
}

fn finish(mut call: ReturnCall, builder: BatchBuilder) -> ReturnCall {
    call.returns.buckets = builder.finish().buckets;
    call
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
        assert!(calls.iter().all(|call| call.weight <= MAX_CALL_WEIGHT));
        let mut numbers: Vec<_> = calls.iter().flat_map(|call| &call.entries).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().copied().eq(0..1_024));
    }

    #[test]
    fn a_call_names_each_bucket_once() {
        let calls = calls(&[entry(1, 2), entry(1, 2)], false);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].returns.buckets.len(), 2);
        assert_eq!(calls[0].returns.returns[1].buckets, [0, 1]);
    }

    #[test]
    fn on_a_cluster_each_subject_has_a_call_of_its_own() {
        let calls = calls(&[entry(1, 1), entry(2, 1), entry(1, 1)], true);
        let numbers: Vec<_> = calls.iter().map(|call| call.entries.as_slice()).collect();
        assert_eq!(numbers, [&[0, 2][..], &[1]]);
    }
}
