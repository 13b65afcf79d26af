//! Whom a limit counts: `address`, `{ header: x-api-key }`, or a list of these.

use serde_json::{Value, json};
use serde_saphyr::Spanned;

use super::{Read, SCHEMA, mistake, placed, takes, text_of, wrong};
use crate::mask::shown;
use crate::yaml::{Data, Node, fields, get, value};

/// Components that every request has; of addresses, only the connection's.
const ALWAYS: [&str; 6] = ["constant", "template", "host", "method", "path", "address"];

/// The components of a key.
pub fn read(node: &Node, file: &Node) -> Read<Vec<Value>> {
    let mut own = fields(node).to_vec();
    own.retain(|(name, _)| name.value != "consumers");
    match &node.value {
        Data::List(list) if !list.is_empty() => {
            list.iter().map(|one| component(one, file)).collect()
        }
        // Those of the whole key are read elsewhere.
        Data::Fields(_) => Ok(vec![component(&placed(node, Data::Fields(own)), file)?]),
        _ => Ok(vec![component(node, file)?]),
    }
}

/// One component, in the long form.
pub fn component(node: &Node, file: &Node) -> Read<Value> {
    let field = |(name, given): &(Spanned<String>, Node)| {
        let read = match name.value.as_str() {
            "jwt" => claim(given, file)?,
            "address" => address(fields(given), file),
            _ => value(given),
        };
        Ok((name.value.clone(), read))
    };
    match &node.value {
        Data::Scalar(Value::String(word)) => named(node, word, file),
        Data::Fields(_) if get(node, "consumers").is_some() => {
            let why = "`consumers` goes with a `key` that is one header, cookie or query parameter: `key: { header: NAME, consumers: FILE }`";
            Err(mistake(node, why))
        }
        Data::Fields(list) if !list.is_empty() => list.iter().map(field).collect(),
        _ => Err(wrong(node, "key")),
    }
}

/// What one word stands for.
fn named(node: &Node, word: &str, file: &Node) -> Read<Value> {
    match word {
        "address" => Ok(json!({ "address": address(&[], file) })),
        "host" | "method" | "path" => Ok(json!({ word: true })),
        "everyone" => Ok(json!({ "constant": word })),
        _ => {
            let (given, takes) = (shown(word), takes(&SCHEMA, "key"));
            let remedy = match word.to_lowercase().as_str() {
                "ip" | "client" | "client_ip" | "remote_addr" | "addr" => {
                    "for the client's address write `address`".to_owned()
                }
                _ => format!("for a header write `{{ header: {word} }}`"),
            };
            let why = format!("`key` is {given}: give {takes}; {remedy}");
            Err(mistake(node, why))
        }
    }
}

/// An address, counted from the right of X-Forwarded-For if the limit or the file says so.
pub fn address(own: &[(Spanned<String>, Node)], file: &Node) -> Value {
    let hops = get(file, "trusted_hops").map(|hops| ("trusted_hops", value(hops)));
    let own = own
        .iter()
        .map(|(name, given)| (name.value.as_str(), value(given)));
    hops.into_iter().chain(own).collect()
}

/// A claim by its path: `tenant.id`, or a list where a name has a dot.
pub fn claim(node: &Node, file: &Node) -> Read<Value> {
    let claim = match &node.value {
        Data::Fields(_) => return Ok(value(node)),
        Data::List(_) => value(node),
        Data::Scalar(_) => text_of(node, "key")?.split('.').collect(),
    };
    let payload = get(file, "jwt_payload").map_or_else(|| "jwt".into(), value);
    Ok(json!({ "payload": payload, "claim": claim }))
}

/// Whether a request can lack a component.
pub fn can_be_absent(component: &Value) -> bool {
    let has = |field: &str| component.get(field).is_some();
    let hops = component.pointer("/address/trusted_hops");
    hops.is_some() || !ALWAYS.into_iter().any(has)
}
