//! The policy in force and its counters, and their replacement while requests are served.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};

use arc_swap::ArcSwap;
use tokio::sync::watch;
use tracing::{error, info, warn};

use super::overrides::Overrides;
use crate::clock;
use crate::lock::{lock, try_lock};
use crate::policy::{Ended, Policy, PolicyError, PolicySource, changes};
use crate::store::StoredOverrides;
use crate::telemetry::events::EventKind;
use crate::telemetry::history::Counts;
use crate::telemetry::metrics::{Metrics, PolicyMetrics};
use crate::telemetry::subject::Subject;

/// Most names and keys in the list by which filters end cached denials, and most epochs before the newest for which there is one.
const MAX_ENDED: usize = 128;
const MAX_PAST: usize = 16;

/// A policy with its overrides.
#[derive(Debug)]
pub struct Epoch {
    /// Counted from 1; increases with each reload, each change of overrides, and each step of the store's clock. A new
    /// epoch voids all denial certificates: here at once, and in a filter with the first answer that has another number.
    pub number: u64,
    /// The number of the loaded policy, counted from 1.
    pub policy_number: u64,
    /// The limits.
    pub policy: Arc<Policy>,
    /// The overrides for single keys.
    pub overrides: Overrides,
    /// The metrics of the limits.
    pub metrics: Arc<PolicyMetrics>,
    /// The earlier rules by which filters may ask, as answers list them.
    pub earlier: Option<String>,
    /// [`Answer::limits`](sluicegate_protocol::Answer::limits).
    pub limits: String,
    /// Identifies everything by which the policy decides, but its rules.
    pub decides_by: String,
    /// How often all denials were voided.
    voids: u64,
    /// The limits of earlier epochs, each with the cached denials that the next epoch ended in filters; `None`: all.
    ended: VecDeque<(String, Option<Ended>)>,
}

/// The policy in force. A request uses the epoch that was current when it began until it is answered.
#[derive(Debug)]
pub struct PolicyHandle {
    current: ArcSwap<Epoch>,
    news: watch::Sender<()>,
    /// Held while the epoch is replaced.
    changing: Mutex<()>,
    /// The policy's file.
    pub source: PolicySource,
}

/// A text that stands for another in what sidecars and filters tell each other.
pub fn digest(text: &str) -> String {
    Subject::of(text).to_string()
}

impl Epoch {
    /// What to tell of overrides that do not fit the policy, but did `before`.
    fn unfit_since(&self, before: &Self) -> Option<String> {
        let now_ms = clock::unix_ms();
        let known = before.overrides.unfit(&before.policy, now_ms);
        let unfit = self.overrides.unfit(&self.policy, now_ms);
        let new: Vec<_> = unfit.difference(&known).collect();
        let (limit, _) = new.first()?;
        let count = new.len();
        Some(format!(
            "overrides that do not fit the policy any more: {count}, the first of `{limit}`"
        ))
    }

    /// The epoch of these numbers, after another one.
    fn after(
        before: Option<&Self>,
        (number, policy_number): (u64, u64),
        policy: Arc<Policy>,
        stored: Option<Arc<StoredOverrides>>,
        metrics: Arc<PolicyMetrics>,
    ) -> Self {
        let same = before.filter(|before| Arc::ptr_eq(&before.policy, &policy));
        let decides_by = match same {
            Some(before) => before.decides_by.clone(),
            None => digest(&policy.decides_by()),
        };
        let is_voided =
            same.is_some_and(|before| number > before.number && stored == before.overrides.stored);
        let voids = before.map_or(0, |before| before.voids) + u64::from(is_voided);
        let entries = stored.as_ref().map(|stored| &stored.entries);
        let entries = entries.filter(|entries| !entries.is_empty());
        let limits = digest(&format!("{decides_by} {entries:?} {voids}"));
        let mut ended = before.map_or_else(VecDeque::new, |before| before.ended.clone());
        if let Some(before) = before.filter(|before| before.limits != limits) {
            let of_policy = same
                .is_none()
                .then(|| before.policy.ended_by(&policy))
                .flatten();
            let few = of_policy.filter(|ended| ended.len() <= MAX_ENDED);
            ended.push_back((before.limits.clone(), few));
            if ended.len() > MAX_PAST {
                ended.pop_front();
            }
        }
        Self {
            number,
            policy_number,
            earlier: policy.earlier(),
            overrides: Overrides::new(&policy, stored),
            policy,
            metrics,
            limits,
            decides_by,
            voids,
            ended,
        }
    }

    /// The limits and keys whose cached denials end in a filter that knows these limits; `None`: all.
    pub fn ended_since(&self, known: &str) -> Option<BTreeSet<&str>> {
        let mut all = BTreeSet::new();
        if known != self.limits {
            let from = self.ended.iter().rposition(|(limits, _)| limits == known)?;
            for (_, ended) in self.ended.iter().skip(from) {
                all.extend(ended.as_ref()?.iter().map(String::as_str));
            }
        }
        (all.len() <= MAX_ENDED).then_some(all)
    }
}

impl PolicyHandle {
    /// Loads the first policy from a file; from the state directory, if there is one and the file cannot be used.
    ///
    /// # Errors
    /// The file cannot be read, or its content is invalid.
    pub fn load(
        path: &Path,
        state_dir: Option<&Path>,
        metrics: &Metrics,
    ) -> Result<Self, PolicyError> {
        let (source, policy) = PolicySource::open(path, state_dir)?;
        let of_policy = Arc::new(metrics.policy_loaded(1, &policy));
        let epoch = Epoch::after(None, (1, 1), Arc::new(policy), None, of_policy);
        if source.is_last_good() {
            metrics.policy_refused();
        }
        Ok(Self {
            current: ArcSwap::from_pointee(epoch),
            news: watch::Sender::new(()),
            changing: Mutex::default(),
            source,
        })
    }

    /// The epoch in force.
    pub fn current(&self) -> Arc<Epoch> {
        self.current.load_full()
    }

    /// Reads the file again and puts its policy in force if it changed and is valid. Returns the event to record, if the file has
    /// changed.
    pub fn reload(&self, metrics: &Metrics) -> Option<(EventKind, String)> {
        let _changing = lock(&self.changing);
        let before = self.current.load_full();
        let mut event = None;
        let tried = self.source.reload(&before.policy, |policy| {
            let policy_number = before.policy_number + 1;
            let mut changes = changes(&before.policy, &policy);
            let totals = metrics.totals();
            let gone = before.policy.limits().map(|limit| limit.name.as_str());
            let gone = gone.filter(|name| !policy.has(name));
            for limit in gone.filter(|name| totals.get(*name).is_some_and(|counts| *counts != Counts::default())) {
                warn!(
                    limit,
                    "the new policy does not have a limit that requests have asked for: they are answered for as long as filters \
                     have rules that name it, and for a minute; then they get no verdict, and each rule's `when_unavailable` decides"
                );
            }
            self.put_in_force(&before, policy_number, policy, metrics);
            changes.extend(self.current.load().unfit_since(&before));
            let changes = changes.join("; ");
            info!(epoch = policy_number, "policy reloaded: {changes}");
            let detail = format!("epoch {policy_number}: {changes}");
            event = Some((EventKind::PolicyLoaded, detail));
        });
        if let Err(why) = tried {
            error!("{why}; the previous policy stays in force");
            metrics.policy_refused();
            let why = self.source.refusal().unwrap_or_default();
            return Some((EventKind::PolicyRefused, why));
        }
        event
    }

    /// Puts a loaded policy in force. If its limits are those before, cached denials and leases stay. The caller holds `changing`.
    fn put_in_force(&self, before: &Epoch, policy_number: u64, policy: Policy, metrics: &Metrics) {
        let number = before.number + u64::from(!policy.limits_as(&before.policy));
        let metrics = Arc::new(metrics.policy_loaded(policy_number, &policy));
        self.replace(
            before,
            (number, policy_number),
            Arc::new(policy),
            before.overrides.stored.clone(),
            metrics,
        );
    }

    /// Stops answering for limits and rules that changes removed a while ago, unless a filter has rules that name them. `is_used`:
    /// whether a filter has the rules with this digest.
    pub fn forget_removed(&self, metrics: &Metrics, is_used: impl Fn(&str) -> bool) {
        // A reload keeps it for long, and this thread makes decisions: the next call is soon enough.
        let Some(_changing) = try_lock(&self.changing) else {
            return;
        };
        let before = self.current.load_full();
        let without = before.policy.without_unused(is_used, clock::now_us());
        if let Some((policy, has_fewer)) = without {
            self.source.keep(&policy);
            let metrics = if has_fewer {
                Arc::new(metrics.of_policy(&policy))
            } else {
                Arc::clone(&before.metrics)
            };
            let number = before.number + u64::from(has_fewer);
            let stored = before.overrides.stored.clone();
            self.replace(
                &before,
                (number, before.policy_number),
                Arc::new(policy),
                stored,
                metrics,
            );
        }
    }

    /// News of another epoch.
    pub fn news(&self) -> watch::Receiver<()> {
        self.news.subscribe()
    }

    /// Puts overrides that were read from the store in force.
    pub fn override_by(&self, stored: StoredOverrides) {
        let _changing = lock(&self.changing);
        let before = self.current.load_full();
        let known = before.overrides.stored.as_ref().map(|known| &known.entries);
        let changed = known.map_or(!stored.entries.is_empty(), |known| *known != stored.entries);
        let number = before.number + u64::from(changed);
        self.keep_policy(&before, number, Some(Arc::new(stored)));
        if let Some(unfit) = self.current.load().unfit_since(&before) {
            warn!("{unfit}");
        }
    }

    /// Begins an epoch with the same policy and overrides, so that filters void their denial certificates.
    pub fn void_denials(&self) {
        let _changing = lock(&self.changing);
        let before = self.current.load_full();
        self.keep_policy(&before, before.number + 1, before.overrides.stored.clone());
    }

    /// Keeps the policy. The caller holds `changing`.
    fn keep_policy(&self, before: &Epoch, number: u64, stored: Option<Arc<StoredOverrides>>) {
        let (policy, metrics) = (Arc::clone(&before.policy), Arc::clone(&before.metrics));
        self.replace(
            before,
            (number, before.policy_number),
            policy,
            stored,
            metrics,
        );
    }

    fn replace(
        &self,
        before: &Epoch,
        numbers: (u64, u64),
        policy: Arc<Policy>,
        stored: Option<Arc<StoredOverrides>>,
        metrics: Arc<PolicyMetrics>,
    ) {
        let epoch = Epoch::after(Some(before), numbers, policy, stored, metrics);
        self.current.store(Arc::new(epoch));
        // Only now that the new limits are in force: filters that get these rules ask for them.
        self.news.send_replace(());
    }
}
