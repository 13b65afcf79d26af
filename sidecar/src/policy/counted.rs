//! Whose counts start at zero when one policy replaces another, although their limits stay or are new. Pure. Names no key.

use std::collections::{BTreeMap, BTreeSet};

use sluicegate_rules::config::from_value;
use sluicegate_rules::config::schema::{Check, Limit, Rule, RuleSetFile, WhenMissing};
use sluicegate_rules::config::walk::{checks, limit_names};

use super::consumers::DEFAULT;
use super::contents::Policy;

/// The limit of each tier or consumer.
type Limits = BTreeMap<String, String>;

/// What the rules of a policy count.
#[derive(Default)]
struct Counted {
    /// The keys with which rules ask for each limit, and those of requests that lack a component.
    keys: BTreeMap<(String, &'static str), BTreeSet<String>>,
    /// The limits of each check, by the set, the rule and the check's index.
    limits: BTreeMap<String, Limits>,
}

impl Counted {
    fn by(policy: &Policy) -> Self {
        let mut counted = Self::default();
        for (set, rules) in &policy.rules.sets {
            let file = from_value::<RuleSetFile>(rules).ok();
            for (at, rule, check) in file.iter().flat_map(|file| checks(&file.rules)) {
                counted.add(rule, check);
                let index = at.rsplit('[').next().unwrap_or_default();
                let limits = match &check.limit {
                    Limit::Name(name) => Limits::from([(DEFAULT.to_owned(), name.clone())]),
                    Limit::Tiers(tiers) => tiers.map.clone(),
                };
                counted
                    .limits
                    .insert(format!("{set} {} {index}", rule.name), limits);
            }
        }
        counted
    }

    fn add(&mut self, rule: &Rule, check: &Check) {
        let mut key = check.key.clone();
        key.iter_mut()
            .for_each(|component| component.trusted = false);
        let shadow = rule.shadow.then_some(&rule.name);
        let key = format!("{key:?} {} {shadow:?}", check.consumers);
        let instead = match &check.when_missing {
            None | Some(WhenMissing::Skip | WhenMissing::Deny) => None,
            Some(instead) => Some(format!("{instead:?}")),
        };
        for (_, limit) in limit_names("", check) {
            let mut add = |what, key| {
                let keys = self.keys.entry((limit.to_owned(), what)).or_default();
                keys.insert(key);
            };
            add("`key`", key.clone());
            instead
                .iter()
                .for_each(|instead| add("`when_missing`", instead.clone()));
        }
    }
}

/// Each, such as "per-key: another `key`, whose counts start at zero".
pub(super) fn started_anew(before: &Policy, after: &Policy) -> Vec<String> {
    let mut found = Vec::new();
    let [old, new] = [before, after].map(Counted::by);
    for ((limit, what), keys) in &new.keys {
        let known = old.keys.get(&(limit.clone(), *what));
        if known.is_some_and(|known| !keys.is_subset(known)) {
            found.push(format!(
                "{limit}: another {what}, whose counts start at zero"
            ));
        }
    }
    let mut moved = |place: &str, old: &Limits, new: &Limits, is_there: &dyn Fn(&str) -> bool| {
        let of = |limits: &Limits, name: &str| {
            let own = limits.get(name).or_else(|| limits.get(DEFAULT));
            own.cloned().unwrap_or_default()
        };
        let names: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        for name in names.into_iter().filter(|name| is_there(name)) {
            let (from, to) = (of(old, name), of(new, name));
            // That the limit is renamed or gone is told already.
            let is_told = old.contains_key(name) && new.contains_key(name) && !after.has(&from);
            if from != to && !is_told {
                found.push(format!(
                    "{place}: {name} moves from {from} to {to}, its counts start at zero"
                ));
            }
        }
    };
    for (check, new) in &new.limits {
        if let Some(old) = old.limits.get(check) {
            let rule = check.split(' ').nth(1).unwrap_or_default();
            moved(&format!("rule {rule}"), old, new, &|_| true);
        }
    }
    for (name, new) in &after.consumers {
        if let Some(old) = before.consumers.get(name) {
            let is_there =
                |consumer: &str| consumer == DEFAULT || new.names().any(|one| one == consumer);
            moved(
                &format!("consumers {name}"),
                &old.limits,
                &new.limits,
                &is_there,
            );
        }
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
             when_missing: skip, rate | when_missing: { use: X }, rate |
             key: host, rate: 6/1h, shadow: true | key: host, rate: 6/1h | two: another `key`, whose counts start at zero
             gold: 9/1h | gold: 9/1h, plat: 20/1h | by.plat added; rule by: plat moves from by.default to by.plat, its counts start at zero
             gold: 9/1h, | | by.gold removed; rule by: gold moves from by.gold to by.default, its counts start at zero
             gold: 9/1h | silver: 9/1h | by.gold renamed to by.silver, whose counts start at zero; rule by: gold moves from by.gold to by.default, its counts start at zero; rule by: silver moves from by.default to by.silver, its counts start at zero
             by: { key: address, tiers: { by: { jwt: plan }, gold: 9/1h, default: 1/1h } } | by: { key: address, rate: 1/1h } | by.default renamed to by, whose counts start at zero; by.gold removed; rule by: gold moves from by.gold to by, its counts start at zero
             acme: c.acme, default | default | consumers c: acme moves from c.acme to c.default, its counts start at zero; consumers changed: 2 -> 2 keys
             acme: c.acme, default | acme: c.acme, beta: c.acme, default | consumers c: beta moves from c.default to c.acme, its counts start at zero; consumers changed: 2 -> 2 keys
             : beta } | : acme } | consumers changed: 2 -> 2 keys, 1 of another consumer, whose counts are its own
             default: c.default } | default: two } | consumers c: default moves from c.default to two, its counts start at zero; consumers changed: 2 -> 2 keys
             \\n  s: | \\n  z: | rule set s renamed to z: filters that list it keep all rules that they have
             x-key }], when_missing: { address: {} } | y-key }], when_missing: { address: {} } | c: another `key`, whose counts start at zero
             rules: [{ name: c | rules: [{ name: d | rule set s removed: filters that list it keep all rules that they have; rule set y added
             a/ | b/ | `store` changed, which requires a restart of the sidecar; all counts start at zero, and overrides in the store are not found
             redis:6379 | other:6379 | `store` changed, which requires a restart of the sidecar; all counts start at zero, unless it is the same Redis
             redis:6379 | redis:6379/1 | `store` changed, which requires a restart of the sidecar; all counts start at zero, and overrides in the store are not found
             redis:6379 | user:password@redis:6379 | `store` changed, which requires a restart of the sidecar
             limits: | store_timeout: 30ms\\nlimits: | `store_timeout` changed, which requires a restart of the sidecar
             store: { url: redis://redis:6379, key_prefix: a/ } | memory_limit: 1GiB | `store`, `memory_limit` changed, which requires a restart of the sidecar; all counts start at zero, and overrides in the store are not found",
        ) {
            let [from, to] = [before, after].map(|text| text.replace("\\n", "\n"));
            assert!(TEXT.contains(&from), "{from}");
            let next = TEXT.replacen(&from, &to, 1);
            let next = if expected.contains("set y") { next.replace("\n  s:", "\n  y:") } else { next };
            let [old, new] = [TEXT, &next].map(|text| Policy::parse(text).unwrap());
            let found = changes(&old, &new);
            let found: Vec<_> = found.iter().filter(|one| !one.starts_with("rules ")).map(String::as_str).collect();
            assert_eq!(found.join("; "), expected, "{to}");
        }
    }
}
