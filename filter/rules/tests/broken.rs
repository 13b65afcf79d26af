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
