//! The short form of a policy: a limit, its rule and the rule's check in one entry. It is expanded to the long form before
//! anything else reads it, so everything that a policy can say has one meaning.
//!
//! | file | for |
//! |---|---|
//! | `limit.rs` | an entry of `limits` |
//! | `matching.rs`, `key.rs`, `units.rs` | its fields |
//! | `written.rs` | the long form as text |
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
use self::written::Printed;
use super::fields::is_name;
use super::files::Files;
use super::schemas::{described, fields_of, takes};
use super::yaml_error;
use crate::mask::shown;
use crate::yaml::{Data, Node, at, entries, fields, get, integer, line_of, scalar, text};

/// The rule set of all limits in the short form.
const SET: &str = "default";
/// What a rule set says for all of its rules.
const OF_SET: [&str; 2] = ["reply", "upstream_paths"];

/// Most limits that are named with a default.
const MAX_TOLD: usize = 10;

/// What the short form adds to the schema of a policy; and the key of an override, which is beside its terms elsewhere.
pub(super) static SCHEMA: LazyLock<Value> =
    LazyLock::new(|| serde_json::from_str(include_str!("short/schema.json")).unwrap_or_default());

/// The parts of both forms' schemas with the fields of a policy, and of a limit.
const TOP: &str = "";
const LIMIT: &str = "/$defs/LimitFile";

const LOST: &str = "looks like a limit: indent it below `limits`";
/// What people write in a limit that has no such field, a line for each remedy.
const MEANT: &str = include_str!("short/meant.txt");

/// A policy in the long form.
#[derive(Debug, Default)]
pub struct Expanded {
    /// As text: that of the file, if it is in the long form already.
    pub text: String,
    /// With the lines of the file; none if it has mistakes.
    pub(super) long: Option<Node>,
    /// How fields of the long form begin (`rules.default.rules[0].`), and what stands for them in the file.
    names: Vec<(String, String)>,
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
    let found = yaml_error::found(at);
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

fn has_short(node: &Node, part: &str) -> bool {
    fields_of(&SCHEMA, part).any(|(name, _)| get(node, name).is_some())
}

/// The mistakes of what all limits have, which are not told at each of them.
fn for_all_limits(file: &Node) -> impl Iterator<Item = Mistake> {
    let hops = |hops: &&Node| !matches!(integer(hops), Some(1..=255));
    let payload = |payload: &&Node| text(payload).is_none_or(str::is_empty);
    let hops = get(file, "trusted_hops").filter(hops);
    let hops = hops.map(|hops| wrong(hops, "trusted_hops"));
    let payload = get(file, "jwt_payload").filter(payload);
    hops.into_iter()
        .chain(payload.map(|payload| wrong(payload, "jwt_payload")))
}

/// A limit beside `limits` in a text that is no YAML: that is told at the next limit.
fn lost_limit(text: &str, schema: &Value) -> Option<String> {
    let is_known = |name: &str| {
        fields_of(&SCHEMA, TOP)
            .chain(fields_of(schema, TOP))
            .any(|(known, _)| known == name)
    };
    text.lines().zip(1..).find_map(|(line, number)| {
        let name = line.split(" #").next()?.trim_end().strip_suffix(':')?;
        let is_lost = is_name(name) && !is_known(name);
        is_lost.then(|| format!("line {number}: {} {LOST}", shown(name)))
    })
}

/// The mistakes of fields that are in none of the schemas.
fn unknown_fields(node: &Node, part: &str, schemas: &[&Value], has: &str) -> Vec<Mistake> {
    let known = schemas.iter().flat_map(|schema| fields_of(schema, part));
    let known: Vec<&str> = known.map(|(name, _)| name).collect();
    let unknown = |name: &Spanned<String>| {
        let given = name.value.as_str();
        let is_known = known.contains(&given);
        if !is_known && get(node, given).is_some_and(|node| has_short(node, LIMIT)) {
            return Some(mistake(name, format!("{} {LOST}", shown(given))));
        }
        let mut meant = MEANT.lines().filter_map(|line| line.split_once(": "));
        let meant = meant.find(|(words, _)| words.split(' ').any(|word| word == given));
        let remedy = match (nearest(given, known.iter().copied()), meant) {
            _ if is_known => return None,
            (Some(near), _) => format!("did you mean `{near}`?"),
            (None, Some((_, remedy))) if part == LIMIT => remedy.to_owned(),
            _ if part == TOP && is_short(LIMIT, given) => {
                "indent it below its limit's name".to_owned()
            }
            _ => format!("valid fields here are `{}`", known.join("`, `")),
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

/// Expands the text of a policy; `schema`: that of the long form. A text in the long form stays as it is.
///
/// # Errors
/// It is no YAML; or everything that is wrong with what is in the short form, with lines, fields and remedies.
pub fn expand(text: &str, schema: &Value, files: &mut Files) -> Result<Expanded, Vec<String>> {
    let schemas = [&SCHEMA, schema];
    let is_field = |name: &str| {
        schemas
            .iter()
            .any(|schema| described(schema, name).is_some())
    };
    let file = yaml_error::load(text, is_field);
    let file = file.map_err(|why| vec![lost_limit(text, schema).unwrap_or(why)])?;
    // Fields of limits that are not indented stand beside limits, or beside `limits`.
    let any_short = |node: &Node| {
        let mut limits = fields(node).iter();
        has_short(node, LIMIT) || limits.any(|(_, limit)| has_short(limit, LIMIT))
    };
    let in_short_form = |file: &Node| {
        let limits = get(file, "limits").is_some_and(any_short);
        limits || has_short(file, TOP) || any_short(file)
    };
    if !in_short_form(&file) {
        return Ok(Expanded {
            text: text.to_owned(),
            long: Some(file),
            ..Expanded::default()
        });
    }
    let file = &file;
    let (mut long, mut mistakes) = (Long::default(), Vec::new());
    for Mistake(line, why) in unknown_fields(file, TOP, &schemas, "there is") {
        mistakes.push(format!("line {line}: {why}"));
    }
    for Mistake(line, why) in for_all_limits(file) {
        mistakes.push(format!("line {line}: {why}"));
    }
    for (name, node) in get(file, "limits").map(fields).unwrap_or_default() {
        if fields(node).is_empty() {
            let why = if is_short(LIMIT, &name.value) {
                "is a field beside limits: indent it as the other fields of its limit"
            } else {
                "is not a mapping of fields: indent them below the limit's name, with a space after each colon"
            };
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
    /// A message with the fields of the file.
    pub fn named(&self, message: &str) -> String {
        let replaced = |named: String, (long, short): &(String, String)| named.replace(long, short);
        self.names.iter().fold(message.to_owned(), replaced)
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
        let given = OF_SET.iter().filter(|name| get(file, name).is_some());
        let given = given.map(|name| (format!("`rules.{SET}.{name}"), format!("`{name}")));
        let mut names: Vec<_> = given.collect();
        names.push((format!("`rules.{SET}.rules`"), "`limits`".to_owned()));
        for (limit, rule) in self.rules {
            let long = format!("`rules.{SET}.rules[{}].", all.len());
            let cost = at(file, &["limits", &limit, "cost"]);
            let cost = cost.filter(|cost| get(cost, "table").is_none()).into_iter();
            for (entry, (words, _)) in cost.flat_map(units::entries_of).enumerate() {
                for field in ["", ".cost", ".template", ".methods[0]"] {
                    let long = format!("{long}checks[0].cost.table[{entry}]{field}`");
                    names.push((long, format!("`limits.{limit}.cost`: `{words}`")));
                }
            }
            let of_limit = |(of_rule, short)| {
                (
                    format!("{long}{of_rule}"),
                    format!("`limits.{limit}.{short}"),
                )
            };
            names.extend(limit::FROM.map(of_limit));
            all.push(rule);
        }
        let limits = get(file, "limits").unwrap_or(file);
        // A set without rules is one, too: Envoys list it.
        if !all.is_empty() || !own.is_empty() {
            set.extend(of_set);
            set.push(named("rules", placed(limits, Data::List(all))));
            sets.push(named(SET, placed(limits, Data::Fields(set))));
        }
        let replaced = |name: &str| ["limits", "rules"].contains(&name) || is_short(TOP, name);
        policy.retain(|(name, _)| !replaced(&name.value));
        policy.push(named("limits", placed(limits, Data::Fields(self.limits))));
        if !self.consumers.is_empty() {
            let (_, own) = split(get(file, "consumers"), &[]);
            let all = own.into_iter().chain(self.consumers).collect();
            policy.retain(|(name, _)| name.value != "consumers");
            policy.push(named("consumers", placed(file, Data::Fields(all))));
        }
        if !sets.is_empty() {
            policy.push(named("rules", placed(limits, Data::Fields(sets))));
        }
        let long = placed(file, Data::Fields(policy));
        let defaults = self.defaults.iter();
        Expanded {
            // What was YAML can be written as YAML.
            text: serde_saphyr::to_string(&Printed(&long, 0)).unwrap_or_default(),
            long: Some(long),
            names,
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
