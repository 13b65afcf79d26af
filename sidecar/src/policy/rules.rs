//! The rule sets of a policy: checked, and written as the document that filters compile
//! (`filter/rules/src/config/document.rs`).

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::{Value, json};
use sluicegate_engine::BucketSpec;
use sluicegate_rules::RuleSet;
use sluicegate_rules::config::schema::RuleSetFile;
use sluicegate_rules::config::{
    ConfigError, document, fingerprint, free_unused_expressions, from_value, nearest, walk,
};

use super::certain::{costs_over_limits, too_many_checks};
use super::fields::{MAX_NAME_BYTES, is_name};
use super::limits::Limit;
use crate::yaml::{Node, ValueWithLines};

/// Most sets of a policy.
const MAX_SETS: usize = 64;

/// The rule sets of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSets {
    /// Identifies all sets, with the windows of the limits that they name.
    pub digest: String,
    /// Each as it would stand in a filter's own configuration, by name.
    pub sets: BTreeMap<String, Value>,
    /// The limits that they name.
    pub(super) names: Arc<BTreeSet<String>>,
    /// The lines that a document has for each.
    lines: BTreeMap<String, String>,
    /// Those that name a limit of slots.
    with_slots: BTreeSet<String>,
    /// Those of them whose units some rule settles.
    pub(super) settled: BTreeSet<String>,
    /// The names of shadow rules, each with one of the limits that it asks for.
    pub(super) shadows: BTreeSet<(String, String)>,
}

/// The limits of a policy; `None` for one that has mistakes.
pub(super) type Limits<'a> = BTreeMap<&'a str, Option<&'a Limit>>;

/// A set of the file and its regular expressions, or everything that is wrong with it.
fn check(
    name: &str,
    set: &ValueWithLines,
    limits: &Limits<'_>,
    is_of_consumers: impl Fn(&str) -> bool,
) -> Result<(RuleSetFile, Vec<String>), Vec<String>> {
    if !is_name(name) {
        return Err(vec![format!(
            "line {}: a rule set's name consists of 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ .",
            set.line("")
        )]);
    }
    let mistake = |ConfigError { field, why }| {
        // The error of a field that is missing, or of what is no mapping.
        let field = if field == "configuration" { "" } else { &field };
        let (line, path) = (set.line(field), format!("rules.{name}.{field}"));
        format!("line {line}: `{}`: {why}", path.trim_end_matches('.'))
    };
    let file: RuleSetFile = from_value(&set.value).map_err(|error| vec![mistake(error)])?;
    let (mut mistakes, expressions) = match document::validate(&file, &set.value) {
        Ok((_, expressions)) => (Vec::new(), expressions),
        Err(mistakes) => (mistakes, Vec::new()),
    };
    for (field, limit) in named_limits(&file) {
        if !limits.contains_key(limit) {
            let remedy = match nearest(limit, limits.keys().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "add it to `limits`".to_owned(),
            };
            let why = format!("the policy has no limit `{limit}`: {remedy}");
            mistakes.push(ConfigError { field, why });
        }
    }
    for (at, _, check) in walk::checks(&file.rules) {
        let mut names = walk::limit_names(&at, check).into_iter();
        if names.any(|(_, name)| is_of_consumers(name)) != check.consumers {
            let why = "must be `true` where `limit` is an entry of the policy's `consumers`, and nowhere else";
            let (field, why) = (format!("{at}.consumers"), why.to_owned());
            mistakes.push(ConfigError { field, why });
        }
    }
    let known = |name: &str| limits.get(name).copied().flatten();
    for (field, limit) in settled_limits(&file) {
        if known(limit).is_some_and(|limit| limit.lease.is_some()) {
            let why = format!(
                "limit `{limit}` has a `lease`, whose units are spent without a receipt, so that they cannot be settled: remove `lease`, or use another limit"
            );
            mistakes.push(ConfigError { field, why });
        }
    }
    for (field, limit) in settled_limits(&file) {
        if known(limit).is_some_and(|limit| limit.expire_us().is_some()) {
            let why = format!(
                "limit `{limit}` counts what is in use at once, and all of it is free when the request ends: give the number of slots alone"
            );
            mistakes.push(ConfigError { field, why });
        }
    }
    mistakes.extend(too_many_checks(&file.rules));
    mistakes.extend(costs_over_limits(&file.rules, known));
    if mistakes.is_empty() {
        Ok((file, expressions))
    } else {
        Err(mistakes.into_iter().map(mistake).collect())
    }
}

/// The limits that a set's checks name, with the fields that do.
fn named_limits(file: &RuleSetFile) -> impl Iterator<Item = (String, &str)> {
    walk::checks(&file.rules).flat_map(|(at, _, check)| walk::limit_names(&at, check))
}

/// The limits whose units a set's checks settle, with the fields that do.
fn settled_limits(file: &RuleSetFile) -> impl Iterator<Item = (String, &str)> {
    let settled = walk::checks(&file.rules).filter(|(_, _, check)| check.cost.settle().is_some());
    settled.flat_map(|(at, _, check)| {
        let names = walk::limit_names(&at, check).into_iter();
        names.map(move |(_, limit)| (format!("{at}.cost.settle"), limit))
    })
}

impl RuleSets {
    /// Reads the sets of a policy with these limits, some of which stand for those of consumers.
    ///
    /// # Errors
    /// Everything that is wrong with each set.
    pub(super) fn read(
        file: &BTreeMap<String, Node>,
        limits: &Limits<'_>,
        is_of_consumers: impl Fn(&str) -> bool,
    ) -> Result<Self, Vec<String>> {
        if file.len() > MAX_SETS {
            let why = format!("`rules` has {} sets: give at most {MAX_SETS}", file.len());
            return Err(vec![why]);
        }
        let (mut sets, mut lines, mut windows) =
            (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (mut shadows, mut with_slots) = (BTreeSet::new(), BTreeSet::new());
        let (mut mistakes, mut expressions, mut bytes) = (Vec::new(), 0, 0);
        let (mut names, mut settled) = (BTreeSet::new(), BTreeSet::new());
        for (name, set) in file {
            let set = ValueWithLines::new(set, 0);
            let (read, found) = match check(name, &set, limits, &is_of_consumers) {
                Ok(checked) => checked,
                Err(more) => {
                    mistakes.extend(more);
                    continue;
                }
            };
            settled.extend(settled_limits(&read).map(|(_, limit)| limit.to_owned()));
            names.extend(named_limits(&read).map(|(_, limit)| limit.to_owned()));
            let of_set = named_limits(&read).filter_map(|(_, limit)| {
                let windows = windows_of((*limits.get(limit)?)?);
                Some((limit.to_owned(), windows))
            });
            let of_set: BTreeMap<_, _> = of_set.collect();
            let known = |limit| limits.get(limit).copied().flatten();
            if named_limits(&read)
                .any(|(_, limit)| known(limit).and_then(Limit::expire_us).is_some())
            {
                with_slots.insert(name.clone());
            }
            for (_, rule, check) in walk::checks(&read.rules).filter(|(_, rule, _)| rule.shadow) {
                let limits = walk::limit_names("", check).into_iter();
                shadows.extend(limits.map(|(_, limit)| (rule.name.clone(), limit.to_owned())));
            }
            let mut head = set.value.clone();
            let rules = head.get_mut("rules").map(Value::take);
            if let Some(head) = head.as_object_mut() {
                head.remove("rules");
                head.insert("set".to_owned(), name.as_str().into());
                head.insert("windows".to_owned(), json!(of_set));
            }
            let at_set = set.line("");
            let found: BTreeSet<String> = found.into_iter().collect();
            expressions += found.len();
            let mut written = vec![(at_set, head)];
            written.extend(found.iter().map(|text| (at_set, json!({ "regex": text }))));
            let rules = rules.as_ref().and_then(Value::as_array);
            for (index, rule) in rules.into_iter().flatten().enumerate() {
                let line = set.line(&format!("rules[{index}]"));
                written.push((line, json!({ "rule": rule })));
            }
            match joined(&written) {
                Ok(text) => {
                    bytes += text.len();
                    lines.insert(name.clone(), text);
                }
                Err(why) => mistakes.push(why),
            }
            windows.insert(name, of_set);
            sets.insert(name.clone(), set.value);
        }
        if expressions > document::MAX_EXPRESSIONS {
            let why = format!(
                "`rules` has {expressions} regular expressions: give at most {}",
                document::MAX_EXPRESSIONS
            );
            mistakes.push(why);
        }
        // Room for the head.
        if bytes + 256 > document::MAX_BYTES {
            let most = document::MAX_BYTES - 256;
            mistakes.push(format!(
                "`rules` has {bytes} bytes as JSON: give at most {most}"
            ));
        }
        // This thread may never check rules again.
        free_unused_expressions(usize::MAX);
        if !mistakes.is_empty() {
            return Err(mistakes);
        }
        Ok(Self {
            digest: fingerprint(&json!([sets, windows])),
            sets,
            names: Arc::new(names),
            settled,
            lines,
            with_slots,
            shadows,
        })
    }

    /// The digest, if there are any sets.
    pub fn told(&self) -> Option<String> {
        (!self.sets.is_empty()).then(|| self.digest.clone())
    }

    /// A set, compiled as a filter does it.
    pub fn compiled(&self, name: &str) -> Option<RuleSet> {
        let set = self.sets.get(name)?;
        let file: RuleSetFile = from_value(set).ok()?;
        document::validate(&file, set).ok().map(|(set, _)| set)
    }

    /// The document of a sidecar for a filter that may run these sets, of all sets without names; without rules for one that has
    /// them. `told`: what the sidecar tells besides.
    pub fn document(&self, names: &[Cow<'_, str>], is_known: bool, told: Value) -> String {
        let is_wanted = |name: &str| names.is_empty() || names.iter().any(|wanted| wanted == name);
        let mut lines = String::new();
        if !is_known {
            let sets = self.lines.iter().filter(|(name, _)| is_wanted(name));
            lines.extend(sets.map(|(_, text)| text.as_str()));
        }
        let format = if self.with_slots.iter().any(|name| is_wanted(name)) {
            document::FORMAT
        } else {
            document::FORMAT_WITHOUT_SLOTS
        };
        let mut head = json!({
            "format": format, "digest": self.digest, "lines": lines.lines().count(),
        });
        if let (Some(head), Value::Object(told)) = (head.as_object_mut(), told) {
            head.extend(told);
        }
        format!("{head}\n{lines}")
    }
}

/// Quota and length of each of a limit's windows, as verdicts have them. The length of a calendar's window changes: without it
/// the filter takes what the verdict says. Of slots also how long they are renewed.
fn windows_of(limit: &Limit) -> Value {
    let fixed = |spec: &&BucketSpec| spec.algorithm.calendar().is_none();
    let windows = limit.windows.iter().filter(fixed);
    let numbers = |spec: &BucketSpec| {
        let length_ms = spec.refill_us(0).div_ceil(1_000);
        match limit.expire_us() {
            None => json!([spec.most_at_once(), length_ms]),
            Some(_) => json!([spec.most_at_once(), length_ms, limit.longest_us / 1_000]),
        }
    };
    windows.map(numbers).collect()
}

fn joined(lines: &[(usize, Value)]) -> Result<String, String> {
    let mut text = String::new();
    for (line, value) in lines {
        let written = value.to_string();
        if written.len() >= document::MAX_LINE_BYTES {
            return Err(format!(
                "line {line}: {} bytes as JSON are more than a filter reads at once, {}: split the rule",
                written.len(),
                document::MAX_LINE_BYTES
            ));
        }
        text.push_str(&written);
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::policy::Policy;

    #[test]
    fn only_sets_with_slots_need_the_newer_format() {
        let rule = |limit: &str| {
            let check = format!("{{ limit: {limit}, key: [{{ constant: c }}] }}");
            format!("{{ rules: [{{ name: r, when_unavailable: allow, checks: [{check}] }}] }}")
        };
        let (rates, streams) = (rule("opens"), rule("streams"));
        let opens = "{ algorithm: sliding_log, windows: [{ quota: 9, per: 1m }] }";
        let slots = "{ algorithm: concurrency, windows: [{ quota: 4, per: 30s }], longest: 1h }";
        let policy = Policy::parse(&format!(
            "limits: {{ opens: {opens}, streams: {slots} }}\nrules: {{ rates: {rates}, streams: {streams} }}"
        ));
        let policy = policy.unwrap();
        let head_and_set = |names: &[&str], is_known| {
            let names: Vec<_> = names.iter().map(|name| (*name).into()).collect();
            let document = policy.rules.document(&names, is_known, Value::Null);
            let mut lines = document
                .lines()
                .map(|line| serde_json::from_str(line).unwrap());
            let (head, set): (Value, Value) =
                (lines.next().unwrap(), lines.next().unwrap_or_default());
            (head["format"].clone(), set["windows"].clone())
        };
        for (names, is_known, format, windows) in [
            (&["rates"][..], false, 1, r#"{"opens":[[9,60000]]}"#),
            (&["rates"], true, 1, "null"),
            (&["streams"], false, 2, r#"{"streams":[[4,30000,3600000]]}"#),
            (&[], false, 2, r#"{"opens":[[9,60000]]}"#),
        ] {
            let (needed, told) = head_and_set(names, is_known);
            assert_eq!(
                (needed, told.to_string()),
                (format.into(), windows.to_owned()),
                "{names:?}"
            );
        }
    }
}
