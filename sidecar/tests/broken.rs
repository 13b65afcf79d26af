//! Rules of a policy that are wrong: each is refused with the field named.

use serde_json::{Value, json};
use sluicegate::policy::Policy;

fn good() -> Value {
    json!({ "rules": [{
        "name": "search",
        "match": { "path_template": "/v1/{id}", "methods": ["GET"] },
        "checks": [{
            "limit": "per-key",
            "key": [{ "header": "x-api-key" }, { "template": "id" }],
            "cost": 5,
            "when_missing": "deny",
        }],
        "when_unavailable": "allow",
    }] })
}

/// What is wrong with a policy that has this set.
fn refused(set: &Value) -> Option<String> {
    let limit = "{ algorithm: sliding_log, windows: [{ quota: 100, per: 1m }] }";
    let limits = format!("limits: {{ per-key: {limit}, l: {limit}, g: {limit} }}");
    let sets = json!({ "s": set });
    let mistakes = Policy::parse(&format!("{limits}\nrules: {sets}\n")).err();
    mistakes.map(|mistakes| mistakes.to_string())
}

/// Sets a value at a JSON pointer; null removes the field.
fn with(mut set: Value, pointer: &str, value: &Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match set.pointer_mut(parent).unwrap() {
        Value::Object(fields) if value.is_null() => drop(fields.remove(field)),
        Value::Object(fields) => drop(fields.insert(field.to_owned(), value.clone())),
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value.clone(),
        other => panic!("{pointer}: {other}"),
    }
    set
}

#[test]
fn each_of_more_than_eighty_broken_rule_sets_is_refused_with_the_field_named() {
    assert_eq!(refused(&good()), None);
    let list: Vec<Value> = serde_json::from_str(include_str!("broken.json")).unwrap();
    assert!(list.len() >= 80, "{}", list.len());
    for one in list {
        let [pointer, field, why] =
            ["pointer", "field", "why"].map(|name| one[name].as_str().unwrap());
        let error = refused(&with(good(), pointer, &one["value"]));
        let error = error.unwrap_or_else(|| panic!("accepted: {one}"));
        assert!(
            error.contains(&format!("`rules.s.{field}`: ")),
            "{one}: {error}"
        );
        assert!(error.contains(why), "{one}: no {why} in {error}");
    }
}

#[test]
fn two_rules_with_one_name_are_refused_and_a_shadow_rule_cannot_stop_others() {
    let rule = good()["rules"][0].clone();
    let twice = refused(&with(good(), "/rules", &json!([rule, rule]))).unwrap();
    assert!(twice.contains("`rules.s.rules[1].name`: "), "{twice}");
    let shadow = with(good(), "/rules/0/shadow", &json!(true));
    assert_eq!(refused(&shadow), None);
    let stopping = refused(&with(shadow, "/rules/0/stop", &json!(true))).unwrap();
    assert!(stopping.contains("`rules.s.rules[0].stop`: "), "{stopping}");
}

#[test]
fn a_match_that_is_nested_too_deep_is_refused() {
    let mut matcher = json!({ "path": "/" });
    for _ in 0..20 {
        matcher = json!({ "not": matcher });
    }
    let deep = refused(&with(good(), "/rules/0/match", &matcher)).unwrap();
    assert!(deep.contains("levels"), "{deep}");
}
