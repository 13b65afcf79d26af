//! From a configuration and a request to the checks that are asked.
#![allow(clippy::unwrap_used, reason = "a test is meant to panic when it fails")]

use sluicegate_rules::{Check, Evaluation, Question, Request, Rules, WhenUnavailable, parse};

#[derive(Default)]
struct Fake {
    headers: Vec<(&'static str, &'static [u8])>,
}

impl Request for Fake {
    fn header(&self, name: &str) -> Option<Vec<u8>> {
        self.headers
            .iter()
            .find(|(n, _)| *n == name)
            .map(|(_, value)| value.to_vec())
    }
    fn peer_address(&self) -> Option<Vec<u8>> {
        Some(b"192.0.2.1:1234".to_vec())
    }
}

fn get(path: &'static str, headers: &[(&'static str, &'static [u8])]) -> Fake {
    let mut all: Vec<(&'static str, &'static [u8])> =
        vec![(":method", b"GET"), (":path", path.as_bytes())];
    all.extend(headers);
    Fake { headers: all }
}

fn rules(rules: &str) -> Rules {
    parse(format!(r#"{{"sidecar":{{"cluster":"sluicegate"}},"rules":[{rules}]}}"#).as_bytes())
        .unwrap()
}

const SEARCH: &str = r#"{"name":"search","match":{"path_prefix":"/search","methods":["GET"]},
    "checks":[{"limit":"per-key","key":[{"header":"X-Api-Key","plain":true},{"path":true}],"cost":5}],
    "when_unavailable":"allow"}"#;
const EVERYONE: &str = r#"{"name":"all",
    "checks":[{"limit":"everyone","key":[{"constant":"everyone"}]},{"limit":"per-address","key":[{"address":{}}]}],
    "when_unavailable":"deny"}"#;

fn check(limit: &str, key: &str, cost: u64) -> Check {
    Check {
        limit: limit.into(),
        key: key.into(),
        cost,
    }
}

#[test]
fn a_request_asks_the_checks_of_every_rule_that_matches() {
    let rules = rules(&format!("{SEARCH},{EVERYONE}"));
    let key: &[u8] = b"k1";
    assert_eq!(
        rules.evaluate(&get("/search/a?q=1", &[("x-api-key", key)])),
        Evaluation::Ask(Question {
            checks: vec![
                check("per-key", "x-api-key=k1;@path=/search/a", 5),
                check("everyone", "@constant=everyone", 1),
                check("per-address", "@address=192.0.2.1", 1),
            ],
            when_unavailable: WhenUnavailable::Deny,
        })
    );
}

#[test]
fn a_request_that_no_rule_matches_asks_nothing() {
    let rules = rules(SEARCH);
    assert_eq!(
        rules.evaluate(&get("/other", &[("x-api-key", b"k1")])),
        Evaluation::Pass
    );
    let post = Fake {
        headers: vec![
            (":method", b"POST"),
            (":path", b"/search"),
            ("x-api-key", b"k1"),
        ],
    };
    assert_eq!(rules.evaluate(&post), Evaluation::Pass);
    assert_eq!(rules.evaluate(&Fake::default()), Evaluation::Pass);
}

#[test]
fn a_missing_part_is_skipped_denied_or_replaced_as_the_rule_says() {
    let with =
        |when: &str| rules(&SEARCH.replace(r#""cost":5"#, &format!(r#""when_missing":{when}"#)));
    for headers in [&[][..], &[("x-api-key", &b""[..])][..]] {
        let request = get("/search", headers);
        assert_eq!(with(r#""skip""#).evaluate(&request), Evaluation::Pass);
        assert_eq!(
            with(r#""deny""#).evaluate(&request),
            Evaluation::Missing("per-key".into())
        );
        let Evaluation::Ask(question) = with(r#"{"use":"anonymous"}"#).evaluate(&request) else {
            panic!()
        };
        assert_eq!(
            question.checks[0].key,
            "@missing/x-api-key=anonymous;@path=/search"
        );
    }
    let sent =
        with(r#"{"use":"anonymous"}"#).evaluate(&get("/search", &[("x-api-key", b"anonymous")]));
    let Evaluation::Ask(question) = sent else {
        panic!()
    };
    assert_eq!(question.checks[0].key, "x-api-key=anonymous;@path=/search");
}

#[test]
fn bytes_that_are_not_utf8_make_a_key_like_any_others() {
    let rules = rules(SEARCH);
    let Evaluation::Ask(question) =
        rules.evaluate(&get("/search", &[("x-api-key", b"\xff\x00;=")]))
    else {
        panic!()
    };
    assert_eq!(
        question.checks[0].key,
        "x-api-key=%FF%00%3B%3D;@path=/search"
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
