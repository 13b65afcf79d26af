//! What changes from one policy to the next, in words for the log. Pure. Names no key.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_engine::{BucketSpec, bucket_key};

use super::contents::Policy;
use super::counted::started_anew;
use super::limits::Limit;
use super::rule_changes::rule_changes;
use super::rules::RuleSets;
use super::window_file::{window_name, window_quota};

/// Each change, such as "per-tenant: quota 20 -> 40", in the order of the names. What cannot be seen in a running sidecar,
/// such as comments, is "no limit changed".
pub fn changes(before: &Policy, after: &Policy) -> Vec<String> {
    let mut found = Vec::new();
    if let Err(why) = before.check_restart(after) {
        let anew = "; counts start at zero and overrides are gone, unless this is another address of the same database and prefix";
        let is_same = before.store.is_place_of(&after.store);
        found.push(why + if is_same { "" } else { anew });
    }
    let ttls = (before.denial_ttl, after.denial_ttl);
    if ttls.0 != ttls.1 {
        found.push(format!("denial_ttl {:?} -> {:?}", ttls.0, ttls.1));
    }
    found.extend(of_names(
        [&before.limits, &after.limits],
        ("", ", whose counts start at zero", ""),
        |one, other| one.windows == other.windows,
    ));
    for limit in after.limits() {
        let same = before.limits.get(&limit.name);
        if let Some(before) = same.filter(|before| *before != limit) {
            let what = of_limit(before, limit).join(", ");
            found.push(format!("{}: {what}", limit.name));
        }
    }
    found.extend(started_anew(before, after));
    if before.consumers != after.consumers {
        // One file of consumers may serve several limits.
        let keys = |policy: &Policy| {
            let keys = policy.consumers.values().flat_map(|of| of.keys.keys());
            keys.collect::<BTreeSet<_>>().len()
        };
        let moved = after.consumers.iter().map(|(name, new)| {
            let old = |hash| before.consumers.get(name)?.keys.get(hash);
            let keys = new.keys.iter();
            keys.filter(|(hash, owner)| old(*hash).is_some_and(|old| old != *owner))
                .count()
        });
        let moved = match moved.max() {
            None | Some(0) => String::new(),
            Some(moved) => format!(", of which another consumer has {moved}: with its counts"),
        };
        let (before, after) = (keys(before), keys(after));
        found.push(format!(
            "consumers changed: {before} -> {after} keys{moved}"
        ));
    }
    let keep = ": filters that list it keep all rules that they have";
    found.extend(of_names(
        [&before.rules.sets, &after.rules.sets],
        ("rule set ", keep, keep),
        PartialEq::eq,
    ));
    found.extend(rule_changes(&before.rules, &after.rules));
    if before.rules != after.rules {
        let digest = |rules: &RuleSets| match rules.digest.as_str() {
            "" => "none".to_owned(),
            digest => digest.to_owned(),
        };
        found.push(format!(
            "rules {} -> {}",
            digest(&before.rules),
            digest(&after.rules)
        ));
    }
    if found.is_empty() {
        found.push("no limit changed".to_owned());
    }
    found
}

/// What is renamed, removed and added, as texts: `what` stands before a name, `renamed` and `removed` after it.
pub(super) fn of_names<T>(
    [before, after]: [&BTreeMap<String, T>; 2],
    (what, renamed, removed): (&str, &str, &str),
    is_same: impl Fn(&T, &T) -> bool,
) -> Vec<String> {
    let mut new: Vec<_> = after.iter().collect();
    new.retain(|(name, _)| !before.contains_key(*name));
    let mut found = Vec::new();
    for (name, one) in before.iter().filter(|(name, _)| !after.contains_key(*name)) {
        let index = new.iter().position(|(_, other)| is_same(one, other));
        found.push(match index.map(|index| new.remove(index).0) {
            Some(new) => format!("{what}{name} renamed to {new}{renamed}"),
            None => format!("{what}{name} removed{removed}"),
        });
    }
    found.extend(new.iter().map(|(name, _)| format!("{what}{name} added")));
    found
}

fn of_limit(before: &Limit, after: &Limit) -> Vec<String> {
    // The state's key does not depend on the quota.
    let key = |spec: &BucketSpec| bucket_key("", "", spec);
    let mut found = Vec::new();
    for old in &before.windows {
        let Some(new) = after.windows.iter().find(|new| key(new) == key(old)) else {
            found.push(format!("no longer {}", describe_window(old)));
            continue;
        };
        // Named only where there are several.
        let of = match before.windows.len() {
            1 => String::new(),
            _ => format!(" per {}", window_name(old)),
        };
        let bursts = (old.most_at_once(), new.most_at_once());
        for (field, old, new) in [
            ("quota", old.quota, new.quota),
            ("burst", bursts.0, bursts.1),
        ] {
            // Without a burst, that is the quota.
            if old != new && !found.contains(&format!("quota{of} {old} -> {new}")) {
                found.push(format!("{field}{of} {old} -> {new}"));
            }
        }
    }
    let is_new = |new: &&BucketSpec| before.windows.iter().all(|old| key(old) != key(new));
    let new = after.windows.iter().filter(is_new).map(describe_window);
    found.extend(new.map(|window| format!("now {window}, whose counts start at zero")));
    let mut note = |field, is_other| {
        if is_other {
            found.push(format!("{field} changed"));
        }
    };
    note(
        "when_store_is_down",
        before.when_store_is_down != after.when_store_is_down,
    );
    note(
        "requested quotas",
        before.max_requested_quota != after.max_requested_quota,
    );
    note("lease", before.lease != after.lease);
    if let (Some(old), Some(new)) = (before.expire_us(), after.expire_us()) {
        note("expire", old != new);
        note("longest", before.longest_us != after.longest_us);
    }
    note(
        "whether rules settle it",
        before.is_settled != after.is_settled,
    );
    match (before.is_enforced(), after.is_enforced()) {
        (true, false) => found.push("no longer enforced".to_owned()),
        (false, true) => found.push("enforced again".to_owned()),
        _ if before.overrides != after.overrides => found.push("overrides changed".to_owned()),
        _ => {}
    }
    if found.is_empty() {
        found.push("its windows have another order".to_owned());
    }
    found
}

/// A window, such as "sliding_log 20 per 10m", "concurrency 32 at once" or "token_bucket 5 per 1s with burst 9".
pub fn describe_window(spec: &BucketSpec) -> String {
    let burst = spec.most_at_once();
    let window = format!("{} {}", spec.name(), window_quota(spec));
    match spec.quota {
        0 => window_quota(spec),
        quota if quota == burst => window,
        _ => format!("{window} with burst {burst}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::rows;

    #[test]
    fn each_change_is_named_and_so_are_counts_that_start_at_zero() {
        let one = "l: { algorithm: sliding_log, windows: [{ quota: 20, per: 10m }] }";
        let other = "m: { algorithm: token_bucket, windows: [{ quota: 5, per: 1s }] }";
        let slots = "s: { algorithm: concurrency, windows: [{ quota: 4, per: 30s }] }";
        for [before, after, expected] in rows(
            "sliding_log, windows: [{ quota: 20 | sliding_log, windows: [{ quota: 40 | l: quota 20 -> 40
             sliding_log | fixed_window | l: no longer sliding_log 20 per 10m, now fixed_window 20 per 10m, whose counts start at zero
             per: 10m | per: 1h | l: no longer sliding_log 20 per 10m, now sliding_log 20 per 1h, whose counts start at zero
             per: 10m }] | per: 10m }, { quota: 90, per: 1h }] | l: now sliding_log 90 per 1h, whose counts start at zero
             quota: 5, | quota: 5, burst: 9, | m: burst 5 -> 9
             quota: 5, per: 1s | quota: 5, burst: 9, per: 2s | m: no longer token_bucket 5 per 1s, now token_bucket 5 per 2s with burst 9, whose counts start at zero
             sliding_log, windows: [{ quota: 20, per: 10m | concurrency, windows: [{ quota: 32, per: 30s | l: no longer sliding_log 20 per 10m, now concurrency 32 at once, whose counts start at zero
             quota: 4, | quota: 8, | s: quota 4 -> 8
             per: 30s | per: 1m | s: expire changed
             per: 30s }] | per: 30s }], longest: 1h | s: longest changed
             per: 10m }] | per: 10m }], when_store_is_down: deny | l: when_store_is_down changed
             per: 10m }] | per: 10m }], overrides: [{ key: k, blocked: true }] | l: overrides changed
             per: 10m }] | per: 10m }], enforce: false | l: no longer enforced
             l: | n: | l renamed to n, whose counts start at zero
             l: { algorithm: sliding_log, windows: [{ quota: 20 | n: { algorithm: sliding_log, windows: [{ quota: 21 | l removed; n added
             limits: | consumers: { p: { pepper: '0123456789ab', keys: {}, limits: { default: l } } }\\nlimits: | consumers changed: 0 -> 0 keys
             limits: | consumers: { p: { pepper: '0123456789ab', keys: { 00112233445566778899aabbccddeeff: acme }, limits: { default: l } }, q: { pepper: '0123456789ab', keys: { 00112233445566778899aabbccddeeff: acme }, limits: { default: l } } }\\nlimits: | consumers changed: 0 -> 1 keys
             limits: | denial_ttl: 2s\\nlimits: | denial_ttl 1s -> 2s
             limits: | # A comment.\\nlimits: | no limit changed",
        ) {
            let text = format!("limits:\n  {one}\n  {other}\n  {slots}\n");
            assert!(text.contains(&before), "{before}");
            let next = text.replacen(&before, &after.replace("\\n", "\n"), 1);
            let [old, new] = [&text, &next].map(|text| Policy::parse(text).unwrap());
            assert_eq!(changes(&old, &new).join("; "), expected, "{after}");
        }
    }
}
