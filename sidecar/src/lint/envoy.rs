//! Settings around the filter in Envoy's file that do not suit it.

use sluicegate_rules::config::schema::{Cost, Match, Rule};
use sluicegate_rules::config::walk::{checks, components};

use super::envoy_yaml::Manager;
use super::findings::Findings;

/// Settings that suit no rules.
pub fn lint(manager: &Manager, findings: &mut Findings<'_>) {
    if manager.cors_follows {
        findings.warn(
            "",
            "`cors` comes after this filter in `http_filters`: preflights, which have no credentials, are counted or \
             refused, and a browser's script cannot read a 429",
            "put `cors` before this filter (docs/filter.md#where-the-filter-belongs)",
        );
    }
}

/// Settings that do not suit these rules.
pub fn lint_rules(manager: &Manager, rules: &[Rule], findings: &mut Findings<'_>) {
    if !manager.rejects_underscores
        && let Some((at, name)) = header_with_a_hyphen(rules)
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
    if manager.rewrites_paths && rules.iter().any(|rule| rule.matcher != Match::default()) {
        findings.warn(
            "",
            "a route changes the path (`prefix_rewrite`, `regex_rewrite`), and rules see the path before: a rule that matches \
             only the new one does not count these requests",
            "match the path that clients send, too",
        );
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

/// The first header with `-` in its name that a key, a choice of limit or a cost reads.
fn header_with_a_hyphen(rules: &[Rule]) -> Option<(String, String)> {
    let of_components = components(rules).filter_map(|(at, component)| {
        let name = component.header.clone()?;
        Some((format!("{at}.header"), name))
    });
    let of_costs = checks(rules).filter_map(|(at, _, check)| match &check.cost {
        Cost::Varying(varying) => Some((format!("{at}.cost.header"), varying.header.clone()?)),
        Cost::Constant(_) => None,
    });
    of_components
        .chain(of_costs)
        .find(|(_, name)| name.contains('-'))
}
