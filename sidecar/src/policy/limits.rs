//! Limits.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use sluicegate_engine::lease::LeaseTerms;
use sluicegate_engine::{BucketSpec, MAX_SLOTS};
use sluicegate_protocol::{MAX_COST, Whom};

use super::overrides::Override;

/// A named allowance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the policy, on the wire and in metrics.
    pub name: String,
    /// At least one; all must have room.
    pub windows: Vec<BucketSpec>,
    /// The answer while the store is down.
    pub when_store_is_down: WhenStoreIsDown,
    /// The largest quota that a request may carry; `None` if requests may not carry one. A limit that accepts one has one
    /// window, whose state's key does not depend on the quota.
    pub max_requested_quota: Option<u64>,
    /// The terms on which units may be taken in advance; `None`: every decision asks the store.
    pub lease: Option<LeaseTerms>,
    /// For how long a slot is renewed at most, in microseconds, if its units are slots.
    pub longest_us: u64,
    /// Whether some rule settles its units: then they may come back at any time.
    pub is_settled: bool,
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

    /// How long a slot lives after it was taken or renewed, in microseconds; `None`: its units are no slots.
    pub fn expire_us(&self) -> Option<u64> {
        let window = self.windows.first()?;
        window.has_slots().then_some(window.window_us)
    }

    /// The largest cost of one check, whatever the quota.
    pub fn most_of_check(&self) -> u64 {
        self.expire_us().map_or(MAX_COST, |_| MAX_SLOTS)
    }

    /// Whether it denies every cost above 0 that has no quota of its own: nothing is counted for it.
    pub fn allows_nothing(&self) -> bool {
        self.windows.iter().any(|window| window.quota == 0)
    }

    /// Whether the policy file does not switch it off.
    pub fn is_enforced(&self) -> bool {
        !self.overrides.contains_key(&Whom::AllKeys(true))
    }

    /// The largest cost that every window could ever admit.
    pub fn most(&self) -> u64 {
        most(self.windows.iter().copied())
    }

    /// The largest cost that any request can have; unknown where an override may give a key more, or nothing is enforced, or nothing
    /// is meant to be admitted.
    pub fn most_of_any(&self) -> Option<u64> {
        let most = self.most().max(self.max_requested_quota.unwrap_or(0));
        let is_known = self.overrides.is_empty() && !self.allows_nothing();
        is_known.then_some(most.min(self.most_of_check()))
    }
}

/// The largest cost that all of these windows could ever admit.
pub fn most(windows: impl Iterator<Item = BucketSpec>) -> u64 {
    let most = windows.map(|spec| spec.most_at_once()).min();
    most.unwrap_or(0)
}
