//! Settings around the filter in Envoy's file that do not suit it.

use sluicegate_rules::config::schema::{Match, Rule};
use sluicegate_rules::config::walk::{checks, components};

use super::envoy_yaml::{Holder, Manager, Plugin, Routes};
use super::findings::Findings;
use super::findings::Severity::{Error, Warning};
use super::neighbours::Neighbour;

/// Settings that suit no rules.
pub fn lint(plugin: &Plugin, manager: &Manager, findings: &mut Findings<'_>) {
    let strips = |routes: &Routes| plugin.holder != Holder::Envoy || routes.strips_fields;
    let has_cors = |list: &[Neighbour]| list.iter().any(|one| one.is_cors);
    let hides = |routes: &Routes| has_cors(&manager.earlier) && routes.hides_fields;
    let mixes = manager.use_remote_address || manager.counts_hops;
    for (is_so, severity, message, remedy) in [
        (
            has_cors(&manager.later),
            Warning,
            "`cors` comes after this filter in `http_filters`: preflights, which have no credentials, are counted or \
             refused, and a browser's script cannot read a 429",
            "put `cors` before this filter (docs/filter.md#where-the-filter-belongs)",
        ),
        (
            manager.earlier.iter().any(|one| one.is_router),
            Error,
            "`router` comes before this filter in `http_filters`, so Envoy does not start",
            "put `router` last",
        ),
        (
            manager.detects_addresses && mixes,
            Error,
            "Envoy refuses `use_remote_address` and `xff_num_trusted_hops` beside `original_ip_detection_extensions`",
            "remove them: the extension finds the client's address",
        ),
        (
            !manager.routes.as_ref().is_none_or(strips),
            Warning,
            "`request_headers_to_remove` of the routes has no `ratelimit`: an upstream takes clients' copies of the fields \
             that Sluicegate writes for ours",
            "add part 3 of `sluicegate render --for envoy`",
        ),
        (
            manager.routes.as_ref().is_some_and(hides),
            Warning,
            "no CORS policy of the routes exposes `retry-after`, so scripts cannot read when to come back",
            "set `expose_headers: retry-after,ratelimit`",
        ),
    ] {
        if is_so {
            findings.add(severity, "", message, remedy);
        }
    }
}

/// Sets that the route chooses, where the route may not be the one that Envoy takes.
pub fn lint_sets_by_route(manager: &Manager, findings: &mut Findings<'_>) {
    let stale = manager
        .earlier
        .iter()
        .fold(None, |stale, filter| match filter {
            filter if filter.clears_route => Some(&filter.name),
            filter if filter.asks_route => None,
            _ => stale,
        });
    if let Some(name) = stale {
        findings.error(
            "rule_sets.by",
            format!(
                "`{name}` before this filter may clear the route, and this filter would take the set of the route of \
                 before, which a client can choose"
            ),
            "put an `envoy.filters.http.rbac` without rules between them, as `sluicegate render --for envoy \
             --rule-sets A,B` does: it makes Envoy select the route again",
        );
    }
    if let Some(filter) = manager.later.iter().find(|filter| filter.clears_route) {
        findings.warn(
            "rule_sets.by",
            format!(
                "`{}` after this filter may clear the route: requests have the set of the route of before",
                filter.name
            ),
            "put this filter after it, with an `envoy.filters.http.rbac` without rules between them",
        );
    }
}

/// Settings that do not suit these rules.
pub fn lint_rules(manager: &Manager, rules: &[Rule], findings: &mut Findings<'_>) {
    if !manager.rejects_underscores
        && let Some((at, name)) = headers(rules).find(|(_, name)| name.contains('-'))
    {
        let alike = name.replace('-', "_");
        findings.warn(
            at,
            format!(
                "some upstreams (WSGI, CGI) treat a header `{alike}` as `{name}`, so this filter answers requests with \
                 `{alike}` with 400"
            ),
            "set `common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }` in the connection \
             manager, so that other filters and upstreams are safe too",
        );
    }
    for (at, name) in headers(rules) {
        let removes = |filter: &&Neighbour| filter.removes.contains(&name.to_lowercase());
        if let Some(filter) = manager.earlier.iter().find(removes) {
            findings.warn(
                at,
                format!("`{}` before this filter removes `{name}` from requests", filter.name),
                "keep the field (`forward: true` in `jwt_authn`), or read what that filter makes of it",
            );
        }
    }
    let reads_paths = rules.iter().any(|rule| reads_path(&rule.matcher));
    let changes = |filter: &&Neighbour| filter.changes_path;
    if let Some(filter) = manager.earlier.iter().find(changes).filter(|_| reads_paths) {
        findings.warn(
            "",
            format!(
                "`{}` before this filter gives requests another path, and rules see that: a rule that matches only the path \
                 that clients send does not count these requests",
                filter.name
            ),
            "put this filter before it, or match its paths, too",
        );
    }
    let routes = manager.routes.iter();
    let rewritten = routes.flat_map(|routes| &routes.rewritten);
    for (sent, new) in rewritten.filter(|(_, new)| new.len() > 1) {
        let misses =
            |(_, rule): &(usize, &Rule)| meets(&rule.matcher, new) && !meets(&rule.matcher, sent);
        for (index, _) in rules.iter().enumerate().filter(misses) {
            findings.warn(
                format!("rules[{index}].match"),
                format!(
                    "a route has `prefix_rewrite: {new}`, and rules see the path before: this does not match what clients \
                     send to that route"
                ),
                "match the path that clients send, too",
            );
        }
    }
    let Some(written) = &manager.payloads else {
        return;
    };
    for (at, payload) in payloads(rules).filter(|(_, payload)| !written.contains(payload)) {
        let there_is = match written.as_slice() {
            [] => "none has one".to_owned(),
            written => format!("there is: `{}`", written.join("`, `")),
        };
        findings.warn(
            format!("{at}.jwt"),
            format!(
                "no `jwt_authn` before this filter in `http_filters` has `payload_in_metadata: {payload}` \
                 ({there_is}), so every claim is missing"
            ),
            "put `jwt_authn` before this filter, with a provider that has this `payload_in_metadata`",
        );
    }
}

/// The payloads of tokens that keys, choices of limit and quotas read, with their paths.
fn payloads(rules: &[Rule]) -> impl Iterator<Item = (String, &String)> {
    let of_components = components(rules)
        .filter_map(|(at, component)| Some((at, &component.jwt.as_ref()?.payload)));
    let of_quotas = checks(rules).filter_map(|(at, _, check)| {
        let jwt = check.quota.as_ref()?.jwt.as_ref()?;
        Some((format!("{at}.quota"), &jwt.payload))
    });
    of_components.chain(of_quotas)
}

/// Whether a match, or one in it, has a path that may be below this prefix.
fn meets(one: &Match, prefix: &str) -> bool {
    let own = [&one.path, &one.path_prefix, &one.path_template];
    let mut own = own.into_iter().flatten();
    let is_below = |path: &String| {
        let path = format!("{}/", path.trim_end_matches('/'));
        path.starts_with(prefix) || prefix.starts_with(&path)
    };
    let mut inner = one.all.iter().chain(&one.any);
    own.any(is_below) || inner.any(|inner| meets(inner, prefix))
}

/// Whether a match has a condition on the path.
fn reads_path(one: &Match) -> bool {
    let own = [
        &one.path,
        &one.path_prefix,
        &one.path_template,
        &one.path_regex,
    ];
    let mut inner = one.all.iter().chain(&one.any).chain(one.not.as_deref());
    own.iter().any(|path| path.is_some()) || inner.any(reads_path)
}

/// The headers that keys, choices of limit and costs read, with their paths.
fn headers(rules: &[Rule]) -> impl Iterator<Item = (String, &String)> {
    let of_components = components(rules)
        .filter_map(|(at, component)| Some((format!("{at}.header"), component.header.as_ref()?)));
    let of_costs = checks(rules);
    let of_costs = of_costs.flat_map(|(at, _, check)| check.cost.headers(&format!("{at}.cost")));
    of_components.chain(of_costs)
}
