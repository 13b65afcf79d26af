//! The short form of a policy: a limit, its rule and the rule's check in one entry. The text is expanded to the long form
//! before anything else reads it, so everything that a policy can say has one meaning.
//!
//! | file | for |
//! |---|---|
//! | `limit.rs` | an entry of `limits` |
//! | `matching.rs`, `key.rs`, `rate.rs`, `cost.rs` | its fields |
//! | `written.rs` | the long form as text, with the line that each of its lines comes from |
//! | `schema.json` | the fields of the short form, for editors and errors |

mod cost;
mod key;
mod limit;
mod matching;
mod rate;
mod written;

use std::sync::LazyLock;

use serde_json::Value;
use serde_saphyr::Spanned;
use sluicegate_rules::config::nearest;

use self::limit::{Limit, Long};
use self::written::Written;
use super::files::Files;
use crate::mask::shown;
use crate::yaml::{Data, Node, fields, get, line_of, scalar};

/// The rule set of all limits in the short form.
const SET: &str = "default";
/// What a rule set says for all of its rules.
const OF_SET: [&str; 2] = ["reply", "upstream_paths"];

/// Most limits that are named with a default.
const MAX_TOLD: usize = 10;

/// The fields that the short form adds to a policy (`top`) and to a limit (`limit`), as a JSON Schema.
pub(super) static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("short/schema.json")).unwrap_or_default());

/// A policy's text in the long form.
#[derive(Debug, Default)]
pub struct Expanded {
    /// The text.
    pub text: String,
    /// The line of the file that each line comes from; empty if they are the same.
    lines: Vec<usize>,
    /// Fields of the long form, and those of the short form that they come from.
    names: Vec<(String, String)>,
    /// Defaults that apply, and to which limits.
    pub defaults: Vec<String>,
}

/// What is wrong in a line.
#[derive(Debug)]
pub(super) struct Mistake {
    line: usize,
    why: String,
}

type Read<T> = Result<T, Mistake>;

fn mistake<T>(at: &Node, why: impl Into<String>) -> Read<T> {
    let (line, why) = (line_of(at, 0), why.into());
    Err(Mistake { line, why })
}

/// What to give for a field of the short form.
fn takes(field: &str) -> &'static str {
    let pointer = format!("/properties/{field}/description");
    let within = ["/limit", "/top"].into_iter();
    let mut found = within.filter_map(|part| SCHEMA.pointer(part)?.pointer(&pointer)?.as_str());
    found.next().unwrap_or("another value")
}

/// The mistake of a field with a value of the wrong kind.
fn wrong<T>(at: &Node, field: &str) -> Read<T> {
    let found = match &at.value {
        Data::Scalar(Value::String(text)) => shown(text),
        Data::Scalar(Value::Null) => "nothing".to_owned(),
        Data::Scalar(other) => shown(&other.to_string()),
        Data::List(_) => "a list".to_owned(),
        Data::Fields(_) => "a mapping".to_owned(),
    };
    mistake(at, format!("`{field}` is {found}: give {}", takes(field)))
}

/// Whether the short form has this field.
fn of_short(part: &str, field: &str) -> bool {
    let part = SCHEMA.pointer(part).and_then(|part| part.get("properties"));
    part.is_some_and(|fields| fields.get(field).is_some())
}

/// A mistake if there is no such field in the long form, nor in the short.
fn is_known(name: &Spanned<String>, part: &str, long: &[String]) -> Read<()> {
    if of_short(part, &name.value) || long.contains(&name.value) {
        return Ok(());
    }
    let short = SCHEMA.pointer(&format!("{part}/properties"));
    let short = short.and_then(Value::as_object).into_iter();
    let known = short.flat_map(|fields| fields.keys()).chain(long);
    let known: Vec<&str> = known.map(String::as_str).collect();
    let remedy = match nearest(&name.value, known.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => format!("valid fields here are `{}`", known.join("`, `")),
    };
    let why = format!("there is no field {}: {remedy}", shown(&name.value));
    let line = line_of(name, 0);
    Err(Mistake { line, why })
}

/// A value in the place of another.
fn placed(at: &Node, data: Data) -> Node {
    Spanned::new(data, at.referenced, at.defined)
}

fn value_at(at: &Node, value: impl Into<Value>) -> Node {
    placed(at, Data::Scalar(value.into()))
}

fn list_at(at: &Node, list: Vec<Node>) -> Node {
    placed(at, Data::List(list))
}

fn fields_at<'n>(at: &Node, fields: impl IntoIterator<Item = (&'n str, Node)>) -> Node {
    let named = |(name, value): (&str, Node)| {
        let name = Spanned::new(name.to_owned(), value.referenced, value.defined);
        (name, value)
    };
    placed(at, Data::Fields(fields.into_iter().map(named).collect()))
}

/// Expands the text of a policy. `long` are the fields of a policy and of a limit in the long form. A text that is no YAML, or
/// in the long form already, stays as it is.
///
/// # Errors
/// Everything that is wrong with what is in the short form, with lines, fields and remedies.
pub fn expand(
    text: &str,
    long: &[Vec<String>; 2],
    files: &mut Files,
) -> Result<Expanded, Vec<String>> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    let file = serde_saphyr::from_str_with_options::<Node>(text, options);
    let (Ok(file), [of_policy, of_limit]) = (file, long) else {
        return Ok(Expanded::unchanged(text));
    };
    let limits = get(&file, "limits").map(fields).unwrap_or_default();
    let is_short = |node, part| {
        fields(node)
            .iter()
            .any(|(name, _)| of_short(part, &name.value))
    };
    if !is_short(&file, "/top") && !limits.iter().any(|(_, limit)| is_short(limit, "/limit")) {
        return Ok(Expanded::unchanged(text));
    }
    let mut mistakes = Vec::new();
    let mut keep = |limit: Option<&str>, Mistake { line, why }| {
        let limit = limit.map(|name| format!("limit {}: ", shown(name)));
        mistakes.push(format!("line {line}: {}{why}", limit.unwrap_or_default()));
    };
    for (name, _) in fields(&file) {
        is_known(name, "/top", of_policy).unwrap_or_else(|why| keep(None, why));
    }
    let mut expanded = Long::default();
    for (name, node) in limits {
        for (field, _) in fields(node) {
            let known = is_known(field, "/limit", of_limit);
            known.unwrap_or_else(|why| keep(Some(&name.value), why));
        }
        let limit = Limit {
            name,
            node,
            file: &file,
        };
        limit
            .expand(files, &mut expanded)
            .unwrap_or_else(|why| keep(Some(&name.value), why));
    }
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    Ok(expanded.finish(&file))
}

impl Expanded {
    fn unchanged(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            ..Self::default()
        }
    }

    /// The line of the file that a line of the text comes from.
    pub fn line(&self, line: usize) -> usize {
        let of_file = self.lines.get(line.saturating_sub(1));
        of_file.copied().unwrap_or(line)
    }

    /// A message about the text (`line 7: ...`), as one about the file.
    pub fn told(&self, message: &str) -> String {
        let numbered = message.strip_prefix("line ").and_then(|rest| {
            let end = rest.find(|c: char| !c.is_ascii_digit())?;
            let (number, rest) = rest.split_at(end);
            let line = self.line(number.parse().ok()?);
            // A column of the text is none of the file.
            let rest = match rest.split_once(": ") {
                Some((place, why)) if !self.lines.is_empty() && place.starts_with(", column") => {
                    format!(": {why}")
                }
                _ => rest.to_owned(),
            };
            Some(format!("line {line}{rest}"))
        });
        self.named(&numbered.unwrap_or_else(|| message.to_owned()))
    }

    /// A message with the fields of the file.
    pub fn named(&self, message: &str) -> String {
        let mut named = message.to_owned();
        for (long, short) in &self.names {
            if named.contains(long) {
                named = named.replace(long, short);
            }
        }
        named
    }
}

impl Long {
    /// The whole policy.
    fn finish(self, file: &Node) -> Expanded {
        let rules = get(file, "rules").map(fields).unwrap_or_default();
        let own = rules.iter().find(|(name, _)| name.value == SET);
        let own = own.map(|(_, set)| set);
        let before = own.and_then(|set| get(set, "rules"));
        let mut all = before
            .map(crate::yaml::entries)
            .unwrap_or_default()
            .to_vec();
        let names = self.rules.iter().enumerate();
        let first = all.len();
        let names = names.flat_map(|(index, rule)| {
            let name = get(rule, "name")
                .and_then(crate::yaml::text)
                .unwrap_or_default();
            limit::names(&format!("rules.{SET}.rules[{}]", first + index), name)
        });
        let names = names.collect();
        all.extend(self.rules);
        let mut set: Vec<_> = own.map(fields).unwrap_or_default().to_vec();
        set.retain(|(name, _)| name.value != "rules");
        let mut policy = Vec::new();
        for (name, node) in fields(file) {
            match name.value.as_str() {
                "limits" => policy.push((
                    name.clone(),
                    placed(node, Data::Fields(self.limits.clone())),
                )),
                "rules" | "trusted_hops" | "jwt_payload" => {}
                "consumers" if !self.consumers.is_empty() => {}
                of_set if OF_SET.contains(&of_set) => set.push((name.clone(), node.clone())),
                _ => policy.push((name.clone(), node.clone())),
            }
        }
        if !self.consumers.is_empty() {
            let own = get(file, "consumers").map(fields).unwrap_or_default();
            let all = own.iter().cloned().chain(self.consumers);
            let name = Spanned::new("consumers".to_owned(), file.referenced, file.defined);
            policy.push((name, placed(file, Data::Fields(all.collect()))));
        }
        if !all.is_empty() {
            let at = all.first().cloned().unwrap_or_else(|| file.clone());
            let named = |name: &str| Spanned::new(name.to_owned(), at.referenced, at.defined);
            set.push((named("rules"), list_at(&at, all)));
            let mut sets: Vec<_> = rules.to_vec();
            sets.retain(|(name, _)| name.value != SET);
            sets.push((named(SET), placed(&at, Data::Fields(set))));
            policy.push((named("rules"), placed(&at, Data::Fields(sets))));
        }
        let written = Written::new(&placed(file, Data::Fields(policy)));
        Expanded {
            text: written.text,
            lines: written.lines,
            names,
            defaults: self.defaults.iter().map(told).collect(),
        }
    }
}

/// A default, with the limits that it applies to.
fn told((default, limits): &(&str, Vec<String>)) -> String {
    let (first, more) = (
        limits.iter().take(MAX_TOLD),
        limits.len().saturating_sub(MAX_TOLD),
    );
    let mut names: Vec<_> = first.map(|name| format!("`{name}`")).collect();
    if more > 0 {
        names.push(format!("{more} more"));
    }
    format!("{}: {default}", names.join(", "))
}

/// A text; the mistake otherwise names this field.
fn text_of<'n>(node: &'n Node, field: &str) -> Read<&'n str> {
    match scalar(node).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => wrong(node, field),
    }
}

#[cfg(test)]
mod tests;
