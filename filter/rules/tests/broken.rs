//! Configurations that are broken, each in its own way: refused with the field named. `envoy/sluicegate.schema.json`
//! is tested with the same list, and some of them go through a real Envoy.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod support;

use serde_json::{Value, json};
use sluicegate_rules::parse;

/// Where something is broken, by what, and what the message must say.
struct Broken {
    pointer: String,
    value: Value,
    field: String,
    why: String,
}

/// Puts a value at a JSON pointer; null takes the field away.
fn with(mut configuration: Value, pointer: &str, value: &Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match configuration.pointer_mut(parent).unwrap() {
        Value::Object(fields) if value.is_null() => {
            fields.remove(field);
        }
        Value::Object(fields) => {
            fields.insert(field.to_owned(), value.clone());
        }
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value.clone(),
        other => panic!("{pointer}: {other}"),
    }
    configuration
}

fn good() -> Value {
    json!({
        "version": 1,
        "sidecar": { "cluster": "sluicegate", "timeout": "50ms" },
        "rules": [{
            "name": "search",
            "match": { "path_template": "/v1/{id}", "methods": ["GET"] },
            "checks": [{
                "limit": "per-key",
                "key": [{ "header": "x-api-key" }, { "template": "id" }],
                "cost": 5,
                "when_missing": "deny",
            }],
            "when_unavailable": "allow",
        }],
    })
}

/// The list, which `tests/chain` sends through a real Envoy too.
fn broken() -> Vec<Broken> {
    let list: Vec<Value> = serde_json::from_str(include_str!("broken.json")).unwrap();
    list.into_iter()
        .map(|one| Broken {
            pointer: one["pointer"].as_str().unwrap().to_owned(),
            value: one["value"].clone(),
            field: one["field"].as_str().unwrap().to_owned(),
            why: one["why"].as_str().unwrap().to_owned(),
        })
        .collect()
}

#[test]
fn the_good_one_is_good() {
    let text = good().to_string();
    assert!(
        parse(text.as_bytes()).is_ok(),
        "{:?}",
        parse(text.as_bytes()).err()
    );
}

#[test]
fn each_of_more_than_fifty_broken_configurations_is_refused_with_the_field_named() {
    let broken = broken();
    assert!(broken.len() >= 50, "{}", broken.len());
    for Broken {
        pointer,
        value,
        field,
        why,
    } in broken
    {
        let text = with(good(), &pointer, &value).to_string();
        let error = parse(text.as_bytes()).expect_err(&text);
        assert_eq!(error.field, field, "{pointer} {value}: {error}");
        assert!(
            error.why.contains(&why),
            "{pointer} {value}: no {why} in {error}"
        );
    }
}

#[test]
fn what_is_no_configuration_at_all_is_refused() {
    for text in [
        "",
        " ",
        "{",
        "[]",
        "null",
        "7",
        "\u{0}",
        "{} {}",
        r#"{"rules":[],"rules":[]}"#,
        "\n\u{1}",
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse(&[0xff; 64]).is_err());
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_err());
}

#[test]
fn two_rules_of_one_name_are_refused_and_a_shadow_rule_cannot_stop_others() {
    let rule = good()["rules"][0].clone();
    let twice = with(good(), "/rules", &json!([rule, rule]));
    let error = parse(twice.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.field, "rules[1].name");
    let shadow = with(good(), "/rules/0/shadow", &json!(true));
    assert!(parse(shadow.to_string().as_bytes()).is_ok());
    let stopping = with(shadow, "/rules/0/stop", &json!(true));
    let error = parse(stopping.to_string().as_bytes()).unwrap_err();
    assert_eq!(error.field, "rules[0].stop");
}

#[test]
fn a_match_that_is_nested_too_deep_is_refused() {
    let mut matcher = json!({ "path": "/" });
    for _ in 0..20 {
        matcher = json!({ "not": matcher });
    }
    let deep = with(good(), "/rules/0/match", &matcher);
    let error = parse(deep.to_string().as_bytes()).unwrap_err();
    assert!(error.why.contains("levels"), "{error}");
}

/// A rule of so many checks, with more in it.
fn rule(name: &str, checks: usize, more: &Value) -> Value {
    let check = |n| json!({ "limit": format!("l{n}"), "key": [{ "constant": "c" }] });
    let mut rule = json!({ "name": name, "when_unavailable": "allow",
        "checks": (0..checks).map(check).collect::<Vec<_>>() });
    for (field, value) in more.as_object().unwrap() {
        rule[field] = value.clone();
    }
    rule
}

/// What is said of these rules; nothing if they are accepted.
fn said(rules: &[Value]) -> String {
    let configuration = with(good(), "/rules", &json!(rules));
    let error = parse(configuration.to_string().as_bytes()).err();
    error.map_or_else(String::new, |error| error.to_string())
}

/// Five rules of eight checks, each with one of these `match`es.
fn five(matches: [Value; 5]) -> Vec<Value> {
    let rules = matches.into_iter().enumerate();
    rules
        .map(|(n, matcher)| rule(&format!("r{n}"), 8, &json!({ "match": matcher })))
        .collect()
}

#[test]
fn f5_rules_that_one_request_can_match_with_more_checks_than_a_decision_may_have_are_refused() {
    let all = json!({});
    let everywhere = || five([0; 5].map(|_| json!({})));
    let refused = said(&everywhere());
    for part in [
        "rules",
        "40 checks",
        "`r0`, `r1`, `r2`, `r3`, `r4`",
        "may have 32",
        "`GET /`",
        "stop",
    ] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    for matches in [
        [
            json!({ "path_prefix": "/v1/" }),
            json!({ "path_template": "/v1/{id}/**" }),
            json!({ "methods": ["PUT"] }),
            json!({ "hosts": ["*.example.com"] }),
            json!({ "path": "/v1/x" }),
        ],
        [
            json!({ "headers": [{ "name": "x-a", "equals": "1" }] }),
            json!({ "query": [{ "name": "q", "prefix": "a" }] }),
            json!({ "headers": [{ "name": "x-b", "present": true }] }),
            json!({ "any": [{ "path": "/a" }] }),
            json!({ "path_regex": "/a" }),
        ],
        [
            json!({ "not": { "path": "/b" } }),
            json!({ "path": "/a" }),
            all.clone(),
            all.clone(),
            all.clone(),
        ],
    ] {
        assert!(
            said(&five(matches.clone())).contains("40 checks"),
            "{matches:?}"
        );
    }
    // A claim, a cookie, a hop and a variable that are there.
    let key = json!([{ "jwt": { "payload": "p", "claim": ["a", "b"] } }, { "cookie": "s" }, { "query": "q" },
        { "header": "x-a" }, { "address": { "trusted_hops": 3 } }, { "mtls": "spiffe" }]);
    let mut keyed = everywhere();
    for rule in &mut keyed {
        rule["checks"][7]["key"] = key.clone();
    }
    keyed[4]["checks"] = json!([keyed[4]["checks"][7]]);
    assert!(said(&keyed).contains("33 checks"), "{}", said(&keyed));
}

#[test]
fn f5_rules_that_no_request_can_match_together_are_accepted_however_many_checks_they_have() {
    let all = json!({});
    let other = |matcher: &Value| {
        five([
            matcher.clone(),
            all.clone(),
            all.clone(),
            all.clone(),
            json!({ "path": "/a" }),
        ])
    };
    for matcher in [
        json!({ "path": "/b" }),
        json!({ "not": { "path": "/a" } }),
        json!({ "path_prefix": "/b/" }),
        json!({ "path_regex": "/b+" }),
        json!({ "path_template": "/b/{x}" }),
    ] {
        assert_eq!(said(&other(&matcher)), "", "{matcher}");
    }
    for [one, another] in [
        [json!({ "methods": ["GET"] }), json!({ "methods": ["PUT"] })],
        [
            json!({ "hosts": ["a.example"] }),
            json!({ "hosts": ["*.a.example"] }),
        ],
        [
            json!({ "headers": [{ "name": "x-a", "present": true }] }),
            json!({ "headers": [{ "name": "X-A", "present": false }] }),
        ],
    ] {
        let rules = five([one, another, all.clone(), all.clone(), all.clone()]);
        assert_eq!(said(&rules), "");
    }
    // A key that is not there where the rule before it matches, a rule that stops, and rules that nobody enforces.
    let mut anonymous = five([
        json!({ "headers": [{ "name": "x-a", "present": false }] }),
        all.clone(),
        all.clone(),
        all.clone(),
        all.clone(),
    ]);
    for check in anonymous[4]["checks"].as_array_mut().unwrap() {
        check["key"] = json!([{ "header": "x-a" }]);
    }
    assert_eq!(said(&anonymous), "");
    for more in [json!({ "stop": true }), json!({ "shadow": true })] {
        let mut rules = five([0; 5].map(|_| all.clone()));
        rules[3] = rule("r3", 8, &more);
        assert_eq!(said(&rules), "", "{more}");
    }
    let paths = (0..256).map(|n| {
        rule(
            &format!("r{n}"),
            8,
            &json!({ "match": { "path": format!("/{n}") } }),
        )
    });
    assert_eq!(said(&paths.collect::<Vec<_>>()), "");
}
