//! Which requests a limit applies to: `POST /login`, `/v1/`, a mapping, or a list of which any may match.

use serde_json::Value;
use sluicegate_rules::config::nearest;

use super::{Read, fields_at, list_at, mistake, text_of, value_at, wrong};
use crate::mask::shown;
use crate::yaml::{Data, Node, entries, fields, get, scalar, text};

/// Conditions of the long form, which mean the same here.
const LONG: [&str; 6] = [
    "path_prefix",
    "path_template",
    "path_regex",
    "methods",
    "hosts",
    "headers",
];

/// The long form's match, and whether it leaves preflights out; `None` if no request matches.
pub fn read(node: &Node) -> Read<Option<(Node, bool)>> {
    if text(node) == Some("none") {
        return Ok(None);
    }
    let found = one(node)?;
    // A browser sends them before a request, without the credentials that it will have.
    let leaves_out = is_options(&found).is_none();
    let found = match leaves_out {
        true => without_preflights(&found),
        false => found,
    };
    Ok(Some((found, leaves_out)))
}

fn one(node: &Node) -> Read<Node> {
    match &node.value {
        Data::Scalar(Value::String(text)) => words(node, text),
        Data::List(list) if !list.is_empty() => any(node, list),
        Data::Fields(list) if !list.is_empty() => mapping(node),
        _ => wrong(node, "match"),
    }
}

fn any(at: &Node, list: &[Node]) -> Read<Node> {
    let list = list.iter().map(one).collect::<Read<Vec<_>>>()?;
    match <[Node; 1]>::try_from(list) {
        Ok([only]) => Ok(only),
        Err(list) => Ok(fields_at(at, [("any", list_at(at, list))])),
    }
}

/// `all`, `/path`, `POST` or `POST /path`.
pub fn words(node: &Node, given: &str) -> Read<Node> {
    let words: Vec<&str> = given.split_whitespace().collect();
    match words[..] {
        ["all"] => Ok(fields_at(node, [])),
        [word] if is_method(word) => methods(node, word).map(|methods| fields_at(node, [methods])),
        [word] => path(node, word).map(|path| fields_at(node, [path])),
        [method, word] if word.starts_with('/') => {
            let (methods, path) = (methods(node, method)?, path(node, word)?);
            Ok(fields_at(node, [methods, path]))
        }
        _ => wrong(node, "match"),
    }
}

fn is_method(word: &str) -> bool {
    let letters = |c: char| c.is_ascii_uppercase() || c == '-' || c == ',';
    !word.is_empty() && word.chars().all(letters)
}

fn methods(node: &Node, given: &str) -> Read<(&'static str, Node)> {
    if !is_method(given) {
        let why = format!(
            "{} is no method: write `{}`",
            shown(given),
            given.to_uppercase()
        );
        return mistake(node, format!("`match`: {why}"));
    }
    let methods = given.split(',').map(|method| value_at(node, method));
    Ok(("methods", list_at(node, methods.collect())))
}

/// A path by what it looks like: with variables, a prefix, or itself.
fn path(node: &Node, given: &str) -> Read<(&'static str, Node)> {
    let told = shown(given);
    if !given.starts_with('/') {
        let without_scheme = given.split_once("://").map_or(given, |(_, rest)| rest);
        let remedy = match without_scheme.split_once('/') {
            _ if given.starts_with('^') => {
                format!("for a regular expression write `{{ path_regex: '{given}' }}`")
            }
            Some((host, rest)) if host.contains('.') => {
                format!("write `{{ host: {host}, path: /{rest} }}`")
            }
            _ if given.contains('.') => format!("for a host write `{{ host: {given} }}`"),
            _ => format!("for a path write `/{given}`, for a method capitals"),
        };
        return mistake(
            node,
            format!("`match` is {told}, and a path begins with `/`: {remedy}"),
        );
    }
    let is_part = |segment: &str| matches!(segment, "*" | "**") || !segment.contains('*');
    let remedy = if given.contains(['(', '[', '\\', '^', '$', '+', '|']) || given.contains(".*") {
        "for a regular expression write `{ path_regex: ... }`, for a prefix a path that ends in `/`"
    } else if given.contains('?') {
        "a path has no query: use `query` in a mapping"
    } else if !given.split('/').all(is_part) {
        "`*` stands for a whole segment: for a prefix write a path that ends in `/`"
    } else {
        let field = match given.contains(['{', '*']) {
            true => "path_template",
            false if given.ends_with('/') => "path_prefix",
            false => "path",
        };
        return Ok((field, value_at(node, given)));
    };
    mistake(node, format!("`match` has the path {told}: {remedy}"))
}

fn mapping(node: &Node) -> Read<Node> {
    let (mut found, mut nots) = (Vec::new(), Vec::new());
    for (name, value) in fields(node) {
        match name.value.as_str() {
            "path" => found.push(path(value, text_of(value, "match")?)?),
            "host" => found.push(("hosts", listed(value)?)),
            "method" => found.push(("methods", listed(value)?)),
            "all" if scalar(value) == Some(&Value::Bool(true)) => {}
            "all" | "any" if !entries(value).is_empty() => {
                let list = entries(value).iter().map(one).collect::<Read<_>>()?;
                let field = if name.value == "all" { "all" } else { "any" };
                found.push((field, list_at(value, list)));
            }
            "not" | "except" => nots.push(one(value)?),
            "query" => found.push(("query", value.clone())),
            other => match LONG.iter().find(|field| **field == other) {
                Some(field) => found.push((field, value.clone())),
                None => {
                    let known = [
                        "path", "host", "method", "query", "all", "any", "not", "except",
                    ]
                    .into_iter()
                    .chain(LONG);
                    let remedy = nearest(other, known).map_or_else(
                        || "such as `{ host: api.example.com, path: /v1/ }`".to_owned(),
                        |near| format!("did you mean `{near}`?"),
                    );
                    return mistake(
                        value,
                        format!("`match` has no field {}: {remedy}", shown(other)),
                    );
                }
            },
        }
    }
    match <[Node; 1]>::try_from(nots) {
        Ok([only]) => found.push(("not", only)),
        Err(nots) if nots.is_empty() => {}
        Err(nots) => found.push(("not", fields_at(node, [("any", list_at(node, nots))]))),
    }
    Ok(fields_at(node, found))
}

/// A text, or a list of these.
fn listed(node: &Node) -> Read<Node> {
    match &node.value {
        Data::List(_) => Ok(node.clone()),
        _ => text_of(node, "match").map(|text| list_at(node, vec![value_at(node, text)])),
    }
}

/// Whether it asks for OPTIONS, cannot match it, or (`None`) does not care.
fn is_options(found: &Node) -> Option<bool> {
    if let Some(methods) = get(found, "methods") {
        return Some(
            entries(methods)
                .iter()
                .any(|method| text(method) == Some("OPTIONS")),
        );
    }
    let any: Vec<_> = get(found, "any")
        .map(entries)?
        .iter()
        .map(is_options)
        .collect();
    match any.contains(&Some(true)) {
        true => Some(true),
        false => (!any.contains(&None)).then_some(false),
    }
}

fn without_preflights(found: &Node) -> Node {
    let header = [
        ("name", value_at(found, "access-control-request-method")),
        ("present", value_at(found, true)),
    ];
    let headers = list_at(found, vec![fields_at(found, header)]);
    let methods = list_at(found, vec![value_at(found, "OPTIONS")]);
    let preflight = fields_at(found, [("methods", methods), ("headers", headers)]);
    let not = match get(found, "not") {
        None => preflight,
        Some(not) => fields_at(
            found,
            [("any", list_at(found, vec![not.clone(), preflight]))],
        ),
    };
    let own = fields(found).iter().filter(|(name, _)| name.value != "not");
    let own = own.map(|(name, value)| (name.value.as_str(), value.clone()));
    fields_at(found, own.chain([("not", not)]))
}
