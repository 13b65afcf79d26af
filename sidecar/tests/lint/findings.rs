//! One finding for each mistake in a good configuration, with its line, severity and remedy.

use super::{
    ENVOY, GOOD, POLICY, envoy, has, has_all, is_without_findings, pushed, run, run_on, run_with,
};
use crate::support::{lacks, rows};

/// The finding's line in an Envoy file, its severity and a part of its text; what is changed in `GOOD`, and to what.
const CASES: &str = r"
    30 | error | no limit `evryone` | limit: everyone | limit:\n          evryone
    30 | error | did you mean `everyone` | limit: everyone | limit: evryone
    28 | error | never admitted | cost: 5 | cost: 50
    28 | error | never admitted | cost: 5 | cost: { table: [{ template: /search, cost: 50 }] }
    28 | warning | never admitted | cost: 5 | cost: { header: x-cost, max: 50, trusted: true }
    28 | error | did you mean `cost` | cost: 5 | cots: 5
    28 | error | give 1 or more | cost: 5 | cost: 0
    21 | error | provides a cluster `elsewhere` | cluster: sluicegate | cluster: elsewhere
    36 | warning | a client can choose every component | limit: per-key\n        key: [{ address: {} }] | limit: per-key\n        key: [{ header: x-api-key }]
    # W4
    36 | warning | a client can choose every component | limit: per-key\n        key: [{ address: {} }] | limit: per-key\n        key: [{ method: true }]
    36 | warning | a client can choose every component | limit: per-key\n        key: [{ address: {} }] | limit: per-key\n        key: [{ host: true }, { path: true }]
    36 | warning | a client can choose every component | limit: per-key\n        key: [{ address: {} }] | limit: per-key\n        key: [{ attribute: request.useragent }]
    27 | error | trusted_hops | { header: x-api-key } | { header: X-Forwarded-For }
    27 | error | trusted_hops | { header: x-api-key } | { attribute: [request, headers, x-forwarded-for] }
    26 | error | choose its own tier | limit: per-key\n        key: [{ header | limit: { by: { header: x-plan }, map: { default: per-key } }\n        key: [{ header
    26 | error | choose its own tier | limit: per-key\n        key: [{ header | limit: { by: { attribute: request.headers.x-plan }, map: { default: per-key } }\n        key: [{ header
    26 | error | choose the tier by `jwt` | limit: per-key\n        key: [{ header | limit: { by: { metadata: { namespace: envoy.filters.http.header_to_metadata, name: plan } }, map: { default: per-key } }\n        key: [{ header
    27 | error | unknown field `header`, expected `jwt` or `metadata` | limit: per-key\n        key: [{ header | limit: granted\n        quota: { header: x-quota }\n        key: [{ header
    27 | error | a client can choose its own quota | limit: per-key\n        key: [{ header | limit: granted\n        quota: { metadata: { namespace: envoy.filters.http.header_to_metadata, name: quota } }\n        key: [{ header
    27 | error | quota_from_request | limit: per-key\n        key: [{ header | limit: per-key\n        quota: { jwt: { payload: jwt, claim: quota } }\n        key: [{ header
    26 | error | no limit `gold` | limit: per-key\n        key: [{ header | limit: { by: { header: x-plan, trusted: true }, map: { gold: gold, default: per-key } }\n        key: [{ header
    33 | error | another rule | name: all | name: search
    24 | error | begin with `/` | path_prefix: /search | path_prefix: search
    # Newcomers' finding 18.
    24 | warning | no request meets all | path_prefix: /search | path: /login, path_prefix: /api/
    24 | warning | no request meets all | path_prefix: /search | path: /api, path_prefix: /api/v1
    24 | warning | no request meets all | path_prefix: /search | path: /login, path_template: '/api/{id}'
    24 | warning | no request meets all | path_prefix: /search | any: [{ path_prefix: /a/, path_template: '/b/{id}' }]
    24 | warning | nothing below it; use `path_prefix`, or `^/api/.*` | path_prefix: /search | path_regex: ^/api/
    24 | warning | `rules[0].match` | path_prefix: /search | not: { path_regex: ^/api }
    # F7: a missing part must not make a request unmetered unless the configuration says so.
    27 | warning | set `when_missing` to `deny` | 5\n        when_missing: deny | 5
    36 | warning | set `when_missing` to `deny` | key: [{ address: {} }] | key: [{ address: { trusted_hops: 2 } }]
    # F15
    27 | warning | without a `pepper` | pepper: a-long-random-text | version: 1
    # N1: most clients write `-`, and Envoy refuses `_`.
    27 | warning | write `x-api-key` | { header: x-api-key } | { header: X_API_KEY }
    27 | warning | write `x-api-key` | { header: x-api-key } | { attribute: request.headers.x_api_key }
    27 | warning | no request has `Host` | { header: x-api-key } | { header: Host }
    24 | warning | write `x-plan` | path_prefix: /search | path_prefix: /search, not: { headers: [{ name: x_plan, equals: a }] }
    28 | warning | write `x-cost` | cost: 5 | cost: { header: x_cost, max: 5, trusted: true }
    26 | warning | write `x-plan` | limit: per-key\n        key: [{ header | limit: { by: { header: x_plan, trusted: true }, map: { default: per-key } }\n        key: [{ header
    # N5: what comes before leaves nothing.
    28 | warning | entry 1 of the table | cost: 5 | cost: { table: [{ template: '/search/**', cost: 1 }, { template: /search/deep, cost: 5 }] }
    28 | warning | entry 1 of the table | cost: 5 | cost: { table: [{ methods: [GET], cost: 1 }, { template: /search, methods: [HEAD], cost: 5 }] }
    28 | warning | `match` lets through | cost: 5 | cost: { table: [{ template: /v1/export, cost: 5 }] }
    33 | warning | no request gets here: rule `search` | match: { path_prefix: /search } | stop: true
    24 | warning | no request meets all | path_prefix: /search | methods: [GET], all: [{ methods: [POST] }]
    24 | warning | no request meets all | path_prefix: /search | hosts: [b.example.com], all: [{ hosts: ['*.a.example.com'] }]
    24 | warning | no request meets all | path_prefix: /search | path: /v1/a, not: { path_prefix: /v1/ }
    # C12
    30 | warning | meets no limit | when_missing: deny\n      - limit: everyone\n        key: [{ constant: everyone }] | when_missing: skip\n    stop: true
    # N12
    24 | warning | `/api/v1` is this path alone | path_prefix: /search | path: /api/v1
    # F5; and C9: what is certain is no warning.
    39 | error | more than 32 checks, the most of a decision, and is answered with 503 | checks:\n      - limit: per-key\n        key: [{ address: {} }] | checks: &eight\n      [&c { limit: loose, key: [{ constant: c }] }, *c, *c, *c, *c, *c, *c, *c]\n    when_unavailable: allow\n  - { name: b, when_unavailable: allow, checks: *eight }\n  - { name: c, when_unavailable: allow, checks: *eight }\n  - { name: d, when_unavailable: allow, checks: *eight }\n  - name: e\n    checks: *eight
    22 | warning | all rules has 42 checks; one with more than 32 is answered with 503, whatever | checks:\n      - limit: per-key\n        key: [{ address: {} }] | checks: &eight\n      [&c { limit: loose, key: [{ constant: c }] }, *c, *c, *c, *c, *c, *c, *c]\n    when_unavailable: allow\n  - { name: b, match: { methods: [GET] }, when_unavailable: allow, checks: *eight }\n  - { name: c, match: { path: /c }, when_unavailable: allow, checks: *eight }\n  - { name: d, match: { hosts: [d.example.com] }, when_unavailable: allow, checks: *eight }\n  - name: e\n    checks: *eight
";

/// A configuration whose rules are where earlier versions had them is told where they belong.
#[test]
fn rules_in_envoys_configuration_are_refused_with_the_place_where_they_belong() {
    for version in ["", "version: 1\n", "version: 2\n"] {
        let (status, printed) = run(&["check-config"], &envoy(&format!("{GOOD}{version}")));
        assert_eq!(status, 64, "{printed}");
        let says = "file.yaml:22: error: `rules`: belongs to the policy: move it there, into the rule set `default`, and say `version: 2` here";
        has(&printed, says);
        has(&printed, "1 error, 0 warnings");
    }
}

#[test]
fn each_finding_in_a_rule_set_is_at_its_line_of_the_policy() {
    // That of `rules:` in both files.
    let in_envoy = ENVOY.lines().count() + 2;
    let in_policy = POLICY.lines().count() + 3;
    for [line, severity, says, from, to] in rows(CASES) {
        let (plugin, policy) = pushed(&GOOD.replacen(&from, &to, 1));
        let (given, printed) = run_with(&["check-config"], Some(&policy), Some(&envoy(&plugin)));
        let line: usize = line.parse().unwrap();
        let at = match line.checked_sub(in_envoy) {
            None => format!("file.yaml:{line}: {severity}: `sidecar."),
            Some(below) => format!(
                "policy.yaml:{}: {severity}: `rules.gateway.rules",
                in_policy + below
            ),
        };
        // Without the beginning of the field's path.
        let parts = [at.as_str(), says.trim_start_matches('`')];
        let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
        let found = printed.lines().any(has_all);
        assert!(found, "{to}: no {at:?} with {says:?} in\n{printed}");
        assert_eq!(given, if severity == "error" { 64 } else { 0 }, "{printed}");
    }
}

#[test]
fn a_key_that_clients_choose_is_fine_beside_one_for_the_same_requests_that_they_do_not() {
    for (beside, warns) in [
        ("key: address", false),
        ("key: everyone", false),
        ("key: address, match: /a/", true),
        ("key: address, shadow: true", true),
        ("key: { header: x-other }", true),
    ] {
        let policy = format!(
            "limits:\n  k: {{ key: {{ header: x-api-key }}, rate: 5/1s }}\n  other: {{ rate: 9/1s, {beside} }}\n"
        );
        let (_, printed) = run_with(&["check-config"], Some(&policy), None);
        let warned = printed.contains("can choose every component");
        assert_eq!(warned, warns, "{beside}: {printed}");
    }
    let stops = "limits:\n  k: { key: { header: x-api-key }, rate: 5/1s, stop: true }\n  a: { key: address, rate: 9/1s }\n";
    let (_, printed) = run_with(&["check-config"], Some(stops), None);
    has(&printed, "can choose every component");
}

/// Nobody else reads what is in the sidecar's memory.
#[test]
fn a_pepper_is_for_counts_in_redis() {
    let (plugin, policy) = pushed(&GOOD.replacen("pepper: a-long-random-text\n", "", 1));
    let in_memory = policy.replacen("redis://redis:6379", "memory", 1);
    for (policy, warns) in [(&policy, true), (&in_memory, false)] {
        let (_, printed) = run_with(&["check-config"], Some(policy), Some(&envoy(&plugin)));
        assert_eq!(printed.contains("without a `pepper`"), warns, "{printed}");
    }
    let elsewhere = format!("{plugin}pepper_env: SALT\n");
    let (_, printed) = run_with(&["check-config"], Some(&policy), Some(&envoy(&elsewhere)));
    lacks(&printed, "without a `pepper`");
}

#[test]
fn a_match_that_some_request_meets_is_not_reported() {
    for meets in [
        "path: /ap, path_prefix: /ap/",
        "path: /ap/, path_prefix: /ap",
        "path: /ap/v, path_template: /ap/v/",
        "path: /ap/v, path_template: '/ap/{id}', path_prefix: /",
        "path_prefix: /ap/v/, path_template: '/ap/{v}/x'",
        "path_prefix: /ap/, path_template: /ap/**",
        "path_regex: /ap/",
        "path_regex: ^/ap/.*",
        "path_regex: ^/ap/$",
        "path_regex: '^/ap/(a|b)'",
        "path: /a, not: { path_prefix: /b/ }",
    ] {
        let file = GOOD.replacen("path_prefix: /search", meets, 1);
        is_without_findings(&run_on(&["check-config"], &file));
    }
}

/// Newcomers' finding 19: warnings came when all errors were corrected, and errors of a policy one at a time.
#[test]
fn all_findings_come_in_one_run_as_text_and_as_json() {
    let wrong = GOOD
        .replace("path_prefix: /search", "path_prefix: search")
        .replace(
            "key: [{ address: {} }]",
            "key: [{ address: {} }]\n        cost: 0",
        );
    let (plugin, policy) = pushed(&wrong);
    let file = envoy(&plugin).replace("timeout: 30s", "timeout: 0s");
    let policy = policy.replace("quota: 10,", "quota: 0,");
    let policy = policy.replace("quota: 5000, per: 1s", "quota: 5000, per: 400d");
    let check = |command: &[&str]| run_with(command, Some(&policy), Some(&file));
    let (status, printed) = check(&["check-config"]);
    assert_eq!(status, 64, "{printed}");
    for part in [
        "policy.yaml:5: error: limit `per-key`",
        "policy.yaml:11: error: limit `everyone`",
        "begin with `/`",
        "rules[1].checks[0].cost`",
        "request_timeout",
    ] {
        has(&printed, part);
    }
    has(&printed, "errors, 1 warning\n");
    let (status, printed) = check(&["check-config", "--output", "json"]);
    assert_eq!(status, 64, "{printed}");
    let end = printed.rfind('}').unwrap();
    let report: serde_json::Value = serde_json::from_str(&printed[..=end]).unwrap();
    let findings = report["findings"].as_array().unwrap();
    assert_eq!(findings[0]["line"], 11, "{report}");
    assert_eq!(report["warnings"], 1);
    let errors = findings.iter().filter(|one| one["severity"] == "error");
    assert_eq!(report["errors"], errors.count());
}

/// N12: a window that another one makes idle.
#[test]
fn a_rate_that_never_decides_draws_a_warning() {
    for (rates, idle) in [
        ("[5/1s, 300/1m]", "`300/1m` never decides, as `5/1s`"),
        ("[100/1s, 50/1m]", "`100/1s` never decides, as `50/1m`"),
        ("[5/1s, 299/1m]", ""),
        ("[100/day, 3100/month]", ""),
        ("[60/day, 50/month]", "`60/day UTC` never decides"),
    ] {
        let policy = format!("limits:\n  a:\n    match: none\n    rate: {rates}\n");
        let (status, printed) = run_with(&["check-config"], Some(&policy), None);
        assert_eq!(status, 0, "{printed}");
        let warns = printed.contains("never decides");
        assert_eq!(warns, !idle.is_empty(), "{rates}: {printed}");
        has(&printed, idle);
        let line = "policy.yaml:4: warning: limit `a`: ";
        assert_eq!(printed.contains(line), warns, "{printed}");
    }
    for (algorithm, rates, warns) in [
        ("fixed_window", "[5/7s, 40/1m]", false),
        ("fixed_window", "[5/7s, 50/49s]", true),
        ("sliding_window", "[5/1s, 300/1m]", false),
        ("sliding_window", "[50/1s, 50/1m]", true),
        ("token_bucket", "[5/1s, 300/1m]", false),
    ] {
        let policy =
            format!("limits: {{ a: {{ match: none, algorithm: {algorithm}, rate: {rates} }} }}");
        let (_, printed) = run_with(&["check-config"], Some(&policy), None);
        assert_eq!(
            printed.contains("never decides"),
            warns,
            "{algorithm} {rates}: {printed}"
        );
    }
}

/// What its settles charge goes beyond the first window, and decides in the second.
#[test]
fn a_window_of_a_limit_that_settles_is_never_called_idle() {
    let policy = "limits: { a: { key: address, match: all, rate: [5/1s, 300/1m], cost: { reserve: 1, settle: { from: { bytes: true } } } } }";
    let (status, printed) = run_with(&["check-config"], Some(policy), None);
    assert_eq!(status, 0, "{printed}");
    assert!(!printed.contains("never decides"), "{printed}");
}

/// While the store is down: of twenty sidecars, some could not admit a single request.
#[test]
fn slots_of_which_a_share_is_too_small_for_a_request_draw_a_warning() {
    let limit = |slots: &str, more: &str| format!("key: address, match: all, {slots}{more}");
    let tiers = "tiers: { by: { jwt: plan }, pro: { at_once: 100 }, default: { at_once: 40 } }";
    for (limit, told) in [
        (limit("at_once: 20", ""), ""),
        (
            limit("at_once: 19", ""),
            "19 slots, and with more than 19 sidecars some have fewer than a request takes (1)",
        ),
        (limit("at_once: 80", ", cost: 4"), ""),
        (
            limit("at_once: 79", ", cost: 4"),
            "79 slots, and with more than 19 sidecars some have fewer than a request takes (4)",
        ),
        (
            limit(
                "at_once: 100",
                ", cost: { header: x-gpus, max: 16, trusted: true }",
            ),
            "100 slots, and with more than 6 sidecars some have fewer than a request takes (16)",
        ),
        (
            limit(tiers, ", cost: 4"),
            "40 slots, and with more than 10 sidecars some have fewer than a request takes (4)",
        ),
        (
            limit("at_once: 9", ", cost: 4, when_store_is_down: deny"),
            "",
        ),
    ] {
        let policy = format!("store: redis://r\nlimits:\n  a: {{ {limit} }}\n");
        let (_, printed) = run_with(&["check-config"], Some(&policy), None);
        assert_eq!(
            printed.contains("has its share of"),
            !told.is_empty(),
            "{limit}: {printed}"
        );
        has(&printed, told);
    }
    // Of a consumer's limit too.
    let policy = "store: redis://r\nlimits: { a: { algorithm: concurrency, windows: [{ quota: 30, per: 30s }] } }\n\
        consumers: { partner: { pepper: \"0123456789ab\", keys: {}, limits: { default: a } } }\n\
        rules: { default: { rules: [{ name: r, when_unavailable: deny, checks: [{ limit: partner, consumers: true, cost: 3, \
        key: [{ header: x-api-key }], when_missing: { address: {} } }] }] } }\n";
    let (_, printed) = run_with(&["check-config"], Some(policy), None);
    has(&printed, "30 slots, and with more than 10 sidecars");
}

/// N13: what people wrote, not what it stands for; and what is the same for all is told once.
#[test]
fn a_finding_names_what_the_file_has() {
    let limit = |fields: &str| {
        format!(
            "limits:\n  a: {{ key: address, rate: 5/1s, on_failure: deny, match: all, {fields} }}\n"
        )
    };
    for (policy, told) in [
        (
            limit("cost: { GET /a/: 1, GET /a/b: 5 }"),
            "policy.yaml:2: warning: `limits.a.cost`: `GET /a/b`: no request",
        ),
        (
            limit("cost: { GET /a: 1, GET /b: 9 }"),
            "policy.yaml:2: error: `limits.a.cost`: `GET /b`: a cost of 9",
        ),
        (
            limit("shadow: 'yes'"),
            "policy.yaml:2: error: `limits.a.shadow`: invalid type: string \"yes\", expected `true` or `false`",
        ),
        (
            format!("reply: {{ headers: all }}\n{}", limit("stop: false")),
            "policy.yaml:1: error: `reply.headers`: ",
        ),
    ] {
        let (_, printed) = run_with(&["check-config"], Some(&policy), None);
        has(&printed, told);
    }
    let (_, printed) = run_with(&["check-config"], Some(&limit("stop: 1, shadow: 1")), None);
    assert_eq!(
        printed.matches("a new one does not start").count(),
        1,
        "{printed}"
    );
    let defaults =
        "limits:\n  a: { key: { header: k }, rate: 5/1s }\n  b: { key: address, rate: 5/day }\n";
    let (_, printed) = run_with(&["check-config"], Some(defaults), None);
    assert_eq!(printed.matches("default").count(), 1, "{printed}");
    has_all(
        &printed,
        "`match: all`, `on_failure: allow`, explain --expand",
    );
}

/// What the sidecar serves is no error: somebody has the larger quota, or nobody is denied.
#[test]
fn a_cost_that_some_requests_can_have_is_no_error() {
    for (fields, warnings) in [
        (
            "rate: 5/1h, quota: { jwt: q }, quota_from_request: { max: 500 }, cost: 50",
            false,
        ),
        (
            "rate: 5/1h, overrides: [{ key: x, quota: 500 }], cost: 50",
            true,
        ),
        ("rate: 5/1h, enforce: false, cost: 6", false),
        ("rate: 5/1h, shadow: true, cost: 6", false),
        (
            "tiers: { by: { jwt: plan }, g: 100/1h, default: 3/1h }, cost: 10",
            true,
        ),
    ] {
        let policy =
            format!("limits: {{ a: {{ match: /a/, key: address, on_failure: deny, {fields} }} }}");
        let (status, printed) = run_with(&["check-config"], Some(&policy), None);
        assert_eq!(status, 0, "{fields}: {printed}");
        assert_eq!(
            printed.contains("can ever hold"),
            warnings,
            "{fields}: {printed}"
        );
    }
}
