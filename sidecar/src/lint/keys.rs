//! Keys that a client can choose or omit, which evades its limit, and keys that can be guessed.

use sluicegate_rules::config::schema::{
    Address, Check, KeyComponent, Limit, Metadata, NamePath, Rule, WhenMissing,
};
use sluicegate_rules::config::walk::{checks, components};

use super::envoy_yaml::{Manager, Plugin};
use super::findings::Findings;

const FORWARDED: &str = "x-forwarded-for";

/// `plugin` runs the rules, if it is known which.
pub fn lint(rules: &[Rule], plugin: Option<&Plugin>, findings: &mut Findings<'_>) {
    for (at, rule, check) in checks(rules) {
        // Unless another rule counts the same requests by something else.
        let same = |other: &&Rule| !other.shadow && !rule.stop && other.matcher == rule.matcher;
        let same = rules.iter().filter(same).chain([rule]);
        let mut same = same.flat_map(|rule| &rule.checks);
        // A key that is no consumer's counts as missing.
        if !check.consumers && is_client_chosen(check) && same.all(is_client_chosen) {
            findings.warn(
                format!("{at}.key"),
                "a client can choose every component of this key, and gets a fresh quota for each value that it invents",
                "set `trusted: true` if something in front of this filter has verified it, or count the same requests by \
                 `address` or `constant` too",
            );
        }
        if check.when_missing.is_none() && check.key.iter().any(can_be_absent) {
            findings.warn(
                format!("{at}.key"),
                "a request that lacks a component of this key is not checked at all, and `when_missing` is not set",
                "set `when_missing` to `deny`, `{address: {}}`, `{use: TEXT}` or, if such requests may pass, `skip`",
            );
        }
        if let Limit::Tiers(tiers) = &check.limit {
            let by = &tiers.by;
            if is_client_controlled(by)
                || is_of_request(by)
                || is_copied(plugin, by.metadata.as_ref())
            {
                findings.error(
                    format!("{at}.limit.by"),
                    "a client can choose its own tier",
                    "choose the tier by `jwt`, or by `metadata` of a filter that verifies the client; or set `trusted: true` \
                     if something in front of this filter has verified the header, cookie or query parameter",
                );
            }
        }
        let quota = check.quota.as_ref();
        if is_copied(plugin, quota.and_then(|quota| quota.metadata.as_ref())) {
            findings.error(
                format!("{at}.quota.metadata"),
                "a client can choose its own quota: another filter copies what clients send into this metadata",
                "use `jwt`, or `metadata` of a filter that checks the client, such as `ext_authz`",
            );
        }
    }
    for (at, component) in components(rules) {
        if reads_x_forwarded_for(component) {
            findings.error(
                &at,
                "X-Forwarded-For begins with whatever the client sent: each request can be a new subject",
                "set `address: { trusted_hops: N }`, which counts from the right",
            );
        }
        if let Some(given) = &component.address {
            address(&at, given, plugin, findings);
        }
    }
    for (at, _, check) in checks(rules) {
        if let Some(WhenMissing::Address(given)) = &check.when_missing {
            address(&format!("{at}.when_missing"), given, plugin, findings);
        }
    }
}

/// Whether it is a value that only some requests have.
const fn is_optional(component: &KeyComponent) -> bool {
    component.header.is_some()
        || component.cookie.is_some()
        || component.query.is_some()
        || component.jwt.is_some()
        || component.metadata.is_some()
        || component.attribute.is_some()
}

/// Whether a request can lack it. What Envoy always knows and what the rule's own path contains cannot be missing.
fn can_be_absent(component: &KeyComponent) -> bool {
    let address = component.address.as_ref();
    is_optional(component)
        || component.mtls.is_some()
        || address.is_some_and(|address| address.trusted_hops.is_some())
}

/// Rules of a plugin without a `pepper`.
pub fn without_pepper(rules: &[Rule], findings: &mut Findings<'_>) {
    let is_hashed = |component: &KeyComponent| is_optional(component) && !component.plain;
    let mut checks = checks(rules);
    let hashed = checks.find(|(_, _, check)| check.key.iter().any(is_hashed));
    if let Some((at, _, _)) = hashed {
        findings.warn(
            format!("{at}.key"),
            "components of keys are hashed without a `pepper`: anyone who can read Redis can guess them with a dictionary",
            "set `pepper: TEXT`, long, random and the same for the whole fleet, or `plain: true` where nothing is secret",
        );
    }
}

/// An address that Envoy takes from a header which clients write.
fn address(at: &str, given: &Address, plugin: Option<&Plugin>, findings: &mut Findings<'_>) {
    let manager = plugin.and_then(|plugin| plugin.manager.as_ref());
    let is_forged = |manager: &Manager| !manager.use_remote_address && !manager.detects_addresses;
    if given.trusted_hops.is_none() && manager.is_some_and(is_forged) {
        findings.warn(
            format!("{at}.address"),
            "without `use_remote_address: true` Envoy takes the last entry of X-Forwarded-For as the peer's address, \
             which a client that connects to this Envoy directly can forge",
            "set `use_remote_address: true` in the connection manager, or, behind a proxy, `trusted_hops`",
        );
    }
}

fn reads_x_forwarded_for(component: &KeyComponent) -> bool {
    let names = attribute(component);
    let mut names = names.into_iter().chain(component.header.as_deref());
    names.any(|name| name.eq_ignore_ascii_case(FORWARDED))
}

/// The names of an attribute's path.
fn attribute(component: &KeyComponent) -> Vec<&str> {
    match &component.attribute {
        Some(NamePath::Name(name)) => name.split('.').collect(),
        Some(NamePath::List(names)) => names.iter().map(String::as_str).collect(),
        None => Vec::new(),
    }
}

/// Whether the client sends this value and nothing verifies it.
const fn is_client_controlled(component: &KeyComponent) -> bool {
    (component.header.is_some() || component.cookie.is_some() || component.query.is_some())
        && !component.trusted
}

/// Whether it is an attribute that Envoy takes from what the client has written.
fn is_of_request(component: &KeyComponent) -> bool {
    matches!(
        attribute(component)[..],
        [
            "request",
            "headers" | "query" | "referer" | "useragent" | "id",
            ..
        ]
    )
}

/// Whether another filter has only copied there what the client has sent.
fn is_copied(plugin: Option<&Plugin>, metadata: Option<&Metadata>) -> bool {
    let both = plugin.zip(metadata);
    both.is_some_and(|(plugin, metadata)| plugin.copied_namespaces.contains(&metadata.namespace))
}

/// Whether the client can choose the whole key.
fn is_client_chosen(check: &Check) -> bool {
    let written = |component: &KeyComponent| {
        is_client_controlled(component)
            || is_of_request(component)
            || component.host.is_some()
            || component.method.is_some()
    };
    let chosen = |component: &KeyComponent| {
        written(component) || component.path.is_some() || component.template.is_some()
    };
    // A key of only the path is deliberate: it limits a resource, whichever client requests it.
    check.key.iter().all(chosen) && check.key.iter().any(written)
}
