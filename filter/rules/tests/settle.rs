//! What requests reserve, how the end of a stream is read, and how it is told.

use std::collections::BTreeMap;
use std::rc::Rc;

use serde_json::{Value, json};
use sluicegate_protocol::{LimitStatus, Verdict};
use sluicegate_rules::{Evaluation, Facts, Question, Reserves, Taken, metadata};

use crate::support::{FakeRequest, Rules, checking, counted, get};

const RECEIPT: &str = "0123456789abcdef0123456789abcdef";

fn rules(cost: &Value) -> Rules {
    checking(&json!({ "limit": "l", "key": [{ "constant": "c" }], "cost": cost }).to_string())
}

fn asked(rules: &Rules, request: &FakeRequest) -> Question {
    match rules.evaluate(request) {
        Evaluation::Ask(question) => question,
        other => panic!("{other:?}"),
    }
}

fn admitted(receipts: &[&str]) -> Verdict<'static> {
    Verdict::Admitted(LimitStatus {
        check: 0,
        limit: "l".into(),
        quota: 10,
        window_ms: 1_000,
        remaining: 1,
        over: 0,
        reset_ms: 1,
        retry_after_ms: 0,
        until_changed: false,
        at_once: false,
        calendar: None,
        hold_ms: 0,
        unknown: Vec::new(),
        receipt: receipts
            .iter()
            .map(|receipt| (*receipt).to_owned())
            .collect(),
    })
}

fn reserves(question: &Question) -> Rc<Reserves> {
    let reserves = question.reserves(&[admitted(&[RECEIPT])], &Taken::default(), 0);
    reserves.expect("a receipt")
}

/// The attributes of a stream that has ended well.
fn whole() -> BTreeMap<&'static str, Vec<u8>> {
    let number = |number: u64| number.to_le_bytes().to_vec();
    [
        ("upstream.address", b"192.0.2.7:80".to_vec()),
        ("upstream.request_attempt_count", number(1)),
        ("response.code", number(200)),
        ("response.code_details", b"via_upstream".to_vec()),
        ("response.flags", number(0)),
        ("response.size", number(40)),
        ("request.duration", number(1_500_001)),
    ]
    .into()
}

/// The units that are settled; none if all is kept, and the hold only ends.
fn settled(reserves: &Rc<Reserves>, ended: &BTreeMap<&str, Vec<u8>>) -> Option<u64> {
    let facts = reserves.ended(&|path| ended.get(path.join(".").as_str()).cloned());
    let mut waiting = Facts::default();
    waiting.add(facts, 1);
    let body: Value = serde_json::from_slice(&waiting.next(u64::MAX)?).unwrap();
    let settle = &body["settles"][0];
    assert_eq!(settle["receipt"], RECEIPT);
    assert_eq!(settle["units"].is_null(), settle["within_ms"] == 1);
    settle["units"].as_u64()
}

fn usage(value: Value) -> Vec<u8> {
    metadata("usage", &value)
}

/// In the namespace that `metadata` writes.
fn told(name: &str) -> Value {
    json!({ "metadata": { "namespace": "envoy.filters.http.jwt_authn", "name": ["usage", name] } })
}

#[test]
fn reserves_are_read_from_the_request() {
    let cost = |reserve: Value| json!({ "reserve": reserve, "settle": { "from": told("total") } });
    let declared =
        usage(json!({ "a": 10, "b": "20", "c": "many", "d": -1, "e": 1e300, "model": "large" }));
    let weight = json!({ "by": told("model"), "table": { "large": 30, "default": 2 } });
    let weighted = |name: &str, weight: &Value| {
        let mut amount = told(name);
        amount["weight"] = weight.clone();
        amount
    };
    for (reserve, expected) in [
        (json!(0), 0),
        (json!(1001), 1_001),
        (told("a"), 10),
        (told("b"), 20),
        (told("absent"), 1),
        (told("e"), 1 << 31),
        (
            json!({ "largest": [told("a"), told("absent"), told("b")] }),
            20,
        ),
        (json!({ "largest": [told("absent")], "default": 7 }), 7),
        (json!({ "largest": [told("a"), told("c")] }), 1 << 31),
        (
            json!({ "largest": [told("a"), { "sum": [told("c")], "max": 90 }], "max": 50 }),
            50,
        ),
        (json!({ "sum": [told("a"), told("b"), 5] }), 35),
        (json!({ "sum": [told("a"), told("absent")] }), 1),
        (weighted("a", &weight), 300),
        (weighted("a", &json!(0.25)), 3),
        (json!({ "bytes": true }), 64),
        (json!({ "header": "x-units", "trusted": true }), 9),
        (
            json!({ "header": "x-none", "trusted": true, "default": 4 }),
            4,
        ),
    ] {
        let rules = rules(&cost(reserve.clone()));
        let headers: [(&str, &[u8]); 3] = [
            ("content-length", b"64"),
            ("x-units", b"3"),
            ("x-units", b"9"),
        ];
        let request = get("/", &headers).with("metadata", &declared);
        assert_eq!(
            asked(&rules, &request).checks[0].cost,
            expected,
            "{reserve}"
        );
    }
}

#[test]
fn the_end_of_a_stream_says_what_was_used() {
    let chosen = json!({ "from": told("total"), "max": 500, "unknown": 11, "failed": 12, "cut_before_first_byte": 13, "cut": "return" });
    let kept = json!({ "from": told("total"), "max": 500 });
    type Change = fn(&mut BTreeMap<&'static str, Vec<u8>>);
    let of = |value: Value| usage(json!({ "total": value }));
    let changes: [(&str, Change, Option<u64>, &str); 10] = [
        ("well", |_| {}, Some(11), "settle_unknown"),
        (
            "no upstream",
            |ended| drop(ended.remove("upstream.address")),
            Some(0),
            "settle_not_reached",
        ),
        (
            "not connected",
            |ended| drop(ended.insert("response.flags", 32_u64.to_le_bytes().into())),
            Some(0),
            "settle_not_reached",
        ),
        (
            "not connected again",
            |ended| {
                ended.insert("response.flags", 32_u64.to_le_bytes().into());
                ended.insert("upstream.request_attempt_count", 2_u64.to_le_bytes().into());
                ended.insert("response.code", 503_u64.to_le_bytes().into());
            },
            Some(12),
            "settle_failed",
        ),
        (
            "503",
            |ended| drop(ended.insert("response.code", 503_u64.to_le_bytes().into())),
            Some(12),
            "settle_failed",
        ),
        (
            "429",
            |ended| drop(ended.insert("response.code", 429_u64.to_le_bytes().into())),
            Some(12),
            "settle_failed",
        ),
        (
            "hang-up",
            |ended| drop(ended.insert("response.flags", (1_u64 << 14).to_le_bytes().into())),
            Some(0),
            "settle_cut",
        ),
        (
            "early hang-up",
            |ended| {
                ended.insert("response.flags", (1_u64 << 14).to_le_bytes().into());
                ended.insert("response.size", 0_u64.to_le_bytes().into());
            },
            Some(13),
            "settle_cut",
        ),
        (
            "reset upstream",
            |ended| {
                drop(ended.insert(
                    "response.code_details",
                    b"upstream_reset_after_response_started{x}".into(),
                ))
            },
            Some(0),
            "settle_cut",
        ),
        (
            "unreadable",
            |ended| ended.clear(),
            Some(11),
            "settle_unknown",
        ),
    ];
    for (name, change, expected, counter) in changes {
        for (settle, expected) in [
            (&chosen, expected),
            (&kept, expected.filter(|_| counter == "settle_not_reached")),
        ] {
            let rules = rules(&json!({ "reserve": 100, "settle": settle }));
            let mut ended = whole();
            change(&mut ended);
            let question = asked(&rules, &get("/", &[]));
            assert_eq!(settled(&reserves(&question), &ended), expected, "{name}");
            let counters = counted(&rules);
            assert!(
                counters.iter().any(|one| one.ends_with(counter)),
                "{name}: {counters:?}"
            );
            // A usage that is told counts, however the stream ended, unless nothing was sent.
            ended.insert("metadata", of(json!(70)));
            let expected = if counter == "settle_not_reached" {
                0
            } else {
                70
            };
            assert_eq!(
                settled(&reserves(&question), &ended),
                Some(expected),
                "{name}"
            );
        }
    }
    let rules = rules(&json!({ "reserve": 100, "settle": kept }));
    for (value, expected, is_odd) in [
        (json!(0), Some(0), false),
        (json!(2.5), Some(3), false),
        (json!("8"), Some(8), false),
        (json!(501), Some(500), true),
        (json!(1e300), Some(500), true),
        (json!(-3), Some(0), true),
        (json!("many"), None, true),
        (json!(true), None, true),
        (json!({}), None, true),
        (json!(null), None, false),
    ] {
        let question = asked(&rules, &get("/", &[]));
        let mut ended = whole();
        ended.insert("metadata", of(value.clone()));
        counted(&rules);
        assert_eq!(settled(&reserves(&question), &ended), expected, "{value}");
        let odd = counted(&rules)
            .iter()
            .any(|one| one.ends_with("settle_odd"));
        assert_eq!(odd, is_odd, "{value}");
    }
    // What the client has written before is no usage, until it changes.
    for (before, after, expected) in [(70, 70, None), (70, 71, Some(71))] {
        let request = get("/", &[]).with("metadata", &of(json!(before)));
        let question = asked(&rules, &request);
        let mut ended = whole();
        ended.insert("metadata", of(json!(after)));
        assert_eq!(settled(&reserves(&question), &ended), expected);
    }
}

#[test]
fn usage_is_also_a_status_a_header_a_size_and_a_time() {
    for (from, expected) in [
        (
            json!({ "status": { "200": 3, "2xx": 2, "default": 1 } }),
            Some(3),
        ),
        (json!({ "status": { "4xx": 2 } }), None),
        (json!({ "grpc_status": { "14": 5 } }), Some(5)),
        (json!({ "bytes": true, "weight": 0.1 }), Some(4)),
        (json!({ "milliseconds": true }), Some(2)),
        (json!({ "header": "x-cost", "trusted": true }), Some(6)),
        (
            json!({ "sum": [{ "bytes": true }, { "milliseconds": true, "weight": -100 }] }),
            Some(0),
        ),
    ] {
        let rules = rules(&json!({ "settle": { "from": from } }));
        let mut ended = whole();
        ended.insert("response.grpc_status", 14_u64.to_le_bytes().to_vec());
        let reserves = reserves(&asked(&rules, &get("/", &[])));
        reserves.read_headers(&|path| {
            (path == ["response", "headers", "x-cost"]).then(|| b"6".to_vec())
        });
        assert_eq!(settled(&reserves, &ended), expected, "{from}");
    }
    // A status counts also if Envoy itself has answered, of what never was sent.
    let rules = rules(&json!({ "settle": { "from": { "status": { "401": 1, "default": 0 } } } }));
    let mut ended = whole();
    ended.remove("upstream.address");
    ended.insert("response.code", 401_u64.to_le_bytes().to_vec());
    assert_eq!(
        settled(&reserves(&asked(&rules, &get("/", &[]))), &ended),
        Some(1)
    );
}

#[test]
fn facts_are_sent_until_they_are_confirmed_and_bounded() {
    let rules = rules(&json!({ "reserve": 5, "settle": { "from": told("total") } }));
    let question = asked(&rules, &get("/", &[]));
    let fact = |units: u64| {
        let mut ended = whole();
        ended.insert("metadata", usage(json!({ "total": units })));
        reserves(&question).ended(&|path| ended.get(path.join(".").as_str()).cloned())
    };
    let units = |body: Option<Vec<u8>>| -> Vec<u64> {
        let body: Value = serde_json::from_slice(&body.unwrap()).unwrap();
        let settles = body["settles"].as_array().unwrap();
        settles
            .iter()
            .map(|settle| settle["units"].as_u64().unwrap())
            .collect()
    };
    let mut facts = Facts::default();
    assert_eq!(facts.next(u64::MAX), None);
    facts.add(fact(1), 1_000);
    facts.add(fact(2), 2_000);
    assert_eq!(facts.next(2_000), None, "they wait for others");
    assert_eq!(units(facts.next(45_000)), [1, 2]);
    facts.add(fact(3), 46_000);
    assert_eq!(facts.next(u64::MAX), None, "one callout at a time");
    // The first is confirmed, the second not: it goes again, before later ones, and not at once.
    facts.answered(
        Some(br#"{"outcomes":[{"outcome":"returned","units":4},{"outcome":"unavailable"}]}"#),
        50_000,
    );
    assert_eq!(facts.next(51_000), None);
    assert_eq!(units(facts.next(160_000)), [2, 3]);
    // No answer, or one that is none: again, each time later.
    for body in [None, Some(&b"{"[..]), Some(&b"{\"outcomes\":[]}"[..])] {
        facts.answered(body, 200_000);
        assert_eq!(facts.next(201_000), None);
        assert_eq!(units(facts.next(u64::MAX)), [2, 3]);
    }
    // While a sidecar answers, and its store does not, not much later; nor if it does not know the limit, which another one may.
    let both = |outcome: &str| format!(r#"{{"outcomes":[{outcome},{outcome}]}}"#);
    facts.answered(Some(both(r#"{"outcome":"unavailable"}"#).as_bytes()), 0);
    assert_eq!(facts.next(399_999), None);
    assert_eq!(units(facts.next(400_000)), [2, 3]);
    let unknown = both(r#"{"outcome":"error","code":"unknown_limit","message":""}"#);
    facts.answered(Some(unknown.as_bytes()), 0);
    assert_eq!(facts.next(99_999), None);
    assert_eq!(units(facts.next(100_000)), [2, 3]);
    facts.answered(
        Some(br#"{"outcomes":[{"outcome":"charged","units":7},{"outcome":"unknown"}]}"#),
        0,
    );
    assert!(facts.is_empty());
    let counts: BTreeMap<String, usize> =
        counted(&rules)
            .into_iter()
            .fold(BTreeMap::new(), |mut counts, name| {
                *counts
                    .entry(name.rsplit("rule_").next().unwrap().to_owned())
                    .or_default() += 1;
                counts
            });
    for (name, count) in [
        ("settle_units_returned", 4),
        ("settle_units_charged", 7),
        ("settle_lost", 0),
    ] {
        let counted = counts.get(name).copied().unwrap_or(0);
        assert_eq!(counted, count, "{name}: {counts:?}");
    }
    // 4,096 wait; then the oldest are lost, with what they were to charge beyond the reserve.
    for n in 0..4_100 {
        facts.add(fact(6 + n), 1);
    }
    let lost = counted(&rules);
    assert_eq!(
        lost.iter()
            .filter(|name| name.ends_with("settle_lost"))
            .count(),
        4
    );
    assert_eq!(
        lost.iter()
            .filter(|name| name.ends_with("settle_units_lost"))
            .count(),
        1 + 2 + 3 + 4
    );
    let mut sent = Vec::new();
    while let Some(body) = facts.next(u64::MAX) {
        let batch = units(Some(body));
        assert!(batch.len() <= 256);
        let outcomes: Vec<_> = batch
            .iter()
            .map(|_| r#"{"outcome":"charged","units":1}"#)
            .collect();
        sent.extend(batch);
        facts.answered(
            Some(format!(r#"{{"outcomes":[{}]}}"#, outcomes.join(",")).as_bytes()),
            0,
        );
    }
    assert_eq!(sent, (10..4_106).collect::<Vec<_>>());
    // Nobody knows the limit.
    facts.add(fact(11), 0);
    for times in 0..=20 {
        assert!(facts.next(u64::MAX).is_some(), "{times}");
        let only = r#"{"outcomes":[{"outcome":"error","code":"unknown_limit","message":""}]}"#;
        facts.answered(Some(only.as_bytes()), 0);
    }
    assert!(facts.is_empty());
    let lost = counted(&rules);
    let lost = lost.iter().filter(|name| name.ends_with("settle_lost"));
    assert_eq!(lost.count(), 1);
}

#[test]
fn a_hold_of_several_checks_is_settled_once_and_renewed_while_its_stream_lives() {
    let check = |cost: Value| json!({ "limit": "l", "key": [{ "constant": "c" }], "cost": cost });
    let settled_check =
        check(json!({ "reserve": 100, "settle": { "from": told("total"), "within": "30s" } }));
    let rules = crate::support::rules(&json!({
        "name": "r", "checks": [settled_check, check(json!(3)), { "limit": "other", "key": [{ "constant": "c" }] }], "when_unavailable": "allow",
    }).to_string());
    let question = asked(&rules, &get("/", &[]));
    let verdict = admitted(&[RECEIPT, RECEIPT, ""]);
    let reserves = || {
        let verdicts = std::slice::from_ref(&verdict);
        let reserves = question.reserves(verdicts, &Taken::default(), 1_000_000);
        reserves.unwrap()
    };
    let mut ended = whole();
    ended.insert("metadata", usage(json!({ "total": 40 })));
    assert_eq!(settled(&reserves(), &ended), Some(43));
    assert_eq!(settled(&reserves(), &whole()), None, "all is kept");

    let reserves = reserves();
    assert!(reserves.renewals(1_000_000).is_empty());
    assert!(reserves.renewals(10_999_999).is_empty());
    let mut facts = Facts::default();
    facts.add(reserves.renewals(11_000_000), 1);
    let body: Value = serde_json::from_slice(&facts.next(u64::MAX).unwrap()).unwrap();
    assert_eq!(body["settles"][0]["within_ms"], 30_000);
    assert_eq!(body["settles"][0]["units"], Value::Null);
    // The next sign is as good.
    facts.answered(None, 0);
    assert!(facts.is_empty());
    assert_eq!(
        counted(&rules)
            .iter()
            .filter(|name| name.ends_with("settle_lost"))
            .count(),
        0
    );
}

#[test]
fn what_is_wrong_with_a_settled_cost_is_named() {
    let of = |cost: Value| {
        let rule = json!({ "name": "r", "checks": [{ "limit": "l", "key": [{ "constant": "c" }], "cost": cost }], "when_unavailable": "allow" });
        let rules = json!({ "sidecar": { "cluster": "c" }, "rules": [rule] });
        Rules::read(rules).map(drop)
    };
    let from = |from: Value| json!({ "settle": { "from": from } });
    let deep = (0..17).map(|_| told("a")).collect::<Vec<_>>();
    for (cost, field, why) in [
        (json!({ "reserve": 1 }), "cost.settle", "missing"),
        (json!({ "settle": {} }), "settle.from", "missing"),
        (
            json!({ "reserve": 1, "settle": { "from": told("a") }, "default": 1 }),
            "cost.default",
            "no field",
        ),
        (
            json!({ "reserve": 4294967296_u64, "settle": { "from": told("a") } }),
            "cost.reserve",
            "more than",
        ),
        (
            json!({ "reserve": { "milliseconds": true }, "settle": { "from": told("a") } }),
            "reserve.milliseconds",
            "in `settle` only",
        ),
        (
            json!({ "reserve": { "status": { "200": 1 } }, "settle": { "from": told("a") } }),
            "reserve.status",
            "in `settle` only",
        ),
        (
            json!({ "most": "0%", "settle": { "from": told("a") } }),
            "cost.most",
            "`1%` to `100%`",
        ),
        (
            json!({ "most": "101%", "settle": { "from": told("a") } }),
            "cost.most",
            "`101%`",
        ),
        (from(json!({})), "settle.from", "0 sources"),
        (
            from(json!({ "bytes": true, "milliseconds": true })),
            "settle.from",
            "2 sources",
        ),
        (from(json!({ "bytes": false })), "from.bytes", "`false`"),
        (
            from(json!({ "header": "x" })),
            "from.trusted",
            "upstream chooses",
        ),
        (
            from(json!({ "status": { "6xx": 1 } })),
            "status.6xx",
            "no status",
        ),
        (from(json!({ "status": {} })), "from.status", "0 entries"),
        (
            from(json!({ "status": { "200": -1 } })),
            "status.200",
            "less than 0",
        ),
        (
            from(json!({ "grpc_status": { "17": 1 } })),
            "grpc_status.17",
            "`0` to `16`",
        ),
        (from(json!({ "sum": [] })), "from.sum", "empty"),
        (from(json!({ "sum": deep })), "sum[16]", "at most 16"),
        (
            from(json!({ "bytes": true, "weight": 1e9 })),
            "from.weight",
            "more than",
        ),
        (
            from(
                json!({ "bytes": true, "weight": { "by": { "jwt": { "payload": "p", "claim": "c" } }, "table": { "a": 1 } } }),
            ),
            "weight.table",
            "no `default`",
        ),
        (
            json!({ "settle": { "from": told("a"), "max": 0 } }),
            "settle.max",
            "0 is not",
        ),
        (
            json!({ "settle": { "from": told("a"), "failed": "free" } }),
            "settle.failed",
            "neither",
        ),
        (
            json!({ "settle": { "from": told("a"), "within": "1s" } }),
            "settle.within",
            "`1s`",
        ),
        (
            json!({ "settle": { "from": told("a"), "until": "1s" } }),
            "settle.until",
            "no field",
        ),
    ] {
        let error = of(cost.clone()).expect_err(&cost.to_string());
        assert!(error.field.ends_with(field), "{}: {error}", error.field);
        assert!(error.why.contains(why), "no {why} in {error}");
    }
}
