//! Units of leases that are lent to filters, which admit requests from them without asking. What a filter does not account for
//! in time counts as spent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use sluicegate_engine::lease::less_drift;
use sluicegate_protocol::{LeasePart, LimitStatus, PartReport};
use tokio::sync::oneshot;

use super::{Command, Lease, LeaseKey, Leases};
use crate::clock;
use crate::lock::lock;
use crate::random;

/// Most parts that filters hold; each has some hundred bytes. Then there is nothing to lend.
const MAX_PARTS: usize = 16_384;
/// How long after its end a filter may report what it spent of a part, which it does with its next call. A part that is not
/// reported by then counts as spent.
const ACCOUNT_WITHIN_US: u64 = 3_000_000;

/// A part that a filter holds.
#[derive(Debug)]
pub(super) struct LentPart {
    lease: Arc<Lease>,
    units: u64,
    spent: u64,
    decisions: u64,
    ends_us: u64,
    /// When the filter last reported what it had spent.
    reported_us: u64,
    /// Units that were left for others.
    remaining: u64,
}

/// A filter wants more units of a key.
#[derive(Debug)]
pub struct PartRequest {
    /// The key, under the epoch in which the units were taken that the filter holds.
    pub key: LeaseKey,
    /// For how many units a second the filter is asked.
    pub per_s: u64,
    /// Units of the key that it holds.
    pub held: u64,
}

impl Leases {
    /// Applies filters' reports: units that were spent are counted, and those of an ended part that were not are put back. `count`
    /// is called with the status of each key, the key and the number of decisions that were made. What is wanted more.
    pub fn account(
        &self,
        reports: &[PartReport],
        count: impl Fn(&LimitStatus<'_>, &str, u64),
    ) -> Vec<PartRequest> {
        let now_us = clock::now_us();
        let mut by_key: BTreeMap<(String, String), PartRequest> = BTreeMap::new();
        for report in reports {
            let mut parts = lock(&self.parts);
            // An unknown part is another sidecar's, or of before a restart, or was accounted for.
            let Some(part) = parts.get_mut(&report.id) else {
                continue;
            };
            let spent = report.spent.min(part.units).saturating_sub(part.spent);
            let decisions = report
                .decisions
                .min(part.units)
                .saturating_sub(part.decisions);
            part.spent += spent;
            part.decisions += decisions;
            let since_us = std::mem::replace(&mut part.reported_us, now_us);
            let unspent = part.units - part.spent;
            let lease = Arc::clone(&part.lease);
            let remaining = part.remaining.saturating_add(unspent);
            if report.ended {
                parts.remove(&report.id);
            }
            drop(parts);
            let returned = if report.ended { unspent } else { 0 };
            self.spent_by_filter(&lease, (since_us, now_us), spent, returned);
            let key = &lease.key;
            let more = by_key.entry((key.limit.name.clone(), key.key.clone()));
            let more = more.or_insert_with(|| PartRequest {
                key: key.clone(),
                per_s: 0,
                held: 0,
            });
            more.per_s = more.per_s.max(report.wants_per_s);
            more.held += unspent - returned;
            if report.ended {
                self.put_back(&lease, unspent);
            }
            if decisions > 0
                && let Some(status) = lease.status(remaining, now_us)
            {
                count(&status, &lease.key.key, decisions);
            }
        }
        let more = by_key.into_values().filter(|more| more.per_s > 0);
        more.collect()
    }

    fn spent_by_filter(
        &self,
        lease: &Lease,
        (since_us, now_us): (u64, u64),
        spent: u64,
        unspent: u64,
    ) {
        lease.metrics.count_spent(spent);
        let key = &lease.key;
        if let Some(entry) = self.shard(&key.key).get_mut(&key.limit.name, &key.key) {
            let pool = &mut entry.pool;
            pool.spent_by_filter(since_us, now_us, spent, unspent);
        }
    }

    /// Asks for leases from which [`Leases::lend`] can lend what is wanted. The receiver ends once
    /// the keeper has asked the store; `None` if there is nothing to wait for.
    pub fn prepare(&self, wanted: &[PartRequest]) -> Option<oneshot::Receiver<()>> {
        let mut wait = false;
        for more in wanted {
            let mut shard = self.shard(&more.key.key);
            let now_us = clock::now_us();
            let key = &more.key;
            let Some(entry) = shard.in_epoch(&key.limit.name, &key.key, key.epoch) else {
                continue;
            };
            if entry.pool.can_lend(now_us, more.per_s, more.held) {
                continue;
            }
            if entry.pool.may_ask(now_us) {
                self.renew(entry, more.key.clone(), now_us);
            }
            wait |= entry.pool.is_asking();
        }
        let (sender, receiver) = oneshot::channel();
        (wait && self.send(Command::Notify(sender))).then_some(receiver)
    }

    /// Lends units of a key, or as many as there are, to a filter that holds `held` of them and spends `per_s` a second. `None`:
    /// it has asked about the key.
    pub fn lend(
        &self,
        limit: &str,
        key: &str,
        epoch: u64,
        per_s: Option<u64>,
        held: u64,
    ) -> Option<LeasePart<'static>> {
        let mut shard = self.shard(key);
        let entry = shard.in_epoch(limit, key, epoch)?;
        if self.is_closed() {
            return None;
        }
        let id = random::number()?;
        let mut parts = lock(&self.parts);
        if parts.len() >= MAX_PARTS {
            return None;
        }
        let now_us = clock::now_us();
        let taken = entry
            .pool
            .lend(now_us, per_s, held, self.filters.load(Ordering::Relaxed))?;
        let lease = Arc::clone(taken.tag);
        let status = lease.status(taken.remaining, now_us)?;
        let left_us = taken.ends_us.saturating_sub(now_us);
        let part = LeasePart {
            id,
            limit: status.limit,
            key: lease.key.key.clone().into(),
            units: taken.units,
            // The filter's clock may be another one.
            lasts_us: less_drift(left_us),
            quota: status.quota,
            window_ms: status.window_ms,
            remaining: status.remaining,
            reset_ms: status.reset_ms,
        };
        let lent = LentPart {
            units: taken.units,
            spent: 0,
            decisions: 0,
            ends_us: taken.ends_us,
            reported_us: now_us,
            remaining: taken.remaining,
            lease,
        };
        parts.insert(id, lent);
        Some(part)
    }

    /// Counts parts as spent that no filter has accounted for in time. Call it about every second.
    pub fn forget_parts(&self, now_us: u64) {
        let mut parts = lock(&self.parts);
        let silent =
            parts.extract_if(|_, part| part.ends_us.saturating_add(ACCOUNT_WITHIN_US) < now_us);
        let silent: Vec<_> = silent.collect();
        drop(parts);
        for (_, part) in silent {
            let unspent = part.units - part.spent;
            part.lease.metrics.count_spent(unspent);
            // The key was not asked for as often as this.
            self.spent_by_filter(&part.lease, (now_us, now_us), 0, unspent);
        }
    }
}
