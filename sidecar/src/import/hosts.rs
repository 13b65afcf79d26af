//! The requests of a virtual host, by its `domains`.

use serde_json::json;

use super::scope::{Scope, escaped};
use crate::yaml::{Node, entries, get, text};

/// The requests that come to a virtual host, and to no other that names their host better.
pub fn hosts(host: &Node, all: &[Node]) -> Scope {
    let names = |host| {
        get(host, "domains")
            .map(entries)
            .unwrap_or_default()
            .iter()
            .filter_map(text)
    };
    let own: Vec<_> = names(host).collect();
    let is_better = |name: &&str| {
        let is_wider = |own: &&str| {
            let has_end = |end| name.ends_with(end);
            // Envoy tries `*.com` before `foo.*`.
            let begins = |begin| name.starts_with(begin) || name.starts_with('*') && *name != "*";
            own.strip_prefix('*').is_some_and(has_end) || own.strip_suffix('*').is_some_and(begins)
        };
        !own.contains(name) && own.iter().any(is_wider)
    };
    let better: Vec<_> = all.iter().flat_map(names).filter(is_better).collect();
    let scope = match own.is_empty() || own.contains(&"*") {
        true => Scope::default(),
        false => named(&own),
    };
    match better.is_empty() {
        true => scope,
        false => scope.without(&named(&better)),
    }
}

/// The requests with these hosts.
fn named(names: &[&str]) -> Scope {
    let without_port = |name: &&str| match name.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => host.to_owned(),
        _ => (*name).to_owned(),
    };
    let mut known: Vec<String> = Vec::new();
    for name in names.iter().map(without_port) {
        if !known.contains(&name) {
            known.push(name);
        }
    }
    let names = known;
    // The policy knows `*.example.com`, and no other `*`.
    let is_known = |name: &String| !name.trim_start_matches("*.").contains('*');
    if names.iter().all(is_known) {
        return Scope::of(json!({ "host": names }));
    }
    let expression = |name: &String| name.split('*').map(escaped).collect::<Vec<_>>().join(".+");
    let any: Vec<_> = names.iter().map(expression).collect();
    let regex = format!("(?i)({})(:[0-9]+)?", any.join("|"));
    Scope::of(json!({ "headers": [{ "name": ":authority", "regex": regex }] }))
}
