//! What a route, or what it is in, says of a ratelimit filter.

use serde_json::{Value, json};

use super::envoy::Filter;
use super::scope::{Scope, condition, header};
use crate::yaml::{Node, at, entries, get, is_true, text};

pub const PER_ROUTE: &str = "typed_per_filter_config";

/// The settings of a filter for some requests.
pub struct Settings<'n> {
    /// Whether it asks ratelimit.
    pub asks: bool,
    /// What it asks in place of the `rate_limits` of the route and the virtual host.
    pub limits: Option<&'n Node>,
    pub domain: &'n str,
    /// Whether the virtual host's `rate_limits` apply.
    host: Option<bool>,
}

impl<'n> Settings<'n> {
    /// Those that the first of these nodes has.
    pub fn of(filter: &'n Filter, nodes: &[&'n Node]) -> Self {
        let own = nodes.iter().find_map(|node| filter.settings(node));
        let config = own.map(|own| get(own, "config").unwrap_or(own));
        let field = |name| config.and_then(|config| get(config, name));
        let word = |name| field(name).and_then(text).filter(|text| !text.is_empty());
        let of_host = word("vh_rate_limits").filter(|word| *word != "OVERRIDE");
        Self {
            asks: own.map_or(!filter.disabled, |own| !is_true(own, "disabled")),
            limits: field("rate_limits").filter(|list| !entries(list).is_empty()),
            domain: word("domain").unwrap_or(&filter.domain),
            host: of_host.map(|word| word == "INCLUDE"),
        }
    }

    /// Whether the virtual host's `rate_limits` apply to a route, which may say so and may have its own.
    pub fn includes(&self, says_so: bool, has_own: bool) -> bool {
        self.limits.is_none() && (says_so || self.host.unwrap_or(!has_own))
    }
}

/// What `hits_addend` makes requests cost, and which requests, if the policy can say that.
pub fn cost(hits_addend: &Value) -> Option<(Value, Scope)> {
    let only = hits_addend.as_object().filter(|fields| fields.len() == 1)?;
    if let Some(number) = only.get("number") {
        // A 64-bit number may be a text in the JSON of protocol buffers.
        let text = number.as_str().and_then(|text| text.parse().ok());
        return Some((json!(number.as_u64().or(text)?), Scope::default()));
    }
    let format = only.get("format")?.as_str()?;
    let name = format.strip_prefix("%REQ(")?.strip_suffix(")%")?;
    let name = Some(name.to_lowercase()).filter(|name| is_token(name))?;
    // Without the header, Envoy does not ask.
    let has = condition(&header(&name), "present", json!(true)).ok()?;
    Some((json!({ "header": name, "trusted": true }), has))
}

/// Whether it is one header's name, and no pseudo-header, second choice or length beside it.
fn is_token(name: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "-_".contains(c);
    !name.is_empty() && name.chars().all(is_part)
}

impl Filter {
    /// What a node says of it.
    pub fn settings<'n>(&self, node: &'n Node) -> Option<&'n Node> {
        at(node, &[PER_ROUTE, &self.name])
    }
}
