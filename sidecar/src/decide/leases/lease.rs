//! The decision that asks for a lease, and what its outcome grants. Pure.

use std::sync::Arc;

use sluicegate_engine::lease::{Grant, LeaseRefusal, reserve};
use sluicegate_engine::{
    Algorithm, BatchBuilder, Bucket, BucketSpec, Decision, Outcome, Receipt as StoredReceipt, Take,
    bucket_key, receipt_key,
};

use super::LeaseKey;
use super::reservation::Leased;
use crate::policy::Limit;
use crate::store::GiveBackEntry;
use crate::telemetry::metrics::LeaseMetrics;

/// How long the store keeps the receipt of a lease after its end. A key has some leases each second, and a window may last
/// for days: receipts that lasted as long would fill the store. Units that are returned later are held for one window.
const RETURN_WITHIN_US: u64 = 5_000_000;

/// For how long after its grant units of a lease may be returned: the longest lease that a policy may have, plus the time for
/// which the store then keeps its receipt. Not by policy, since all sidecars read each other's markers.
const MAY_COME_BACK_US: u64 = 10_000_000 + RETURN_WITHIN_US;
/// The quota of markers: it is never used up.
pub const MARKER_QUOTA: u64 = 2_147_483_647;

/// A bucket beside a limit's own from which each lease takes one unit, for as long as units may be returned. While it is empty,
/// nobody holds a lease of the key, and a denial may be cached like one by a limit without leases. `None`: the limit has none.
pub fn marker(limit: &Limit, key: &str) -> Option<Bucket> {
    limit.lease?;
    let spec = BucketSpec {
        algorithm: Algorithm::SlidingWindow {
            precision_us: 1_000_000,
            leased: false,
        },
        quota: MARKER_QUOTA,
        window_us: MAY_COME_BACK_US,
    };
    // No limit's name contains a slash.
    let key = bucket_key(key, &format!("{}/leases", limit.name), &spec);
    Some(Bucket { key, spec })
}

/// What is needed to return the units of a lease, and to answer from it.
#[derive(Debug)]
pub struct Lease {
    /// The limit.
    pub limit: Arc<Limit>,
    /// The key.
    pub key: String,
    /// The epoch in which the units were taken.
    pub epoch: u64,
    /// The metrics of the limit's leases.
    pub metrics: Arc<LeaseMetrics>,
    /// Whether the store is known to have granted the lease.
    pub is_granted: bool,
    /// The receipt's key in the store.
    store_key: String,
    /// What the units were taken from.
    buckets: Vec<Bucket>,
    /// The window that decided, as it was when the lease was granted.
    quota: u64,
    window_ms: u64,
    /// When its whole quota is available again, by this process's clock.
    whole_us: u64,
}

/// A lease that is being asked for.
#[derive(Debug)]
pub(super) struct LeaseRequest {
    pub key: LeaseKey,
    pub units: u64,
    pub metrics: Arc<LeaseMetrics>,
    store_key: String,
    buckets: Vec<Bucket>,
}

impl LeaseRequest {
    pub fn new(key: LeaseKey, units: u64, secret: u128, metrics: Arc<LeaseMetrics>) -> Self {
        let limit = &key.limit;
        let bucket = |spec| Bucket {
            key: bucket_key(&key.key, &limit.name, spec),
            spec: *spec,
        };
        Self {
            units,
            metrics,
            store_key: receipt_key(&key.key, &limit.name, secret),
            buckets: limit.windows.iter().map(bucket).collect(),
            key,
        }
    }

    /// Adds the decision to a batch: the units from every window, with a receipt.
    pub fn add_to(&self, builder: &mut BatchBuilder) {
        let units = self
            .buckets
            .iter()
            .map(|bucket| (bucket.clone(), self.units));
        let marked = marker(&self.key.limit, &self.key.key).map(|marker| (marker, 1));
        let takes = units
            .chain(marked)
            .map(|(Bucket { key, spec }, cost)| Take {
                bucket: builder.bucket(key, spec),
                cost,
            });
        let takes = takes.collect();
        let longest_us = self.key.limit.lease.map_or(0, |terms| terms.longest_us);
        builder.push(Decision {
            takes,
            peek: false,
            receipts: vec![StoredReceipt {
                key: self.store_key.clone(),
                units: self.units,
                lifetime_us: longest_us.saturating_add(RETURN_WITHIN_US),
                taken_at_us: Vec::new(),
            }],
        });
    }

    /// The lease that an outcome grants. `sent_us` is a moment before the call was sent, by this process's clock.
    pub fn grant(self, outcome: Option<&Outcome>, sent_us: u64) -> Grant<Arc<Lease>> {
        let length_us = outcome.map_or(0, |outcome| match &self.key.limit.lease {
            Some(terms) => terms.length_us(&self.key.limit.windows, outcome.at_us),
            None => 0,
        });
        let decided = outcome.and_then(|outcome| {
            let spec = self.buckets.get(outcome.decided_by)?.spec;
            let window_ms = spec.refill_us(outcome.at_us).div_ceil(1_000);
            Some((spec.most_at_once(), window_ms, outcome.reset_us))
        });
        let (quota, window_ms, reset_us) = decided.unwrap_or_default();
        Grant {
            units: self.units,
            ends_us: sent_us.saturating_add(length_us),
            remaining: outcome.map_or(0, |outcome| outcome.remaining),
            tag: Arc::new(Lease {
                limit: self.key.limit,
                key: self.key.key,
                epoch: self.key.epoch,
                metrics: self.metrics,
                is_granted: outcome.is_some_and(|outcome| outcome.admitted),
                store_key: self.store_key,
                buckets: self.buckets,
                quota,
                window_ms,
                whole_us: sent_us.saturating_add(reset_us),
            }),
        }
    }
}

/// Why a lease that was granted is returned at once.
pub(super) fn useless_because(grant: &Grant<Arc<Lease>>, now_us: u64) -> Option<LeaseRefusal> {
    let limit = &grant.tag.limit;
    let terms = limit.lease.as_ref()?;
    if now_us >= grant.ends_us {
        return Some(LeaseRefusal::Late);
    }
    // Others have taken units since this sidecar last knew.
    (grant.remaining < reserve(terms, &limit.windows)).then_some(LeaseRefusal::NearLimit)
}

impl Lease {
    pub(super) fn lease_key(&self) -> LeaseKey {
        LeaseKey {
            limit: Arc::clone(&self.limit),
            key: self.key.clone(),
            epoch: self.epoch,
        }
    }

    /// The status of a check that is decided from the lease.
    pub(super) fn leased(&self, remaining: u64, now_us: u64) -> Leased {
        Leased {
            quota: self.quota,
            window_ms: self.window_ms,
            remaining: remaining.min(self.quota),
            reset_ms: self.whole_us.saturating_sub(now_us).div_ceil(1_000),
        }
    }

    /// The request that returns units to the store.
    pub(super) fn give_back(&self, units: u64) -> GiveBackEntry {
        GiveBackEntry {
            receipt: self.store_key.clone(),
            units,
            buckets: self.buckets.clone(),
        }
    }
}
