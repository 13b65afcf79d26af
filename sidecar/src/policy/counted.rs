//! Whose counts start at zero when one policy replaces another, although their limits stay or are new. Pure. Names no key.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_rules::config::from_value;
use sluicegate_rules::config::schema::{Limit, RuleSetFile, WhenMissing};
use sluicegate_rules::config::walk::checks;

use super::consumers::DEFAULT;
use super::contents::Policy;

#[derive(Default)]
struct Counted {
    /// Each limit with the keys by which rules ask for it, and the name that a shadow rule puts before them.
    keys: BTreeSet<(String, String, String)>,
    /// Each limit with what stands in for a missing part of its key.
    instead: BTreeSet<(String, String)>,
    /// By check: what selects its tier.
    by: BTreeMap<String, String>,
    /// By check and entry of `consumers`: the limit of each tier or consumer.
    limits: BTreeMap<String, BTreeMap<String, String>>,
}

fn counted(policy: &Policy) -> Counted {
    let mut all = Counted::default();
    for (name, entry) in &policy.consumers {
        (all.limits).insert(format!("consumers.{name}"), entry.limits.clone());
    }
    for (set, rules) in &policy.rules.sets {
        let file = from_value::<RuleSetFile>(rules).ok();
        for (at, rule, check) in file.iter().flat_map(|file| checks(&file.rules)) {
            let mut key = check.key.clone();
            key.iter_mut().for_each(|part| part.trusted = false);
            let key = format!("{key:?} {}", check.consumers);
            let shadow = if rule.shadow { &*rule.name } else { "" };
            let instead = match &check.when_missing {
                Some(one @ (WhenMissing::Address(_) | WhenMissing::Use(_))) => {
                    Some(format!("{one:?}"))
                }
                Some(WhenMissing::Skip | WhenMissing::Deny) | None => None,
            };
            let limits = match &check.limit {
                Limit::Name(name) => [(DEFAULT.to_owned(), name.clone())].into(),
                Limit::Tiers(tiers) => tiers.map.clone(),
            };
            for limit in limits.values() {
                all.keys
                    .insert((limit.clone(), key.clone(), shadow.to_owned()));
                all.instead
                    .extend(instead.clone().map(|one| (limit.clone(), one)));
            }
            let last = at.rsplit('.').next().unwrap_or_default();
            let place = format!("rules.{set}.{}.{last}", rule.name);
            if let Limit::Tiers(tiers) = &check.limit {
                all.by.insert(place.clone(), format!("{:?}", tiers.by));
            }
            all.limits.insert(place, limits);
        }
    }
    all
}

/// Each, such as "per-key: another `key`, whose counts start at zero".
pub(super) fn started_anew(before: &Policy, after: &Policy) -> Vec<String> {
    let [old, new] = [before, after].map(counted);
    let known: BTreeSet<_> = old.keys.iter().map(|(limit, ..)| limit).collect();
    let keys: BTreeSet<_> = old
        .keys
        .iter()
        .map(|(limit, key, _)| (limit, key))
        .collect();
    let other = new.keys.difference(&old.keys).map(|(limit, key, _)| {
        let is_same = keys.contains(&(limit, key));
        (limit, if is_same { "shadow" } else { "key" })
    });
    let instead = new.instead.difference(&old.instead);
    let other = other.chain(instead.map(|(limit, _)| (limit, "when_missing")));
    let other: BTreeSet<_> = other.filter(|(limit, _)| known.contains(limit)).collect();
    let other = other.iter();
    let mut found: Vec<_> = other
        .map(|(limit, what)| {
            let keep = *what == "key" && before.consumers.contains_key(*limit);
            let but = if keep {
                ", but for those of consumers"
            } else {
                ""
            };
            format!("{limit}: another `{what}`, whose counts start at zero{but}")
        })
        .collect();
    let by = new.by.iter().filter(|(place, by)| {
        let before = old.by.get(*place);
        before.is_some_and(|before| before != *by)
    });
    found.extend(by.map(|(place, _)| {
        format!("{place}: another `by`, which may select another tier, whose counts start at zero")
    }));
    for (place, new) in &new.limits {
        let Some(old) = old.limits.get(place) else {
            continue;
        };
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        found.extend(names.into_iter().filter_map(|name| {
            let from = old.get(name).or_else(|| old.get(DEFAULT))?;
            let to = new.get(name).or_else(|| new.get(DEFAULT))?;
            // Other texts report already that a limit is renamed or gone.
            let is_told = old.contains_key(name) && new.contains_key(name) && !after.has(from);
            (from != to && !is_told).then(|| {
                format!("{place}: {name} moves from {from} to {to}, its counts start at zero")
            })
        }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::changes;
    use crate::test_table::rows;

    const TEXT: &str = "
store: { url: redis://redis:6379, key_prefix: a/ }
limits:
  one: { key: { header: x-key }, when_missing: skip, rate: 5/1h }
  two: { key: host, rate: 6/1h, shadow: true }
  by: { key: address, tiers: { by: { jwt: plan }, gold: 9/1h, default: 1/1h } }
  c.acme: { match: none, rate: 7/1h }
  c.default: { match: none, rate: 8/1h }
consumers:
  c:
    pepper: '0123456789ab'
    keys: { 00112233445566778899aabbccddeeff: acme, ffeeddccbbaa99887766554433221100: beta }
    limits: { acme: c.acme, default: c.default }
rules:
  s:
    rules: [{ name: c, checks: [{ limit: c, key: [{ header: x-key }], when_missing: { address: {} }, consumers: true }], when_unavailable: allow }]
";

    #[test]
    fn whoever_is_counted_anew_is_told() {
        for [before, after, expected] in rows(
            "header: x-key }, when | header: x-user }, when | one: another `key`, whose counts start at zero
             header: x-key }, when | header: x-key, trusted: true }, when |
             when_missing: skip | when_missing: deny |
             when_missing: skip | when_missing: { address: {} } | one: another `when_missing`, whose counts start at zero
             when_missing: { address: {} } | when_missing: { address: { ipv6_bits: 48 } } | c: another `when_missing`, whose counts start at zero
             key: host, rate: 6/1h, shadow: true | key: host, rate: 6/1h | two: another `shadow`, whose counts start at zero
             gold: 9/1h | gold: 9/1h, plat: 20/1h | by.plat added; rules.default.by.checks[0]: plat moves from by.default to by.plat, its counts start at zero
             gold: 9/1h, | | by.gold removed; rules.default.by.checks[0]: gold moves from by.gold to by.default, its counts start at zero
             gold: 9/1h | silver: 9/1h | by.gold renamed to by.silver, whose counts start at zero; rules.default.by.checks[0]: gold moves from by.gold to by.default, its counts start at zero; rules.default.by.checks[0]: silver moves from by.default to by.silver, its counts start at zero
             by: { key: address, tiers: { by: { jwt: plan }, gold: 9/1h, default: 1/1h } } | by: { key: address, rate: 1/1h } | by.default renamed to by, whose counts start at zero; by.gold removed; rules.default.by.checks[0]: gold moves from by.gold to by, its counts start at zero
             acme: c.acme, default | default | consumers.c: acme moves from c.acme to c.default, its counts start at zero; consumers changed: 2 -> 2 keys
             acme: c.acme, default | acme: c.acme, beta: c.acme, default | consumers.c: beta moves from c.default to c.acme, its counts start at zero; consumers changed: 2 -> 2 keys
             : beta } | : acme } | consumers changed: 2 -> 2 keys, of which another consumer has 1: with its counts
             default: c.default } | default: two } | consumers.c: default moves from c.default to two, its counts start at zero; consumers changed: 2 -> 2 keys
             \\n  s: | \\n  z: | rule set s renamed to z: filters that list it keep all rules that they have
             x-key }], when_missing: { address: {} } | y-key }], when_missing: { address: {} } | c: another `key`, whose counts start at zero, but for those of consumers
             jwt: plan | jwt: level | rules.default.by.checks[0]: another `by`, which may select another tier, whose counts start at zero
             rules: [{ name: c | rules: [{ name: d | rule set s removed: filters that list it keep all rules that they have; rule set y added
             a/ | b/ | `store` changed, which requires a restart of the sidecar; counts start at zero and overrides are gone, unless this is another address of the same database and prefix
             redis:6379 | other:6379 | `store` changed, which requires a restart of the sidecar; counts start at zero and overrides are gone, unless this is another address of the same database and prefix
             redis:6379 | redis:6379/1 | `store` changed, which requires a restart of the sidecar; counts start at zero and overrides are gone, unless this is another address of the same database and prefix
             redis:6379 | user:password@redis:6379 | `store` changed, which requires a restart of the sidecar
             limits: | store_timeout: 30ms\\nlimits: | `store_timeout` changed, which requires a restart of the sidecar
             store: { url: redis://redis:6379, key_prefix: a/ } | memory_limit: 1GiB | `store`, `memory_limit` changed, which requires a restart of the sidecar; counts start at zero and overrides are gone, unless this is another address of the same database and prefix",
        ) {
            let [from, to] = [before, after].map(|text| text.replace("\\n", "\n"));
            assert!(TEXT.contains(&from), "{from}");
            let next = TEXT.replacen(&from, &to, 1);
            let next = if expected.contains("set y") { next.replace("\n  s:", "\n  y:") } else { next };
            let [old, new] = [TEXT, &next].map(|text| Policy::parse(text).unwrap());
            let found = changes(&old, &new);
            let found: Vec<_> = found.iter().filter(|one| !one.starts_with("rules ") && !one.contains(" of set ")).map(String::as_str).collect();
            assert_eq!(found.join("; "), expected, "{to}");
        }
    }
}
