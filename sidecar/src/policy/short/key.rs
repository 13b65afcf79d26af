//! Whom a limit counts: `address`, `{ header: x-api-key }`, or a list of these.

use serde_json::Value;

use super::{Read, fields_at, list_at, mistake, takes, text_of, value_at, wrong};
use crate::mask::shown;
use crate::yaml::{Data, Node, fields, get};

/// Components that some requests do not have.
const OPTIONAL: [&str; 7] = [
    "header",
    "cookie",
    "query",
    "jwt",
    "metadata",
    "attribute",
    "mtls",
];

/// The components of a key.
pub fn read(node: &Node, file: &Node) -> Read<Node> {
    let components = match &node.value {
        Data::List(list) if !list.is_empty() => list.as_slice(),
        _ => std::slice::from_ref(node),
    };
    let components = components.iter().map(|one| component(one, file));
    components
        .collect::<Read<_>>()
        .map(|list| list_at(node, list))
}

/// One component, in the long form.
pub fn component(node: &Node, file: &Node) -> Read<Node> {
    match &node.value {
        Data::Scalar(Value::String(word)) => named(node, word, file),
        Data::Fields(list) if !list.is_empty() => {
            let field =
                |(name, value): &(serde_saphyr::Spanned<String>, Node)| match name.value.as_str() {
                    "jwt" => Ok(("jwt", claim(value, file)?)),
                    "address" => Ok(("address", address(value, file))),
                    _ => Ok(("", value.clone())),
                };
            let mut read = Vec::new();
            for entry in list.iter().filter(|(name, _)| name.value != "consumers") {
                read.push((entry.0.value.as_str(), field(entry)?.1));
            }
            Ok(fields_at(node, read))
        }
        _ => wrong(node, "key"),
    }
}

/// What one word stands for.
fn named(node: &Node, word: &str, file: &Node) -> Read<Node> {
    match word {
        "address" => Ok(fields_at(
            node,
            [("address", address(&fields_at(node, []), file))],
        )),
        "host" | "method" | "path" => Ok(fields_at(node, [(word, value_at(node, true))])),
        "everyone" => Ok(fields_at(node, [("constant", value_at(node, word))])),
        _ => {
            let why = format!("`key` is {}: give {}", shown(word), takes("key"));
            let header = format!("for a header write `{{ header: {word} }}`");
            mistake(node, format!("{why}; {header}"))
        }
    }
}

/// An address, counted from the right of X-Forwarded-For if the file says so.
pub fn address(given: &Node, file: &Node) -> Node {
    let hops = get(file, "trusted_hops").filter(|_| get(given, "trusted_hops").is_none());
    let own = fields(given)
        .iter()
        .map(|(name, value)| (name.value.as_str(), value.clone()));
    fields_at(
        given,
        own.chain(hops.map(|hops| ("trusted_hops", hops.clone()))),
    )
}

/// A claim by its path: `tenant.id`, or a list where a name has a dot.
pub fn claim(node: &Node, file: &Node) -> Read<Node> {
    let names = match &node.value {
        Data::Fields(_) => return Ok(node.clone()),
        Data::List(_) => node.clone(),
        _ => {
            let names = text_of(node, "key")?
                .split('.')
                .map(|name| value_at(node, name));
            list_at(node, names.collect())
        }
    };
    let payload = get(file, "jwt_payload").cloned();
    let payload = payload.unwrap_or_else(|| value_at(node, "jwt"));
    Ok(fields_at(node, [("payload", payload), ("claim", names)]))
}

/// Whether a request can lack a component.
pub fn can_be_absent(component: &Node) -> bool {
    let address = get(component, "address");
    OPTIONAL.iter().any(|field| get(component, field).is_some())
        || address.is_some_and(|address| get(address, "trusted_hops").is_some())
}
