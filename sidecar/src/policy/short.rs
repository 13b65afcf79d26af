//! The short form of a policy: a limit, its rule and the rule's check in one entry. The text is expanded to the long form
//! before anything else reads it, so everything that a policy can say has one meaning.
//!
//! | file | for |
//! |---|---|
//! | `limit.rs` | an entry of `limits` |
//! | `matching.rs`, `key.rs`, `units.rs` | its fields |
//! | `written.rs` | the long form as text, with the line that each of its lines comes from |
//! | `schema.json` | the fields of the short form, for editors and errors |

mod key;
mod limit;
mod matching;
mod units;
mod written;

use std::sync::LazyLock;

use serde_json::Value;
use serde_saphyr::Spanned;
use sluicegate_rules::config::nearest;

use self::limit::{Limit, Long};
use self::written::Written;
use super::files::Files;
use super::schemas::{fields_of, takes};
use super::yaml_error;
use crate::mask::shown;
use crate::yaml::{Data, Node, entries, fields, get, line_of, scalar, text};

/// The rule set of all limits in the short form.
const SET: &str = "default";
/// What a rule set says for all of its rules.
const OF_SET: [&str; 2] = ["reply", "upstream_paths"];

/// Most limits that are named with a default.
const MAX_TOLD: usize = 10;

/// What the short form adds to the schema of a policy.
pub(super) static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("short/schema.json")).unwrap_or_default());

/// The parts of both forms' schemas with the fields of a policy, and of a limit.
const TOP: &str = "";
const LIMIT: &str = "/$defs/LimitFile";

/// A policy's text in the long form.
#[derive(Debug, Default)]
pub struct Expanded {
    /// The text.
    pub text: String,
    /// The line of the file that each line comes from; empty if they are the same.
    lines: Vec<usize>,
    /// Why it is no YAML, if it is none.
    pub(super) not_yaml: Option<String>,
    /// Rules of the long form (`rules.default.rules[0]`), and the limits that they come from.
    rules: Vec<(String, String)>,
    /// Defaults that apply, and to which limits.
    pub defaults: Vec<String>,
}

/// What is wrong in a line.
struct Mistake(usize, String);

type Read<T> = Result<T, Mistake>;

fn mistake<T>(at: &Spanned<T>, why: impl Into<String>) -> Mistake {
    Mistake(line_of(at, 0), why.into())
}

/// The mistake of a field with a value of the wrong kind.
fn wrong(at: &Node, field: &str) -> Mistake {
    let found = match &at.value {
        Data::Scalar(Value::String(text)) => shown(text),
        Data::Scalar(Value::Null) => "nothing".to_owned(),
        Data::Scalar(other) => shown(&other.to_string()),
        Data::List(_) => "a list".to_owned(),
        Data::Fields(_) => "a mapping".to_owned(),
    };
    let takes = takes(&SCHEMA, field);
    mistake(at, format!("`{field}` is {found}: give {takes}"))
}

/// A text; the mistake otherwise names this field.
fn text_of<'n>(node: &'n Node, field: &str) -> Read<&'n str> {
    text(node).ok_or_else(|| wrong(node, field))
}

/// Whether the short form has this field.
fn is_short(part: &str, field: &str) -> bool {
    fields_of(&SCHEMA, part).any(|(name, _)| name == field)
}

/// Whether it is a field of the short form, of the policy or of a limit.
pub(super) fn is_field(name: &str) -> bool {
    is_short(TOP, name) || is_short(LIMIT, name)
}

fn has_short(node: &Node, part: &str) -> bool {
    fields_of(&SCHEMA, part).any(|(name, _)| get(node, name).is_some())
}

/// The mistakes of fields that are in none of the schemas.
fn unknown_fields(node: &Node, part: &str, schemas: &[&Value], has: &str) -> Vec<Mistake> {
    let known = schemas.iter().flat_map(|schema| fields_of(schema, part));
    let known: Vec<&str> = known.map(|(name, _)| name).collect();
    let unknown = |name: &Spanned<String>| {
        let given = name.value.as_str();
        let is_known = known.contains(&given);
        if part == TOP && !is_known && get(node, given).is_some_and(|node| has_short(node, LIMIT)) {
            let why = format!(
                "{} looks like a limit: indent it below `limits`",
                shown(given)
            );
            return Some(mistake(name, why));
        }
        let remedy = match nearest(given, known.iter().copied()) {
            _ if is_known => return None,
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("valid fields here are `{}`", known.join("`, `")),
        };
        let why = format!("{has} no field {}: {remedy}", shown(given));
        Some(mistake(name, why))
    };
    let names = fields(node).iter().map(|(name, _)| name);
    names.filter_map(unknown).collect()
}

/// Something in the place of something else.
fn placed<T, U>(at: &Spanned<U>, what: T) -> Spanned<T> {
    Spanned::new(what, at.referenced, at.defined)
}

type Field = (Spanned<String>, Node);

fn named(name: &str, node: Node) -> Field {
    (placed(&node, name.to_owned()), node)
}

fn fields_at<'n>(at: &Node, list: impl IntoIterator<Item = (&'n str, Node)>) -> Node {
    let list = list.into_iter().map(|(name, node)| named(name, node));
    placed(at, Data::Fields(list.collect()))
}

/// What people expect first. Other fields are sorted, as their order would depend on features of `serde_json`.
const FIRST: [&str; 5] = ["methods", "template", "table", "payload", "quota"];

fn node(at: &Node, value: Value) -> Node {
    let data = match value {
        Value::Array(list) => Data::List(list.into_iter().map(|inner| node(at, inner)).collect()),
        Value::Object(fields) => {
            let mut fields: Vec<_> = fields.into_iter().collect();
            fields.sort_by_cached_key(|(name, _)| (!FIRST.contains(&name.as_str()), name.clone()));
            let placed = |(name, inner)| (placed(at, name), node(at, inner));
            Data::Fields(fields.into_iter().map(placed).collect())
        }
        scalar => Data::Scalar(scalar),
    };
    placed(at, data)
}

/// Expands the text of a policy; `schema`: that of the long form. A text that is no YAML, or in the long form already, stays
/// as it is.
///
/// # Errors
/// Everything that is wrong with what is in the short form, with lines, fields and remedies.
pub fn expand(text: &str, schema: &Value, files: &mut Files) -> Result<Expanded, Vec<String>> {
    let options = serde_saphyr::options! { with_snippet: false, strict_booleans: true };
    let file = serde_saphyr::from_str_with_options::<Node>(text, options);
    let not_yaml = |error| yaml_error::describe(error, text, |field| takes(&SCHEMA, field));
    let mut expanded = Expanded {
        not_yaml: file.as_ref().err().map(not_yaml),
        ..Expanded::default()
    };
    // Fields of limits that are not indented stand beside limits, or beside `limits`.
    let any_short = |node: &Node| {
        let mut limits = fields(node).iter();
        has_short(node, LIMIT) || limits.any(|(_, limit)| has_short(limit, LIMIT))
    };
    let in_short_form = |file: &Node| {
        let limits = get(file, "limits").is_some_and(any_short);
        limits || has_short(file, TOP) || any_short(file)
    };
    let Some(file) = file.ok().filter(in_short_form) else {
        expanded.text = text.to_owned();
        return Ok(expanded);
    };
    let file = &file;
    let schemas = [&SCHEMA, schema];
    let (mut long, mut mistakes) = (Long::default(), Vec::new());
    for Mistake(line, why) in unknown_fields(file, TOP, &schemas, "there is") {
        mistakes.push(format!("line {line}: {why}"));
    }
    for (name, node) in get(file, "limits").map(fields).unwrap_or_default() {
        if fields(node).is_empty() {
            let why = "is not a mapping of fields: indent them below the limit's name, with a space after each colon";
            let (line, name) = (line_of(name, 0), shown(&name.value));
            mistakes.push(format!("line {line}: limit {name}: {why}"));
            continue;
        }
        let unknown = unknown_fields(node, LIMIT, &schemas, "there is").into_iter();
        let empty = fields(node).iter().filter(|(field, given)| {
            is_short(LIMIT, &field.value) && scalar(given) == Some(&Value::Null)
        });
        let empty = empty.map(|(field, given)| wrong(given, &field.value));
        let unknown = unknown.chain(empty);
        let limit = Limit { name, node, file };
        for Mistake(line, why) in unknown.chain(limit.expand(files, &mut long).err()) {
            mistakes.push(format!("line {line}: limit {}: {why}", shown(&name.value)));
        }
    }
    let of_set = fields(file)
        .iter()
        .filter(|(name, _)| OF_SET.contains(&name.value.as_str()));
    for (name, _) in of_set.filter(|_| long.rules.is_empty()) {
        let (line, name) = (line_of(name, 0), &name.value);
        mistakes.push(format!("line {line}: `{name}` is for limits in the short form, of which none has a `key`: put it into `rules.SET`"));
    }
    match mistakes.is_empty() {
        true => Ok(long.finish(file)),
        false => Err(mistakes),
    }
}

/// The line that a message begins with (`line 7: ...`, `line 7, column 3: ...`), and the rest.
pub fn line_and_why(message: &str) -> Option<(usize, &str)> {
    let (place, why) = message.strip_prefix("line ")?.split_once(": ")?;
    let line = place.split(", column").next()?.parse().ok()?;
    Some((line, why))
}

impl Expanded {
    /// The line of the file that a line of the text comes from.
    pub fn line(&self, line: usize) -> usize {
        let of_file = self.lines.get(line.saturating_sub(1));
        of_file.copied().unwrap_or(line)
    }

    /// A message about the text (`line 7, column 3: ...`), as one about the file.
    pub fn told(&self, message: &str) -> String {
        if self.lines.is_empty() {
            return message.to_owned();
        }
        match line_and_why(message) {
            // A column of the text is none of the file.
            Some((line, why)) => self.named(&format!("line {}: {why}", self.line(line))),
            None => self.named(message),
        }
    }

    /// A message with the fields of the file.
    pub fn named(&self, message: &str) -> String {
        let mut named = message.to_owned();
        let rules = self.rules.iter();
        for (rule, limit) in rules.filter(|(rule, _)| message.contains(rule)) {
            for (long, short) in limit::FROM {
                let short = format!("`limits.{limit}.{short}");
                named = named.replace(&format!("`{rule}.{long}"), &short);
            }
        }
        named
    }
}

impl Long {
    /// The whole policy.
    fn finish(self, file: &Node) -> Expanded {
        let (own, mut sets) = split(get(file, "rules"), &[SET]);
        let (before, mut set) = split(own.first().map(|(_, set)| set), &["rules"]);
        let before = before.first().map(|(_, list)| entries(list));
        let (of_set, mut policy) = split(Some(file), &OF_SET);
        let mut all = before.unwrap_or_default().to_vec();
        let mut rules = Vec::new();
        for (limit, rule) in self.rules {
            rules.push((format!("rules.{SET}.rules[{}]", all.len()), limit));
            all.push(rule);
        }
        let at = get(file, "limits").unwrap_or(file);
        // A set without rules is one, too: Envoys list it.
        if !all.is_empty() || !own.is_empty() {
            set.extend(of_set);
            set.push(named("rules", placed(at, Data::List(all))));
            sets.push(named(SET, placed(at, Data::Fields(set))));
        }
        let replaced = |name: &str| ["limits", "rules"].contains(&name) || is_short(TOP, name);
        policy.retain(|(name, _)| !replaced(&name.value));
        policy.push(named("limits", placed(at, Data::Fields(self.limits))));
        if !self.consumers.is_empty() {
            let (_, own) = split(get(file, "consumers"), &[]);
            let all = own.into_iter().chain(self.consumers).collect();
            policy.retain(|(name, _)| name.value != "consumers");
            policy.push(named("consumers", placed(file, Data::Fields(all))));
        }
        if !sets.is_empty() {
            policy.push(named("rules", placed(at, Data::Fields(sets))));
        }
        let Written { text, lines } = Written::new(&placed(file, Data::Fields(policy)));
        let defaults = self.defaults.iter();
        Expanded {
            text,
            not_yaml: None,
            lines,
            rules,
            defaults: defaults
                .map(|(default, limits)| told(default, limits))
                .collect(),
        }
    }
}

/// The fields of a mapping with these names, and the others.
fn split(node: Option<&Node>, names: &[&str]) -> (Vec<Field>, Vec<Field>) {
    let all = node.map(fields).unwrap_or_default().iter().cloned();
    all.partition(|(name, _)| names.contains(&name.value.as_str()))
}

/// A default, with the limits that it applies to.
fn told(default: &str, limits: &[String]) -> String {
    let first = limits.iter().take(MAX_TOLD);
    let mut names: Vec<_> = first.map(|name| format!("`{name}`")).collect();
    if let Some(more @ 1..) = limits.len().checked_sub(MAX_TOLD) {
        names.push(format!("{more} more"));
    }
    format!("{}: {default}", names.join(", "))
}

#[cfg(test)]
mod tests;
