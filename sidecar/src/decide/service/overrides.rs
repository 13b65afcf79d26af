//! Overrides: lists, sets and removes them.

use std::sync::Arc;
use std::time::Duration;

use sluicegate_engine::BatchBuilder;
use sluicegate_protocol::{
    BODY, Code, ListedOverride, OverrideList, OverrideSource, OverrideWasRemoved, OverrideWasSet,
    Problem, RemoveOverride, SetOverride, Whom,
};
use tokio::time::timeout;

use super::Service;
use crate::clock;
use crate::decide::buckets::{buckets_of, unknown_limit};
use crate::decide::epoch::Epoch;
use crate::decide::overrides::{Named, client_chooses};
use crate::decide::plan::peek;
use crate::policy::{Grant, KeyForms, Made, Override, Policy, check_texts, consumer_of};
use crate::store::{Name, StoreError, StoredOverrides};
use crate::telemetry::audit;
use crate::telemetry::subject::Subject;

/// How long a list waits for the first reading: longer than decisions, since no client waits.
const LIST_WITHIN: Duration = Duration::from_secs(1);
/// How often a change is tried while others change overrides.
const CHANGE_TRIES: usize = 10;

impl Service {
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
    pub async fn set_override(&self, asked: SetOverride) -> Result<OverrideWasSet, Problem> {
        let epoch = self.policy.current();
        let policy = &epoch.policy;
        let named = self.override_name(&epoch, &asked.limit, &asked.whom);
        let name = match named {
            Ok(name) => name,
            Err(_) if asked.force => (asked.limit.clone(), asked.whom.clone()),
            Err(problem) => return Err(problem),
        };
        let (of, _) = policy.acts_on(&name.0, &name.1);
        let limit = policy
            .limit(&of)
            .filter(|_| asked.force || policy.knows(&asked.limit));
        let limit = limit.ok_or_else(|| unknown_limit(policy, "limit", &asked.limit))?;
        let one = Override::read(asked.terms).map_err(malformed)?;
        if let Grant::Quotas(quotas) = &one.grant {
            limit.with_quotas(quotas).map_err(malformed)?;
        }
        if one.has_ended(clock::unix_ms()) {
            let until = one.terms.until.unwrap_or_default();
            return Err(malformed(format!(
                "`until`: `{until}` has passed: give a time in the future"
            )));
        }
        let key = match &name.1 {
            Whom::Key(key) => Some(key.clone()),
            Whom::Subject(digits) => self.metrics.key_of(digits),
            Whom::AllKeys(_) => None,
        };
        if matches!(name.1, Whom::Subject(_)) && key.as_deref().is_some_and(client_chooses) {
            let why = "`subject`: its key has a component in plain text that a client can choose, which digits do not match: give the `key`";
            return Err(malformed(why.to_owned()));
        }
        let made = match &name.1 {
            Whom::Key(key) => KeyForms::new(&policy.rules).make(&name.0, key),
            _ => Made::Yes,
        };
        let nobody = match &made {
            Made::Hashed(name) => Some(format!(
                "no rule makes this key, as all rules of the limit hash `{name}`: `sluicegate explain` prints a request's key, `sluicegate top` its `subject`"
            )),
            _ => policy.lacks(&name.0, &name.1),
        };
        let is_of_another = name.0 != asked.limit && of != asked.limit;
        let follows = is_of_another && name.1 == asked.whom;
        let other = follows.then(|| format!("this consumer's limit is `{of}`: name `{}`", name.0));
        if let Some(why) = nobody.or(other).filter(|_| !asked.force) {
            let why = format!("`key`: {why}; `force` (`--force`) sets the override all the same");
            return Err(malformed(why));
        }
        let counted = match &key {
            Some(key) => self.is_counted(&of, key).await,
            None => None,
        };
        let set = |next: &mut StoredOverrides| {
            let replaced = remove_alike(policy, next, &name);
            next.set(&name, &one);
            replaced
        };
        let replaced = self.change_overrides(set).await?;
        let (limit, whom) = &name;
        let now = self.listed((limit, whom, OverrideSource::Store), &one);
        audit::override_set(&self.events, limit, whom, &one.terms, now.at_once);
        Ok(OverrideWasSet {
            now,
            of: key.as_deref().and_then(components),
            replaced,
            counted,
            no_rule: made != Made::Yes,
        })
    }

    /// The name by which an override is stored. Digits of a key that has one are the key; digits of a consumer's key, and those of
    /// what its filter sends, are the consumer.
    ///
    /// # Errors
    /// The limit is one of consumers, and whose the digits are is not known here.
    fn override_name(&self, epoch: &Epoch, limit: &str, whom: &Whom) -> Result<Name, Problem> {
        let policy = &epoch.policy;
        let Whom::Subject(digits) = whom else {
            return Ok(policy.override_name(limit, whom));
        };
        if let Some(key) = epoch.overrides.key_of(digits) {
            return Ok(policy.override_name(limit, &Whom::Key(key)));
        }
        let Some(entry) = policy.entry_of(limit) else {
            return Ok(policy.override_name(limit, whom));
        };
        let has_digits = |key: &str| Subject::of(key).to_string() == *digits;
        let key = policy.consumer_where(entry, has_digits);
        let key = key.or_else(|| self.metrics.key_of(digits)).ok_or_else(|| {
            malformed(format!(
                "`subject`: `{limit}` is a limit of consumers, and this sidecar has denied nobody with these digits lately: use `--limit {entry} --consumer NAME`, or ask the sidecar of the Envoy whose log has them; `force` (`--force`) sets the override for an address with these digits all the same"
            ))
        })?;
        Ok(match consumer_of(&key) {
            Some(_) => policy.override_name(entry, &Whom::Key(key)),
            None => (
                limit.to_owned(),
                Whom::Subject(Subject::of(&key).to_string()),
            ),
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
        asked: RemoveOverride,
    ) -> Result<OverrideWasRemoved, Problem> {
        let author = &asked.author;
        check_texts(author.reason.as_deref(), author.by.as_deref()).map_err(malformed)?;
        let epoch = self.policy.current();
        let policy = &epoch.policy;
        let named = self.override_name(&epoch, &asked.limit, &asked.whom);
        let given = || (asked.limit.clone(), asked.whom.clone());
        let name = named.clone().unwrap_or_else(|_| given());
        let remove = |next: &mut StoredOverrides| remove_alike(policy, next, &name);
        let removed = self.change_overrides(remove).await?;
        let (limit, whom) = &name;
        if removed {
            audit::override_removed(&self.events, limit, whom, author);
        } else {
            named?;
        }
        let epoch = self.policy.current();
        let in_policy = epoch.policy.in_file(&epoch.policy.acts_on(limit, whom));
        let in_policy = in_policy
            .map(|((limit, whom), one)| self.listed((limit, whom, OverrideSource::Policy), one));
        Ok(OverrideWasRemoved { removed, in_policy })
    }

    fn listed(&self, named: Named<'_>, one: &Override) -> ListedOverride {
        let epoch = self.policy.current();
        (epoch.overrides).listed(&epoch.policy, named, one, clock::unix_ms())
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
            if let Some(changed) = changed.map_err(|error| unconfirmed(&error))? {
                self.know_overrides(changed).await;
                return Ok(result);
            }
        }
        Err(unconfirmed(&"others have changed them each time"))
    }
}

/// Removes the overrides of this name, however they are kept, by a key or its digits; whether there was one.
fn remove_alike(policy: &Policy, next: &mut StoredOverrides, (limit, whom): &Name) -> bool {
    // None are those of all keys.
    let digits = Subject::of_whom(whom);
    let is_alike = |(of, others): &&Name| {
        let (of, whom) = policy.override_name(of, others);
        of == *limit && Subject::of_whom(&whom) == digits
    };
    let alike: Vec<_> = next.entries.keys().filter(is_alike).cloned().collect();
    alike.iter().filter(|one| next.remove(one)).count() > 0
}

/// What a key of the filter is made of, without its values.
fn components(key: &str) -> Option<String> {
    let names = key
        .split(';')
        .map(|component| Some(component.split_once(['=', '#'])?.0));
    Some(names.collect::<Option<Vec<_>>>()?.join(";"))
}

/// A mistake in the request, from a message that begins with its field in backticks.
fn malformed(why: String) -> Problem {
    let field = why.strip_prefix('`').and_then(|rest| rest.split_once('`'));
    let field = field.map_or(BODY, |(field, _)| field).to_owned();
    Problem::new(Code::MalformedEntry, why).at(field)
}
