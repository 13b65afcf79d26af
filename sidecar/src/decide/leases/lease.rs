//! A lease: the decision that asks for it, what its outcome grants, and what settles it. Pure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sluicegate_engine::lease::{Grant, LeaseRefusal, LeaseTerms, reserve};
use sluicegate_engine::{
    ALL, BatchBuilder, Bucket, Decision, Guard, Held, Hold, Outcome, Settlements, Take, hold_key,
};
use sluicegate_protocol::LimitStatus;

use super::{LeaseKey, longest_us};
use crate::decide::buckets::buckets_of;
use crate::decide::status;
use crate::telemetry::metrics::LeaseMetrics;

/// How long the store keeps the hold of a lease after its end. A key has some leases each second, and a window may last
/// for days: holds that lasted as long would fill the store. Units that are returned later are held for one window.
const RETURN_WITHIN_US: u64 = 5_000_000;

/// A lease, from the request for it until its units were returned.
#[derive(Debug)]
pub struct Lease {
    /// Whose units they are.
    pub key: LeaseKey,
    /// The metrics of the limit's leases.
    pub metrics: Arc<LeaseMetrics>,
    /// How many units were asked for.
    units: u64,
    /// The hold's key in the store.
    hold: String,
    /// Units that have not been returned.
    kept: AtomicU64,
    /// What the units are taken from.
    buckets: Vec<Bucket>,
    /// The key's status when the store granted the lease, if it is known to have done so.
    granted: Option<LimitStatus<'static>>,
    /// When the whole quota is available again, by this process's clock.
    whole_us: u64,
}

impl Lease {
    /// A lease that is still to be asked for.
    pub(super) fn new(key: LeaseKey, units: u64, secret: u128, metrics: Arc<LeaseMetrics>) -> Self {
        let limit = &key.limit;
        Self {
            metrics,
            units,
            hold: hold_key(&key.key, &limit.name, secret),
            kept: AtomicU64::new(units),
            buckets: buckets_of(&limit.windows, &limit.name, &key.key),
            granted: None,
            whole_us: 0,
            key,
        }
    }

    /// Adds the decision to a batch: the units from every window, with a hold. Its index in the batch.
    pub(super) fn add_to(&self, builder: &mut BatchBuilder) -> usize {
        let limit = &self.key.limit;
        let takes = self.buckets.iter().map(|bucket| Take {
            bucket: builder.bucket(bucket.key.clone(), bucket.spec),
            cost: self.units,
        });
        let takes = takes.collect();
        builder.push(Decision {
            takes,
            peek: false,
            asks: false,
            holds: vec![Hold {
                key: self.hold.clone(),
                units: self.units,
                lasts_us: longest_us(limit).saturating_add(RETURN_WITHIN_US),
                of: self.buckets.iter().map(Held::of).collect(),
                is_receipt: false,
            }],
            slots: Vec::new(),
        })
    }

    /// The lease after the store's outcome. `sent_us` is a moment before the call was sent, by this process's clock.
    pub(super) fn grant(mut self, outcome: Option<&Outcome>, sent_us: u64) -> Grant<Arc<Self>> {
        let limit = &self.key.limit;
        let mut ends_us = sent_us;
        if let Some(outcome) = outcome.filter(|outcome| outcome.admitted) {
            let length_us = |terms: &LeaseTerms| terms.length_us(&limit.windows, outcome.at_us);
            ends_us = sent_us.saturating_add(limit.lease.as_ref().map_or(0, length_us));
            self.whole_us = sent_us.saturating_add(outcome.reset_us);
            let bucket = self.buckets.get(outcome.decided_by);
            let status = |bucket: &Bucket| status::of_outcome(0, limit, &bucket.spec, outcome);
            self.granted = bucket.map(status);
        }
        Grant {
            units: self.units,
            ends_us,
            remaining: outcome.map_or(0, |outcome| outcome.remaining),
            tag: Arc::new(self),
        }
    }

    /// Whether the store is known to have granted it.
    pub(super) const fn is_granted(&self) -> bool {
        self.granted.is_some()
    }

    /// The status of a check that the lease decides, with this many units left in it and in the store.
    pub(super) fn status(&self, remaining: u64, now_us: u64) -> Option<LimitStatus<'static>> {
        let granted = self.granted.as_ref()?;
        Some(LimitStatus {
            remaining: remaining.min(granted.quota),
            over: 0,
            reset_ms: self.whole_us.saturating_sub(now_us).div_ceil(1_000),
            ..granted.clone()
        })
    }

    /// Adds what returns units to the store. All but those and what was returned before stays in the hold: so it may be repeated.
    pub(super) fn settle(&self, units: u64, settlements: &mut Settlements) {
        let kept = self.kept.fetch_sub(units, Ordering::Relaxed);
        let guard = Guard::Spend {
            hold: self.hold.clone(),
            units: ALL,
            keeps: kept.saturating_sub(units),
        };
        settlements.return_to(guard, self.buckets.iter().cloned());
    }
}

/// Why a lease that was granted is returned at once.
pub(super) fn useless_because(grant: &Grant<Arc<Lease>>, now_us: u64) -> Option<LeaseRefusal> {
    let limit = &grant.tag.key.limit;
    let terms = limit.lease.as_ref()?;
    if now_us >= grant.ends_us {
        return Some(LeaseRefusal::Late);
    }
    // Others have taken units since this sidecar last knew.
    (grant.remaining < reserve(terms, &limit.windows)).then_some(LeaseRefusal::NearLimit)
}
