//! Rules and limits that make others redundant: what `check-config` must not report.

use super::{GOOD, envoy, has, lacks, run};
use crate::support::rows;

#[test]
fn looser_limits_of_other_subjects_or_other_requests_are_not_reported_as_redundant() {
    let table = r"
        # Another subject.
        limit: everyone\n        key: [{ constant: everyone }] | limit: loose\n        key: [{ cookie: a }]
        # Requests that the tighter limit does not count.
        limit: per-key\n        key: [{ address: {} }] | limit: loose\n        key: [{ header: x-api-key }]
        # Around the edge of its windows a fixed window admits 200, which is more than 150.
        limit: per-key\n        key: [{ header: x-api-key }]\n        cost: 5\n        when_missing: deny\n      - limit: everyone\n        key: [{ constant: everyone }] | limit: aligned\n        key: [{ cookie: a }]\n      - limit: nearly\n        key: [{ cookie: a }]
        # A cost that makes the loose limit the tighter one: 1000 a minute at 20 are 50 requests.
        limit: everyone\n        key: [{ constant: everyone }] | limit: loose\n        key: [{ header: x-api-key }, { address: {} }]\n        cost: 600
    ";
    for [from, to] in rows(table) {
        has(GOOD, &from);
        let (_, printed) = run(
            &["check-config"],
            true,
            &envoy(&GOOD.replacen(&from, &to, 1)),
        );
        lacks(&printed, "can never deny");
    }
}

#[test]
fn a_rule_after_a_stopping_rule_for_other_requests_is_not_reported() {
    let matchers = "path_prefix: /search|methods: [GET]|hosts: [a.example.com]|headers: [{ name: x, present: true }]|
        not: { path: /search }";
    for matcher in matchers.split('|').map(str::trim) {
        let stopping = format!("stop: true\n    match: {{ {matcher} }}");
        let file = envoy(&GOOD.replacen("match: { path_prefix: /search }", &stopping, 1));
        let (_, printed) = run(&["check-config"], true, &file);
        lacks(&printed, "never reached");
    }
}
