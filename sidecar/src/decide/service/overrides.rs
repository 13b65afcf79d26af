//! Overrides: reads them from the store, lists, sets and removes them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use sluicegate_engine::BatchBuilder;
use sluicegate_protocol::{
    BODY, Code, OverrideList, OverrideSource, OverrideWasRemoved, OverrideWasSet, Problem,
    RemoveOverride, SetOverride, Whom,
};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tracing::warn;

use super::Service;
use super::neighbours::{CHECK_EVERY as CHECK_NEIGHBOURS_EVERY, Neighbours};
use crate::clock;
use crate::decide::buckets::{buckets_of, unknown_limit};
use crate::decide::losses::Losses;
use crate::decide::overrides::client_chooses;
use crate::decide::plan::{Start, peek};
use crate::policy::{Grant, KeyForms, Made, Override, Policy, check_texts};
use crate::store::{StoreError, StoredOverrides};
use crate::telemetry::audit;
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
/// How long a list waits for it: longer than decisions, since no client waits.
const LIST_WITHIN: Duration = Duration::from_secs(1);
/// The same, after more than a store may hold, or a refusal: each reading takes all of them from Redis.
const REFUSED_READ_EVERY: Duration = Duration::from_secs(5);
/// How often to look for ended overrides.
const SWEEP_EVERY: Duration = Duration::from_secs(10);
/// How often a change is tried while others change overrides.
const CHANGE_TRIES: usize = 10;
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
            self.leases.note_sidecars(sidecars);
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
    async fn read_overrides_now(&self) -> Result<(), StoreError> {
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
            Ok(true) => self.report_losses(counts),
            Ok(false) => {}
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

    /// The overrides of the policy file and the store.
    ///
    /// # Errors
    /// The store's have never been read.
    pub async fn list_overrides(&self) -> Result<OverrideList, Problem> {
        self.wait_for_overrides(LIST_WITHIN).await;
        if self.policy.current().overrides.stored.is_none() {
            let read = timeout(self.store.timeout(), self.read_overrides_now()).await;
            let read = read.unwrap_or_else(|_| Err(StoreError::Timeout(self.store.timeout())));
            read.map_err(|error| {
                let why = format_args!(
                    "the store's overrides have not been read since this sidecar started, so only the policy file's are in force: {error}"
                );
                Problem::new(Code::StoreUnavailable, why)
            })?;
        }
        let epoch = self.policy.current();
        let overrides = epoch.overrides.list(&epoch.policy, clock::unix_ms());
        Ok(OverrideList { overrides })
    }

    /// Sets an override on all sidecars.
    ///
    /// # Errors
    /// It is invalid, or the store did not confirm the change.
    pub async fn set_override(&self, mut asked: SetOverride) -> Result<OverrideWasSet, Problem> {
        let epoch = self.policy.current();
        rename(&epoch.policy, &mut asked.limit, &mut asked.whom);
        let limit = epoch.policy.limit(&asked.limit);
        let limit = limit.ok_or_else(|| unknown_limit(&epoch.policy, "limit", &asked.limit))?;
        let one = Override::read(asked.terms).map_err(malformed)?;
        if let Grant::Quotas(quotas) = &one.grant {
            limit.with_quotas(quotas).map_err(malformed)?;
        }
        if one.has_ended(clock::unix_ms()) {
            return Err(malformed(
                "`until` has passed: give a time in the future".to_owned(),
            ));
        }
        let key = match &asked.whom {
            Whom::Key(key) => Some(key.clone()),
            Whom::Subject(digits) => self.metrics.key_of(digits),
            Whom::AllKeys(_) => None,
        };
        if matches!(asked.whom, Whom::Subject(_)) && key.as_deref().is_some_and(client_chooses) {
            let why = "`subject`: its key has a component in plain text that a client can choose, which digits do not match: give the `key`";
            return Err(malformed(why.to_owned()));
        }
        let made = match &asked.whom {
            Whom::Key(key) => KeyForms::new(&epoch.policy.rules).make(&asked.limit, key),
            _ => Made::Yes,
        };
        if let (Made::Hashed(name), false) = (&made, asked.force) {
            let why = format!(
                "`key`: no rule makes this key, as all rules of the limit hash `{name}`: `sluicegate explain` prints a request's key, `sluicegate top` its `subject`; `force` sets the override all the same"
            );
            return Err(malformed(why));
        }
        let counted = match &key {
            Some(key) => self.is_counted(&asked.limit, key).await,
            None => None,
        };
        let name = (asked.limit, asked.whom);
        let set = |next: &mut StoredOverrides| next.set(&name, &one);
        let replaced = self.change_overrides(set).await?;
        let (limit, whom) = &name;
        audit::override_set(&self.events, limit, whom, &one.terms);
        let overrides = &self.policy.current().overrides;
        let now_ms = clock::unix_ms();
        let now = overrides.listed(limit, whom, &one, OverrideSource::Store, now_ms);
        Ok(OverrideWasSet {
            now,
            replaced,
            counted,
            no_rule: made != Made::Yes,
        })
    }

    /// Whether units of this key are counted in any window; `None` if the store does not answer.
    async fn is_counted(&self, limit: &str, key: &str) -> Option<bool> {
        let epoch = self.policy.current();
        let limit = epoch.policy.limit(limit)?;
        let buckets = buckets_of(&limit.windows, &limit.name, key);
        let mut batch = BatchBuilder::new();
        for bucket in &buckets {
            peek(&mut batch, bucket);
        }
        let outcomes = self.backend.take_in_advance(Arc::new(batch.finish())).await;
        let outcomes: Option<Vec<_>> = outcomes.into_iter().collect();
        let mut both = buckets.iter().zip(outcomes?);
        Some(both.any(|(bucket, outcome)| outcome.remaining < bucket.spec.most_at_once()))
    }

    /// Removes an override on all sidecars.
    ///
    /// # Errors
    /// It is invalid, or the store did not confirm the change.
    pub async fn remove_override(
        &self,
        mut asked: RemoveOverride,
    ) -> Result<OverrideWasRemoved, Problem> {
        let author = &asked.author;
        check_texts(author.reason.as_deref(), author.by.as_deref()).map_err(malformed)?;
        let policy = &self.policy.current().policy;
        rename(policy, &mut asked.limit, &mut asked.whom);
        let name = (asked.limit, asked.whom);
        let remove = |next: &mut StoredOverrides| next.remove(&name);
        let removed = self.change_overrides(remove).await?;
        let (limit, whom) = &name;
        if removed {
            audit::override_removed(&self.events, limit, whom, author);
        }
        let epoch = self.policy.current();
        let in_policy = epoch.policy.limit(limit);
        let in_policy = in_policy.and_then(|limit| limit.overrides.get(whom));
        let (source, now_ms) = (OverrideSource::Policy, clock::unix_ms());
        let listed = |one| epoch.overrides.listed(limit, whom, one, source, now_ms);
        let in_policy = in_policy.map(listed);
        Ok(OverrideWasRemoved { removed, in_policy })
    }

    /// Changes the store's overrides, if they are not as they should be, and applies the change in this sidecar.
    async fn change_overrides(
        &self,
        change: impl Fn(&mut StoredOverrides) -> bool,
    ) -> Result<bool, Problem> {
        let unconfirmed = |why: &dyn std::fmt::Display| {
            let why = format_args!(
                "the store did not confirm the change and may have made it: {why}; try again, which is safe"
            );
            Problem::new(Code::StoreUnavailable, why)
        };
        for _ in 0..CHANGE_TRIES {
            let read = self.read_overrides_now();
            read.await.map_err(|error| unconfirmed(&error))?;
            let Some(stored) = self.policy.current().overrides.stored.clone() else {
                continue;
            };
            let mut next = StoredOverrides::clone(&stored);
            let result = change(&mut next);
            if next == *stored {
                return Ok(result);
            }
            if !next.fit() {
                return Err(Problem::new(
                    Code::TooManyOverrides,
                    "the store holds the maximum number or size of overrides: remove some, or give groups of keys limits of their own",
                ));
            }
            let changed = self.store.change_overrides(&stored, &next).await;
            if changed.map_err(|error| unconfirmed(&error))? {
                // The change is made. If this read fails, the next one applies it.
                let _ = self.read_overrides_now().await;
                return Ok(result);
            }
        }
        Err(unconfirmed(&"others have changed them each time"))
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

/// Limit and key of a consumer, in place of what stands for them.
fn rename(policy: &Policy, limit: &mut String, whom: &mut Whom) {
    let Whom::Key(key) = whom else { return };
    if let Some((of, with)) = policy.resolve(limit, key) {
        (*limit, *key) = (of.to_owned(), with.into_owned());
    }
}

/// A mistake in the request, from a message that begins with its field in backticks.
fn malformed(why: String) -> Problem {
    let field = why.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    let field = field.map_or(BODY, |(field, _)| field).to_owned();
    Problem::new(Code::MalformedEntry, why).at(field)
}
