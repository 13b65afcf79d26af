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

/// A rule with `checks` checks and further fields.
fn rule(name: &str, checks: usize, more: &Value) -> Value {
    let check = |n| json!({ "limit": format!("l{n}"), "key": [{ "constant": "c" }] });
    let mut rule = json!({ "name": name, "when_unavailable": "allow",
        "checks": (0..checks).map(check).collect::<Vec<_>>() });
    for (field, value) in more.as_object().unwrap() {
        rule[field] = value.clone();
    }
    rule
}

/// The error for these rules; empty if they are accepted.
fn refusal(rules: &[Value]) -> String {
    let configuration = with(good(), "/rules", &json!(rules));
    let error = parse(configuration.to_string().as_bytes()).err();
    error.map_or_else(String::new, |error| error.to_string())
}

/// Five rules of eight checks, each with one of these `match`es.
fn five(matches: Value) -> Vec<Value> {
    let of = |(n, matcher)| rule(&format!("r{n}"), 8, &json!({ "match": matcher }));
    let matches = matches.as_array().unwrap().iter().enumerate();
    matches.map(of).collect()
}

#[test]
fn rules_that_give_one_request_too_many_checks_are_refused() {
    let everywhere = || five(json!([{}, {}, {}, {}, {}]));
    let refused = refusal(&everywhere());
    let names = "rules, 40 checks, may have 32, `GET /`, stop";
    for part in names.split(", ").chain(["`r0`, `r1`, `r2`, `r3`, `r4`"]) {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    for matches in [
        json!([{ "path_prefix": "/v1/" }, { "path_template": "/v1/{id}/**" }, { "methods": ["PUT"] },
            { "hosts": ["*.example.com"] }, { "path": "/v1/x" }]),
        json!([{ "headers": [{ "name": "x-a", "equals": "1" }] }, { "query": [{ "name": "q", "prefix": "a" }] },
            { "headers": [{ "name": "x-b", "present": true }] }, { "any": [{ "path": "/a" }] }, { "path_regex": "/a" }]),
        json!([{ "not": { "path": "/b" } }, { "path": "/a" }, {}, {}, {}]),
    ] {
        let refused = refusal(&five(matches.clone()));
        assert!(refused.contains("40 checks"), "{matches}");
    }
    // Key components that the synthetic request must provide.
    let key = json!([{ "jwt": { "payload": "p", "claim": ["a", "b"] } }, { "cookie": "s" }, { "query": "q" },
        { "header": "x-a" }, { "address": { "trusted_hops": 3 } }, { "mtls": "spiffe" }]);
    let mut keyed = everywhere();
    for rule in &mut keyed {
        rule["checks"][7]["key"] = key.clone();
    }
    keyed[4]["checks"] = json!([keyed[4]["checks"][7]]);
    assert!(refusal(&keyed).contains("33 checks"), "{}", refusal(&keyed));
}

#[test]
fn rules_that_no_request_can_match_together_are_accepted_however_many_checks_they_have() {
    for matches in [
        json!([{ "path": "/b" }, { "path": "/a" }, {}, {}, {}]),
        json!([{ "not": { "path": "/a" } }, { "path": "/a" }, {}, {}, {}]),
        json!([{ "path_prefix": "/b/" }, { "path": "/a" }, {}, {}, {}]),
        json!([{ "path_regex": "/b+" }, { "path": "/a" }, {}, {}, {}]),
        json!([{ "path_template": "/b/{x}" }, { "path": "/a" }, {}, {}, {}]),
        json!([{ "methods": ["GET"] }, { "methods": ["PUT"] }, {}, {}, {}]),
        json!([{ "hosts": ["a.example"] }, { "hosts": ["*.a.example"] }, {}, {}, {}]),
        json!([{ "headers": [{ "name": "x-a", "present": true }] }, { "headers": [{ "name": "X-A", "present": false }] },
            {}, {}, {}]),
    ] {
        assert_eq!(refusal(&five(matches.clone())), "", "{matches}");
    }
    // A key that is absent where an earlier rule matches, a rule with `stop`, and a shadow rule.
    let without = json!({ "headers": [{ "name": "x-a", "present": false }] });
    let mut anonymous = five(json!([without, {}, {}, {}, {}]));
    for check in anonymous[4]["checks"].as_array_mut().unwrap() {
        check["key"] = json!([{ "header": "x-a" }]);
    }
    assert_eq!(refusal(&anonymous), "");
    for more in [json!({ "stop": true }), json!({ "shadow": true })] {
        let mut rules = five(json!([{}, {}, {}, {}, {}]));
        rules[3] = rule("r3", 8, &more);
        assert_eq!(refusal(&rules), "", "{more}");
    }
    let path = |n| json!({ "match": { "path": format!("/{n}") } });
    let paths = (0..256).map(|n| rule(&format!("r{n}"), 8, &path(n)));
    assert_eq!(refusal(&paths.collect::<Vec<_>>()), "");
}
