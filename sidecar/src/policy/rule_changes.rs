//! What changes in the rules from one policy to the next, by the names of fields. Pure.

use serde_json::Value;

use super::changes::of_names;
use super::rules::RuleSets;

/// What differs in the sets that both policies have.
pub(super) fn rule_changes(before: &RuleSets, after: &RuleSets) -> Vec<String> {
    let both = |(name, old)| Some((name, old, after.sets.get(name)?));
    let sets = before.sets.iter().filter_map(both);
    let changed = sets.filter(|(_, old, new)| old != new);
    changed
        .flat_map(|(name, old, new)| of_set(name, [old, new]))
        .collect()
}

/// Rules that come and go, and the fields that differ: those of rules, and the set's own.
fn of_set(set: &str, both: [&Value; 2]) -> Vec<String> {
    let in_order = both.map(|one| rules_of(one, set));
    let [old, new] = in_order
        .each_ref()
        .map(|rules| rules.iter().cloned().collect());
    let is_same = |old: &&Value, new: &&Value| differing(old, new) == ["`name`"];
    let mut found = of_names([&old, &new], ("rule ", "", ""), is_same);
    for (rule, old) in &old {
        let fields = new.get(rule).map(|new| differing(old, new));
        if let Some(fields @ [_, ..]) = fields.as_deref() {
            found.push(format!("rule {rule}: {}", fields.join(", ")));
        }
    }
    let [old_names, new_names] = in_order.map(|rules| rules.into_iter().map(|(name, _)| name));
    if old.keys().eq(new.keys()) && !old_names.eq(new_names) {
        found.push(format!("rule set {set}: its rules have another order"));
    }
    let [old, new] = both.map(without_rules);
    let fields = differing(&old, &new);
    if !fields.is_empty() {
        found.push(format!("rule set {set}: {}", fields.join(", ")));
    }
    found
}

/// The rules of a set, named for people.
fn rules_of<'r>(set: &'r Value, name: &str) -> Vec<(String, &'r Value)> {
    let rules = set.get("rules").and_then(Value::as_array);
    let named = |rule: &'r Value| {
        let own = rule.get("name").and_then(Value::as_str);
        (format!("{} of set {name}", own.unwrap_or_default()), rule)
    };
    rules.into_iter().flatten().map(named).collect()
}

fn without_rules(set: &Value) -> Value {
    let fields = set.as_object().into_iter().flatten();
    let own = fields.filter(|(name, _)| *name != "rules");
    own.map(|(name, value)| (name.clone(), value.clone()))
        .collect()
}

/// The fields that differ, such as `checks[0].cost`, in backticks.
fn differing(old: &Value, new: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare("", Some(old), Some(new), &mut found);
    found
}

fn compare(at: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<String>) {
    match (old, new) {
        (Some(Value::Object(old)), Some(Value::Object(new))) => {
            let added = new.keys().filter(|name| !old.contains_key(*name));
            for name in old.keys().chain(added) {
                let dot = if at.is_empty() { "" } else { "." };
                let at = format!("{at}{dot}{name}");
                compare(&at, old.get(name), new.get(name), found);
            }
        }
        (Some(Value::Array(old)), Some(Value::Array(new))) if old.len() == new.len() => {
            for (index, (old, new)) in old.iter().zip(new).enumerate() {
                compare(&format!("{at}[{index}]"), Some(old), Some(new), found);
            }
        }
        _ if old == new => {}
        _ => found.push(format!("`{at}`")),
    }
}

#[cfg(test)]
mod tests {
    use crate::policy::{Policy, changes};
    use crate::test_table::rows;

    const TEXT: &str = "
limits:
  one: { key: { header: x-key, trusted: true }, match: /a/, rate: 5/1m, cost: 2 }
  two: { key: address, rate: 9/1m }
  own: { algorithm: fixed_window, windows: [{ quota: 9, per: 1m }] }
rules:
  mine:
    rules: [{ name: r, checks: [{ limit: own, key: [{ constant: c }] }, { limit: own, key: [{ host: true }] }], when_unavailable: allow }]
";

    #[test]
    fn each_field_of_a_rule_that_differs_is_named_and_so_are_rules_that_come_and_go() {
        for [before, after, expected] in rows(
            "rate: 5/1m | rate: 5/1m, on_failure: deny | rule one of set default: `when_unavailable`
             cost: 2 | cost: 3 | rule one of set default: `checks[0].cost`
             cost: 2 | cost: 2, stop: true | rule one of set default: `stop`
             cost: 2 | cost: 2, when_missing: skip | rule one of set default: `checks[0].when_missing`
             match: /a/ | match: /b/ | rule one of set default: `match.path_prefix`
             x-key, trusted: true | y-key, trusted: true | one: another `key`, whose counts start at zero; rule one of set default: `checks[0].key[0].header`
             cost: 2 | cost: 3, reply: { headers: none } | rule one of set default: `checks[0].cost`, `reply`
             host: true | method: true | own: another `key`, whose counts start at zero; rule r of set mine: `checks[1].key[0].host`, `checks[1].key[0].method`
             name: r | name: q | rule r of set mine renamed to q of set mine
             limits: | reply: { headers: none }\\nlimits: | rule set default: `reply`
             , { limit: own, key: [{ host: true }] } | | rule r of set mine: `checks`
             \\n  two: { | \\n  six: { key: host, rate: 1/1m }\\n  two: { | six added; rule six of set default added
             \\n  two: { key: address, rate: 9/1m } | | two removed; rule two of set default removed
             x-key | x-key | no limit changed",
        ) {
            let [from, to] = [before, after].map(|text| text.replace("\\n", "\n"));
            assert!(TEXT.contains(&from), "{from}");
            let next = TEXT.replacen(&from, &to, 1);
            let [old, new] = [TEXT, &next].map(|text| Policy::parse(text).unwrap());
            let mut found = changes(&old, &new);
            found.retain(|one| !one.starts_with("rules "));
            assert_eq!(found.join("; "), expected, "{to}");
        }
    }

    #[test]
    fn rules_in_another_order_are_told() {
        let lines: Vec<_> = TEXT.lines().collect();
        let next = TEXT.replace(
            &[lines[2], lines[3]].join("\n"),
            &[lines[3], lines[2]].join("\n"),
        );
        let [old, new] = [TEXT, &next].map(|text| Policy::parse(text).unwrap());
        let found = changes(&old, &new);
        assert_eq!(found[0], "rule set default: its rules have another order");
    }
}
