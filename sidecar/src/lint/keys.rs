//! Keys that a client can choose or omit, which evades its limit, and keys that can be guessed.

use sluicegate_rules::config::schema::{
    Address, Check, KeyComponent, Limit, Metadata, NamePath, Rule, WhenMissing,
};
use sluicegate_rules::config::walk::{can_be_absent, checks, components, is_optional};

use super::envoy_yaml::{Manager, Plugin};
use super::findings::Findings;

const FORWARDED: &str = "x-forwarded-for";
/// What a filter of Envoy never sees.
const NOT_PASSED_ON: [&str; 4] = [
    "host",
    "keep-alive",
    "proxy-connection",
    "transfer-encoding",
];

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
        let of_attribute = attribute(component);
        let of_attribute = of_attribute.strip_prefix(&["request", "headers"]);
        let names = of_attribute.into_iter().flatten().copied();
        for name in names.chain(component.header.as_deref()) {
            header(&at, name, findings);
        }
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
        for (at, name) in check.cost.headers(&format!("{at}.cost")) {
            header(&at, name, findings);
        }
        if let Some(WhenMissing::Address(given)) = &check.when_missing {
            address(&format!("{at}.when_missing"), given, plugin, findings);
        }
    }
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
            "set `pepper: TEXT` beside `sidecar` in Envoy's file, long, random and the same for the whole fleet, or `plain: true` where nothing is secret",
        );
    }
}

/// A header that Envoy does not pass on, or whose name most clients write otherwise.
pub fn header(at: &str, name: &str, findings: &mut Findings<'_>) {
    let alike = name.replace('_', "-").to_ascii_lowercase();
    if name.contains('_') {
        let message = format!(
            "a request with `{alike}` alone does not have `{name}` (as a key, tier or cost it gets 400), and Envoy refuses `_` \
             in headers where `headers_with_underscores_action` is REJECT_REQUEST"
        );
        findings.warn(at, message, &format!("write `{alike}`"));
    } else if NOT_PASSED_ON.contains(&alike.as_str()) {
        let message = format!("no request has `{name}`: Envoy removes or renames it");
        findings.warn(
            at,
            message,
            "use another header; for the host, `host: true` in a key and `hosts` in a match",
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
