//! From a configuration and a request to the checks that are asked.
#![allow(clippy::unwrap_used, reason = "a test is meant to panic when it fails")]

use sluicegate_rules::{Check, Evaluation, Headers, Request, Rules, WhenUnavailable, parse};

#[derive(Default)]
struct Fake {
    headers: Headers,
}

impl Request for Fake {
    fn headers(&self) -> &Headers {
        &self.headers
    }
    fn property(&self, path: &[&str]) -> Option<Vec<u8>> {
        (path == ["source", "address"]).then(|| b"192.0.2.1:1234".to_vec())
    }
}

fn request(method: &str, path: &str, headers: &[(&str, &[u8])]) -> Fake {
    let pseudo = [(":method", method.as_bytes()), (":path", path.as_bytes())];
    Fake {
        headers: pseudo.iter().chain(headers).copied().collect(),
    }
}

fn get(path: &str, headers: &[(&str, &[u8])]) -> Fake {
    request("GET", path, headers)
}

fn rules(rules: &str) -> Rules {
    parse(format!(r#"{{"sidecar":{{"cluster":"sluicegate"}},"rules":[{rules}]}}"#).as_bytes())
        .unwrap()
}

/// What is asked, spelt `limit key cost`.
fn asked(rules: &Rules, request: &Fake) -> Vec<String> {
    match rules.evaluate(request, &mut |_| {}) {
        Evaluation::Pass => Vec::new(),
        Evaluation::Refuse(reply) => vec![format!("{}", reply.status)],
        Evaluation::Ask(question) => spelt(rules, &question.checks),
    }
}

fn spelt(rules: &Rules, checks: &[Check]) -> Vec<String> {
    let spell = |check: &Check| {
        let limit = rules.limit_name(check.rule, check.limit);
        format!("{limit} {} {}", check.key, check.cost)
    };
    checks.iter().map(spell).collect()
}

const SEARCH: &str = r#"{"name":"search","match":{"path_prefix":"/search","methods":["GET"]},
    "checks":[{"limit":"per-key","key":[{"header":"X-Api-Key","plain":true},{"path":true}],"cost":5}],
    "when_unavailable":"allow"}"#;
const EVERYONE: &str = r#"{"name":"all",
    "checks":[{"limit":"everyone","key":[{"constant":"everyone"}]},{"limit":"per-address","key":[{"address":{}}]}],
    "when_unavailable":"deny"}"#;

#[test]
fn a_request_asks_the_checks_of_every_rule_that_matches() {
    let rules = rules(&format!("{SEARCH},{EVERYONE}"));
    let key: &[u8] = b"k1";
    let searching = get("/search/a?q=1", &[("x-api-key", key)]);
    assert_eq!(
        asked(&rules, &searching),
        [
            "per-key x-api-key=k1;@path=/search/a 5",
            "everyone @constant=everyone 1",
            "per-address @address=192.0.2.1 1",
        ]
    );
    let Evaluation::Ask(question) = rules.evaluate(&searching, &mut |_| {}) else {
        panic!()
    };
    assert_eq!(question.when_unavailable, WhenUnavailable::Deny);
}

#[test]
fn a_request_that_no_rule_matches_asks_nothing() {
    let rules = rules(SEARCH);
    let key: &[(&str, &[u8])] = &[("x-api-key", b"k1")];
    assert_eq!(asked(&rules, &get("/other", key)), [""; 0]);
    assert_eq!(asked(&rules, &request("POST", "/search", key)), [""; 0]);
    assert_eq!(asked(&rules, &Fake::default()), [""; 0]);
}

#[test]
fn a_rule_that_says_stop_ends_the_list_for_what_it_matches() {
    let stopping = SEARCH.replace(r#""name""#, r#""stop":true,"name""#);
    let rules = rules(&format!("{stopping},{EVERYONE}"));
    let key: &[(&str, &[u8])] = &[("x-api-key", b"k1")];
    assert_eq!(asked(&rules, &get("/search", key)).len(), 1);
    assert_eq!(asked(&rules, &get("/other", key)).len(), 2);
}

#[test]
fn a_missing_part_is_skipped_denied_or_replaced_as_the_rule_says() {
    let with =
        |when: &str| rules(&SEARCH.replace(r#""cost":5"#, &format!(r#""when_missing":{when}"#)));
    for headers in [&[][..], &[("x-api-key", &b""[..])][..]] {
        let request = get("/search", headers);
        assert_eq!(asked(&with(r#""skip""#), &request), [""; 0]);
        assert_eq!(asked(&with(r#""deny""#), &request), ["403"]);
        assert_eq!(
            asked(&with(r#"{"use":"anonymous"}"#), &request),
            ["per-key @missing/x-api-key=anonymous;@path=/search 1"]
        );
    }
    let sent = get("/search", &[("x-api-key", b"anonymous")]);
    assert_eq!(
        asked(&with(r#"{"use":"anonymous"}"#), &sent),
        ["per-key x-api-key=anonymous;@path=/search 1"]
    );
}

#[test]
fn a_part_that_is_given_in_different_ways_at_once_is_refused() {
    let rules = rules(SEARCH);
    let twice: &[(&str, &[u8])] = &[("x-api-key", b"mine"), ("x-api-key", b"other")];
    assert_eq!(asked(&rules, &get("/search", twice)), ["400"]);
    let same: &[(&str, &[u8])] = &[("x-api-key", b"mine"), ("x-api-key", b"mine")];
    assert_eq!(
        asked(&rules, &get("/search", same)),
        ["per-key x-api-key=mine;@path=/search 5"]
    );
}

#[test]
fn bytes_that_are_not_utf8_make_a_key_like_any_others() {
    assert_eq!(
        asked(
            &rules(SEARCH),
            &get("/search", &[("x-api-key", b"\xff\x00;=")])
        ),
        ["per-key x-api-key=%FF%00%3B%3D;@path=/search 5"]
    );
}

#[test]
fn a_broken_configuration_is_refused_with_the_field_named() {
    let good = format!(r#"{{"sidecar":{{"cluster":"sluicegate"}},"rules":[{SEARCH}]}}"#);
    assert!(parse(good.as_bytes()).is_ok());
    let cases = [
        ("sluicegate", "", "sidecar.cluster"),
        (r#""cluster":"#, r#""clutser":"#, "clutser"),
        (
            r#""cluster":"sluicegate""#,
            r#""cluster":"s","timeout":"soon""#,
            "sidecar.timeout",
        ),
        (r#""name":"search""#, r#""name":"""#, "rules[0].name"),
        (r#""name":"search","#, "", "rules[0]"),
        ("/search", "search", "rules[0].match.path_prefix"),
        ("GET", "get", "rules[0].match.methods[0]"),
        (r#""limit":"per-key","#, "", "rules[0].checks[0]"),
        ("per-key", "", "rules[0].checks[0].limit"),
        ("X-Api-Key", "x api key", "rules[0].checks[0].key[0].header"),
        (
            r#"{"path":true}"#,
            r#"{"path":false}"#,
            "rules[0].checks[0].key[1]",
        ),
        (
            r#"{"path":true}"#,
            r#"{"path":true,"constant":"c"}"#,
            "rules[0].checks[0].key[1]",
        ),
        (
            r#"{"path":true}"#,
            r#"{"path":true,"plain":true}"#,
            "rules[0].checks[0].key[1].plain",
        ),
        (
            r#"{"path":true}"#,
            r#"{"address":{"trusted_hops":0}}"#,
            "rules[0].checks[0].key[1].address.trusted_hops",
        ),
        (
            r#"{"path":true}"#,
            r#"{"address":{"ipv4_bits":33}}"#,
            "rules[0].checks[0].key[1].address.ipv4_bits",
        ),
        (r#""cost":5"#, r#""cost":0"#, "rules[0].checks[0].cost"),
        (r#""cost":5"#, r#""cost":-5"#, "rules[0].checks[0].cost"),
        (
            r#""cost":5"#,
            r#""when_missing":{"use":""}"#,
            "rules[0].checks[0].when_missing.use",
        ),
        (r#""allow""#, r#""perhaps""#, "rules[0].when_unavailable"),
    ];
    for (from, to, field) in cases {
        assert!(good.contains(from), "{from}");
        let error = parse(good.replacen(from, to, 1).as_bytes())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(field),
            "{from} -> {to}: no {field} in {error}"
        );
    }
    for text in [
        "",
        "{",
        "[]",
        "\u{0}",
        r#"{"sidecar":{"cluster":"s"},"rules":[]}"#,
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{text}");
    }
}
