//! The buckets of a limit.

use sluicegate_engine::{Bucket, BucketSpec, bucket_key};
use sluicegate_protocol::{Code, Problem};

use super::allowance::windows;
use super::overrides::OverridesNow;
use crate::policy::Policy;

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
    let bucket = |spec: &BucketSpec| Bucket {
        key: bucket_key(key, &limit.name, spec),
        spec: *spec,
    };
    Ok(windows(limit, key, overrides).iter().map(bucket).collect())
}

/// The error for an unknown limit, with the nearest name.
pub fn unknown_limit(policy: &Policy, field: &str, name: &str) -> Problem {
    let near = policy
        .limits()
        .map(|limit| limit.name.as_str())
        .max_by(|a, b| {
            let likeness = |known: &str| strsim::jaro_winkler(known, name);
            likeness(a).total_cmp(&likeness(b))
        });
    Problem::new(
        Code::UnknownLimit,
        format_args!(
            "`{field}`: the policy has no limit `{name}`; the nearest name is `{}`",
            near.unwrap_or_default()
        ),
    )
    .at(field)
}
