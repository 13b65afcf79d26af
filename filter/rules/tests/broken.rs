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

/// Where something is broken, and what the message must say.
struct Broken(&'static str, Value, &'static str, &'static str);

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

fn broken() -> Vec<Broken> {
    vec![
        Broken("/version", json!(2), "version", "it reads 1"),
        Broken("/version", json!("1"), "version", "string"),
        Broken(
            "/sidecar",
            json!(null),
            "configuration",
            "missing field `sidecar`",
        ),
        Broken("/sidecar", json!("s"), "sidecar", "invalid type"),
        Broken("/sidecar/cluster", json!(""), "sidecar.cluster", "is empty"),
        Broken(
            "/sidecar/clutser",
            json!("s"),
            "sidecar.clutser",
            "did you mean `cluster`",
        ),
        Broken("/sidecar/timeout", json!("soon"), "sidecar.timeout", "soon"),
        Broken(
            "/sidecar/timeout",
            json!("1h"),
            "sidecar.timeout",
            "between",
        ),
        Broken(
            "/sidecar/timeout",
            json!(50),
            "sidecar.timeout",
            "invalid type",
        ),
        Broken("/peper", json!("x"), "peper", "did you mean `pepper`"),
        Broken(
            "/reply",
            json!({ "header": "draft" }),
            "reply.header",
            "did you mean `headers`",
        ),
        Broken(
            "/reply",
            json!({ "headers": "darft" }),
            "reply.headers",
            "did you mean `draft`",
        ),
        Broken(
            "/reply",
            json!({ "content_type": "text/html" }),
            "reply.content_type",
            "`body`",
        ),
        Broken(
            "/reply",
            json!({ "body": "x", "content_type": "a\r\nb" }),
            "reply.content_type",
            "media type",
        ),
        Broken(
            "/reply",
            json!({ "headers": "none", "on_admitted": true }),
            "reply.on_admitted",
            "nothing to tell",
        ),
        Broken(
            "/rules",
            json!(null),
            "configuration",
            "missing field `rules`",
        ),
        Broken("/rules", json!([]), "rules", "0 entries"),
        Broken("/rules", json!({}), "rules", "invalid type"),
        Broken("/rules/0", json!("search"), "rules[0]", "invalid type"),
        Broken(
            "/rules/0/name",
            json!(null),
            "rules[0]",
            "missing field `name`",
        ),
        Broken("/rules/0/name", json!(""), "rules[0].name", "1 to 64"),
        Broken(
            "/rules/0/name",
            json!("a rule"),
            "rules[0].name",
            "`a rule`",
        ),
        Broken(
            "/rules/0/nmae",
            json!("a"),
            "rules[0].nmae",
            "did you mean `name`",
        ),
        Broken(
            "/rules/0/when_unavailable",
            json!(null),
            "rules[0].when_unavailable",
            "`allow`",
        ),
        Broken(
            "/rules/0/when_unavailable",
            json!("alow"),
            "rules[0].when_unavailable",
            "did you mean `allow`",
        ),
        Broken(
            "/rules/0/stop",
            json!("yes"),
            "rules[0].stop",
            "invalid type",
        ),
        Broken(
            "/rules/0/reply",
            json!({ "body": 5 }),
            "rules[0].reply.body",
            "invalid type",
        ),
        Broken(
            "/rules/0/match/path",
            json!("login"),
            "rules[0].match.path",
            "begin with `/`",
        ),
        Broken(
            "/rules/0/match/path_prefix",
            json!("/a%20b"),
            "rules[0].match.path_prefix",
            "escapes",
        ),
        Broken(
            "/rules/0/match/path_prefix",
            json!("/a/../b"),
            "rules[0].match.path_prefix",
            "resolved",
        ),
        Broken(
            "/rules/0/match/path_template",
            json!("/v1/{id"),
            "rules[0].match.path_template",
            "neither",
        ),
        Broken(
            "/rules/0/match/path_template",
            json!("/v1/{id}/{id}"),
            "rules[0].match.path_template",
            "twice",
        ),
        Broken(
            "/rules/0/match/path_regex",
            json!("("),
            "rules[0].match.path_regex",
            "`(`",
        ),
        Broken(
            "/rules/0/match/path_regex",
            json!("a)|(b"),
            "rules[0].match.path_regex",
            "a)|(b",
        ),
        Broken(
            "/rules/0/match/path_regex",
            json!("(a{1000}){1000}"),
            "rules[0].match.path_regex",
            "size",
        ),
        Broken(
            "/rules/0/match/methods/0",
            json!("get"),
            "rules[0].match.methods[0]",
            "capitals",
        ),
        Broken(
            "/rules/0/match/hosts",
            json!(["a:80"]),
            "rules[0].match.hosts[0]",
            "without port",
        ),
        Broken(
            "/rules/0/match/headers",
            json!([{ "name": "x" }]),
            "rules[0].match.headers[0]",
            "exactly one",
        ),
        Broken(
            "/rules/0/match/headers",
            json!([{ "name": "x", "equals": "a", "prefix": "b" }]),
            "rules[0].match.headers[0]",
            "exactly one",
        ),
        Broken(
            "/rules/0/match/headers",
            json!([{ "equals": "a" }]),
            "rules[0].match.headers[0]",
            "missing field `name`",
        ),
        Broken(
            "/rules/0/match/query",
            json!([{ "name": "", "present": true }]),
            "rules[0].match.query[0].name",
            "empty",
        ),
        Broken(
            "/rules/0/match/any",
            json!([{ "nto": {} }]),
            "rules[0].match.any[0].nto",
            "did you mean `not`",
        ),
        Broken(
            "/rules/0/match/not",
            json!({}),
            "rules[0].match.not",
            "every request",
        ),
        Broken("/rules/0/checks", json!([]), "rules[0].checks", "0 entries"),
        Broken(
            "/rules/0/checks/0/limit",
            json!(null),
            "rules[0].checks[0]",
            "missing field `limit`",
        ),
        Broken(
            "/rules/0/checks/0/limit",
            json!("per key"),
            "rules[0].checks[0].limit",
            "`per key`",
        ),
        Broken(
            "/rules/0/checks/0/limit",
            json!(7),
            "rules[0].checks[0].limit",
            "a limit's name",
        ),
        Broken(
            "/rules/0/checks/0/limit",
            json!({ "by": { "header": "x" }, "map": { "gold": "g" } }),
            "rules[0].checks[0].limit.map",
            "no `default`",
        ),
        Broken(
            "/rules/0/checks/0/limit",
            json!({ "by": { "headr": "x" }, "map": { "default": "g" } }),
            "rules[0].checks[0].limit.by.headr",
            "did you mean `header`",
        ),
        Broken(
            "/rules/0/checks/0/cots",
            json!(5),
            "rules[0].checks[0].cots",
            "did you mean `cost`",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!(0),
            "rules[0].checks[0].cost",
            "between 1",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!(-5),
            "rules[0].checks[0].cost",
            "-5",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!(1.5),
            "rules[0].checks[0].cost",
            "a number",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!({}),
            "rules[0].checks[0].cost",
            "neither",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!({ "table": [] }),
            "rules[0].checks[0].cost.table",
            "empty",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!({ "table": [{ "template": "x", "cost": 1 }] }),
            "rules[0].checks[0].cost.table[0].template",
            "begin with `/`",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!({ "header": "x-cost", "max": 5 }),
            "rules[0].checks[0].cost.trusted",
            "choose what they pay",
        ),
        Broken(
            "/rules/0/checks/0/cost",
            json!({ "header": "x-cost", "trusted": true }),
            "rules[0].checks[0].cost.max",
            "missing",
        ),
        Broken(
            "/rules/0/checks/0/key",
            json!([]),
            "rules[0].checks[0].key",
            "constant: everyone",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({}),
            "rules[0].checks[0].key[0]",
            "0 sources",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "header": "x", "cookie": "y" }),
            "rules[0].checks[0].key[0]",
            "2 sources",
        ),
        Broken(
            "/rules/0/checks/0/key/0/header",
            json!("x y"),
            "rules[0].checks[0].key[0].header",
            "`x y`",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "path": false }),
            "rules[0].checks[0].key[0].path",
            "`true`",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "path": true, "plain": true }),
            "rules[0].checks[0].key[0].plain",
            "plain anyway",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "template": "ip" }),
            "rules[0].checks[0].key[0].template",
            "`id`",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "address": { "trusted_hops": 0 } }),
            "rules[0].checks[0].key[0].address.trusted_hops",
            "leave it out",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "address": { "ipv4_bits": 33 } }),
            "rules[0].checks[0].key[0].address.ipv4_bits",
            "33",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "address": { "ipv6_bits": 300 } }),
            "rules[0].checks[0].key[0].address.ipv6_bits",
            "300",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "mtls": "spife" }),
            "rules[0].checks[0].key[0].mtls",
            "did you mean `spiffe`",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "jwt": { "claim": "sub" } }),
            "rules[0].checks[0].key[0].jwt",
            "missing field `payload`",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "jwt": { "payload": "p", "claim": [] } }),
            "rules[0].checks[0].key[0].jwt.claim",
            "empty",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "attribute": "a..b" }),
            "rules[0].checks[0].key[0].attribute",
            "not a name",
        ),
        Broken(
            "/rules/0/checks/0/key/0",
            json!({ "constant": "" }),
            "rules[0].checks[0].key[0].constant",
            "empty",
        ),
        Broken(
            "/rules/0/checks/0/when_missing",
            json!("skp"),
            "rules[0].checks[0].when_missing",
            "did you mean `skip`",
        ),
        Broken(
            "/rules/0/checks/0/when_missing",
            json!({ "use": "" }),
            "rules[0].checks[0].when_missing.use",
            "empty",
        ),
    ]
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
    for Broken(pointer, value, field, why) in broken {
        let text = with(good(), pointer, &value).to_string();
        let error = parse(text.as_bytes()).expect_err(&text);
        assert_eq!(error.field, field, "{pointer} {value}: {error}");
        assert!(
            error.why.contains(why),
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
