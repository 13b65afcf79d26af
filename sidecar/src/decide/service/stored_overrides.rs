//! Reads overrides from the store, tells what it has lost, and drops those that have ended.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::warn;

use super::Service;
use super::neighbours::{CHECK_EVERY as CHECK_NEIGHBOURS_EVERY, Neighbours};
use crate::clock;
use crate::decide::losses::Losses;
use crate::decide::plan::Start;
use crate::store::{StoreError, StoredOverrides};
use crate::telemetry::events::EventKind;

/// How often to announce this sidecar to the store, which answers whether overrides changed. All sidecars must apply a
/// change within a second.
const ANNOUNCE_EVERY: Duration = Duration::from_millis(700);
/// The same, while the store is away, and until all others have announced themselves after that.
const AWAY_EVERY: Duration = Duration::from_millis(100);
/// The same, until the first successful read.
const FIRST_READ_EVERY: Duration = Duration::from_millis(50);
/// The same, while decisions wait for it.
const FIRST_READ_AGAIN_AFTER: Duration = Duration::from_millis(2);
/// The same, after more than a store may hold, or a refusal: each reading takes all of them from Redis.
const REFUSED_READ_EVERY: Duration = Duration::from_secs(5);
/// How often to look for ended overrides.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// An override stays in the store for one to two times this long after its end: each sidecar removes it at another time.
const SWEEP_AFTER_MS: u64 = 60_000;

impl Service {
    /// Announces this sidecar to the store, and reads the store's overrides whenever they change. Never returns.
    pub async fn watch_fleet(&self) {
        let mut ticks = interval(ANNOUNCE_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut health = self.store.health_changes();
        // The last lasting error that was reported; `watch_store` reports outages.
        let mut reported = None;
        let (mut swept, mut read_after) = (Instant::now(), Instant::now());
        let (mut neighbours, mut check_at) = (Neighbours::default(), Instant::now());
        let mut known = 0;
        loop {
            let version = self.backend.announce().await;
            let (answered, sidecars) = (version.is_ok(), self.sidecars());
            if Instant::now() >= read_after {
                match self.read_overrides(version).await {
                    Ok(()) => reported = None,
                    Err(error) => {
                        if let Some((what, note)) = lasting(&error) {
                            read_after = Instant::now() + REFUSED_READ_EVERY;
                            if reported.replace(what) != Some(what) {
                                warn!("cannot {what}: {error}; {note}");
                            }
                        }
                    }
                }
            }
            // Whoever has just come may have other limits.
            let others_came = std::mem::replace(&mut known, sidecars) < sidecars;
            if answered && (others_came || Instant::now() >= check_at) {
                check_at = Instant::now() + CHECK_NEIGHBOURS_EVERY;
                self.check_neighbours(&mut neighbours).await;
            }
            if swept.elapsed() >= SWEEP_EVERY {
                swept = Instant::now();
                self.sweep_overrides().await;
            }
            if !self.overrides_were_read.load(Ordering::Relaxed) {
                tokio::time::sleep(FIRST_READ_EVERY).await;
            } else if self.backend.outage.awaits_others() {
                tokio::time::sleep(AWAY_EVERY).await;
            } else {
                tokio::select! {
                    _ = ticks.tick() => {}
                    // A store that is back is told at once, because others wait for that.
                    _ = health.changed() => {}
                }
            }
        }
    }

    /// Whether decisions are made at once: the store's overrides were read, or the store is known to be down.
    pub fn has_started(&self) -> bool {
        self.overrides_were_read.load(Ordering::Relaxed) || self.store.is_down_for_overrides()
    }

    /// How decisions are made while the store's overrides have never been read. They wait for the first reading, for as long
    /// as for a call to the store, unless the store is known to be down.
    pub(super) async fn start(&self) -> Start {
        if !self.has_started() {
            // On the heap: otherwise every request of the sidecar's life would have room for it.
            Box::pin(self.wait_for_overrides(self.store.timeout())).await;
        }
        if self.overrides_were_read.load(Ordering::Relaxed) {
            return Start::Done;
        }
        let cause = self.store.health_changes().borrow().cause().cloned();
        let late = || StoreError::Timeout(self.store.timeout());
        self.backend
            .batcher
            .record_error(&cause.unwrap_or_else(late));
        if self.store.is_down_for_overrides() {
            Start::WithoutStore
        } else {
            Start::Waiting
        }
    }

    /// Waits until the store's overrides have been read for the first time, at most so long.
    pub async fn wait_for_overrides(&self, within: Duration) {
        let read = async {
            while !self.has_started() {
                if self.read_overrides_now().await.is_ok() {
                    return;
                }
                tokio::time::sleep(FIRST_READ_AGAIN_AFTER).await;
            }
        };
        let _ = timeout(within, read).await;
    }

    /// Reads the store's overrides if they changed.
    pub(super) async fn read_overrides_now(&self) -> Result<(), StoreError> {
        let version = self.store.overrides_version().await;
        self.read_overrides(version).await
    }

    /// Reads the store's overrides if this is not the version that is in force.
    async fn read_overrides(&self, version: Result<u64, StoreError>) -> Result<(), StoreError> {
        // One read at a time; otherwise an older answer could replace a newer one.
        let _reading = self.reading_overrides.lock().await;
        let read = match version {
            Ok(version) => self.read_changed_overrides(version).await,
            Err(error) => Err(error),
        };
        if read
            .as_ref()
            .err()
            .is_none_or(|error| lasting(error).is_some())
        {
            // Trying again does not help against a lasting error: the policy file's overrides apply.
            self.overrides_were_read.store(true, Ordering::Relaxed);
        }
        read
    }

    async fn read_changed_overrides(&self, version: u64) -> Result<(), StoreError> {
        let epoch = self.policy.current();
        let known = epoch.overrides.stored.as_ref();
        if known.is_some_and(|known| known.version == version) {
            return Ok(());
        }
        let read = self.store.overrides().await?;
        let Some(known) = known else {
            self.policy.override_by(read);
            return Ok(());
        };
        let losses = Losses::between(known, &read, clock::unix_ms());
        let counts = losses.counts();
        if losses.remedies.is_empty() {
            self.report_losses(counts);
            self.policy.override_by(read);
            return Ok(());
        }
        let mut next = read.clone();
        next.entries.extend(losses.remedies);
        next.version = known.version;
        let written = if next.fit() {
            self.store.change_overrides(&read, &next).await
        } else {
            Err(StoreError::TooManyOverrides(next.entries.len()))
        };
        match written {
            // The known overrides stay in force until the next announcement, which finds what the store has then: this, what
            // another sidecar wrote first, or another loss.
            Ok(Some(_)) => self.report_losses(counts),
            Ok(None) => {}
            Err(error) => {
                if lasting(&error).is_some() {
                    // This sidecar applies it alone, and tries again.
                    self.policy.override_by(next);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Puts a change in force that the store has confirmed: what the store loses from now on, this sidecar knows.
    pub(super) async fn know_overrides(&self, changed: StoredOverrides) {
        let _reading = self.reading_overrides.lock().await;
        let known = self.policy.current().overrides.stored.clone();
        // A later version has this change, too.
        if known.is_none_or(|known| known.version < changed.version) {
            self.policy.override_by(changed);
        }
    }

    fn report_losses(&self, (restored, returned, gone): (usize, usize, usize)) {
        let all = restored + returned + gone;
        if all > 0 {
            let what = format!(
                "blocks written back: {restored}; others gone: {gone}; removed ones that are back, not in force: {returned}"
            );
            warn!("the store has lost overrides: {what} (docs/overrides.md)");
            let lost = &self.metrics.families.overrides_lost;
            lost.inc_by(all as u64);
            self.events
                .add(clock::unix_ms(), EventKind::OverridesLost, what);
        }
    }

    /// Drops overrides that ended a while ago from the store, and removals that are remembered no longer.
    async fn sweep_overrides(&self) {
        let epoch = self.policy.current();
        let Some(stored) = &epoch.overrides.stored else {
            return;
        };
        // Each sidecar sweeps at another time, so that one of them does the work.
        let after_ms = SWEEP_AFTER_MS + self.instance % SWEEP_AFTER_MS;
        let at_ms = clock::unix_ms().saturating_sub(after_ms);
        let mut next = StoredOverrides::clone(stored);
        next.entries.retain(|_, entry| !entry.has_ended(at_ms));
        if next.entries.len() < stored.entries.len() {
            // If this fails, the next sweep or another sidecar drops them.
            let _ = self.store.change_overrides(stored, &next).await;
        }
    }
}

/// What cannot be done because of an error that does not go away by itself, and a note on it.
const fn lasting(error: &StoreError) -> Option<(&'static str, &'static str)> {
    match error {
        StoreError::Refused(_) => Some((
            "read overrides from the store, or write back what it lost",
            "docs/redis.md has the permissions",
        )),
        StoreError::TooManyOverrides(_) => {
            Some(("use the store's overrides", "earlier ones stay in force"))
        }
        _ => None,
    }
}
