//! How the sidecar's answer, or its absence, affects a waiting request.

use crate::support::answered::{answer, answered, field, reply, rule, verdict};
use crate::support::{get, question, request, rows, rules};
use sluicegate_rules::{Conclusion, Reply, Taken, question_body};

const GRPC: (&str, &[u8]) = ("content-type", b"application/grpc+proto");

/// The conclusion for a request with a rule that says this more, and the counters that it increments.
fn outcome(more: &str, verdicts: &str) -> (Conclusion, Vec<String>) {
    let rules = rule(more);
    let question = question(&rules, &get("/", &[]));
    answered(&question, &answer(&[verdicts.to_owned()]))
}

const ALLOW: &str = r#","when_unavailable":"allow""#;
const DENY: &str = r#","when_unavailable":"deny""#;

#[test]
fn a_denial_becomes_a_429_with_the_configured_limit_name_not_the_answers() {
    let (conclusion, counted) = outcome(ALLOW, &verdict("denied"));
    let reply = reply(conclusion);
    assert_eq!((reply.status, reply.grpc_status), (429, 8));
    for (name, value) in [
        ("retry-after", "2"),
        ("retry-after-ms", "1001"),
        ("x-envoy-ratelimited", "true"),
        ("x-ratelimit-limit", "10"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset", "60"),
        ("ratelimit", "\"per-key/60s\";r=2;t=2"),
        ("ratelimit-policy", "\"per-key/60s\";q=10;w=60"),
        ("content-type", "application/problem+json"),
    ] {
        assert_eq!(field(&reply.headers, name), Some(value), "{name}");
    }
    let body = String::from_utf8(reply.body).unwrap();
    let expected = r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"limit `per-key` allows 10 per minute, this request costs 1, 2 are left; the same request is admitted in 2 seconds","limit":"per-key","retry_after_ms":1001}"#;
    assert_eq!(body, expected);
    let of_limit = "rule=.=r;.;limit=.=per-key;.;rule_limit_denied";
    assert_eq!(counted, ["denied", of_limit]);
}

/// As their APIs have them: fields of the limit that decided, by its unit, and an error object.
#[test]
fn a_rule_answers_as_the_api_of_a_model_does() {
    let text = "limit `per-key` allows 10 per minute, this request costs 1, 2 are left; the same request is admitted in 2 seconds";
    let reset = "2026-11-27T05:41:00Z";
    for (family, units, names, reset, before, after) in [
        (
            "openai",
            r#"{"other":"tokens"}"#,
            "x-ratelimit-*-requests",
            "1m0s",
            r#"{"error":{"message":""#,
            r#"","type":"requests","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
        (
            "openai",
            r#"{"per-key":"input_tokens"}"#,
            "x-ratelimit-*-tokens",
            "1m0s",
            r#"{"error":{"message":""#,
            r#"","type":"tokens","param":null,"code":"rate_limit_exceeded"}}"#,
        ),
        (
            "anthropic",
            r#"{"per-key":"output_tokens"}"#,
            "anthropic-ratelimit-output-tokens-*",
            reset,
            r#"{"type":"error","error":{"type":"rate_limit_error","message":""#,
            r#""}}"#,
        ),
    ] {
        let more = |more: &str| {
            format!(
                r#"{ALLOW},"reply":{{"headers":"{family}","units":{units},"on_admitted":true{more}}}"#
            )
        };
        let (conclusion, _) = outcome(&more(""), &verdict("denied"));
        let denied = reply(conclusion);
        let (conclusion, _) = outcome(&more(""), &verdict("admitted"));
        let Conclusion::Continue(admitted, _) = conclusion else {
            panic!("{conclusion:?}");
        };
        for headers in [&denied.headers, &admitted] {
            for (which, value) in [("limit", "10"), ("remaining", "2"), ("reset", reset)] {
                let name = names.replace('*', which);
                assert_eq!(field(headers, &name), Some(value), "{name}");
            }
            let policy = Some("\"per-key/60s\";q=10;w=60");
            assert_eq!(field(headers, "ratelimit-policy"), policy);
            let available = field(headers, "ratelimit").expect("beside them");
            assert!(available.starts_with("\"per-key/60s\";r=2;t="));
            assert_eq!(field(headers, "x-ratelimit-limit"), None);
        }
        assert_eq!(field(&denied.headers, "retry-after"), Some("2"));
        assert_eq!(field(&denied.headers, "retry-after-ms"), Some("1001"));
        let content_type = field(&denied.headers, "content-type");
        assert_eq!(content_type, Some("application/json"));
        let body = String::from_utf8(denied.body).unwrap();
        assert_eq!(body, format!("{before}{text}{after}"));
        let (conclusion, _) = outcome(&more(r#","body":"own""#), &verdict("denied"));
        assert_eq!(reply(conclusion).body, b"own");
    }
}

#[test]
fn a_rule_sets_the_headers_and_the_body_of_its_replies() {
    for (style, draft, legacy) in [
        ("none", false, false),
        ("draft", true, false),
        ("legacy", false, true),
        ("both", true, true),
    ] {
        let more = format!(
            r#"{ALLOW},"reply":{{"headers":"{style}","body":"<h1>Slow down</h1>","content_type":"text/html"}}"#
        );
        let (conclusion, _) = outcome(&more, &verdict("denied"));
        let reply = reply(conclusion);
        assert_eq!(
            field(&reply.headers, "ratelimit").is_some(),
            draft,
            "{style}"
        );
        let has_legacy = field(&reply.headers, "x-ratelimit-limit").is_some();
        assert_eq!(has_legacy, legacy, "{style}");
        assert_eq!(field(&reply.headers, "retry-after"), Some("2"), "{style}");
        assert_eq!(field(&reply.headers, "content-type"), Some("text/html"));
        assert_eq!(reply.body, b"<h1>Slow down</h1>");
    }
}

#[test]
fn admitted_responses_have_limit_headers_if_the_rule_asks_for_them() {
    for (reply, expected) in [
        ("{}", 0),
        (r#"{"on_admitted":true}"#, 5),
        (r#"{"on_admitted":true,"headers":"draft"}"#, 2),
    ] {
        let more = format!(r#"{ALLOW},"reply":{reply}"#);
        let (conclusion, counted) = outcome(&more, &verdict("admitted"));
        let Conclusion::Continue(headers, _) = conclusion else {
            panic!("{conclusion:?}")
        };
        assert_eq!(headers.iter().count(), expected, "{reply}");
        assert_eq!(counted, ["admitted"]);
    }
}

#[test]
fn grpc_clients_get_a_grpc_status_and_a_message_without_json() {
    let rules = rule(r#","when_unavailable":"deny","reply":{"body":"plain"}"#);
    let question = question(&rules, &request("POST", "/a.B/C", &[GRPC]));
    assert!(question.grpc);
    let over = r#"{"outcome":"error","code":"cost_over_limit","message":"m"}"#.to_owned();
    let unavailable = r#"{"outcome":"unavailable"}"#.to_owned();
    for (verdict, status) in [(verdict("denied"), 8), (over, 3), (unavailable, 14)] {
        let (conclusion, _) = answered(&question, &answer(&[verdict]));
        let reply = reply(conclusion);
        assert_eq!(reply.grpc_status, status);
        assert_eq!(field(&reply.headers, "content-type"), None);
        assert!(!reply.body.starts_with(b"{") && reply.body != b"plain");
    }
    // F15: the same test as Envoy's.
    for (content_type, grpc) in [
        ("application/grpc", true),
        ("application/grpc+proto", true),
        ("application/grpc;", false),
        ("application/grpc; charset=utf-8", false),
        ("application/grpc-web", false),
        ("application/json", false),
    ] {
        let request = get("/", &[("content-type", content_type.as_bytes())]);
        let asked = crate::support::question(&rules, &request);
        assert_eq!(asked.grpc, grpc, "{content_type}");
    }
}

#[test]
fn a_cost_over_the_limit_is_a_client_error_without_retry_after() {
    let over = r#"{"outcome":"error","code":"cost_over_limit","message":"m"}"#;
    let (conclusion, counted) = outcome(ALLOW, over);
    let reply = reply(conclusion);
    assert_eq!(reply.status, 422);
    assert_eq!(field(&reply.headers, "retry-after"), None);
    assert_eq!(counted, ["refused_cost_over_limit"]);
}

#[test]
fn without_a_verdict_when_unavailable_applies_and_the_cause_is_counted() {
    let bodies = r#"
        error_body | 
        error_body | {
        error_body | null
        error_body | {"epoch":1}
        error_body | {"epoch":1,"verdicts":[]}
        error_body | {"epoch":1,"verdicts":[{"outcome":"unavailable"},{"outcome":"unavailable"}]}
        error_body | {"epoch":1,"verdicts":[{"outcome":"maybe"}]}
        error_store | {"epoch":1,"verdicts":[{"outcome":"unavailable"}]}
        error_decision | {"epoch":1,"verdicts":[{"outcome":"error","code":"unknown_limit","message":"m"}]}
        error_decision | {"epoch":1,"verdicts":[{"outcome":"error","code":"new","message":"m"}]}
    "#;
    let elsewhere = answer(&[verdict("denied").replace(r#""check":0"#, r#""check":7"#)]);
    for [kind, body] in rows(bodies).chain([["error_body", &elsewhere]]) {
        let allow = rule(ALLOW);
        let (conclusion, counted) = answered(&question(&allow, &get("/", &[])), body);
        let reason = kind.strip_prefix("error_").unwrap();
        let why = format!("{{rule=r,reason={reason}}}");
        let unmetered = Conclusion::Unmetered(format!("sluicegate_unmetered{why}"));
        assert_eq!(conclusion, unmetered, "{body}");
        let of_rule = "rule=.=r;.;rule_unavailable_allowed";
        assert_eq!(counted, ["unavailable_allowed", kind, of_rule], "{body}");
        let deny = rule(DENY);
        let (conclusion, counted) = answered(&question(&deny, &get("/", &[])), body);
        let reply = reply(conclusion);
        assert_eq!(reply.status, 503, "{body}");
        assert_eq!(field(&reply.headers, "retry-after"), Some("1"), "{body}");
        assert_eq!(*reply.details, format!("sluicegate_unavailable{why}"));
        let text = String::from_utf8(reply.body).unwrap();
        let says = ["did not answer", "misconfigured"][usize::from(reason == "decision")];
        assert!(text.contains(says), "{text}");
        let of_rule = "rule=.=r;.;rule_unavailable_denied";
        assert_eq!(counted, ["unavailable_denied", kind, of_rule], "{body}");
    }
}

/// The sidecar has decided by the limits that it knows; of the others it gives the indices.
#[test]
fn for_limits_that_the_sidecar_does_not_know_their_own_rules_decide() {
    let one = |name: &str, when: &str| {
        format!(
            r#"{{"name":"{name}","checks":[{{"limit":"{name}","key":[{{"constant":"c"}}]}}],"when_unavailable":"{when}"}}"#
        )
    };
    let both = rules(&format!(
        "{},{}",
        one("open", "allow"),
        one("closed", "deny")
    ));
    let asked = question(&both, &get("/", &[]));
    let of_rule = |rule: &str, what: &str| format!("rule=.={rule};.;rule_unavailable_{what}");
    // A rule with `allow` would not have denied it. If the policy did, all rules are alike.
    for (then, denied_by) in [
        ("", &["closed"][..]),
        (r#","then":"deny""#, &["open", "closed"]),
    ] {
        let body = answer(&[format!(r#"{{"outcome":"unavailable"{then}}}"#)]);
        let (conclusion, counted) = answered(&asked, &body);
        assert_eq!(reply(conclusion).status, 503);
        let mut expected = vec!["unavailable_denied".to_owned(), "error_store".to_owned()];
        expected.extend(denied_by.iter().map(|rule| of_rule(rule, "denied")));
        assert_eq!(counted, expected, "{then}");
    }
    let answer = |outcome: &str, check: usize, unknown: usize| {
        let verdict = verdict(outcome).replace(r#""check":0"#, &format!(r#""check":{check}"#));
        let unknown = format!(r#","unknown":[{unknown}]}}"#);
        answer(&[verdict.replace('}', &unknown)])
    };
    let (conclusion, counted) = answered(&asked, &answer("admitted", 1, 0));
    let unmetered = "sluicegate_unmetered{rule=open,reason=decision}".to_owned();
    assert_eq!(conclusion, Conclusion::Unmetered(unmetered));
    let expected = [
        "unavailable_allowed",
        "error_decision",
        &of_rule("open", "allowed"),
    ];
    assert_eq!(counted, expected);
    let (conclusion, counted) = answered(&asked, &answer("admitted", 0, 1));
    assert_eq!(reply(conclusion).status, 503);
    let expected = [
        "unavailable_denied",
        "error_decision",
        &of_rule("closed", "denied"),
    ];
    assert_eq!(counted, expected);
    let (conclusion, _) = answered(&asked, &answer("denied", 1, 0));
    assert_eq!(reply(conclusion).status, 429, "nothing hides a denial");
    let (conclusion, _) = answered(&asked, &answer("admitted", 0, 7));
    assert_eq!(reply(conclusion).status, 503, "no such check");
}

#[test]
fn when_store_is_down_overrides_when_unavailable() {
    let then = |then: &str| format!(r#"{{"outcome":"unavailable","then":"{then}"}}"#);
    let (conclusion, counted) = outcome(ALLOW, &then("deny"));
    assert_eq!(reply(conclusion).status, 503);
    let of_rule = "rule=.=r;.;rule_unavailable_denied";
    assert_eq!(counted, ["unavailable_denied", "error_store", of_rule]);
    let (conclusion, _) = outcome(DENY, &then("allow"));
    assert!(matches!(conclusion, Conclusion::Unmetered(_)));
}

#[test]
fn a_shadow_rule_is_counted_as_what_it_would_have_done_and_never_denies() {
    let shadow =
        r#"{"name":"s","shadow":true,"checks":[{"limit":"stricter","key":[{"constant":"c"}]}]}"#;
    let enforced = r#"{"name":"r","checks":[{"limit":"l","key":[{"constant":"c"}]}],"when_unavailable":"deny"}"#;
    let both = rules(&format!("{shadow},{enforced}"));
    let asked = question(&both, &get("/", &[]));
    assert_eq!(asked.decisions(), 2);
    let body = String::from_utf8(question_body(
        [(&asked, &Taken::default())],
        &[],
        Vec::new(),
        None,
    ))
    .unwrap();
    assert!(body.ends_with(r#""shadow":"s"}]}"#), "{body}");
    let table = "
        admitted | denied | 0 | admitted shadow_denied
        admitted | admitted | 0 | admitted shadow_admitted
        denied | denied | 429 | denied shadow_denied rule=.=r;.;limit=.=l;.;rule_limit_denied
    ";
    for [first, second, status, counters] in rows(table) {
        let (conclusion, counted) = answered(&asked, &answer(&[verdict(first), verdict(second)]));
        let given = match conclusion {
            Conclusion::Continue(_, told) => (0, told),
            Conclusion::Answer(reply) => (reply.status, reply.subject.unwrap().to_string()),
            other => panic!("{other:?}"),
        };
        let (given, told) = given;
        let told_shadow = format!("sluicegate_shadow{{rule=s,limit=stricter,verdict={second}}}");
        assert!(told.ends_with(&told_shadow), "{told}");
        assert_eq!(
            told.starts_with("sluicegate_denied{subject="),
            given == 429,
            "{told}"
        );
        let of_shadow = " rule=.=s;.;limit=.=stricter;.;rule_limit_shadow_";
        let counters = counters.replace(" shadow_", of_shadow);
        assert_eq!(
            (given.to_string(), counted.join(" ")),
            (status.to_owned(), counters)
        );
    }
    // A request that only shadow rules match does not depend on a verdict.
    let alone = rules(shadow);
    let asked = question(&alone, &get("/", &[]));
    let (conclusion, counted) = answered(&asked, "");
    assert_eq!(conclusion, Conclusion::unchanged());
    assert_eq!(counted, ["error_body"]);
}

/// The reply to a denied client.
fn denied(retry_after_ms: u64, reset_ms: u64, window_ms: u64, grpc: bool) -> Reply {
    let rules = rule(ALLOW);
    let headers: &[(&str, &[u8])] = if grpc { &[GRPC] } else { &[] };
    let question = question(&rules, &request("POST", "/a.B/C", headers));
    let verdict = verdict("denied")
        .replace("59001", &reset_ms.to_string())
        .replace("1001", &retry_after_ms.to_string())
        .replace("60000", &window_ms.to_string());
    reply(answered(&question, &answer(&[verdict])).0)
}

/// A block without an end was told to end when its `Retry-After` said to ask again.
#[test]
fn a_denial_until_an_operator_changes_something_has_no_time_in_words() {
    let rules = rule(ALLOW);
    let verdict =
        verdict("denied").replace(r#""remaining""#, r#""until_changed":true,"remaining""#);
    for headers in [&[][..], &[GRPC]] {
        let question = question(&rules, &request("POST", "/a.B/C", headers));
        let reply = reply(answered(&question, &answer(std::slice::from_ref(&verdict))).0);
        let body = String::from_utf8(reply.body).unwrap();
        let told = "limit `per-key` denies this request until its operator changes that";
        assert!(body.contains(told) && !body.contains("100"), "{body}");
        assert!(
            headers.is_empty() == body.ends_with(r#""limit":"per-key"}"#),
            "{body}"
        );
        assert_eq!(field(&reply.headers, "retry-after"), Some("2"));
        assert_eq!(field(&reply.headers, "retry-after-ms"), None);
        assert_eq!(field(&reply.headers, "x-envoy-ratelimited"), Some("true"));
    }
}

/// As a sidecar answers where the policy has `rate: 0`. Its number of milliseconds is for filters that know no such answer.
#[test]
fn what_is_not_allowed_at_all_has_no_time_anywhere() {
    let rules = rule(ALLOW);
    let verdict = verdict("denied");
    let verdict = verdict.replace(r#""remaining""#, r#""until_changed":true,"remaining""#);
    let verdict = verdict.replace(r#""quota":10"#, r#""quota":0"#);
    for headers in [&[][..], &[GRPC]] {
        let question = question(&rules, &request("POST", "/a.B/C", headers));
        let reply = reply(answered(&question, &answer(std::slice::from_ref(&verdict))).0);
        let body = String::from_utf8(reply.body).unwrap();
        let told = "by limit `per-key`, this request is not allowed at all";
        assert!(body.contains(told) && !body.contains("100"), "{body}");
        assert_eq!(reply.status, 429);
        for absent in ["retry-after", "retry-after-ms", "x-ratelimit-reset"] {
            assert_eq!(field(&reply.headers, absent), None, "{absent}");
        }
        let available = field(&reply.headers, "ratelimit").unwrap();
        assert!(!available.contains(";t="), "{available}");
        let pushback = field(&reply.headers, "grpc-retry-pushback-ms");
        assert_eq!(pushback, (!headers.is_empty()).then_some("-1"));
    }
}

/// Two rules that count the same units by one limit take both costs.
#[test]
fn the_cost_of_a_denial_is_all_that_the_request_takes_from_the_limit() {
    let check = |cost| format!(r#"{{"limit":"per-key","cost":{cost},"key":[{{"constant":"c"}}]}}"#);
    let of = |name, cost| format!(r#"{{"name":"{name}","checks":[{}]{ALLOW}}}"#, check(cost));
    let rules = rules(&format!("{},{}", of("r", 20), of("s", 3)));
    let question = question(&rules, &get("/", &[]));
    let reply = reply(answered(&question, &answer(&[verdict("denied")])).0);
    let body = String::from_utf8(reply.body).unwrap();
    assert!(
        body.contains("allows 10 per minute, this request costs 23, 2 are left;"),
        "{body}"
    );
}

#[test]
fn t_of_a_denial_equals_retry_after() {
    // A `sliding_log` that is full for a minute, and whose oldest entry expires in a second.
    let reply = denied(1_000, 60_000, 60_000, false);
    let header = |name| field(&reply.headers, name).unwrap();
    assert_eq!(header("retry-after"), "1");
    assert_eq!(header("ratelimit"), "\"per-key/60s\";r=2;t=1");
    assert_eq!(header("x-ratelimit-reset"), "60", "it has another meaning");
    for retry_after_ms in [0, 1, 999, 1_000, 1_001, 59_999, 86_400_000] {
        let reply = denied(retry_after_ms, 86_400_000, 60_000, false);
        let header = |name| field(&reply.headers, name).unwrap();
        let (_, t) = header("ratelimit").split_once(";t=").unwrap();
        assert_eq!(t, header("retry-after"), "{retry_after_ms}");
    }
}

#[test]
fn t_of_an_admission_is_the_time_until_the_quota_is_full() {
    let more = format!(r#"{ALLOW},"reply":{{"on_admitted":true}}"#);
    let (conclusion, _) = outcome(&more, &verdict("admitted").replace("1001", "0"));
    let Conclusion::Continue(headers, _) = conclusion else {
        panic!("{conclusion:?}")
    };
    let ratelimit = field(&headers, "ratelimit").unwrap();
    assert_eq!(ratelimit, "\"per-key/60s\";r=2;t=60");
}

#[test]
fn each_window_of_a_limit_has_its_own_policy_name() {
    for (window_ms, name, w) in [
        (60_000, "\"per-key/60s\"", ";w=60"),
        (3_600_000, "\"per-key/3600s\"", ";w=3600"),
        (1_500, "\"per-key/1500ms\"", ""),
    ] {
        let reply = denied(1_000, 60_000, window_ms, false);
        let header = |name| field(&reply.headers, name).unwrap();
        assert_eq!(header("ratelimit"), format!("{name};r=2;t=1"));
        assert_eq!(header("ratelimit-policy"), format!("{name};q=10{w}"));
    }
}

#[test]
fn only_a_grpc_denial_has_a_retry_pushback_in_milliseconds() {
    let pushback = "grpc-retry-pushback-ms";
    for (grpc, expected) in [(true, Some("1001")), (false, None)] {
        let reply = denied(1_001, 60_000, 60_000, grpc);
        assert_eq!(field(&reply.headers, pushback), expected);
    }
    let rules = rule(DENY);
    let question = question(&rules, &request("POST", "/a.B/C", &[GRPC]));
    let over = r#"{"outcome":"error","code":"cost_over_limit","message":"m"}"#;
    for other in [over, r#"{"outcome":"unavailable"}"#] {
        let body = answer(&[other.to_owned()]);
        let reply = reply(answered(&question, &body).0);
        assert_eq!(field(&reply.headers, pushback), None, "{other}");
    }
}
