//! Invalid configurations are refused, with the field named. Some tests pass the same list
//! through a real Envoy.

use serde_json::{Value, json};
use sluicegate_rules::{ConfigError, config};

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
        "version": 2,
        "sidecar": { "cluster": "sluicegate", "timeout": "50ms" },
        "rule_sets": { "default": "gateway" },
        "until_rules": { "hold": "1s" },
    })
}

fn parse(bytes: &[u8]) -> Result<(), ConfigError> {
    config::settings(config::json(bytes)?).map(drop)
}

#[test]
fn the_valid_configuration_is_accepted() {
    let error = parse(good().to_string().as_bytes()).err();
    assert!(error.is_none(), "{error:?}");
}

/// The list, which `tests/chain` passes through a real Envoy too: a broken value at a JSON pointer, and the field and message
/// that the error must have.
#[test]
fn each_broken_configuration_is_refused_with_the_field_named() {
    let list: Vec<Value> = serde_json::from_str(include_str!("broken.json")).unwrap();
    assert!(list.len() >= 25, "{}", list.len());
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
    let twice = r#"{"version":2,"version":2,"sidecar":{"cluster":"s"}}"#;
    for text in [
        "", " ", "{", "[]", "null", "7", "\0", "{} {}", twice, "\n\u{1}",
    ] {
        assert!(parse(text.as_bytes()).is_err(), "{text:?}");
    }
    assert!(parse(&[0xff; 64]).is_err());
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(deep.as_bytes()).is_err());
}
