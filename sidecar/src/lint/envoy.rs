//! What stands around the filter in Envoy's file and does not fit it.

use sluicegate_rules::config::written::{Configuration, Cost, Limit, Part};

use super::document::Plugin;
use super::findings::{Findings, Severity, checks};

pub fn review(plugin: &Plugin, written: &Configuration, findings: &mut Findings<'_>) {
    if plugin.allow_on_headers_stop_iteration {
        findings.add(
            Severity::Warning,
            String::new(),
            "with `allow_on_headers_stop_iteration: true` Envoy buffers a request's body while the request waits, and \
             answers one that is larger than its buffer with 413"
                .to_owned(),
            "remove it: this filter does not need it",
        );
    }
    clusters(plugin, written, findings);
    let Some(manager) = plugin.manager else {
        return;
    };
    if !manager.refuses_underscores
        && let Some((at, name)) = header_with_a_hyphen(written)
    {
        let alike = name.replace('-', "_");
        findings.add(
            Severity::Warning,
            at,
            format!(
                "some upstreams (WSGI, CGI) take a header `{alike}` for `{name}`, so this filter answers requests with \
                 `{alike}` by 400"
            ),
            "say `common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }` in the connection \
             manager, so that no other filter or upstream is misled either",
        );
    }
    let reads_jwt = |part: &Part| part.jwt.is_some();
    if manager.jwt_authn_behind
        && let Some((at, _)) = parts(written).find(|(_, part)| reads_jwt(part))
    {
        findings.add(
            Severity::Warning,
            format!("{at}.jwt"),
            "`jwt_authn` stands behind this filter in `http_filters`: no token is verified yet, and every claim is missing"
                .to_owned(),
            "put `jwt_authn` before this filter",
        );
    }
}

fn clusters(plugin: &Plugin, written: &Configuration, findings: &mut Findings<'_>) {
    let name = &written.sidecar.cluster;
    if let Some(clusters) = &plugin.clusters
        && !clusters.contains(name)
    {
        findings.add(
            Severity::Warning,
            "sidecar.cluster".to_owned(),
            format!(
                "this file has no cluster `{name}`, only `{}`",
                clusters.join("`, `")
            ),
            "add it, unless it comes from a control plane: without it no request gets a verdict",
        );
    }
}

/// The first header with `-` in its name that says whom to count, by which limit or at what cost.
fn header_with_a_hyphen(written: &Configuration) -> Option<(String, String)> {
    let of_parts = parts(written).filter_map(|(at, part)| {
        let name = part.header.clone()?;
        Some((format!("{at}.header"), name))
    });
    let of_costs = checks(written).filter_map(|(_, at, _, check)| match &check.cost {
        Cost::Varying(varying) => Some((format!("{at}.cost.header"), varying.header.clone()?)),
        Cost::Constant(_) => None,
    });
    of_parts
        .chain(of_costs)
        .find(|(_, name)| name.contains('-'))
}

/// Every part of a key and of a choice of limit, with its path.
fn parts(written: &Configuration) -> impl Iterator<Item = (String, &Part)> {
    checks(written).flat_map(|(_, at, _, check)| {
        let key = check.key.iter().enumerate();
        let mut parts: Vec<_> = key
            .map(|(index, part)| (format!("{at}.key[{index}]"), part))
            .collect();
        if let Limit::Tiers(tiers) = &check.limit {
            parts.push((format!("{at}.limit.by"), &tiers.by));
        }
        parts
    })
}
