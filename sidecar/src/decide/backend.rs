//! The store behind its queue, with a fallback for outages.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_engine::{Batch, Decision, Done, Guard, Outcome, Settlement, Settlements};
use sluicegate_protocol::WithoutStore;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::plan::{Fallback, Plan};
use crate::policy::{Limit, WhenStoreIsDown};
use crate::store::batch::{Answer, Batcher};
use crate::store::{NoShare, Outage, Store, StoreError};
use crate::telemetry::traces::Parent;

/// How long an announcement waits for a write-back.
const FLUSHED_WITHIN: Duration = Duration::from_secs(1);

/// The store, the queue in front of it, and the fallback for outages.
pub struct Backend {
    store: Arc<Store>,
    /// The queue.
    pub batcher: Batcher,
    /// Decides while the store is down.
    pub outage: Outage,
    /// This sidecar's name among the sidecars that share the store.
    name: String,
    /// Whether it has left. Held during each announcement, or the last one could arrive after that.
    has_left: Mutex<bool>,
}

impl Backend {
    /// Creates it for the sidecar with this name.
    pub fn new(store: Arc<Store>, batcher: Batcher, outage: Outage, name: String) -> Self {
        Self {
            store,
            batcher,
            outage,
            name,
            has_left: Mutex::new(false),
        }
    }

    /// The store's outcome for each decision of a plan, and the fallback's answer where the store gave none.
    pub async fn decide(
        &self,
        plan: &Plan<'_>,
        parent: Option<Parent>,
    ) -> (Vec<Option<Outcome>>, Vec<Fallback>) {
        let batch = &plan.batch;
        if batch.decisions.is_empty() {
            return Default::default();
        }
        let held = self.held_back(plan).await;
        let is_held = |index: usize| held.get(index).is_some_and(|held| *held);
        let some = (!held.is_empty() || plan.has_mixed_specs).then(|| {
            let may_go = (0..batch.decisions.len()).filter(|index| !is_held(*index));
            let mut order: Vec<_> = may_go.collect();
            if plan.has_mixed_specs {
                // A store call has one quota per key, so there is one call for each rank of quotas.
                let ranks = batch.spec_ranks();
                order.sort_by_key(|index| ranks.get(*index).copied());
            }
            order
        });
        let answer = self.batcher.decide(Arc::clone(batch), some, parent);
        let Answer { outcomes, in_doubt } = answer.await;
        if outcomes.iter().all(Option::is_some) {
            return (outcomes, Vec::new());
        }
        let asked = plan.takes().zip(&outcomes).enumerate();
        let fallbacks = asked.map(|(index, ((decision, limits), outcome))| {
            // Where it is not out: a late call, or a key or a store that cannot be used. The caller's own setting decides.
            let is_out = || is_held(index) || self.outage.is_out(&self.store, batch, decision);
            if outcome.is_some() || !is_out() {
                return Fallback::NoVerdict(None);
            }
            match strictest(limits.clone()) {
                WhenStoreIsDown::Allow => Fallback::NoVerdict(Some(WithoutStore::Allow)),
                WhenStoreIsDown::Deny => Fallback::NoVerdict(Some(WithoutStore::Deny)),
                // A share that admitted it would count it once more.
                WhenStoreIsDown::Share if in_doubt && !is_held(index) => Fallback::NoVerdict(None),
                WhenStoreIsDown::Share => self.share(batch, decision, limits),
            }
        });
        let fallbacks = fallbacks.collect();
        (outcomes, fallbacks)
    }

    /// Which decisions of a plan the store must not make. Empty if it may make all.
    async fn held_back(&self, plan: &Plan<'_>) -> Vec<bool> {
        let (batch, count) = (&plan.batch, plan.batch.decisions.len());
        if plan.without_store {
            return vec![true; count];
        }
        let awaits_others = self.outage.awaits_others();
        // The other half of the time is for the store. Decisions by a share do not wait for the write-back.
        let wait = if awaits_others { 0 } else { 1 };
        let deadline = Instant::now() + self.store.timeout() / 2 * wait;
        let mut held = self.outage.held_back(&self.store, batch, deadline).await;
        if awaits_others {
            held.resize(count, false);
            for (held, (_, limits)) in held.iter_mut().zip(plan.takes()) {
                *held |= strictest(limits) == WhenStoreIsDown::Share;
            }
        }
        held
    }

    /// Decides by this sidecar's shares of those limits of a decision that have one.
    fn share<'a>(
        &self,
        batch: &Batch,
        decision: &Decision,
        limits: impl Iterator<Item = &'a Limit>,
    ) -> Fallback {
        let shared = limits
            .enumerate()
            .filter(|(_, limit)| limit.when_store_is_down == WhenStoreIsDown::Share);
        let takes: Vec<_> = shared.map(|(number, _)| number).collect();
        match self.outage.decide(&self.store, batch, decision, &takes) {
            Ok(outcome) => Fallback::Share(outcome),
            // Admitting it would exceed the limit, and waiting would not help.
            Err(NoShare::TooSmall) => Fallback::NoVerdict(Some(WithoutStore::Deny)),
            Err(NoShare::PositionUnknown) => Fallback::NoVerdict(None),
        }
    }

    /// The store's outcomes for decisions that take units in advance; none while the store lacks admissions for their keys.
    pub async fn take_in_advance(&self, batch: Arc<Batch>) -> Vec<Option<Outcome>> {
        if self.outage.lacks_some(batch.buckets.iter()) {
            return vec![None; batch.decisions.len()];
        }
        self.batcher.decide(batch, None, None).await.outcomes
    }

    /// The clock of the store that keeps a bucket, in microseconds, if it is known and units may be taken in advance: the store is
    /// up, and no other sidecar may still have to report to it what it has admitted.
    pub fn advance_clock_us(&self, key: &str) -> Option<u64> {
        let may_take = !self.store.is_down(key) && !self.outage.awaits_others();
        may_take.then(|| self.store.clock_us(key))?
    }

    /// Settles: what became of each settlement, `None` where that is unknown.
    pub async fn settle(&self, settlements: &Settlements) -> Vec<Option<Done>> {
        self.outage.settle_slots(&self.store, settlements);
        let (done, error) = self.store.settle(settlements).await;
        if let Some(error) = error {
            self.batcher.record_error(&error);
        }
        done
    }

    /// The same for receipts. Slots are freed and renewed at once; other settles wait for each other for a moment.
    pub async fn settle_receipts(&self, settlements: Settlements) -> Vec<Option<Done>> {
        let is_of_slots = |one: &Settlement| matches!(one.guard, Guard::Free(_) | Guard::Renew(_));
        if settlements.each.is_empty() || settlements.each.iter().any(is_of_slots) {
            return self.settle(&settlements).await;
        }
        self.batcher.settle(settlements).await
    }

    /// Lets holds live for so many milliseconds from now; whether each was there.
    ///
    /// # Errors
    /// Some of them are not known to live.
    pub async fn renew(&self, holds: &[(String, u64)]) -> Result<Vec<bool>, StoreError> {
        let renewed = self.store.renew(holds).await;
        renewed.inspect_err(|error| self.batcher.record_error(error))
    }

    /// Resets buckets, by their keys, and this sidecar's shares of them; whether each held anything.
    ///
    /// # Errors
    /// Some of them are not known to have been reset.
    pub async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let reset = self.outage.reset(&self.store, keys).await;
        reset.inspect_err(|error| self.batcher.record_error(error))
    }

    /// Announces this sidecar to the store, which answers with the number of sidecars and the version of the overrides.
    ///
    /// # Errors
    /// The store could not be reached, or does not say the version. Its last answer stays in force.
    pub async fn announce(&self) -> Result<u64, StoreError> {
        let has_left = self.has_left.lock().await;
        if *has_left {
            return self.store.overrides_version().await;
        }
        if self.outage.awaits_others() && self.store.health_changes().borrow().is_up() {
            // Others take this announcement for the report of all that was admitted here.
            self.outage.flush(FLUSHED_WITHIN).await;
        }
        let answer = self.store.announce(&self.name).await;
        let (announced, version) = answer.inspect_err(|error| {
            if !self.store.health_changes().borrow().is_up() {
                self.outage.note_away(&self.store);
            }
            // Everything else is an outage, which is reported by itself.
            if error.is_answer() && self.store.health_changes().borrow().is_up() {
                self.batcher.record_error(error);
            }
        })?;
        if let Some(announced) = announced {
            self.outage.report_position(Instant::now(), announced);
        }
        self.outage.restore_slots(&self.store).await;
        version
    }

    /// Announces that this sidecar leaves: the others take over its share. It is not announced any more, though it may still
    /// answer requests.
    pub async fn leave(&self) {
        *self.has_left.lock().await = true;
        // If this fails, the store forgets the sidecar a few seconds later.
        let _ = self.store.leave(&self.name).await;
    }

    /// Writes units that were admitted without the store back to it whenever it returns. Never returns.
    pub async fn write_back(&self) {
        self.outage.write_back(&self.store, &self.name).await;
    }
}

/// The strictest `when_store_is_down` of a decision's limits.
fn strictest<'a>(limits: impl Iterator<Item = &'a Limit>) -> WhenStoreIsDown {
    let rank = |when: &WhenStoreIsDown| match when {
        WhenStoreIsDown::Allow => 0,
        WhenStoreIsDown::Share => 1,
        WhenStoreIsDown::Deny => 2,
    };
    let all = limits.map(|limit| limit.when_store_is_down);
    all.max_by_key(rank).unwrap_or(WhenStoreIsDown::Allow)
}

#[cfg(test)]
mod tests;
