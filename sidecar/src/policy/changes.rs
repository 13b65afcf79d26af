//! What changes from one policy to the next, in words for the log. Pure. Names no key.

use sluicegate_engine::{Algorithm, BucketSpec, bucket_key};

use super::file::AlgorithmName;
use super::limits::{Limit, Policy};
use super::window_file::window_name;

/// Each change, such as "per-tenant: quota 20 -> 40", in the order of the names. What cannot be seen in a running sidecar,
/// such as comments, is "no limit changed".
pub fn changes(before: &Policy, after: &Policy) -> Vec<String> {
    let mut found = Vec::new();
    if before.denial_ttl != after.denial_ttl {
        let (before, after) = (before.denial_ttl, after.denial_ttl);
        found.push(format!("denial_ttl {before:?} -> {after:?}"));
    }
    for gone in before
        .limits()
        .filter(|limit| after.limit(&limit.name).is_none())
    {
        found.push(format!("{} removed", gone.name));
    }
    for limit in after.limits() {
        match before.limit(&limit.name) {
            None => found.push(format!("{} added", limit.name)),
            Some(before) if before == limit => {}
            Some(before) => {
                let changed = of_limit(before, limit).join(", ");
                found.push(format!("{}: {changed}", limit.name));
            }
        }
    }
    if found.is_empty() {
        found.push("no limit changed".to_owned());
    }
    found
}

fn of_limit(before: &Limit, after: &Limit) -> Vec<String> {
    // The state's key does not depend on the quota.
    let same =
        |one: &BucketSpec, other: &BucketSpec| bucket_key("", "", one) == bucket_key("", "", other);
    let mut found = Vec::new();
    // Names the window only where there are several.
    let of = |spec: &BucketSpec| match (before.windows.len(), after.windows.len()) {
        (1, 1) => String::new(),
        _ => format!(" per {}", window_name(spec)),
    };
    for spec in &before.windows {
        let Some(next) = after.windows.iter().find(|next| same(spec, next)) else {
            found.push(format!("no longer {}", described(spec)));
            continue;
        };
        if spec.quota != next.quota {
            found.push(format!(
                "quota{} {} -> {}",
                of(spec),
                spec.quota,
                next.quota
            ));
        }
        if let (Algorithm::TokenBucket { burst }, Algorithm::TokenBucket { burst: next }) =
            (spec.algorithm, next.algorithm)
            && burst != next
        {
            found.push(format!("burst{} {burst} -> {next}", of(spec)));
        }
    }
    for spec in &after.windows {
        if !before.windows.iter().any(|known| same(known, spec)) {
            found.push(format!(
                "now {}, whose counts start at zero",
                described(spec)
            ));
        }
    }
    for (field, is_other) in [
        (
            "when_store_is_down",
            before.when_store_is_down != after.when_store_is_down,
        ),
        (
            "requested quotas",
            before.max_requested_quota != after.max_requested_quota,
        ),
        ("lease", before.lease != after.lease),
        ("overrides", before.overrides != after.overrides),
    ] {
        if is_other {
            found.push(format!("{field} changed"));
        }
    }
    found
}

/// A window, such as "sliding_log 20 per 10m".
fn described(spec: &BucketSpec) -> String {
    // Names can always be written as JSON.
    let name = serde_json::to_string(&AlgorithmName::from(spec.algorithm)).unwrap_or_default();
    let (name, quota) = (name.trim_matches('"'), spec.quota);
    format!("{name} {quota} per {}", window_name(spec))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::rows;

    #[test]
    fn each_change_is_named_and_so_are_counts_that_start_at_zero() {
        let one = "l: { algorithm: sliding_log, windows: [{ quota: 20, per: 10m }] }";
        let other = "m: { algorithm: token_bucket, windows: [{ quota: 5, per: 1s }] }";
        for [before, after, expected] in rows(
            "sliding_log, windows: [{ quota: 20 | sliding_log, windows: [{ quota: 40 | l: quota 20 -> 40
             sliding_log | fixed_window | l: no longer sliding_log 20 per 10m, now fixed_window 20 per 10m, whose counts start at zero
             per: 10m | per: 1h | l: no longer sliding_log 20 per 10m, now sliding_log 20 per 1h, whose counts start at zero
             per: 10m }] | per: 10m }, { quota: 90, per: 1h }] | l: now sliding_log 90 per 1h, whose counts start at zero
             quota: 5, | quota: 5, burst: 9, | m: burst 5 -> 9
             per: 10m }] | per: 10m }], when_store_is_down: deny | l: when_store_is_down changed
             per: 10m }] | per: 10m }], overrides: [{ key: k, blocked: true }] | l: overrides changed
             l: | n: | l removed; n added
             limits: | denial_ttl: 2s\\nlimits: | denial_ttl 1s -> 2s
             limits: | # A comment.\\nlimits: | no limit changed",
        ) {
            let text = format!("limits:\n  {one}\n  {other}\n");
            assert!(text.contains(&before), "{before}");
            let next = text.replacen(&before, &after.replace("\\n", "\n"), 1);
            let [old, new] = [&text, &next].map(|text| Policy::parse(text).unwrap());
            assert_eq!(changes(&old, &new).join("; "), expected, "{after}");
        }
    }
}
