//! Keys that a client can choose or leave out, and so step out of its own count, and those that can be guessed.

use sluicegate_rules::config::written::{Check, Configuration, Limit, Names, Part};

use super::document::Plugin;
use super::findings::{Findings, Severity, checks};

const FORWARDED: &str = "x-forwarded-for";

pub fn review(plugin: &Plugin, written: &Configuration, findings: &mut Findings<'_>) {
    pepper(written, findings);
    for (_, at, rule, check) in checks(written) {
        if is_chosen(check) && rule.checks.iter().all(is_chosen) {
            findings.add(
                Severity::Warning,
                format!("{at}.key"),
                "a client can choose every part of this key, and have a new allowance for each value that it invents"
                    .to_owned(),
                "say `trusted: true` if something in front of this filter has checked it, or add a check by `address` \
                 or `constant` to the rule",
            );
        }
        if check.when_missing.is_none() && check.key.iter().any(can_be_absent) {
            findings.add(
                Severity::Warning,
                format!("{at}.key"),
                "a request without a part of this key is not checked at all, and `when_missing` does not say that it \
                 may pass"
                    .to_owned(),
                "say `when_missing: deny`, `{use: TEXT}` or, if that is meant, `skip`",
            );
        }
        let mut parts: Vec<(String, &Part)> = Vec::new();
        for (index, part) in check.key.iter().enumerate() {
            parts.push((format!("{at}.key[{index}]"), part));
        }
        if let Limit::Tiers(tiers) = &check.limit {
            if is_claimed(&tiers.by) {
                findings.add(
                    Severity::Warning,
                    format!("{at}.limit.by"),
                    "a client can choose its own tier".to_owned(),
                    "say `trusted: true` if something in front of this filter has checked it, or choose by a claim of \
                     a token",
                );
            }
            parts.push((format!("{at}.limit.by"), &tiers.by));
        }
        for (at, part) in parts {
            addresses(plugin, &at, part, findings);
        }
    }
}

/// Whether a request can be without it: what Envoy always knows, and what the rule's own path has, cannot be missing.
const fn can_be_absent(part: &Part) -> bool {
    let hops = match &part.address {
        Some(address) => address.trusted_hops.is_some(),
        None => false,
    };
    hops || part.header.is_some()
        || part.cookie.is_some()
        || part.query.is_some()
        || part.jwt.is_some()
        || part.mtls.is_some()
        || part.attribute.is_some()
}

fn pepper(written: &Configuration, findings: &mut Findings<'_>) {
    let is_hashed = |part: &Part| {
        let secret = part.header.is_some()
            || part.cookie.is_some()
            || part.query.is_some()
            || part.jwt.is_some()
            || part.attribute.is_some();
        secret && !part.plain
    };
    let mut checks = checks(written);
    let hashed = checks.find(|(_, _, _, check)| check.key.iter().any(is_hashed));
    if let Some((_, at, _, _)) = hashed.filter(|_| written.pepper.is_empty()) {
        findings.add(
            Severity::Warning,
            format!("{at}.key"),
            "parts of keys are hashed without a `pepper`: whoever reads Redis can try a dictionary".to_owned(),
            "say `pepper: TEXT`, long, random and the same for the whole fleet, or `plain: true` where nothing is secret",
        );
    }
}

fn addresses(plugin: &Plugin, at: &str, part: &Part, findings: &mut Findings<'_>) {
    if reads_forwarded(part) {
        findings.add(
            Severity::Error,
            at.to_owned(),
            "X-Forwarded-For begins with whatever the client has written: each request can be a new subject".to_owned(),
            "say `address: { trusted_hops: N }`, which counts from the right",
        );
    }
    let peer = part
        .address
        .as_ref()
        .is_some_and(|address| address.trusted_hops.is_none());
    if peer
        && plugin
            .manager
            .is_some_and(|manager| !manager.use_remote_address)
    {
        findings.add(
            Severity::Warning,
            format!("{at}.address"),
            "without `use_remote_address: true` Envoy takes the last entry of X-Forwarded-For for the peer, which a \
             client can write that connects to this Envoy directly"
                .to_owned(),
            "say `use_remote_address: true` in the connection manager, or, behind a proxy, `trusted_hops`",
        );
    }
}

fn reads_forwarded(part: &Part) -> bool {
    let attribute = match &part.attribute {
        Some(Names::Dotted(name)) => name.to_ascii_lowercase().contains(FORWARDED),
        Some(Names::List(names)) => names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(FORWARDED)),
        None => false,
    };
    attribute
        || part
            .header
            .as_ref()
            .is_some_and(|name| name.eq_ignore_ascii_case(FORWARDED))
}

/// Whether a client writes this by itself, unchecked.
const fn is_claimed(part: &Part) -> bool {
    (part.header.is_some() || part.cookie.is_some() || part.query.is_some()) && !part.trusted
}

/// Whether nothing but the client's word is in the key.
fn is_chosen(check: &Check) -> bool {
    let chosen = |part: &Part| {
        is_claimed(part)
            || part.path.is_some()
            || part.template.is_some()
            || part.host.is_some()
            || part.method.is_some()
    };
    // A path alone is what is asked for: to count by it is to limit what is asked for, whoever asks.
    check.key.iter().all(chosen) && check.key.iter().any(is_claimed)
}
