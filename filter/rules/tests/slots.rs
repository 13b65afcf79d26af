//! Slots: how they are freed and renewed, what a question carries of them, and what a denial by them says.

use std::rc::Rc;

use serde_json::{Value, json};
use sluicegate_certificates::CallTimes;
use sluicegate_protocol::{PolicyVersion, Verdict};
use sluicegate_rules::{DenialCache, Facts, Question, Reserves, Taken, question_body};

use crate::support::answered::{answer, answered, field, reply};
use crate::support::{Rules, counted, get, question, request};

/// A limit of 32 slots that live for 30 s and are renewed for a minute, and one of a rate.
const SET: &str = r#"{"set":"s","windows":{"streams":[[32,30000,60000]],"opens":[[100,60000]]}}"#;

fn rules(more: &str) -> Rules {
    let key = r#""key":[{"header":"x-user","plain":true}]"#;
    let rule = format!(
        r#"{{"name":"r","checks":[{{"limit":"opens",{key}}},{{"limit":"streams",{key}}}],"when_unavailable":"deny"{more}}}"#
    );
    let trial =
        format!(r#"{{"name":"trial","shadow":true,"checks":[{{"limit":"streams",{key}}}]}}"#);
    Rules::pushed(SET, &[&rule, &trial])
}

fn of(rules: &Rules, user: &str) -> Question {
    question(rules, &get("/", &[("x-user", user.as_bytes())]))
}

fn status(check: usize, more: &Value) -> Value {
    let mut status = json!({
        "outcome": "denied", "check": check, "limit": "streams", "quota": 32, "window_ms": 30_000, "remaining": 0, "reset_ms": 0,
        "retry_after_ms": 1_800, "at_once": true,
    });
    let more = more.as_object().unwrap().clone();
    status.as_object_mut().unwrap().extend(more);
    status
}

fn verdict(check: usize, more: &Value) -> Verdict<'static> {
    let text = status(check, more).to_string();
    serde_json::from_str::<Verdict<'_>>(&text)
        .unwrap()
        .into_owned()
}

/// What a request of this user holds from a moment on: enforced slots with this receipt, and those of the shadow rule.
fn held(rules: &Rules, user: &str, receipt: &str, now_us: u64) -> Rc<Reserves> {
    let admitted =
        |receipts: Value| verdict(0, &json!({ "outcome": "admitted", "receipt": receipts }));
    let verdicts = [
        admitted(json!(["", receipt])),
        admitted(json!([format!("shadow-{receipt}")])),
    ];
    let reserves = of(rules, user).reserves(&verdicts, &Taken::default(), now_us);
    reserves.expect("receipts")
}

/// What the body of a callout tells of the receipts in it: `a free`, `a live`.
fn told(body: Option<Vec<u8>>) -> Vec<String> {
    let body: Value = serde_json::from_slice(&body.unwrap_or_else(|| b"{}".to_vec())).unwrap();
    let settles = body["settles"].as_array();
    let settles = settles.into_iter().flatten().map(|settle| {
        let what = if settle["units"] == 0 { "free" } else { "live" };
        format!("{} {what}", settle["receipt"].as_str().unwrap())
    });
    settles.collect()
}

fn confirmed(count: usize) -> Vec<u8> {
    let outcomes = vec![json!({ "outcome": "returned", "units": 1 }); count];
    json!({ "outcomes": outcomes }).to_string().into_bytes()
}

#[test]
fn slots_are_freed_at_once_whichever_way_the_stream_ended_and_again_until_that_is_confirmed() {
    let (rules, mut facts) = (rules(""), Facts::default());
    let a = held(&rules, "u", "a", 0);
    // Nothing of the stream is read.
    let ended = a.ended(&|path| panic!("{path:?} was read"));
    assert!(facts.add(ended, 1_000), "the first wakes the root");
    let b = held(&rules, "u", "b", 0);
    assert!(!facts.add(b.unused(), 1_000), "it is awake");
    let first = ["a free", "shadow-a free", "b free", "shadow-b free"];
    assert_eq!(told(facts.next(1_000)), first);
    // One callout at a time; what ends meanwhile goes with the next, at once.
    assert!(!facts.add(held(&rules, "u", "c", 0).unused(), 2_000));
    assert_eq!(facts.next(2_000), None);
    facts.answered(Some(&confirmed(2)), 3_000);
    // The other two are in doubt: again, before later ones, and not at once, whatever else ends.
    assert!(!facts.add(held(&rules, "u", "d", 0).unused(), 3_000));
    assert_eq!(facts.next(4_000), None);
    let rest = [
        "b free",
        "shadow-b free",
        "c free",
        "shadow-c free",
        "d free",
        "shadow-d free",
    ];
    assert_eq!(told(facts.next(200_000)), rest);
    facts.answered(Some(&confirmed(6)), 200_000);
    assert!(facts.is_empty());
    assert!(facts.add(held(&rules, "u", "e", 0).unused(), 200_000));
    assert_eq!(told(facts.next(200_000)), ["e free", "shadow-e free"]);
    let counted = counted(&rules);
    assert!(
        !counted.iter().any(|name| name.contains("settle")),
        "{counted:?}"
    );
}

#[test]
fn a_living_stream_gives_signs_for_as_long_as_the_limit_allows_and_none_after_its_end() {
    let (rules, mut facts) = (rules(""), Facts::default());
    const S: u64 = 1_000_000;
    let a = held(&rules, "u", "a", 5 * S);
    assert!(a.renewals(15 * S - 1).is_empty());
    for due in [15, 25, 35, 45] {
        let signs = a.renewals(due * S);
        assert!(!facts.add(signs, due * S), "signs wait for others");
        assert_eq!(facts.next(due * S), None);
        assert_eq!(
            told(facts.next(due * S + 40_000)),
            ["a live", "shadow-a live"]
        );
        facts.answered(Some(&confirmed(2)), due * S + 40_000);
        assert!(facts.is_empty());
        assert!(a.renewals(due * S + 1).is_empty());
    }
    // Nothing is due at the next look, so nothing is at this.
    a.renew_before(55 * S - 1);
    assert!(a.renewals(54 * S).is_empty());
    // What is not answered is not sent again, but another sign soon.
    facts.add(a.renewals(55 * S), 55 * S);
    facts.next(55 * S + 40_000);
    facts.answered(None, 55 * S + 40_000);
    assert!(facts.is_empty());
    assert_eq!(a.renewals(56 * S).len(), 2);
    // It has lived for a minute. What goes on is counted once for each limit.
    counted(&rules);
    for due in [65, 75, 85] {
        assert!(a.renewals(due * S).is_empty());
    }
    assert_eq!(counted(&rules), ["slots_outlived", "slots_outlived"]);
    facts.add(a.unused(), 90 * S);
    assert_eq!(told(facts.next(200 * S)), ["a free", "shadow-a free"]);
    facts.answered(Some(&confirmed(2)), 200 * S);

    // The next look may be too late: it comes then at the earliest.
    let d = held(&rules, "u", "d", 0);
    d.renew_before(10 * S);
    assert_eq!(d.renewals(9 * S).len(), 2);
    assert!(d.renewals(19 * S - 1).is_empty());

    // A sign that waits when the stream ends is not sent.
    let b = held(&rules, "u", "b", 0);
    facts.add(b.renewals(10 * S), 210 * S);
    facts.add(b.unused(), 210 * S);
    assert_eq!(told(facts.next(210 * S)), ["b free", "shadow-b free"]);
    // One that is on its way arrives first: no question overtakes it with a release.
    facts.answered(Some(&confirmed(2)), 210 * S);
    let c = held(&rules, "u", "c", 0);
    facts.add(c.renewals(10 * S), 220 * S);
    assert_eq!(told(facts.next(221 * S)).len(), 2);
    facts.add(c.unused(), 221 * S);
    assert!(facts.releases(|_, _| true).is_empty());
    facts.answered(None, 221 * S);
    assert_eq!(facts.releases(|_, _| true).len(), 2);
}

#[test]
fn however_often_a_call_fails_the_next_comes_soon() {
    let (rules, mut facts) = (rules(""), Facts::default());
    facts.add(held(&rules, "u", "a", 0).unused(), 1);
    let mut now_us = 1;
    for failed in [None, Some(confirmed(0)), None, Some("x".into()), None, None] {
        assert_eq!(told(facts.next(now_us)).len(), 2);
        facts.answered(failed.as_deref(), now_us);
        assert_eq!(facts.next(now_us + 99_999), None);
        now_us += 400_000;
    }
}

#[test]
fn signs_leave_room_for_releases() {
    let (rules, mut facts) = (rules(""), Facts::default());
    for _ in 0..facts.room() / 2 {
        let stream = held(&rules, "u", "a", 0);
        facts.add(stream.renewals(10_000_000), 1);
        std::mem::forget(stream);
    }
    assert_eq!(facts.room(), 0);
    for _ in 0..1_024 {
        facts.add(held(&rules, "u", "b", 0).unused(), 1);
    }
    let (mut now_us, mut signs) = (1_000_000, 0);
    while let Some(body) = facts.next(now_us) {
        let told = told(Some(body));
        signs += told.iter().filter(|one| one.ends_with("live")).count();
        facts.answered(Some(&confirmed(told.len())), now_us);
        now_us += 1_000_000;
    }
    assert_eq!(signs, 2_048, "none was dropped");
}

#[test]
fn a_question_carries_what_is_not_confirmed_of_its_own_limits_and_keys() {
    let (rules, mut facts) = (rules(""), Facts::default());
    for (user, receipt) in [("u", "a"), ("v", "b")] {
        facts.add(held(&rules, user, receipt, 0).unused(), 1);
    }
    facts.next(1).expect("on their way");
    facts.add(held(&rules, "u", "c", 0).unused(), 1);
    let carried = |facts: &Facts, question: &Question, wait_ms| {
        let settles = facts.releases(|limit, key| question.asks(limit, key));
        let taken = Taken::default();
        let body = question_body([(question, &taken)], &[], settles, wait_ms);
        let body_as_json: Value = serde_json::from_slice(&body).unwrap();
        (told(Some(body)), body_as_json)
    };
    let asked = of(&rules, "u");
    let (settles, body) = carried(&facts, &asked, None);
    assert_eq!(
        settles,
        ["a free", "shadow-a free", "c free", "shadow-c free"]
    );
    assert_eq!(body["decisions"].as_array().unwrap().len(), 2);
    assert!(body.get("wait_ms").is_none());
    // Once more, for a slot: the enforced decision only.
    let (settles, body) = carried(&facts, &asked, Some(10));
    assert_eq!(settles.len(), 4);
    assert_eq!(
        (
            &body["wait_ms"],
            body["decisions"].as_array().unwrap().len()
        ),
        (&json!(10), 1)
    );
    facts.answered(Some(&confirmed(4)), 2);
    let (settles, _) = carried(&facts, &asked, None);
    assert_eq!(settles, ["c free", "shadow-c free"]);
    let (settles, body) = carried(&facts, &of(&rules, "w"), None);
    assert!(settles.is_empty() && body.get("settles").is_none());
}

#[test]
fn a_receipt_that_nobody_asked_for_is_one_of_slots_although_the_rules_do_not_say_so() {
    let rules = rules("");
    // As long as its receipt says that they last; as the shortest that there are if that cannot be read.
    let lasts_30_s = format!("{:0>30}{:018}", "1e", 0);
    for (receipt, sign_s) in [("of-opens", 1), (&lasts_30_s, 10)] {
        let admitted = verdict(
            0,
            &json!({ "outcome": "admitted", "receipt": [receipt, ""] }),
        );
        let question = of(&rules, "u");
        let reserves = question.reserves(&[admitted], &Taken::default(), 0);
        let reserves = reserves.expect("a receipt");
        assert_eq!(
            reserves.slots().collect::<Vec<_>>(),
            [("opens", "x-user=u")]
        );
        let mut facts = Facts::default();
        assert!(reserves.renewals(sign_s * 1_000_000 - 1).is_empty());
        facts.add(reserves.renewals(sign_s * 1_000_000), 1);
        assert_eq!(told(facts.next(u64::MAX)), [format!("{receipt} live")]);
    }
}

/// The enforced rules are denied by this check, and the shadow rule by slots.
fn denied(rules: &Rules, check: usize, more: &Value, grpc: bool) -> sluicegate_rules::Reply {
    let verdicts = [status(check, more), status(0, &json!({}))].map(|one| one.to_string());
    let headers: &[(&str, &[u8])] = &[("x-user", b"u"), ("content-type", b"application/grpc")];
    let headers = &headers[..if grpc { 2 } else { 1 }];
    let question = question(rules, &request("POST", "/a.B/C", headers));
    reply(answered(&question, &answer(&verdicts)).0)
}

#[test]
fn a_denial_by_slots_names_limit_and_kind_and_no_time_but_an_estimate() {
    let text = "limit `streams` allows 32 at once, this request needs 1, 0 are free; try again when others have ended, by an estimate in 2 seconds";
    let both = denied(&rules(""), 1, &json!({}), false);
    let body: Value = serde_json::from_slice(&both.body).unwrap();
    assert_eq!(
        body,
        json!({
            "type": "about:blank", "title": "Too Many Requests", "status": 429, "detail": text, "limit": "streams",
            "kind": "concurrent-requests", "retry_after_ms": 1_800,
        })
    );
    for (name, expected) in [
        ("retry-after", Some("2")),
        ("retry-after-ms", Some("1800")),
        ("ratelimit", Some("\"streams\";r=0")),
        (
            "ratelimit-policy",
            Some("\"opens/60s\";q=100;w=60, \"streams\";q=32;qu=\"concurrent-requests\""),
        ),
        ("x-ratelimit-limit", Some("32")),
        ("x-ratelimit-remaining", Some("0")),
        ("x-ratelimit-reset", None),
    ] {
        assert_eq!(field(&both.headers, name), expected, "{name}");
    }
    // An override has changed how many.
    let more = denied(
        &rules(""),
        1,
        &json!({ "quota": 40, "remaining": 1 }),
        false,
    );
    let policy = "\"opens/60s\";q=100;w=60, \"streams\";q=40;qu=\"concurrent-requests\"";
    assert_eq!(field(&more.headers, "ratelimit-policy"), Some(policy));
    assert_eq!(field(&more.headers, "ratelimit"), Some("\"streams\";r=1"));
    let grpc = denied(&rules(""), 1, &json!({}), true);
    assert_eq!(String::from_utf8(grpc.body).unwrap(), text);
    assert_eq!(field(&grpc.headers, "grpc-retry-pushback-ms"), Some("1800"));
    let openai = denied(
        &rules(r#","reply":{"headers":"openai"}"#),
        1,
        &json!({}),
        false,
    );
    assert!(String::from_utf8(openai.body).unwrap().contains(text));
    assert_eq!(
        field(&openai.headers, "x-ratelimit-reset-requests"),
        Some("2s")
    );
    // Blocked by an operator.
    let blocked = denied(&rules(""), 1, &json!({ "until_changed": true }), false);
    let body: Value = serde_json::from_slice(&blocked.body).unwrap();
    assert!(
        body["detail"]
            .as_str()
            .unwrap()
            .contains("until its operator changes that")
    );
    assert!(body.get("retry_after_ms").is_none());
}

#[test]
fn only_what_slots_alone_deny_is_asked_again_and_cached_until_some_are_free() {
    let rules = rules("");
    let question = of(&rules, "u");
    let by_slots = verdict(1, &json!({ "hold_ms": 20 }));
    let of_shadow = verdict(0, &json!({ "hold_ms": 20 }));
    let by_rate = verdict(0, &json!({ "at_once": false, "hold_ms": 20 }));
    let none = Taken::default();
    assert!(none.is_denied_by_slots(&question, &[by_slots.clone(), by_rate.clone()]));
    for other in [
        by_rate.clone(),
        verdict(1, &json!({ "outcome": "admitted" })),
        verdict(1, &json!({ "until_changed": true })),
        Verdict::Unavailable { then: None },
    ] {
        let verdicts = [other, by_slots.clone()];
        assert!(
            !none.is_denied_by_slots(&question, &verdicts),
            "{verdicts:?}"
        );
    }
    let mut only_shadow = question.clone();
    only_shadow.checks.clear();
    assert!(!none.is_denied_by_slots(&only_shadow, std::slice::from_ref(&by_slots)));

    let mut denials = DenialCache::default();
    let times = CallTimes {
        sent_us: 1_000,
        answered_us: 2_000,
    };
    let learn = |denials: &mut DenialCache, verdict: &Verdict<'static>| {
        let most_ms = denials.answered(PolicyVersion::default(), None, times);
        let verdicts = [verdict.clone(), of_shadow.clone()];
        denials.learn(&question, most_ms, &verdicts, times);
    };
    let ends: [(&Verdict<'static>, &str, &str, u64, bool); 5] = [
        (&by_slots, "streams", "x-user=v", 3_000, true),
        (&by_slots, "opens", "x-user=v", 3_000, true),
        (&by_slots, "none", "", 21_001, false),
        (&by_slots, "streams", "x-user=u", 3_000, false),
        // The shadow rule's denial has ended, and so the request is asked for.
        (&by_rate, "streams", "@shadow=trial;x-user=u", 3_000, false),
    ];
    for (verdict, limit, key, now_us, is_covered) in ends {
        learn(&mut denials, verdict);
        assert!(denials.covering(&question, 2_500).is_some());
        denials.released(limit, key, 3_000);
        let covered = denials.covering(&question, now_us);
        assert_eq!(covered.is_some(), is_covered, "{limit} {key}");
    }
}
