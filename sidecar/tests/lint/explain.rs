//! `sluicegate explain`: the checks of a request, and the readings of its path.

use super::{GOOD, envoy, good, has, pushed, run_on, run_with};
use crate::support::lacks;

#[test]
fn explain_lists_the_checks_of_a_request() {
    let key = "{ header: x-api-key }";
    let plain = GOOD.replace(key, "{ header: x-api-key, plain: true }");
    let request = "explain|--request|GET /x/../search?q=x|-H|X-Api-Key: k|--peer|198.51.100.7";
    let words: Vec<_> = request.split('|').collect();
    let (status, printed) = run_on(&words, &plain);
    assert_eq!(status, 0, "{printed}");
    let lines = "rule `search` matches|rule `all` matches|10 per 1s|100 per 1m|
        rule `search`: limit `per-key`, key `x-api-key=k`, cost 5, subject 752629eec0a1c5b3ac4f|
        rule `search`: limit `everyone`, key `@constant=everyone`, cost 1|
        rule `all`: limit `per-key`, key `@address=198.51.100.7`, cost 1";
    for line in lines.split('|') {
        has(&printed, line.trim());
    }
    let (_, printed) = run_on(&["explain", "--request", "GET /other"], GOOD);
    has(&printed, "rule `search` does not match");
}

#[test]
fn explain_takes_a_host_as_envoy_does_and_names_what_a_key_lacks() {
    let file = GOOD.replace(
        "path_prefix: /search",
        "path_prefix: /search, hosts: [a.example.com]",
    );
    let requests = [
        "GET /search|-H|Host: a.example.com:443",
        "GET /search|-H|:authority: a.example.com",
        "GET https://a.example.com/search|-H|host: b.example.com",
        "GET /search HTTP/1.1|-H|host: a.example.com",
    ];
    for request in requests {
        let words: Vec<_> = ["explain", "--request"]
            .into_iter()
            .chain(request.split('|'))
            .collect();
        let (status, printed) = run_on(&words, &file);
        assert_eq!(status, 0, "{printed}");
        has(&printed, "rule `search` matches");
        has(
            &printed,
            "rule `search`: the request has no `x-api-key`, which is in its key",
        );
    }
    let (_, printed) = run_on(&["explain", "--request", "GET /search"], &file);
    has(&printed, "no host was given");
}

#[test]
fn explain_accepts_claims_and_attributes() {
    let keys = "{ jwt: { payload: jwt, claim: sub }, plain: true }, { mtls: spiffe }";
    let file = GOOD.replace("{ header: x-api-key }", keys);
    let request = r#"explain|--request|GET /search|--claims|jwt={"sub":"alice"}|--attribute|connection.uri_san_peer_certificate=spiffe://a/b"#;
    let words: Vec<_> = request.split('|').collect();
    let (_, printed) = run_on(&words, &file);
    let key = "key `@jwt/jwt/sub=alice;@mtls/spiffe=spiffe://a/b`";
    has(&printed, key);
}

/// Only spaces and tabs are Envoy's to strip: what it passes on decides which rules match, and the key is the filter's.
#[test]
fn explain_strips_what_envoy_strips() {
    let rules = GOOD.replace(
        "{ header: x-api-key }",
        "{ header: x-api-key, plain: true }",
    );
    let rules = rules.replace(
        "path_prefix: /search",
        "path_prefix: /search, headers: [{ name: x-plan, equals: free }]",
    );
    for (plan, matches) in [
        (" free\t", "rule `search` matches"),
        ("free\u{a0}", "rule `search` does not match"),
    ] {
        let plan = format!("x-plan:{plan}");
        let request = [
            "explain",
            "--request",
            "GET /search",
            "-H",
            &plan,
            "-H",
            "x-api-key: k\u{a0}\u{feff}",
        ];
        let (_, printed) = run_on(&request, &rules);
        has(&printed, matches);
        assert_eq!(
            printed.contains("key `x-api-key=k`"),
            matches.ends_with("matches"),
            "{printed}"
        );
    }
}

const CONFIGURATION: &str = r#"sidecar: { cluster: sluicegate }
UPSTREAM
rules:
  - name: public
    match: { path_prefix: /public/ }
    stop: true
    checks: [{ limit: loose, key: [{ constant: c }] }]
    when_unavailable: allow
  - name: search
    match: { path_prefix: /search/, query: [{ name: debug, present: true }] }
    checks: [{ limit: everyone, key: [{ constant: c }] }]
    when_unavailable: allow
"#;

fn explained(upstream: &str, target: &str) -> String {
    let request = format!("GET {target}");
    let file = CONFIGURATION.replace("UPSTREAM", upstream);
    let (status, printed) = run_on(&["explain", "--request", &request], &file);
    assert_eq!(status, 0, "{printed}");
    printed
}

// F16
#[test]
fn explain_lists_the_readings_of_a_path_and_which_rules_match_each() {
    let printed = explained("", "/search/..%2Fpublic%2Fx?debug;y");
    for line in [
        "  1: /search/..%2Fpublic%2Fx\n",
        "  2: /search/..%2Fpublic%2Fx, `debug` is ``\n",
        "  3: /search/../public/x\n",
        "  5: /public/x\n",
        "rule `public` matches in 5, 6\n",
        "rule `search` matches in 2, 4\n",
        "limit `loose`",
        "limit `everyone`",
    ] {
        has(&printed, line);
    }
}

#[test]
fn a_path_with_one_reading_takes_one_line_per_rule() {
    for (upstream, target) in [
        ("", "/public/x"),
        ("upstream_paths: nginx", "/search/..%2Fpublic%2Fx"),
    ] {
        let printed = explained(upstream, target);
        let lines = "rule `public` matches\nrule `search` does not match\n";
        assert!(printed.starts_with(lines), "{printed}");
    }
}

#[test]
fn explain_takes_the_rules_of_a_policy() {
    let (plugin, policy) = pushed(GOOD);
    let explain = ["explain", "--request", "GET /search", "-H", "x-api-key: k"];
    let with = |policy: Option<&str>, file: Option<&str>| run_with(&explain, policy, file);
    let of_plugin = with(Some(&policy), Some(&envoy(&plugin)));
    assert_eq!(of_plugin.0, 0, "{}", of_plugin.1);

    // Nobody's pepper: hashes are not the fleet's, and that is said where a key has one.
    let says = "are those of an empty `pepper`";
    let (status, printed) = with(Some(&policy), None);
    assert_eq!(status, 0, "{printed}");
    has(&printed, "rule `search` matches");
    has(&printed, says);
    lacks(&of_plugin.1, says);
    let plain = policy.replace(
        "{ header: x-api-key }",
        "{ header: x-api-key, plain: true }",
    );
    let (_, printed) = with(Some(&plain), None);
    has(&printed, "key `x-api-key=k`");
    lacks(&printed, says);

    let (status, printed) = with(None, Some(&envoy(&plugin)));
    assert_eq!(status, 64);
    has(
        &printed,
        "file.yaml:24: the rules are in the policy: add `--policy FILE`",
    );
    let lacking = plugin.replace("default: gateway", "default: other");
    let (status, printed) = with(Some(&policy), Some(&envoy(&lacking)));
    assert_eq!(status, 64);
    has(&printed, "file.yaml:24: the policy has no rule set `other`");
}

#[test]
fn explain_says_which_address_it_takes_for_a_clients() {
    let policy = "limits: { a: { key: address, rate: 1/s, overrides: [{ key: '@address=192.0.2.7', blocked: true }] } }\n";
    let says = "the client's address is taken to be 192.0.2.1";
    let printed = |words: &[&str]| run_with(&[&["explain"], words].concat(), Some(policy), None).1;
    has(&printed(&["--request", "GET /"]), says);
    for others in [
        &["--request", "GET /", "--peer", "192.0.2.1"][..],
        &["--expand"],
    ] {
        lacks(&printed(others), says);
        has(&printed(others), "@address=192.0.2.");
    }
}

#[test]
fn explain_names_each_of_several_rule_sets_or_shows_one() {
    let (plugin, policy) = pushed(GOOD);
    let other = "  other: { rules: [{ name: o, checks: [{ limit: loose, key: [{ constant: c }] }], when_unavailable: allow }] }\n";
    let policy = policy + other;
    let both = plugin.replace("default: gateway", "default: gateway, others: [other]");
    let request = ["explain", "--request", "GET /"];
    let one = |set: &str, file: Option<&str>| {
        let chosen = [&request[..], &["--set", set]].concat();
        run_with(&chosen, Some(&policy), file)
    };
    for file in [None, Some(envoy(&both))] {
        let file = file.as_deref();
        let (_, all) = run_with(&request, Some(&policy), file);
        let (first, second) = all.split_once("rule set `other`:\n").unwrap();
        assert!(first.starts_with("rule set `gateway`:\n"), "{all}");
        let (_, shown) = one("other", file);
        assert!(
            second.contains(&shown) && shown.contains("limit `loose`"),
            "{all}{shown}"
        );
        lacks(&shown, "rule set");
    }
    let (status, printed) = one("third", None);
    assert_eq!(status, 64);
    has(&printed, "no rule set `third`");
    let (status, printed) = run_with(
        &[&request[..], &["--set", "gateway"]].concat(),
        None,
        Some(&good()),
    );
    assert_eq!(status, 64, "{printed}");
}

#[test]
fn explain_says_what_a_request_reserves_and_that_it_is_settled() {
    let cost = "cost: { reserve: RESERVE, most: 40%, settle: { from: { bytes: true } } }";
    let request = ["explain", "--request", "GET /search"];
    for (reserve, text) in [
        (
            "3",
            "reserves 3 of the cost, 40 % of the quota (4) at most, and is settled",
        ),
        ("0", "reserves 0 of the cost"),
        ("9", "reserves 4 of the cost"),
    ] {
        let cost = cost.replace("RESERVE", reserve);
        let (_, printed) = run_on(
            &[&request[..], &["-H", "x-api-key: k"]].concat(),
            &GOOD.replacen("cost: 5", &cost, 1),
        );
        has(&printed, text);
        assert_eq!(printed.matches("settled").count(), 1, "{printed}");
    }
}

#[test]
fn explain_says_how_many_may_be_in_use_at_once() {
    let policy = "limits: { streams: { key: { header: x-user }, at_once: 32, overrides: [{ key: big, quota: 99 }] } }\n";
    let request = ["explain", "--request", "GET /", "-H", "x-user: k"];
    let (status, printed) = run_with(&request, Some(policy), None);
    assert_eq!(status, 0, "{printed}");
    has(&printed, "\n    32 at once\n");
    let plain = policy.replace("header: x-user", "header: x-user, plain: true");
    let plain = plain.replace("key: big", "key: x-user=k");
    let (_, printed) = run_with(&request, Some(&plain), None);
    has(
        &printed,
        "overrides this for the key: 99 at once, until removed",
    );
}
