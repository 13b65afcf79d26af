//! Slots that nobody was told of: the store did not answer in time, or whoever asked has gone meanwhile.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_engine::{Bucket, Guard, Settlements, SlotId};
use tokio::runtime::Handle;
use tokio::time::sleep;

use super::backend::Backend;

/// How often they are freed while the store does not answer, and how long after each other. They end by themselves.
const TRIES: usize = 10;
const PAUSE: Duration = Duration::from_secs(1);

/// Slots of decisions that are being made. Those that are left when this is dropped are freed: also when the request is cut.
pub struct Unclaimed {
    backend: Arc<Backend>,
    /// From then on no call that takes them can run.
    after: Duration,
    slots: Vec<(usize, Bucket, SlotId)>,
}

impl Unclaimed {
    /// The slots of a request's decisions, by their index in it.
    pub fn new(
        backend: &Arc<Backend>,
        after: Duration,
        slots: impl Iterator<Item = (usize, Bucket, SlotId)>,
    ) -> Self {
        Self {
            backend: Arc::clone(backend),
            after,
            slots: slots.collect(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Takes out those of decisions that are admitted.
    pub fn granted(&mut self, is_admitted: impl Fn(usize) -> bool) -> Self {
        let all = self.slots.drain(..);
        let (granted, rest) = all.partition(|(decision, ..)| is_admitted(*decision));
        self.slots = rest;
        Self {
            backend: Arc::clone(&self.backend),
            after: self.after,
            slots: granted,
        }
    }

    /// Whoever asked is told of them now.
    pub fn told(mut self) {
        self.slots.clear();
    }

    /// Keeps those of decisions that were not told, but may have been made.
    pub fn keep(&mut self, may_be_taken: impl Fn(usize) -> bool) {
        self.slots.retain(|(decision, ..)| may_be_taken(*decision));
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if self.slots.is_empty() {
            return;
        }
        let mut free = Settlements::default();
        for (_, bucket, id) in self.slots.drain(..) {
            free.return_to(Guard::Free(id), [bucket]);
        }
        let (backend, after) = (Arc::clone(&self.backend), self.after);
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        runtime.spawn(async move {
            sleep(after).await;
            for _ in 0..TRIES {
                if backend.settle(&free).await.iter().all(Option::is_some) {
                    return;
                }
                sleep(PAUSE).await;
            }
        });
    }
}
