//! The contents of a policy.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::consumers::ConsumersByLimit;
use super::limits::Limit;
use super::rules::RuleSets;
use super::store::StoreAddress;

/// Default of `store_timeout`. Shorter than the filter's own default timeout of 50 ms, so that the filter receives
/// *unavailable* from the sidecar instead of no answer.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_millis(20);

/// Default of `denial_ttl`, how long a denial may be cached: resets and units returned through other sidecars take effect
/// everywhere within this time.
pub const DEFAULT_DENIAL_TTL: Duration = Duration::from_secs(1);

/// Default of `memory_limit`, the bytes that the embedded store may use: some 700,000 keys of one window.
pub const DEFAULT_MEMORY_LIMIT: usize = 256 << 20;

/// Most limits that no policy has any more and that are still answered for: policies may change again and again.
const MAX_REMOVED: usize = 1_000;

/// A loaded policy.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The address of the store.
    pub store: StoreAddress,
    /// Deadline of one store call.
    pub store_timeout: Duration,
    /// Bytes that the embedded store may use.
    pub memory_limit: usize,
    /// How long a denial may be cached.
    pub denial_ttl: Duration,
    /// By name.
    pub(super) limits: BTreeMap<String, Arc<Limit>>,
    /// Limits that an earlier policy had: a filter may ask for them until it has the new rules.
    pub(super) removed: BTreeMap<String, Arc<Limit>>,
    /// Whose the keys are that rules of these names ask with.
    pub(super) consumers: ConsumersByLimit,
    /// Those that an earlier policy had.
    pub(super) removed_consumers: ConsumersByLimit,
    /// The rules for filters.
    pub rules: Arc<RuleSets>,
}

impl Policy {
    /// All limits, as a text that is the same in every sidecar that has them.
    pub fn limits_text(&self) -> String {
        format!("{:?}", self.limits)
    }

    /// Checks that a running sidecar can replace this policy with `next`.
    ///
    /// # Errors
    /// A change that requires a restart.
    pub fn may_become(&self, next: Self) -> Result<Self, String> {
        let changed = if self.store != next.store {
            "store"
        } else if self.store_timeout != next.store_timeout {
            "store_timeout"
        } else if self.memory_limit != next.memory_limit {
            "memory_limit"
        } else {
            return Ok(next);
        };
        Err(format!(
            "`{changed}` has changed, which requires a restart of the sidecar; limits can change at any time"
        ))
    }

    /// The limit with this name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        self.limits.get(name).or_else(|| self.removed.get(name))
    }

    /// Whether a policy has a limit of this name, and not just an earlier one.
    pub fn has(&self, name: &str) -> bool {
        self.limits.contains_key(name)
    }

    /// Whether both apply the same limits in the same way, whatever their rules.
    pub fn limits_as(&self, other: &Self) -> bool {
        self.limits == other.limits
            && self.denial_ttl == other.denial_ttl
            && self.consumers == other.consumers
    }

    /// Keeps answering for the limits that `before` had.
    pub fn keep_removed(&mut self, before: &Self) {
        self.removed = gone([&before.limits, &before.removed], &self.limits);
        let consumers = [&before.consumers, &before.removed_consumers];
        self.removed_consumers = gone(consumers, &self.consumers);
    }

    /// The names that rules of earlier policies may ask for, and those of this one do not.
    pub fn removed(&self) -> impl Iterator<Item = &String> {
        self.removed.keys().chain(self.removed_consumers.keys())
    }

    /// The same without what earlier policies had; nothing if there is none of it.
    pub fn without_removed(&self) -> Option<Self> {
        self.removed().next().is_some().then(|| Self {
            removed: BTreeMap::new(),
            removed_consumers: BTreeMap::new(),
            ..self.clone()
        })
    }

    /// All limits for which decisions are made.
    pub fn decided_limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values().chain(self.removed.values())
    }

    /// All limits, sorted by name.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values()
    }

    /// The names of shadow rules, each with one of the limits that decide on what it asks.
    pub fn shadows(&self) -> impl Iterator<Item = (&String, &String)> {
        self.rules.shadows.iter().flat_map(|(rule, limit)| {
            let of_consumers = self.consumers.get(limit).into_iter();
            let limits = of_consumers.flat_map(|of| of.limits());
            limits.chain([limit]).map(move |limit| (rule, limit))
        })
    }

    /// The limit and the key that a check is for, if it names an entry of `consumers`.
    pub fn resolve<'k>(&self, limit: &str, key: &'k str) -> Option<(&str, Cow<'k, str>)> {
        let removed = || self.removed_consumers.get(limit);
        let found = self.consumers.get(limit);
        let found = found.or_else(|| removed().filter(|_| !self.has(limit)));
        found.map(|consumers| consumers.resolve(key))
    }

    /// The same in place.
    pub fn rename(&self, limit: &mut Cow<'_, str>, key: &mut Cow<'_, str>) {
        if let Some((of, with)) = self.resolve(limit, key) {
            (*limit, *key) = (of.to_owned().into(), with.into_owned().into());
        }
    }

    /// Entries of a request with the names that this gives them; without consumers, the entries themselves.
    pub fn renamed<'e, T: Clone>(&self, asked: &'e [T], rename: impl Fn(&mut T)) -> Cow<'e, [T]> {
        let mut asked = Cow::Borrowed(asked);
        if !(self.consumers.is_empty() && self.removed_consumers.is_empty()) {
            asked.to_mut().iter_mut().for_each(rename);
        }
        asked
    }

    /// Consumers that have limits of their own and no key, with the entry that names them.
    pub fn consumers_without_keys(&self) -> impl Iterator<Item = (&str, &str)> {
        let entries = self.consumers.iter();
        entries.flat_map(|(name, of)| of.without_keys().map(|one| (name.as_str(), one)))
    }

    /// The digests of the peppers of all consumers.
    pub fn peppers(&self) -> impl Iterator<Item = &str> {
        self.consumers.values().map(|of| of.pepper.as_str())
    }
}

/// What earlier policies had, without what there is now.
fn gone<T>(
    before: [&BTreeMap<String, Arc<T>>; 2],
    now: &BTreeMap<String, Arc<T>>,
) -> BTreeMap<String, Arc<T>> {
    let gone = before.into_iter().flatten();
    let gone = gone.filter(|(name, _)| !now.contains_key(*name));
    let gone = gone.map(|(name, one)| (name.clone(), Arc::clone(one)));
    gone.take(MAX_REMOVED).collect()
}
