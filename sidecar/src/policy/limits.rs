//! The contents of a policy.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_engine::BucketSpec;
use sluicegate_engine::lease::LeaseTerms;
use sluicegate_protocol::Whom;

use super::overrides::Override;
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
    /// The rules for filters.
    pub rules: RuleSets,
}

/// A named allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the policy, on the wire and in metrics.
    pub name: String,
    /// At least one; all must have room.
    pub windows: Vec<BucketSpec>,
    /// What decides while the store is down.
    pub when_store_is_down: WhenStoreIsDown,
    /// The largest quota that a request may carry; `None` if requests may not carry one. A limit that accepts one has one
    /// window, whose state's key does not depend on the quota.
    pub max_requested_quota: Option<u64>,
    /// The terms on which units may be taken in advance; `None`: every decision asks the store.
    pub lease: Option<LeaseTerms>,
    /// The policy file's overrides; with `enforce: false`, one for all keys.
    pub overrides: BTreeMap<Whom, Override>,
}

/// What decides while the store that a fleet shares is down.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WhenStoreIsDown {
    /// Each sidecar enforces its share of the limit: the limit divided by the number of sidecars when the store was last
    /// reachable.
    #[default]
    Share,
    /// Every request is admitted, and nothing is taken.
    Allow,
    /// Every request is refused.
    Deny,
}

impl Limit {
    /// The request's quota, if the policy accepts it in place of the window's own.
    pub fn accepted_quota(&self, requested: Option<u64>) -> Option<u64> {
        let max = self.max_requested_quota?;
        requested.filter(|quota| (1..=max).contains(quota))
    }

    /// Whether the policy file does not switch it off.
    pub fn is_enforced(&self) -> bool {
        !self.overrides.contains_key(&Whom::AllKeys(true))
    }

    /// The largest cost that every window could ever admit.
    pub fn most(&self) -> u64 {
        most(self.windows.iter().copied())
    }
}

/// The largest cost that all of these windows could ever admit.
pub fn most(windows: impl Iterator<Item = BucketSpec>) -> u64 {
    let most = windows.map(|spec| spec.most_at_once()).min();
    most.unwrap_or(0)
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
        self.limits == other.limits && self.denial_ttl == other.denial_ttl
    }

    /// Keeps answering for the limits that `before` had.
    pub fn keep_removed(&mut self, before: &Self) {
        let gone = before.removed.iter().chain(&before.limits);
        let gone = gone.filter(|(name, _)| !self.limits.contains_key(*name));
        self.removed = gone
            .map(|(name, limit)| (name.clone(), Arc::clone(limit)))
            .collect();
    }

    /// Limits that only earlier policies had.
    pub const fn removed(&self) -> &BTreeMap<String, Arc<Limit>> {
        &self.removed
    }

    /// The same without the limits that earlier policies had; nothing if there are none.
    pub fn without_removed(&self) -> Option<Self> {
        (!self.removed.is_empty()).then(|| Self {
            removed: BTreeMap::new(),
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
}
