//! Which requests a limit applies to: `POST /login`, `/v1/`, a mapping, or a list of which any may match.

use serde_json::{Map, Value, json};

use super::{Read, SCHEMA, mistake, text_of, unknown_fields, wrong};
use crate::mask::shown;
use crate::yaml::{Data, Node, entries, fields, scalar, value};

/// The part of the schema with the conditions of a mapping.
const CONDITIONS: &str = "/$defs/ShortConditions";

/// A condition of the long form.
type Condition = (&'static str, Value);

/// The long form's match, and whether it leaves preflights out.
pub fn read(node: &Node) -> Read<(Value, bool)> {
    let mut found = one(node)?;
    // A browser sends them before a request, without the credentials that it will have.
    let leaves_out = asks_for_options(&found).is_none();
    if let Some(conditions) = found.as_object_mut().filter(|_| leaves_out) {
        let header = json!({ "name": "access-control-request-method", "present": true });
        let preflight = json!({ "methods": ["OPTIONS"], "headers": [header] });
        let not = conditions.remove("not").into_iter().chain([preflight]);
        conditions.insert("not".to_owned(), any(not.collect()));
    }
    Ok((found, leaves_out))
}

fn one(node: &Node) -> Read<Value> {
    match &node.value {
        Data::Scalar(Value::String(text)) => Ok(words(node, text)?.into_iter().collect()),
        Data::List(list) if !list.is_empty() => list.iter().map(one).collect::<Read<_>>().map(any),
        Data::Fields(list) if !list.is_empty() => mapping(node),
        _ => Err(wrong(node, "match")),
    }
}

fn any(mut list: Vec<Value>) -> Value {
    match list.len() {
        1 => list.remove(0),
        _ => json!({ "any": list }),
    }
}

/// `all`, `/path`, `POST` or `POST /path`.
pub fn words(node: &Node, given: &str) -> Read<Vec<Condition>> {
    let words: Vec<&str> = given.split_whitespace().collect();
    match words[..] {
        ["all"] => Ok(vec![]),
        [word] if is_method(word) => Ok(vec![methods(node, word)?]),
        [word] => Ok(vec![path(node, word)?]),
        [method, word] if word.starts_with('/') => {
            Ok(vec![methods(node, method)?, path(node, word)?])
        }
        _ => Err(wrong(node, "match")),
    }
}

fn is_method(word: &str) -> bool {
    let letters = |c: char| c.is_ascii_uppercase() || c == '-' || c == ',';
    word.chars().all(letters)
}

fn methods(node: &Node, given: &str) -> Read<Condition> {
    if is_method(given) {
        return Ok(("methods", given.split(',').collect()));
    }
    let (told, capitals) = (shown(given), given.to_uppercase());
    let why = format!("`match`: {told} is no method: write `{capitals}`");
    Err(mistake(node, why))
}

/// A path by what it looks like: with variables, a prefix, or itself.
fn path(node: &Node, given: &str) -> Read<Condition> {
    let told = shown(given);
    if !given.starts_with('/') {
        let remedy = no_path(given);
        let why = format!("`match` is {told}, and a path begins with `/`: {remedy}");
        return Err(mistake(node, why));
    }
    let is_part = |segment: &str| matches!(segment, "*" | "**") || !segment.contains('*');
    let remedy = if given.contains(['(', '[', '\\', '^', '$', '+', '|']) || given.contains(".*") {
        "for a regular expression write `{ path_regex: ... }`, for a prefix a path that ends in `/`"
    } else if given.contains('?') {
        "a path has no query: use `query` in a mapping"
    } else if given.contains("/:") {
        "for a variable write `{name}` in place of `:name`"
    } else if !given.split('/').all(is_part) {
        "`*` stands for a whole segment: for a prefix write a path that ends in `/`"
    } else {
        let field = match given.contains(['{', '*']) {
            true => "path_template",
            false if given.ends_with('/') => "path_prefix",
            false => "path",
        };
        return Ok((field, given.into()));
    };
    Err(mistake(
        node,
        format!("`match` has the path {told}: {remedy}"),
    ))
}

/// What to write instead of a word that is no path.
fn no_path(given: &str) -> String {
    let without_scheme = given.split_once("://").map_or(given, |(_, rest)| rest);
    match without_scheme.split_once('/') {
        _ if given.starts_with('^') => {
            format!("for a regular expression write `{{ path_regex: '{given}' }}`")
        }
        Some((host, rest)) if host.contains('.') => {
            format!("write `{{ host: {host}, path: /{rest} }}`")
        }
        _ if given.contains('.') => format!("for a host write `{{ host: {given} }}`"),
        _ => format!("for a path write `/{given}`, for a method capitals"),
    }
}

fn mapping(node: &Node) -> Read<Value> {
    let unknown = unknown_fields(node, CONDITIONS, &[&SCHEMA], "`match` has");
    unknown.into_iter().try_for_each(Err)?;
    let (mut found, mut nots) = (Map::new(), Vec::new());
    for (name, given) in fields(node) {
        let (field, read) = match name.value.as_str() {
            "path" => path(given, text_of(given, "match")?)?,
            "host" => ("hosts", listed(given)?),
            "method" => ("methods", listed(given)?),
            "all" if scalar(given) == Some(&Value::Bool(true)) => continue,
            field @ ("all" | "any") if !entries(given).is_empty() => {
                (field, entries(given).iter().map(one).collect::<Read<_>>()?)
            }
            "not" | "except" => {
                nots.push(one(given)?);
                continue;
            }
            field => (field, value(given)),
        };
        if found.insert(field.to_owned(), read).is_some() {
            let why = format!("`match` has `{field}` twice: put both into a list of `all`");
            return Err(mistake(given, why));
        }
    }
    if !nots.is_empty() {
        found.insert("not".to_owned(), any(nots));
    }
    Ok(found.into())
}

/// A text, or a list of these.
fn listed(node: &Node) -> Read<Value> {
    match &node.value {
        Data::List(_) => Ok(value(node)),
        _ => text_of(node, "match").map(|text| json!([text])),
    }
}

/// Whether it asks for OPTIONS, cannot match it, or (`None`) does not care.
fn asks_for_options(found: &Value) -> Option<bool> {
    if let Some(methods) = found.get("methods").and_then(Value::as_array) {
        return Some(methods.contains(&json!("OPTIONS")));
    }
    let of = |field| {
        let list = found.get(field)?.as_array()?.iter();
        Some(list.map(asks_for_options).collect::<Vec<_>>())
    };
    let of_all = of("all").and_then(|all| all.into_iter().flatten().next());
    of_all.or_else(|| {
        let any = of("any")?;
        let asks = any.contains(&Some(true));
        (asks || !any.contains(&None)).then_some(asks)
    })
}
