//! From a configuration and a request to the checks of its question.

use crate::support::{asked, counted, evaluated, get, question, rules, spelt};
use sluicegate_rules::{Conclusion, Evaluation, WhenUnavailable};

const SEARCH: &str = r#"{"name":"search","match":{"path_prefix":"/search","methods":["GET"]},
    "checks":[{"limit":"per-key","key":[{"header":"X-Api-Key","plain":true},{"path":true}],"cost":5}],
    "when_unavailable":"allow"}"#;
const EVERYONE: &str = r#"{"name":"all",
    "checks":[{"limit":"everyone","key":[{"constant":"everyone"}]},{"limit":"per-address","key":[{"address":{}}]}],
    "when_unavailable":"deny"}"#;

#[test]
fn a_request_asks_for_the_checks_of_every_matching_rule() {
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
    let question = question(&rules, &searching);
    assert_eq!(question.when_unavailable, WhenUnavailable::Deny);
}

#[test]
fn a_missing_component_is_skipped_denied_or_replaced_as_the_rule_says() {
    let with =
        |when: &str| rules(&SEARCH.replace(r#""cost":5"#, &format!(r#""when_missing":{when}"#)));
    for headers in [&[][..], &[("x-api-key", &b""[..])][..]] {
        let request = get("/search", headers);
        assert_eq!(asked(&with(r#""skip""#), &request), [""; 0]);
        assert_eq!(asked(&with(r#""deny""#), &request), ["403"]);
        let expected = ["per-key @missing/x-api-key=anonymous;@path=/search 1"];
        assert_eq!(asked(&with(r#"{"use":"anonymous"}"#), &request), expected);
    }
    let sent = get("/search", &[("x-api-key", b"anonymous")]);
    let expected = ["per-key x-api-key=anonymous;@path=/search 1"];
    assert_eq!(asked(&with(r#"{"use":"anonymous"}"#), &sent), expected);
}

#[test]
fn bytes_that_are_not_utf8_make_a_key_like_any_others() {
    let request = get("/search", &[("x-api-key", b"\xff\x00;=")]);
    let key = "per-key x-api-key=%FF%00%3B%3D;@path=/search 5";
    assert_eq!(asked(&rules(SEARCH), &request), [key]);
}

const STRICTER: &str = r#"{"name":"stricter","shadow":true,
    "checks":[{"limit":"per-key","key":[{"header":"x-api-key","plain":true}],"when_missing":"deny"}]}"#;

#[test]
fn a_shadow_rule_makes_its_own_decision_under_its_own_key_and_refuses_nobody() {
    let rules = rules(&format!("{STRICTER},{EVERYONE}"));
    let ask = |headers| match evaluated(&rules, &get("/", headers)) {
        (Evaluation::Ask(question), counted) => (question, counted.join(" ")),
        other => panic!("{other:?}"),
    };
    let (question, counted) = ask(&[("x-api-key", b"k1")]);
    assert_eq!(question.checks.len(), 2);
    let key = "per-key @shadow=stricter;x-api-key=k1 1";
    assert_eq!(spelt(&rules, &question.shadows[0].checks), [key]);
    let of_all = "rule=.=all;.;rule_decisions";
    assert_eq!(
        counted,
        format!("decisions rule=.=stricter;.;rule_decisions {of_all}")
    );
    let (question, counted) = ask(&[]);
    assert!(question.shadows.is_empty());
    let denied = "rule=.=stricter;.;limit=.=per-key;.;rule_limit_shadow_denied";
    assert_eq!(counted, format!("decisions {denied} {of_all}"));
}

#[test]
fn a_request_with_too_many_checks_gets_no_verdict_and_no_callout() {
    let eight: Vec<_> = (0..8)
        .map(|n| format!(r#"{{"limit":"l{n}","key":[{{"constant":"c"}}]}}"#))
        .collect();
    let of = |count: usize, when: &str| {
        let rule = |n| {
            format!(
                r#"{{"name":"r{n}","checks":[{}],"when_unavailable":"{when}"}}"#,
                eight.join(",")
            )
        };
        rules(&(0..count).map(rule).collect::<Vec<_>>().join(","))
    };
    let request = get("/", &[]);
    assert_eq!(asked(&of(4, "deny"), &request).len(), 32);
    // Whatever the rules say: a client may have chosen the request.
    for when in ["deny", "allow"] {
        let rules = of(5, when);
        let Evaluation::NoVerdict(question, why) = rules.evaluate(&request) else {
            panic!("a verdict")
        };
        let (conclusion, _) = question.conclude(Err(why.clone()), &|| 1_795_758_000);
        assert!(matches!(conclusion, Conclusion::Answer(_)), "{when}");
        let why = why.to_string();
        assert!(
            why.contains("40 checks") && why.contains("`r0`, `r1`") && why.contains("may have 32"),
            "{why}"
        );
        let counted = counted(&rules).join(" ");
        let of_rule = "rule=.=r4;.;rule_unavailable_denied";
        for name in ["decisions", "error_decision", "unavailable_denied", of_rule] {
            assert!(counted.contains(name), "{name} {counted}");
        }
    }
}
