//! Gathers settles of receipts: a thousand a second of one key, each alone or many at once, cost the store fifty calls.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_engine::{Done, Settlements};
use tokio::sync::{mpsc, oneshot};
use tokio::time::sleep;

use super::shared::Shared;

/// From one call to the next.
const GATHER: Duration = Duration::from_millis(20);
/// No call takes along more callers when it has so many settles: all of them have one deadline.
const MAX_SETTLES: usize = 512;

/// Where a caller waits for what became of its settles.
type Caller = oneshot::Sender<Vec<Option<Done>>>;
/// Settles of one caller.
pub type Arrival = (Settlements, Caller);

/// Makes calls until nobody can send any more. An answer that is late delays no other call.
pub async fn run(shared: Arc<Shared>, mut arrivals: mpsc::Receiver<Arrival>) {
    while let Some((mut all, caller)) = arrivals.recv().await {
        let mut callers = vec![(all.each.len(), caller)];
        while all.each.len() < MAX_SETTLES
            && let Ok((more, caller)) = arrivals.try_recv()
        {
            callers.push((more.each.len(), caller));
            all.append(more);
        }
        tokio::spawn(call(Arc::clone(&shared), all, callers));
        sleep(GATHER).await;
    }
}

async fn call(shared: Arc<Shared>, all: Settlements, callers: Vec<(usize, Caller)>) {
    let (done, error) = shared.store.settle(&all).await;
    if let Some(error) = error {
        shared.record_failure(error.kind(), &error);
    }
    let mut done = done.into_iter();
    for (count, caller) in callers {
        // It may have left in the meantime.
        let _ = caller.send(done.by_ref().take(count).collect());
    }
}
