//! Invalid configurations are refused, with the field named. The tests of `envoy/sluicegate.schema.json` use the same
//! list, and some tests pass it through a real Envoy.

use serde_json::{Value, json};
use sluicegate_rules::parse;

/// Sets a value at a JSON pointer; null removes the field.
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

#[test]
fn the_valid_configuration_is_accepted() {
    let error = parse(good().to_string().as_bytes()).err();
    assert!(error.is_none(), "{error:?}");
}

/// The list, which `tests/chain` passes through a real Envoy too: a broken value at a JSON pointer, and the field and message
/// that the error must have.
#[test]
fn each_of_more_than_fifty_broken_configurations_is_refused_with_the_field_named() {
    let list: Vec<Value> = serde_json::from_str(include_str!("broken.json")).unwrap();
    assert!(list.len() >= 50, "{}", list.len());
    for one in list {
        let [pointer, field, why] =
            ["pointer", "field", "why"].map(|name| one[name].as_str().unwrap());
        let text = with(good(), pointer, &one["value"]).to_string();
        let error = parse(text.as_bytes()).expect_err(&text);
        assert_eq!(error.field, field, "{one}: {error}");
        assert!(error.why.contains(why), "{one}: no {why} in {error}");
    }
}

#[test]
fn input_that_is_not_a_configuration_is_refused() {
    let twice = r#"{"rules":[],"rules":[]}"#;
    for text in [
        "", " ", "{", "[]", "null", "7", "\0", "{} {}", twice, "\n\u{1}",
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse(&[0xff; 64]).is_err());
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_err());
}

#[test]
fn two_rules_with_one_name_are_refused_and_a_shadow_rule_cannot_stop_others() {
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
