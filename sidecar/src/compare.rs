//! The verdicts of envoyproxy/ratelimit and of rules in shadow on the same requests, from Envoy's access log.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

/// What the filter writes of a shadow rule: `sluicegate_shadow{rule=a,limit=b,verdict=denied}`.
const SHADOW: &str = "sluicegate_shadow{";
/// Envoy's response flags for a denial of its ratelimit filter, and for a request without its verdict.
const DENIED: &str = "RL";
const NO_VERDICT: &str = "RLSE";
/// Fields with the flags: ours, and that of Istio and Envoy Gateway.
const FLAGS: [&str; 2] = ["flags", "response_flags"];

/// In place of a rule where ratelimit denies and none of ours has matched.
const NO_RULE: &str = "(no rule of ours)";

/// Why lines are not compared.
const WITHOUT: [&str; 3] = [
    "have no verdict of a shadow rule, since none matched or it had none",
    "have no verdict of ratelimit, since it failed or the log has no `flags`",
    "are no JSON",
];

/// Requests that both deny, only theirs, only ours, and neither.
type Counts = [u64; 4];

/// The comparison so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Comparison {
    all: Counts,
    /// By rule and limit.
    rules: BTreeMap<(String, String), Counts>,
    /// Lines that are not compared.
    without: [u64; 3],
}

impl Comparison {
    /// Adds a line of the log.
    pub fn add(&mut self, line: &str) {
        let [without_ours, without_theirs, unreadable] = &mut self.without;
        let Ok(entry) = serde_json::from_str::<Value>(line) else {
            *unreadable += 1;
            return;
        };
        let text = |field: &str| entry.get(field).and_then(Value::as_str).unwrap_or_default();
        let ours: Vec<_> = text("sluicegate").split(' ').filter_map(verdict).collect();
        let has_flags = FLAGS.iter().any(|field| entry.get(field).is_some());
        let flags = FLAGS.map(text).join(",");
        let has = |flag| flags.split(',').any(|one| one == flag);
        match (ours.is_empty(), !has_flags || has(NO_VERDICT)) {
            (true, false) if has(DENIED) && text("sluicegate").is_empty() => {
                let no_rule = (NO_RULE.to_owned(), NO_RULE.to_owned());
                self.count(vec![(no_rule, false)], true);
            }
            (true, _) => *without_ours += 1,
            (false, true) => *without_theirs += 1,
            (false, false) => self.count(ours, has(DENIED)),
        }
    }

    /// Whether no line has been compared.
    pub fn is_empty(&self) -> bool {
        self.all.iter().sum::<u64>() == 0
    }

    fn count(&mut self, ours: Vec<((String, String), bool)>, theirs: bool) {
        let any = ours.iter().any(|(_, denied)| *denied);
        add(&mut self.all, theirs, any);
        for (rule, denied) in ours {
            // Otherwise another rule of ours agrees with theirs.
            if !theirs || denied || !any {
                add(self.rules.entry(rule).or_default(), theirs, denied);
            }
        }
    }
}

fn add([both, only_theirs, only_ours, neither]: &mut Counts, theirs: bool, ours: bool) {
    *match (theirs, ours) {
        (true, true) => both,
        (true, false) => only_theirs,
        (false, true) => only_ours,
        (false, false) => neither,
    } += 1;
}

/// A rule, its limit, and whether it denies, from `sluicegate_shadow{rule=a,limit=b,verdict=denied}`.
fn verdict(text: &str) -> Option<((String, String), bool)> {
    let labels = text.strip_prefix(SHADOW)?.strip_suffix('}')?;
    let labels: BTreeMap<_, _> = labels
        .split(',')
        .filter_map(|one| one.split_once('='))
        .collect();
    let [rule, limit] = ["rule", "limit"].map(|name| labels.get(name).map(ToString::to_string));
    Some(((rule?, limit?), labels.get("verdict") == Some(&"denied")))
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "both deny  only theirs  only ours  both admit  rule")?;
        let rules = self
            .rules
            .iter()
            .map(|((rule, limit), counts)| match rule == limit {
                true => (rule.clone(), counts),
                false => (format!("{rule}, limit {limit}"), counts),
            });
        let all = [("all requests".to_owned(), &self.all)];
        for (name, [both, theirs, ours, neither]) in rules.chain(all) {
            writeln!(
                f,
                "{both:>9}  {theirs:>11}  {ours:>9}  {neither:>10}  {name}"
            )?;
        }
        for (lines, why) in self
            .without
            .iter()
            .zip(WITHOUT)
            .filter(|(lines, _)| **lines > 0)
        {
            writeln!(f, "lines that {why}: {lines}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_table::has_all;

    #[test]
    fn verdicts_are_counted_by_rule_and_lines_without_them_are_told() {
        let line = |ours: &str, flags: &str| {
            let ours = ours.split_whitespace().map(|one| {
                let (rule, verdict) = one.split_once('=').unwrap();
                format!("sluicegate_shadow{{rule={rule},limit=l.{rule},verdict={verdict}}}")
            });
            let ours = ours.collect::<Vec<_>>().join(" ");
            format!(r#"{{"sluicegate":"{ours}","flags":"{flags}"}}"#)
        };
        let mut all = Comparison::default();
        all.add("{}");
        assert!(all.is_empty());
        for (ours, flags, times) in [
            ("a=denied b=admitted", "RL", 1),
            ("a=admitted b=admitted", "RL", 2),
            ("a=admitted b=denied", "-", 3),
            ("a=admitted", "UF", 4),
            ("", "RL", 5),
            ("", "-", 8),
            ("a=admitted", "RLSE", 6),
        ] {
            (0..times).for_each(|_| all.add(&line(ours, flags)));
        }
        all.add("[2026-11-29] starting");
        // Istio's name; flags together; a denial of an enforced rule beside.
        let with_denial = r#"{"sluicegate":"sluicegate_denied{subject=0} sluicegate_shadow{rule=c,limit=c,verdict=denied}","response_flags":"DC,RL"}"#;
        all.add(with_denial);
        all.add(r#"{"sluicegate":"sluicegate_shadow{rule=c,limit=c,verdict=denied}"}"#);
        let table = all.to_string();
        let row = |name: &str| {
            let row = table
                .lines()
                .find(|row| row.ends_with(&format!("  {name}")));
            row.unwrap()
                .split_whitespace()
                .take(4)
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(row("a, limit l.a"), "1 2 0 7");
        assert_eq!(row("b, limit l.b"), "0 2 3 0");
        assert_eq!(row("c"), "1 0 0 0");
        assert_eq!(row("(no rule of ours)"), "0 5 0 0");
        assert_eq!(row("all requests"), "2 7 3 4");
        let told = "had none: 9, has no `flags`: 7, are no JSON: 1";
        has_all(&table, told);
    }
}
