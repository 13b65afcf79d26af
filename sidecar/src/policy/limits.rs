//! What a policy says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use sluicegate_engine::BucketSpec;

use super::store::StoreAddress;

/// How long a store call may take unless the policy says otherwise. Under the filter's own default of 50 ms,
/// so that the filter hears *unavailable* from the sidecar rather than nothing.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_millis(20);

/// How long a denial may be held unless the policy says otherwise: within this time an operator's reset and what other
/// sidecars have given back take effect everywhere.
pub const DEFAULT_DENIAL_TTL: Duration = Duration::from_secs(1);

/// Bytes that the embedded store may take unless the policy says otherwise: some 700,000 keys of one window.
pub const DEFAULT_MEMORY_LIMIT: usize = 256 << 20;

/// A loaded policy.
#[derive(Debug)]
pub struct Policy {
    /// Where the state is kept.
    pub store: StoreAddress,
    /// Deadline of one store call.
    pub store_timeout: Duration,
    /// Bytes that the embedded store may take.
    pub memory_limit: usize,
    /// Longest time that a denial is given again without asking the store.
    pub denial_ttl: Duration,
    /// By name.
    pub(super) limits: BTreeMap<String, Arc<Limit>>,
}

/// A named allowance.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the policy, on the wire and in metrics.
    pub name: String,
    /// At least one; all must have room.
    pub windows: Vec<BucketSpec>,
    /// What decides while the store is down.
    pub when_store_is_down: WhenStoreIsDown,
}

/// What decides while the store that a fleet shares is down.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
pub enum WhenStoreIsDown {
    /// Each sidecar enforces its share of the limit: the limit divided by the sidecars that were there when the store
    /// was last asked.
    #[default]
    Share,
    /// Every request passes, and nothing is taken.
    Allow,
    /// Every request is refused.
    Deny,
}

impl Limit {
    /// The largest cost that every window could ever admit.
    pub fn most(&self) -> u64 {
        self.windows
            .iter()
            .map(BucketSpec::most_at_once)
            .min()
            .unwrap_or(0)
    }
}

impl Policy {
    /// Whether a running sidecar may go on with this policy in place of its own.
    ///
    /// # Errors
    /// What would need a restart.
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
            "`{changed}` has changed, which needs a restart of the sidecar; limits may change at any time"
        ))
    }

    /// The limit of that name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        self.limits.get(name)
    }

    /// All limits, by name.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values()
    }
}
