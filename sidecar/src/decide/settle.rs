//! What settles the decisions of a plan: the store, or what stands in for it while it is down.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sluicegate_engine::{Batch, BatchBuilder};
use sluicegate_protocol::WithoutStore;
use tokio::time::Instant;

use super::instead::{Instead, Mode};
use super::plan::Plan;
use crate::policy::WhenStoreIsDown;
use crate::store::batch::Batcher;
use crate::store::{NoShare, Outage, Settled, Store, StoreError};
use crate::telemetry::traces::Parent;

/// The store, the queue before it, and what is done without it.
#[derive(Debug)]
pub struct Settler {
    store: Arc<Store>,
    batcher: Batcher,
    outage: Outage,
    /// It was asked for something since the last look.
    asked: AtomicBool,
    /// This sidecar's name among those that share the store.
    name: String,
}

impl Settler {
    /// One for the sidecar of that name.
    pub fn new(store: Arc<Store>, batcher: Batcher, outage: Outage, name: String) -> Self {
        Self {
            store,
            batcher,
            outage,
            asked: AtomicBool::new(false),
            name,
        }
    }

    /// What the store says to each decision of a plan, and what stands in for it where it says nothing.
    pub async fn settle(
        &self,
        plan: &Plan,
        parent: Option<Parent>,
    ) -> (Vec<Option<Settled>>, Vec<Instead>) {
        let batch = &plan.batch;
        if batch.decisions.is_empty() {
            return Default::default();
        }
        self.asked.store(true, Ordering::Relaxed);
        let deadline = Instant::now() + self.store.timeout();
        let held = self.outage.held_back(&self.store, batch, deadline).await;
        let settled = if held.is_empty() {
            self.batcher.decide(Arc::clone(batch), parent).await
        } else {
            self.settle_others(batch, &held, parent).await
        };
        if settled.iter().all(Option::is_some) {
            return (settled, Vec::new());
        }
        let mut instead = Vec::with_capacity(settled.len());
        for ((decision, limits), settled) in plan.takes().zip(&settled) {
            let say = match Mode::of(limits.clone()) {
                _ if settled.is_some() => Instead::Say(None),
                Mode::Allow => Instead::Say(Some(WithoutStore::Allow)),
                Mode::Deny => Instead::Say(Some(WithoutStore::Deny)),
                Mode::Share => {
                    let shared = limits
                        .enumerate()
                        .filter(|(_, limit)| limit.when_store_is_down == WhenStoreIsDown::Share);
                    let takes: Vec<_> = shared.map(|(number, _)| number).collect();
                    match self.outage.decide(&self.store, batch, decision, &takes) {
                        Ok(outcome) => Instead::Share(Settled { outcome }),
                        // To let it pass would be over the limit, and to let it wait in vain.
                        Err(NoShare::TooSmall) => Instead::Say(Some(WithoutStore::Deny)),
                        Err(NoShare::NotDown | NoShare::NotPlaced) => Instead::Say(None),
                    }
                }
            };
            instead.push(say);
        }
        (settled, instead)
    }

    /// What the store says to the decisions that are not held back.
    async fn settle_others(
        &self,
        batch: &Batch,
        held: &[bool],
        parent: Option<Parent>,
    ) -> Vec<Option<Settled>> {
        let mut others = BatchBuilder::new();
        let mut goes = Vec::with_capacity(held.len());
        for (decision, held) in batch.decisions.iter().zip(held) {
            goes.push(!held && others.copy(batch, decision));
        }
        let others = Arc::new(others.finish());
        let mut settled = self.batcher.decide(others, parent).await.into_iter();
        let put_back = |goes: bool| goes.then(|| settled.next().flatten()).flatten();
        goes.into_iter().map(put_back).collect()
    }

    /// Whether it was asked for something since this was last called.
    pub fn was_asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// Says that this sidecar is there, and hears how many there are; frees what has expired. To be called every second.
    ///
    /// # Errors
    /// The store was not told. What it last said holds.
    pub async fn tick(&self) -> Result<(), StoreError> {
        self.outage.sweep();
        if let Some(place) = self.store.announce(&self.name).await? {
            self.outage.placed(place);
        }
        Ok(())
    }

    /// Says that this sidecar goes: its share is the others' from now on.
    pub async fn leave(&self) {
        // If the store is not told it forgets by itself.
        let _ = self.store.leave(&self.name).await;
    }

    /// Tells the store what was admitted without it, as soon as it is back; for ever.
    pub async fn write_back(&self) {
        self.outage.write_back(&self.store, &self.name).await;
    }

    /// Sidecars that share the limits, as far as is known, and buckets that the store has yet to be told of.
    pub fn standing(&self) -> (u64, usize) {
        let sidecars = self.outage.place().map_or(0, |place| place.of);
        (sidecars, self.outage.pending())
    }
}
