//! What a check may take: the only place that determines its effective windows. Pure.

use sluicegate_engine::BucketSpec;

use super::overrides::{Effect, OverridesNow};
use crate::policy::Limit;

/// What one check may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowance<'a> {
    /// The units that these windows admit.
    Windows {
        /// One for each of the limit's windows.
        windows: &'a [BucketSpec],
        /// Replaces their own quota: the request's, if the policy accepts it.
        quota: Option<u64>,
        /// Milliseconds until other windows apply, if known.
        ends_in_ms: Option<u64>,
        /// Whether they are an override's.
        overridden: bool,
    },
    /// Any number of units, without asking the store.
    Unlimited,
    /// Nothing; denied without asking the store.
    Blocked {
        /// Milliseconds until the block ends, if it has an end.
        ends_in_ms: Option<u64>,
    },
}

/// What `key` may take from `limit`: the override's allowance if there is one, else the request's quota if the policy
/// accepts it, else the policy's quota.
pub fn allowance<'a>(
    limit: &'a Limit,
    key: &str,
    requested: Option<u64>,
    overrides: OverridesNow<'a>,
) -> Allowance<'a> {
    match overrides.find(&limit.name, key) {
        None => Allowance::Windows {
            windows: &limit.windows,
            quota: limit.accepted_quota(requested),
            ends_in_ms: None,
            overridden: false,
        },
        Some((Effect::Windows(windows), ends_in_ms)) => Allowance::Windows {
            windows,
            quota: None,
            ends_in_ms,
            overridden: true,
        },
        Some((Effect::Unlimited, _)) => Allowance::Unlimited,
        Some((Effect::Blocked, ends_in_ms)) => Allowance::Blocked { ends_in_ms },
    }
}

/// The windows that `key` may have taken units from: those of an override with a quota, or else the policy's.
pub fn windows<'a>(limit: &'a Limit, key: &str, overrides: OverridesNow<'a>) -> &'a [BucketSpec] {
    match allowance(limit, key, None, overrides) {
        Allowance::Windows { windows, .. } => windows,
        Allowance::Unlimited | Allowance::Blocked { .. } => &limit.windows,
    }
}
