//! What a sidecar does without being asked: it looks after its store and reloads its policy.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, timeout};
use tracing::warn;

use super::Service;
use crate::clock;
use crate::lock::lock;
use crate::store::{Health, HealthState, StoreError};
use crate::telemetry::events::without_store;
use crate::telemetry::history::{History, Reading};

/// A connection that is replaced within this time is not reported as an outage.
const REPLACED_WITHIN: Duration = Duration::from_millis(200);

/// This many lost connections, each within this time of the last, are an outage, however soon they are replaced. It is over when
/// no connection is lost for this time.
const LOST_AGAIN: (u32, Duration) = (3, Duration::from_secs(1));

/// The longest time between two samples of the counters, so that the live page has a chart as soon as it is opened.
const SAMPLE_EVERY_MS: u64 = 5_000;

impl Service {
    /// Frees expired entries of the store, the shares and the leases. Call it about every second.
    pub async fn tick(&self) {
        drop(self.sampled(SAMPLE_EVERY_MS));
        self.store.sweep().await;
        self.leases.forget_parts(clock::now_us());
        // What was leased under earlier policies and overrides is returned.
        self.leases.return_ended();
        self.backend.outage.sweep();
        self.filters.forget(clock::now_us());
        self.leases.note_filters(self.filters.serving());
        lock(&self.slots.holds).forget_ended(clock::unix_us());
        lock(&self.in_flight).forget_ended(clock::now_us());
        let digests = self.filters.digests();
        self.policy
            .forget_removed(&self.metrics, |digest| digests.contains(digest));
        self.policy.source.write_kept();
        self.warn_of_pepper();
        self.warn_of_filters();
    }

    /// Logs each warning once, until its cause is gone.
    fn warn_of_filters(&self) {
        let mut told = lock(&self.warned_of_filters);
        let apart = self.apart_or_unheard();
        told.retain(|line| apart.contains(line));
        for line in self.filters_apart() {
            if told.insert(line.clone()) {
                warn!("{line}: docs/rules.md#who-has-which-rules");
            }
        }
    }

    fn warn_of_pepper(&self) {
        let others = self.filters_with_other_pepper();
        if !self.warned_of_pepper.swap(others > 0, Ordering::Relaxed) && others > 0 {
            warn!(
                "filters have another pepper than the policy's `consumers` and recognize none of them: every key counts as missing; \
                 `sluicegate rollout` names them ({others}, one for each worker of an Envoy); give them the `pepper` of the file of consumers \
                 (docs/consumers.md#the-pepper)"
            );
        }
    }

    /// The history for the live page, with a sample that is not older than `age_ms`.
    pub fn sampled(&self, age_ms: u64) -> MutexGuard<'_, History> {
        let mut history = lock(&self.history);
        let at_ms = clock::unix_ms();
        if history.is_older_than(age_ms, at_ms) {
            history.add(Reading {
                at_ms,
                totals: self.metrics.totals(),
                failures: self.metrics.store_failures(),
            });
        }
        history
    }

    /// Reports each change of the store's health to metrics and events. Never returns.
    pub async fn watch_store(&self) {
        let mut changes = self.store.health_changes();
        let store_up = &self.metrics.families.store_up;
        let (often, soon) = LOST_AGAIN;
        let (mut was_up, mut lost, mut lost_at) = (true, 0, Instant::now());
        loop {
            let health = changes.borrow_and_update().clone();
            match &health.state {
                HealthState::Unknown => {}
                HealthState::Up => {
                    was_up = true;
                    if lost >= often && timeout(soon, changes.changed()).await.is_ok() {
                        continue;
                    }
                    store_up.set(1);
                    self.events.store_answered(clock::unix_ms());
                    self.events.log.succeeded();
                }
                HealthState::Down(cause) => {
                    self.events.log.began(clock::micros(health.since.elapsed()));
                    if std::mem::take(&mut was_up) {
                        let again = lost_at.elapsed() < soon;
                        (lost, lost_at) = (if again { lost + 1 } else { 1 }, Instant::now());
                    }
                    // A connection that is replaced at once is not an outage.
                    let up = changes.wait_for(Health::is_up);
                    if lost < often && timeout(REPLACED_WITHIN, up).await.is_ok() {
                        changes.mark_changed();
                        continue;
                    }
                    store_up.set(0);
                    let ago = u64::try_from(health.since.elapsed().as_millis()).unwrap_or(0);
                    let since_ms = clock::unix_ms().saturating_sub(ago);
                    let part = self.store.has_parts().then_some("part of the Cluster: ");
                    let told = format!("{}{cause}", part.unwrap_or_default());
                    if self.events.store_lost(since_ms, &told) {
                        self.metrics.count_store_failure(cause.kind());
                        // An idle sidecar may get no calls: then this is the only line.
                        let without = without_store(self.sidecars());
                        let why = format_args!("{told}; {without}");
                        self.events.log.failed(cause.kind(), why);
                    }
                }
            }
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    /// Why the store is down now, if it is.
    pub fn store_failure(&self) -> Option<StoreError> {
        self.store.health_changes().borrow().cause().cloned()
    }

    /// Writes units that were admitted without the store back to it. Never returns.
    pub async fn write_back(&self) {
        self.backend.write_back().await;
    }

    /// Reloads the policy file and records the result.
    pub fn reload(&self) {
        if let Some((kind, detail)) = self.policy.reload(&self.metrics) {
            self.events.add(clock::unix_ms(), kind, detail);
            for line in self.filters.without_set(&self.policy.current().policy) {
                warn!("{line}: docs/rules.md#what-happens-when");
            }
        }
    }
}
