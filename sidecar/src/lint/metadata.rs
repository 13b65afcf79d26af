//! Rules that read dynamic metadata which no filter writes in time, or which a client can write.

use sluicegate_rules::config::schema::{Amount, Cost, Match, NamePath, Rule, Weight};
use sluicegate_rules::config::walk::checks;

use super::envoy_yaml::Manager;
use super::findings::Findings;
use super::neighbours::Neighbour;

/// Envoy AI Gateway's filters are among those of upstreams.
const OF_UPSTREAMS: &str = "io.envoy.ai_gateway";

/// What rules read of one namespace.
struct Reading<'a> {
    at: String,
    namespace: &'a str,
    /// The number that settles, which only the response may tell.
    usage: Option<&'a NamePath>,
    /// It is read when the request comes.
    of_request: bool,
}

pub fn lint(manager: &Manager, rules: &[Rule], findings: &mut Findings<'_>) {
    let (earlier, later) = (&manager.earlier, &manager.later);
    let mut reported = vec![OF_UPSTREAMS];
    for reading in readings(rules) {
        let (at, namespace) = (reading.at, reading.namespace);
        let copies = |filter: &Neighbour, name| filter.copies(namespace, name);
        let told = |filter: &&Neighbour| reading.usage.is_some_and(|name| copies(filter, name));
        if let Some(filter) = earlier.iter().chain(later).find(told) {
            let message = format!(
                "`{}` writes this from requests, so a client can tell its own usage",
                filter.name
            );
            let remedy = "write what requests tell into another `metadata_namespace` than what responses tell";
            findings.warn(at, message, remedy);
            continue;
        }
        let may_write = |filter: &Neighbour| filter.is_hidden || filter.writes(namespace);
        if reported.contains(&namespace) || earlier.iter().any(may_write) {
            continue;
        }
        match later.iter().find(|filter| filter.writes(namespace)) {
            Some(_) if !reading.of_request => continue,
            Some(filter) => findings.warn(
                at,
                format!(
                    "`{}` writes `{namespace}`, and comes after this filter in `http_filters`: when the request comes, nothing \
                     is there yet",
                    filter.name
                ),
                "put it before this filter",
            ),
            None if later.iter().any(may_write) => continue,
            None => findings.warn(
                at,
                format!("no other filter in `http_filters` writes metadata into `{namespace}`, so this is always absent"),
                "put the filter that writes it before this one (docs/recipes.md), or correct `namespace`",
            ),
        }
        reported.push(namespace);
    }
}

/// What conditions, reserves and settles read, with their paths.
fn readings(rules: &[Rule]) -> Vec<Reading<'_>> {
    let mut found = Vec::new();
    for (index, rule) in rules.iter().enumerate() {
        of_match(&format!("rules[{index}].match"), &rule.matcher, &mut found);
    }
    for (at, _, check) in checks(rules) {
        let Cost::Varying(cost) = &check.cost else {
            continue;
        };
        if let Some(amount) = &cost.reserve {
            of_amount(&format!("{at}.cost.reserve"), amount, true, &mut found);
        }
        if let Some(settle) = &cost.settle {
            of_amount(
                &format!("{at}.cost.settle.from"),
                &settle.from,
                false,
                &mut found,
            );
        }
    }
    found
}

fn of_match<'a>(at: &str, one: &'a Match, found: &mut Vec<Reading<'a>>) {
    for (index, condition) in one.metadata.iter().enumerate() {
        found.push(Reading {
            at: format!("{at}.metadata[{index}]"),
            namespace: &condition.namespace,
            usage: None,
            of_request: true,
        });
    }
    for (list, inner) in [("all", &one.all), ("any", &one.any)] {
        for (index, inner) in inner.iter().enumerate() {
            of_match(&format!("{at}.{list}[{index}]"), inner, found);
        }
    }
    if let Some(inner) = &one.not {
        of_match(&format!("{at}.not"), inner, found);
    }
}

fn of_amount<'a>(at: &str, amount: &'a Amount, of_request: bool, found: &mut Vec<Reading<'a>>) {
    let Amount::Told(told) = amount else {
        return;
    };
    if let Some(metadata) = &told.metadata {
        found.push(Reading {
            at: format!("{at}.metadata"),
            namespace: &metadata.namespace,
            usage: (!of_request).then_some(&metadata.name),
            of_request,
        });
    }
    if let Some(Weight::ByName(named)) = &told.weight
        && let Some(metadata) = &named.by.metadata
    {
        found.push(Reading {
            at: format!("{at}.weight.by.metadata"),
            namespace: &metadata.namespace,
            usage: None,
            of_request,
        });
    }
    for (name, list) in [("largest", &told.largest), ("sum", &told.sum)] {
        for (index, inner) in list.iter().flatten().enumerate() {
            of_amount(&format!("{at}.{name}[{index}]"), inner, of_request, found);
        }
    }
}
