//! Which slots are in use: noted as they come and go, listed for operators.

use sluicegate_engine::{Done, SlotId};
use sluicegate_protocol::{Decision, HoldList, ListedHold, Problem, Settle};

use super::Service;
use crate::clock;
use crate::decide::buckets::unknown_limit;
use crate::decide::epoch::Epoch;
use crate::decide::holds::OfLimit;
use crate::decide::receipts::Receipt;
use crate::lock::lock;

impl Service {
    /// Notes the slots that an admitted decision has taken.
    pub(super) fn note_granted(
        &self,
        epoch: &Epoch,
        decision: &Decision<'_>,
        receipts: &[String],
        vm: Option<u128>,
    ) {
        for (index, (check, text)) in decision.checks.iter().zip(receipts).enumerate() {
            let limit = epoch.policy.limit(&check.limit);
            let limit = limit.filter(|limit| limit.expire_us().is_some());
            // Checks of one limit and key have one receipt together.
            let is_noted = receipts.iter().take(index).any(|noted| noted == text);
            let Some(limit) = limit.filter(|_| !is_noted) else {
                continue;
            };
            if let Some(Receipt::Slots(id)) = Receipt::read(text) {
                let mut holds = lock(&self.slots.holds);
                holds.note(id, Some(limit), &check.key, vm, clock::unix_us());
                if let Some(slots) = epoch.metrics.slots(&limit.name) {
                    slots.granted.inc_by(id.units());
                }
            }
        }
    }

    /// Notes what became of slots that were freed or renewed: those of a stream that lives while the store is away are in use too.
    pub(super) fn note_settled(
        &self,
        epoch: &Epoch,
        asked: &Settle<'_>,
        id: SlotId,
        done: Option<Done>,
        vm: Option<u128>,
    ) {
        let (limit, key) = (asked.limit.as_ref(), asked.key.as_ref());
        let metrics = epoch.metrics.slots(limit);
        let mut holds = lock(&self.slots.holds);
        if asked.within_ms.is_some() {
            holds.note(id, epoch.policy.limit(limit), key, vm, clock::unix_us());
        } else if done.is_some() {
            holds.remove(id);
        }
        drop(holds);
        match done {
            Some(Done::Returned(units)) => {
                let for_us = clock::unix_us().saturating_sub(id.at_us());
                self.slots.freed(limit, key, units, for_us);
                if let Some(slots) = metrics {
                    slots.count_freed(units, for_us);
                }
            }
            Some(Done::Added(units)) => {
                if let Some(slots) = metrics {
                    slots.revived.inc_by(units);
                }
            }
            Some(Done::Nothing) | None => {}
        }
    }

    /// The slots in use that this sidecar knows, of this limit and subject if they are given.
    ///
    /// # Errors
    /// There is no such limit, and no slot of an earlier one of this name.
    pub fn list_holds(
        &self,
        limit: Option<&str>,
        subject: Option<&str>,
    ) -> Result<HoldList, Problem> {
        let (known, now_us) = (lock(&self.slots.holds), clock::unix_us());
        let (mut holds, more) = known.list(limit, subject, now_us);
        if let Some(limit) = limit {
            let policy = &self.policy.current().policy;
            if policy.limit(limit).is_none() && known.list(Some(limit), None, now_us).0.is_empty() {
                return Err(unknown_limit(policy, "limit", limit));
            }
        }
        drop(known);
        holds.iter_mut().for_each(|hold| self.add_node(hold));
        Ok(HoldList {
            sidecar: self.number(),
            holds,
            more,
        })
    }

    /// The same of each limit that has some: how many, and the oldest.
    pub fn slots_in_use(&self) -> Vec<OfLimit> {
        let of_limits = lock(&self.slots.holds).of_limits(clock::unix_us());
        let mut of_limits: Vec<_> = of_limits.into_values().collect();
        of_limits
            .iter_mut()
            .for_each(|of| self.add_node(&mut of.oldest));
        of_limits
    }

    fn add_node(&self, hold: &mut ListedHold) {
        hold.node = hold.vm.as_deref().and_then(|vm| self.filters.node_of(vm));
    }
}
