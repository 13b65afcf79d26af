//! Give-backs of one request, put together into few calls. Pure.

use std::collections::{BTreeMap, HashMap};

use sluicegate_engine::{Bucket, MAX_CALL_WEIGHT, Return, Returns};

use super::cluster::slots::tag;

/// One give-back: all windows of a limit for a key.
#[derive(Clone, Debug)]
pub struct GiveBackEntry {
    /// The key of the receipt.
    pub receipt: String,
    /// No more units than this.
    pub units: u64,
    /// What the units were taken from.
    pub buckets: Vec<Bucket>,
}

/// What goes in one call.
#[derive(Debug, Default)]
pub struct ReturnCall {
    /// For the script or the engine.
    pub returns: Returns,
    /// Which entry each of them is of.
    pub entries: Vec<usize>,
    weight: usize,
}

/// Entries in as few calls as the bound of a call allows; on a Cluster (`by_slot`) each subject's in calls of its own.
/// Those with the same receipt stay in their order.
pub fn calls(entries: &[GiveBackEntry], by_slot: bool) -> Vec<ReturnCall> {
    let mut open: BTreeMap<&str, (ReturnCall, HashMap<&str, usize>)> = BTreeMap::new();
    let mut full = Vec::new();
    for (number, entry) in entries.iter().enumerate() {
        let group = if by_slot { tag(&entry.receipt) } else { "" };
        let (call, known) = open.entry(group).or_default();
        let weight = entry.buckets.len() + 1;
        if call.weight > 0 && call.weight + weight > MAX_CALL_WEIGHT {
            full.push(std::mem::take(call));
            known.clear();
        }
        let buckets = entry.buckets.iter().map(|bucket| {
            *known.entry(bucket.key.as_str()).or_insert_with(|| {
                call.returns.buckets.push(bucket.clone());
                call.returns.buckets.len() - 1
            })
        });
        let buckets = buckets.collect();
        call.returns.returns.push(Return {
            receipt: entry.receipt.clone(),
            units: entry.units,
            buckets,
        });
        call.entries.push(number);
        call.weight += weight;
    }
    full.extend(open.into_values().map(|(call, _)| call));
    full
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
                limit: 5,
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
    fn s15_a_whole_request_of_give_backs_is_few_calls_of_a_bounded_size() {
        let entries: Vec<_> = (0..1_024).map(|n| entry(n, 8)).collect();
        let calls = calls(&entries, false);
        assert_eq!(calls.len(), 19);
        assert!(calls.iter().all(|call| call.weight <= MAX_CALL_WEIGHT));
        let mut numbers: Vec<_> = calls.iter().flat_map(|call| &call.entries).collect();
        numbers.sort_unstable();
        assert!(numbers.iter().copied().copied().eq(0..1_024));
    }

    #[test]
    fn a_bucket_stands_in_a_call_once() {
        let calls = calls(&[entry(1, 2), entry(1, 2)], false);
        assert_eq!(calls.len(), 1);
        assert_eq!(calls[0].returns.buckets.len(), 2);
        assert_eq!(calls[0].returns.returns[1].buckets, [0, 1]);
    }

    #[test]
    fn on_a_cluster_each_subject_is_asked_for_by_itself() {
        let calls = calls(&[entry(1, 1), entry(2, 1), entry(1, 1)], true);
        let numbers: Vec<_> = calls.iter().map(|call| call.entries.as_slice()).collect();
        assert_eq!(numbers, [&[0, 2][..], &[1]]);
    }
}
