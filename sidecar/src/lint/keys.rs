//! Keys that a client can choose or omit, which evades its limit, and keys that can be guessed.

use sluicegate_rules::config::schema::{
    AttributePath, Check, Configuration, KeyComponent, Limit, Metadata,
};

use super::envoy_yaml::Plugin;
use super::findings::{Findings, Severity, checks};

const FORWARDED: &str = "x-forwarded-for";

pub fn lint(plugin: &Plugin, configuration: &Configuration, findings: &mut Findings<'_>) {
    pepper(configuration, findings);
    for (at, rule, check) in checks(configuration) {
        if is_client_chosen(check) && rule.checks.iter().all(is_client_chosen) {
            findings.add(
                Severity::Warning,
                format!("{at}.key"),
                "a client can choose every component of this key, and gets a fresh quota for each value that it invents"
                    .to_owned(),
                "set `trusted: true` if something in front of this filter has verified it, or add a check by `address` \
                 or `constant` to the rule",
            );
        }
        if check.when_missing.is_none() && check.key.iter().any(can_be_absent) {
            findings.add(
                Severity::Warning,
                format!("{at}.key"),
                "a request that lacks a component of this key is not checked at all, and `when_missing` is not set"
                    .to_owned(),
                "set `when_missing` to `deny`, `{use: TEXT}` or, if such requests may pass, `skip`",
            );
        }
        let mut components: Vec<(String, &KeyComponent)> = Vec::new();
        for (index, component) in check.key.iter().enumerate() {
            components.push((format!("{at}.key[{index}]"), component));
        }
        if let Limit::Tiers(tiers) = &check.limit {
            let by = &tiers.by;
            if is_client_controlled(by)
                || is_of_request(by)
                || is_copied(plugin, by.metadata.as_ref())
            {
                findings.add(
                    Severity::Error,
                    format!("{at}.limit.by"),
                    "a client can choose its own tier".to_owned(),
                    "choose the tier by `jwt`, or by `metadata` of a filter that verifies the client; or set `trusted: true` \
                     if something in front of this filter has verified the header, cookie or query parameter",
                );
            }
            components.push((format!("{at}.limit.by"), by));
        }
        let quota = check.quota.as_ref();
        if is_copied(plugin, quota.and_then(|quota| quota.metadata.as_ref())) {
            findings.add(
                Severity::Error,
                format!("{at}.quota.metadata"),
                "a client can choose its own quota: another filter copies what clients send into this metadata".to_owned(),
                "use `jwt`, or `metadata` of a filter that checks the client, such as `ext_authz`",
            );
        }
        for (at, component) in components {
            addresses(plugin, &at, component, findings);
        }
    }
}

/// Whether a request can lack it. What Envoy always knows and what the rule's own path contains cannot be missing.
const fn can_be_absent(component: &KeyComponent) -> bool {
    let hops = match &component.address {
        Some(address) => address.trusted_hops.is_some(),
        None => false,
    };
    hops || component.header.is_some()
        || component.cookie.is_some()
        || component.query.is_some()
        || component.jwt.is_some()
        || component.metadata.is_some()
        || component.mtls.is_some()
        || component.attribute.is_some()
}

fn pepper(configuration: &Configuration, findings: &mut Findings<'_>) {
    let is_hashed = |component: &KeyComponent| {
        let secret = component.header.is_some()
            || component.cookie.is_some()
            || component.query.is_some()
            || component.jwt.is_some()
            || component.metadata.is_some()
            || component.attribute.is_some();
        secret && !component.plain
    };
    let mut checks = checks(configuration);
    let hashed = checks.find(|(_, _, check)| check.key.iter().any(is_hashed));
    if let Some((at, _, _)) = hashed.filter(|_| configuration.pepper.is_empty()) {
        findings.add(
            Severity::Warning,
            format!("{at}.key"),
            "components of keys are hashed without a `pepper`: anyone who can read Redis can guess them with a dictionary"
                .to_owned(),
            "set `pepper: TEXT`, long, random and the same for the whole fleet, or `plain: true` where nothing is secret",
        );
    }
}

fn addresses(plugin: &Plugin, at: &str, component: &KeyComponent, findings: &mut Findings<'_>) {
    if reads_x_forwarded_for(component) {
        findings.add(
            Severity::Error,
            at.to_owned(),
            "X-Forwarded-For begins with whatever the client sent: each request can be a new subject".to_owned(),
            "set `address: { trusted_hops: N }`, which counts from the right",
        );
    }
    let peer = component
        .address
        .as_ref()
        .is_some_and(|address| address.trusted_hops.is_none());
    if peer
        && plugin
            .manager
            .as_ref()
            .is_some_and(|manager| !manager.use_remote_address)
    {
        findings.add(
            Severity::Warning,
            format!("{at}.address"),
            "without `use_remote_address: true` Envoy takes the last entry of X-Forwarded-For as the peer's address, \
             which a client that connects to this Envoy directly can forge"
                .to_owned(),
            "set `use_remote_address: true` in the connection manager, or, behind a proxy, `trusted_hops`",
        );
    }
}

fn reads_x_forwarded_for(component: &KeyComponent) -> bool {
    let attribute = match &component.attribute {
        Some(AttributePath::Dotted(name)) => name.to_ascii_lowercase().contains(FORWARDED),
        Some(AttributePath::List(names)) => names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(FORWARDED)),
        None => false,
    };
    attribute
        || component
            .header
            .as_ref()
            .is_some_and(|name| name.eq_ignore_ascii_case(FORWARDED))
}

/// Whether the client sends this value and nothing verifies it.
const fn is_client_controlled(component: &KeyComponent) -> bool {
    (component.header.is_some() || component.cookie.is_some() || component.query.is_some())
        && !component.trusted
}

/// Whether it is an attribute that Envoy takes from what the client has written.
fn is_of_request(component: &KeyComponent) -> bool {
    let (of, name) = match &component.attribute {
        Some(AttributePath::Dotted(name)) => {
            let mut names = name.split('.');
            (names.next(), names.next())
        }
        Some(AttributePath::List(names)) => {
            let mut names = names.iter().map(String::as_str);
            (names.next(), names.next())
        }
        None => return false,
    };
    of == Some("request")
        && matches!(
            name,
            Some("headers" | "query" | "referer" | "useragent" | "id")
        )
}

/// Whether another filter has only copied there what the client has sent.
fn is_copied(plugin: &Plugin, metadata: Option<&Metadata>) -> bool {
    metadata.is_some_and(|metadata| plugin.copied_namespaces.contains(&metadata.namespace))
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
