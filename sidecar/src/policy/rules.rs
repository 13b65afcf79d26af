//! The rule sets of a policy: checked, and written as the document that filters compile
//! (`filter/rules/src/config/document.rs`).

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Value, json};
use serde_saphyr::Spanned;
use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_rules::RuleSet;
use sluicegate_rules::config::{ConfigError, document, fingerprint, nearest};

use super::fields::{MAX_NAME_BYTES, is_name};
use super::limits::Limit;

/// Most sets of a policy.
const MAX_SETS: usize = 64;

/// The rule sets of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSets {
    /// Identifies all sets, with the windows of the limits that they name.
    pub digest: String,
    /// Each as it would stand in a filter's own configuration, by name.
    pub sets: BTreeMap<String, Value>,
    /// The lines after the document's head.
    lines: String,
}

/// A set in the policy file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleSetFile {
    #[serde(default)]
    reply: Option<Value>,
    #[serde(default)]
    upstream_paths: Option<Value>,
    rules: Vec<Spanned<Value>>,
}

/// The mistake's line, if it is known, and what is wrong.
pub(super) type Mistake = (Option<u64>, String);

impl RuleSetFile {
    /// The set as JSON.
    fn value(&self) -> Value {
        let rules: Vec<&Value> = self.rules.iter().map(|rule| &rule.value).collect();
        let mut value = json!({ "rules": rules });
        for (field, given) in [
            ("reply", &self.reply),
            ("upstream_paths", &self.upstream_paths),
        ] {
            if let Some(given) = given {
                value[field] = given.clone();
            }
        }
        value
    }

    /// The line of the rule that a field belongs to.
    fn line_of(&self, field: &str) -> Option<u64> {
        let index = field.strip_prefix("rules[")?.split(']').next()?;
        let rule = self.rules.get(index.parse::<usize>().ok()?)?;
        Some(rule.referenced.line())
    }

    fn check(&self, limits: &BTreeMap<String, &Limit>) -> Result<(RuleSet, Vec<String>), Mistake> {
        let of_field = |error: ConfigError| (self.line_of(&error.field), error.to_string());
        let (set, expressions) = document::validate(&self.value()).map_err(of_field)?;
        for (rule, limit) in set.limits() {
            if limits.contains_key(limit) {
                continue;
            }
            let known = limits.keys().map(String::as_str);
            let remedy = match nearest(limit, known) {
                Some(near) => format!("did you mean `{near}`?"),
                None => "add it to `limits`".to_owned(),
            };
            let why = format!("rule `{rule}`: the policy has no limit `{limit}`: {remedy}");
            let index = self.rules.iter();
            let named =
                |one: &&Spanned<Value>| one.value.get("name").and_then(Value::as_str) == Some(rule);
            let line = index.clone().find(named).map(|one| one.referenced.line());
            return Err((line, why));
        }
        Ok((set, expressions))
    }
}

impl RuleSets {
    /// Reads the sets of a policy with these limits.
    pub(super) fn read(
        file: &BTreeMap<String, Spanned<RuleSetFile>>,
        limits: &BTreeMap<String, &Limit>,
    ) -> Result<Self, Mistake> {
        if file.len() > MAX_SETS {
            return Err((
                None,
                format!("`rules` has {} sets: give at most {MAX_SETS}", file.len()),
            ));
        }
        let mut expressions = BTreeSet::new();
        let (mut sets, mut lines, mut windows) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        for (name, set) in file {
            let at_set = Some(set.referenced.line());
            if !is_name(name) {
                let why = format!(
                    "a rule set's name consists of 1 to {MAX_NAME_BYTES} of the characters a-z A-Z 0-9 - _ ."
                );
                return Err((at_set, why));
            }
            let within =
                |(line, why): Mistake| (line.or(at_set), format!("rule set `{name}`: {why}"));
            let (compiled, found) = set.value.check(limits).map_err(within)?;
            let of_set: BTreeMap<&str, Value> = (compiled.limits())
                .filter_map(|(_, limit)| Some((limit, windows_of(limits.get(limit)?))))
                .collect();
            let mut head = set.value.value();
            let rules = head.as_object_mut().and_then(|head| head.remove("rules"));
            head["set"] = name.as_str().into();
            head["windows"] = json!(of_set);
            lines.push((at_set, head));
            let new = found
                .into_iter()
                .filter(|text| expressions.insert(text.clone()));
            lines.extend(new.map(|text| (at_set, json!({ "regex": text }))));
            let rules = rules
                .as_ref()
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            let rules = rules.zip(&set.value.rules);
            lines.extend(
                rules.map(|(rule, given)| (Some(given.referenced.line()), json!({ "rule": rule }))),
            );
            windows.insert(
                name,
                of_set
                    .into_iter()
                    .map(|(limit, windows)| (limit.to_owned(), windows))
                    .collect::<BTreeMap<_, _>>(),
            );
            sets.insert(name.clone(), set.value.value());
        }
        if expressions.len() > document::MAX_EXPRESSIONS {
            let why = format!(
                "`rules` has {} regular expressions: give at most {}",
                expressions.len(),
                document::MAX_EXPRESSIONS
            );
            return Err((None, why));
        }
        Ok(Self {
            digest: fingerprint(&json!([sets, windows])),
            sets,
            lines: joined(&lines)?,
        })
    }

    /// The digest, if there are any sets.
    pub fn told(&self) -> Option<String> {
        (!self.sets.is_empty()).then(|| self.digest.clone())
    }

    /// The document for a filter that has these rules already.
    pub fn document(&self, known: Option<&str>, instance: u64) -> String {
        let lines = match known {
            Some(known) if known == self.digest => "",
            _ => &self.lines,
        };
        let head = json!({
            "format": document::FORMAT, "digest": self.digest, "instance": instance, "lines": lines.lines().count(),
        });
        format!("{head}\n{lines}")
    }
}

/// Quota and length of each of a limit's windows, as verdicts have them. The length of a calendar's window changes: without it
/// the filter takes what the verdict says.
fn windows_of(limit: &Limit) -> Value {
    let fixed = |spec: &&BucketSpec| !matches!(spec.algorithm, Algorithm::CalendarWindow(_));
    let windows = limit.windows.iter().filter(fixed);
    let pair = |spec: &BucketSpec| json!([spec.most_at_once(), spec.refill_us(0).div_ceil(1_000)]);
    windows.map(pair).collect()
}

fn joined(lines: &[(Option<u64>, Value)]) -> Result<String, Mistake> {
    let mut text = String::new();
    for (line, value) in lines {
        let written = value.to_string();
        if written.len() >= document::MAX_LINE_BYTES {
            let why = format!(
                "{} bytes as JSON are more than a filter reads at once, {}: split the rule",
                written.len(),
                document::MAX_LINE_BYTES
            );
            return Err((*line, why));
        }
        text.push_str(&written);
        text.push('\n');
    }
    // Room for the head.
    if text.len() + 256 > document::MAX_BYTES {
        let why = format!(
            "`rules` has {} bytes as JSON: give at most {}",
            text.len(),
            document::MAX_BYTES - 256
        );
        return Err((None, why));
    }
    Ok(text)
}
