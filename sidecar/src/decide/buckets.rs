//! The buckets of a limit.

use sluicegate_engine::{Bucket, BucketSpec, bucket_key};
use sluicegate_protocol::{Code, Problem};
use sluicegate_rules::config::nearest;

use super::overrides::{Effect, OverridesNow};
use crate::policy::Policy;

/// Most tiers that an error names.
const MAX_TIERS: usize = 8;

/// The buckets of a limit for a key.
///
/// # Errors
/// The policy has no such limit.
pub fn buckets(
    policy: &Policy,
    overrides: OverridesNow<'_>,
    limit: &str,
    key: &str,
) -> Result<Vec<Bucket>, Problem> {
    let limit = policy
        .limit(limit)
        .ok_or_else(|| unknown_limit(policy, "limit", limit))?;
    // A key without a quota of its own may have taken units from the policy's windows before.
    let windows = match overrides.find(&limit.name, key) {
        Some((Effect::Quotas(windows), _)) => windows,
        _ => limit.windows.as_slice(),
    };
    Ok(buckets_of(windows, &limit.name, key))
}

/// The buckets of these windows of a limit for a key.
pub fn buckets_of(windows: &[BucketSpec], limit: &str, key: &str) -> Vec<Bucket> {
    let bucket = |spec: &BucketSpec| Bucket {
        key: bucket_key(key, limit, spec),
        spec: *spec,
    };
    windows.iter().map(bucket).collect()
}

/// The error for an unknown limit, with the name that it may misspell.
pub fn unknown_limit(policy: &Policy, field: &str, name: &str) -> Problem {
    let mut why = format!("`{field}`: the policy has no limit `{name:.120}`");
    let known = policy.limits().map(|limit| limit.name.as_str());
    // It may be as long as a body, and comparing takes time by its length.
    if let Some(near) = nearest(name, known.filter(|known| name.len() < 2 * known.len())) {
        why += &format!("; did you mean `{near}`?");
    } else {
        let limits = policy.limits().map(|limit| limit.name.as_str());
        let tiers = limits.filter(|limit| {
            let tier = limit.strip_prefix(name);
            tier.is_some_and(|tier| tier.starts_with('.'))
        });
        let tiers = tiers.take(MAX_TIERS).map(|tier| format!("`{tier}`"));
        let tiers: Vec<_> = tiers.collect();
        why += &match tiers.as_slice() {
            [] => "; `sluicegate top --once` lists its limits".to_owned(),
            tiers => format!("; its tiers are limits: {}", tiers.join(", ")),
        };
    }
    Problem::new(Code::UnknownLimit, why).at(field)
}
