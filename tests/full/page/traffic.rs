//! Clients: ten that stay within their limit, and one that does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

/// Requests that a client may make in two seconds.
pub const QUOTA: u64 = 10;
/// Clients that stay within it, each with a request every `CALM_EVERY`.
const CALM: u64 = 10;
const CALM_EVERY: Duration = Duration::from_millis(500);
/// The abusive client sends many times its quota.
const ATTACK_EVERY: Duration = Duration::from_millis(16);

/// Running clients, and the counts of their answers.
#[derive(Default)]
pub struct Traffic {
    clients: JoinSet<()>,
    answered: Arc<Answered>,
}

#[derive(Default)]
struct Answered {
    admitted: AtomicU64,
    denied: AtomicU64,
}

impl Traffic {
    /// Starts the clients that stay within their limit.
    pub fn calm(&mut self, url: String) {
        for client in 0..CALM {
            self.add(url.clone(), format!("client-{client}"), CALM_EVERY);
        }
    }

    /// Starts the client that does not.
    pub fn attack(&mut self, url: String) {
        self.add(url, "mallory".to_owned(), ATTACK_EVERY);
    }

    /// Stops all clients at once.
    pub fn stop(&mut self) {
        self.clients = JoinSet::new();
    }

    /// The counts of their answers so far.
    pub fn count(&self) -> Value {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({ "admitted": count(&self.answered.admitted), "denied": count(&self.answered.denied) })
    }

    fn add(&mut self, url: String, key: String, every: Duration) {
        let (client, answered) = (client(), Arc::clone(&self.answered));
        self.clients.spawn(async move {
            let mut ticks = tokio::time::interval(every);
            // Requests that an outage delayed are not sent in a burst afterwards.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                // During outages there may be other answers or none; this test is about the page.
                let answer = client.get(&url).header("x-api-key", &key).send().await;
                match answer.map_or(0, |answer| answer.status().as_u16()) {
                    200 => &answered.admitted,
                    429 => &answered.denied,
                    _ => continue,
                }
                .fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}
