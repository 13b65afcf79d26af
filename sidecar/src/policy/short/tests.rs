//! Tests of the short form: what it expands to, and what its mistakes are told as.

use super::*;
use crate::policy::{Policy, policy_schema};
use crate::test_table::has_all;
use serde_json::json;

fn long(text: &str) -> String {
    let expanded = Expanded::read(text, &mut Files::default()).unwrap();
    expanded.policy().unwrap();
    expanded.text
}

#[test]
fn the_long_form_stays_as_it_is() {
    let text =
        "# mine\nlimits: { l: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] } }\n";
    assert_eq!(long(text), text);
    for broken in ["", "limits: { l: 1 }"] {
        let expanded = Expanded::read(broken, &mut Files::default()).unwrap();
        assert_eq!(expanded.text, broken);
    }
}

#[test]
fn the_long_form_of_a_long_form_is_itself() {
    let once = long(include_str!("example.yaml"));
    assert_eq!(long(&once), once);
    assert_eq!(once, include_str!("example-long.yaml"));
}

/// Each row: a limit in the short form, and what its rule says.
#[test]
fn each_field_of_the_short_form_has_a_meaning_in_the_long_form() {
    let preflight =
        "{ methods: [OPTIONS], headers: [{ name: access-control-request-method, present: true }] }";
    let table = r"
        match: POST /login | match: { methods: [POST], path: /login }
        match: 'GET,POST /a/' | match: { methods: [GET, POST], path_prefix: /a/ }
        match: POST | match: { methods: [POST] }
        match: /v1/ | match: { path_prefix: /v1/, not: PREFLIGHT }
        match: '/v1/{id}/x' | path_template: '/v1/{id}/x'
        match: [/a, OPTIONS /b] | match: { any: [{ path: /a }, { methods: [OPTIONS], path: /b }] }
        match: { host: a.example.com, method: GET } | match: { hosts: [a.example.com], methods: [GET] }
        match: { path: /a/, query: [{ name: q, present: true }] } | path_prefix: /a/ | query: [{ name: q, present: true }]
        match: { all: true, except: [/health] } | any: [{ path: /health }, PREFLIGHT]
        match: { path: /a/, except: /a/b, not: HEAD } | any: [{ path: /a/b }, { methods: [HEAD] }]
        match: { any: [/a, { path_regex: '/b+' }] } | any: [{ path: /a }, { path_regex: '/b+' }] | not: PREFLIGHT
        match: OPTIONS | match: { methods: [OPTIONS] }
        match: { all: [OPTIONS, /a/] } | match: { all: [{ methods: [OPTIONS] }, { path_prefix: /a/ }] }
        key: address | key: [{ address: {} }]
        key: { address: { ipv6_bits: 48 } } | key: [{ address: { ipv6_bits: 48 } }]
        key: everyone | key: [{ constant: everyone }]
        key: [host, { query: id }] | key: [{ host: true }, { query: id }]
        key: { jwt: tenant.id } | key: [{ jwt: { payload: jwt, claim: [tenant, id] } }] | when_missing: { address: {} }
        key: { jwt: ['a.b', c] } | claim: [a.b, c]
        key: { header: x-key, plain: true } | key: [{ header: x-key, plain: true }]
        when_missing: deny | when_missing: deny
        when_missing: { use: nobody } | when_missing: { use: nobody }
        cost: 5 | cost: 5
        cost: { header: x-cost, max: 9, trusted: true } | cost: { header: x-cost, max: 9, trusted: true }
        cost: { GET /a/: 7, POST: 5, default: 2 } | cost: 7, methods: [GET], template: /a/** | cost: 5, methods: [POST] | default: 2
        on_failure: deny | when_unavailable: deny
        shadow: true | shadow: true
        stop: true | stop: true
        reply: { headers: none } | reply: { headers: none }
        quota: { jwt: quota }, quota_from_request: { max: 9 } | quota: { jwt: { payload: jwt, claim: [quota] } }
    ";
    for line in table.lines().filter(|line| !line.trim().is_empty()) {
        let parts: Vec<_> = line.split(" | ").map(str::trim).collect();
        let given = match parts[0] {
            key if key.starts_with("key") => key.to_owned(),
            other => format!("key: {{ header: k }}, {other}"),
        };
        let text = format!("limits: {{ l: {{ rate: 5/1m, {given} }} }}");
        let (found, expected) = (long(&text), &parts[1..]);
        let value: Value = serde_saphyr::from_str(&found).unwrap();
        let rule = value.pointer("/rules/default/rules/0").unwrap();
        for part in expected {
            let part = part.replace("PREFLIGHT", preflight);
            // Both as one line of JSON, so that their layout does not matter.
            let as_value = serde_saphyr::from_str::<Value>(&part).ok();
            let is_there = match as_value.as_ref().and_then(Value::as_object) {
                Some(fields) => fields.iter().all(|(name, value)| has(rule, name, value)),
                None => flat(rule).contains(&flat_text(&part)),
            };
            assert!(is_there, "{given}: {part} in {found}");
        }
    }
}

#[test]
fn slots_stand_in_place_of_a_rate_also_by_tier() {
    for (given, expected) in [
        ("at_once: 32", [(32, 30, 86_400)].as_slice()),
        ("at_once: 2, expire: 1m, longest: 2h", &[(2, 60, 7_200)]),
        (
            "tiers: { by: { header: x-tier }, gold: { at_once: 9 }, default: { at_once: 3 } }, expire: 5s",
            &[(3, 5, 86_400), (9, 5, 86_400)],
        ),
    ] {
        let text = format!("limits: {{ l: {{ key: address, {given} }} }}");
        let expanded = Expanded::read(&text, &mut Files::default()).unwrap();
        let policy = expanded.policy().unwrap();
        let slots = policy.limits().map(|limit| {
            let expire_us = limit.expire_us().expect("slots");
            let second = 1_000_000;
            (limit.most(), expire_us / second, limit.longest_us / second)
        });
        assert_eq!(slots.collect::<Vec<_>>(), expected, "{given}");
        assert_eq!(long(&long(&text)), long(&text), "{given}");
    }
}

#[test]
fn a_rate_of_0_allows_nothing_whatever_else_the_limit_says() {
    for given in [
        "rate: 0",
        "rate: [0]",
        "rate: 0/1m",
        "rate: 0/day, algorithm: sliding_log",
        "rate: { quota: 0, per: 1s }, lease: {}, cost: 5",
        "rate: 0, algorithm: token_bucket, lease: { longest: 1s }",
        "tiers: { by: { header: x }, none: 0, default: { quota: 9, per: 1s, burst: 3 } }, algorithm: token_bucket",
        "rate: 0, quota_from_request: { max: 9 }, quota: { jwt: quota }",
        "algorithm: sliding_window, windows: [{ quota: 0, per: 1m }]",
    ] {
        let text = format!("limits: {{ l: {{ key: address, {given} }} }}");
        let expanded = Expanded::read(&text, &mut Files::default()).unwrap();
        let policy = expanded
            .policy()
            .unwrap_or_else(|why| panic!("{given}: {why:?}"));
        let nothing: Vec<_> = policy.limits().filter(|one| one.allows_nothing()).collect();
        assert_eq!(nothing.len(), 1, "{given}");
        assert!(nothing[0].lease.is_none(), "{given}");
        let told = expanded.defaults.join("; ");
        assert!(!told.contains("sliding_log"), "{given}: {told}");
        assert_eq!(long(&long(&text)), long(&text), "{given}");
    }
}

/// Whether a field with this value is anywhere in it.
fn has(within: &Value, name: &str, value: &Value) -> bool {
    match within {
        Value::Object(fields) => fields
            .iter()
            .any(|(field, inner)| (field == name && inner == value) || has(inner, name, value)),
        Value::Array(list) => list.iter().any(|inner| has(inner, name, value)),
        _ => false,
    }
}

fn flat(value: &Value) -> String {
    flat_text(&value.to_string())
}

fn flat_text(text: &str) -> String {
    text.replace(['"', '\'', ' ', '{', '}'], "")
}

#[test]
fn what_the_file_says_once_holds_for_all_of_its_limits() {
    let text = long(
        "trusted_hops: 2\njwt_payload: token\nreply: { headers: draft }\nupstream_paths: go\nlimits:\n  \
         a: { key: { jwt: sub }, rate: 5/s }\n  b: { match: none, rate: 9/day }\n",
    );
    let value: Value = serde_saphyr::from_str(&text).unwrap();
    for (name, expected) in [
        ("jwt", json!({ "payload": "token", "claim": ["sub"] })),
        ("when_missing", json!({ "address": { "trusted_hops": 2 } })),
        ("reply", json!({ "headers": "draft" })),
        ("upstream_paths", json!("go")),
    ] {
        assert!(has(&value, name, &expected), "{name} in {text}");
    }
    assert_eq!(Policy::parse(&text).unwrap().rules.sets.len(), 1);
    assert!(!text.contains("limit: b"), "{text}");
}

#[test]
fn both_forms_stand_in_one_file_and_the_rules_of_the_long_form_come_first() {
    let text = long(
        "limits:\n  l: { algorithm: token_bucket, windows: [{ quota: 1, per: 1s }] }\n  s: { key: address, rate: 5/1s }\nrules:\n  \
         default: { rules: [{ name: own, checks: [{ limit: l, key: [{ host: true }] }], when_unavailable: deny }] }\n  \
         other: { rules: [{ name: o, checks: [{ limit: s, key: [{ host: true }] }], when_unavailable: deny }] }\n",
    );
    let policy = Policy::parse(&text).unwrap();
    let rules = policy.rules.sets["default"].pointer("/rules").unwrap();
    let names: Vec<_> = rules
        .as_array()
        .unwrap()
        .iter()
        .map(|rule| rule["name"].clone())
        .collect();
    assert_eq!(names, ["own", "s"]);
    assert!(policy.rules.sets.contains_key("other"));
}

#[test]
fn rule_sets_of_the_long_form_stay_if_no_limit_of_the_short_form_has_a_rule() {
    let text = long(
        "limits:\n  s: { match: none, rate: 5/1s }\nrules:\n  \
         other: { rules: [{ name: o, checks: [{ limit: s, key: [{ host: true }] }], when_unavailable: deny }] }\n",
    );
    let policy = Policy::parse(&text).unwrap();
    assert!(policy.rules.sets.keys().eq(["other"]), "{text}");
}

/// Each row: what people write, and what they are told. The first of the two lines of a limit is line 3.
#[test]
fn a_mistake_is_told_with_line_field_value_and_remedy() {
    let table = r"
        rate: 5, key: address | line 3: limit `l`: `rate` is 5, without the time, `5/1s`
        rate: 5/1M, key: address | `rate` is `5/1M`, `1M`, `month`
        rate: 5/1min, key: address | `rate` is `5/1min`, 1m
        rate: 5/minute, key: address | `rate` is `5/minute`
        rate: 5 per minute, key: address | `rate` is `5 per minute`, `100/1m`
        rate: 10r/s, key: address | `10r` is not a whole number of units
        rate: 20/min, key: address | `min` is no unit of time, `20/1m`
        rate: 100/year, key: address | write `100/365d`
        rate: 100/months, key: address | write `100/month`
        rate: 100/millisecond, key: address | write `100/1ms`
        rate: 100/fortnight, key: address | use one of ms, s
        rate: 999999/30d, algorithm: token_bucket, key: address | `quota` is 999999: this rate, a `burst` of at most
        rate: { quota: 9, per: 1h, burst: 2000000000 }, algorithm: token_bucket, key: address | `burst` is 2000000000: this rate
        rate: { quota: 9, per: 1m, precision: 2m }, algorithm: sliding_window, key: address | `precision` is 120s: use 1ms to the window
        limit: 5/1s, key: address | did you mean `rate`, `rate: 100/1m`
        rate: 5/day, key: address, time_zone: Europe/Berlin | `time_zone`: it belongs into `rate`, time_zone: Europe/Berlin }
        rate: 5/1s, key: address, path: /a | `path`: it belongs into `match`
        rate: 5/1s, header: x-api-key | it belongs into `key`
        rate: 5/1s, key: address, trusted_hops: 2 | it belongs to the top of the file
        rate: 5/1s, key: address, dry_run: true | did you mean `shadow: true`
        rate: 5/1s, key: address, shadow: 'yes' | `limits.l.shadow`, expected `true` or `false`
        rate: 5/1s, key: address, 'cost': { GET /a: 0 } | `limits.l.cost`: `GET /a`: 0 is no cost: give 1 or more
        rate: '5/1s, 100/1m', key: address | `[5/1s, 100/1m]`
        rate: '10,000/1h', key: address | `10,000` is not a whole number, digits alone
        rate: 5/1s, key: ip | for the client's address write `address`
        rate: 5/1s, key: address, match: /users/:id | for a variable write `{name}`
        tiers: { by: { jwt: plan }, gold: 5/min, default: 5/1s }, key: address | tier `gold`: `rate` is `5/min`
        rate: 5/1s, key: [{ header: x, consumers: c.yaml }] | `consumers` goes with a `key` that is one header
        rate: 5/1s, key: { header: x }, when_missing: ~ | `when_missing` is nothing
        rate: -5/1s, key: address | `-5` is not a whole number
        rate: [0/1s, 5/1m], key: address | line 3: limit `l`, window 1: `quota` is 0, remove it or them
        rate: { quota: 0, per: 1s, burst: 5 }, algorithm: token_bucket, key: address | line 3, `quota` is 0: use 1 to
        windows: [{ quota: 0, per: 1s }], algorithm: token_bucket, key: address | line 3, `quota` is 0: use 1 to
        rate: [], key: address | `rate` is a list, `100/1m`
        rate: [9/day, 5/1s], key: address | calendar windows, two limits
        rate: [5/1s, 9/1s], key: address | `per` `1s` occurs twice
        rate: { quota: 5 }, key: address | line 3, `per` is missing
        rates: 5/1s, key: address | there is no field `rates`: did you mean `rate`?
        key: address | `rate` is missing, `100/1m`
        at_once: 5, rate: 5/1s, key: address | more than one of `rate`, `at_once`
        at_once: 0, key: address | `at_once` is `0`
        max_concurrent: 5, key: address | did you mean `at_once`
        at_once: many, key: address | `at_once` is `many`
        at_once: 5, expire: 1s, key: address | `expire`, `1s`, 3s to 24h
        at_once: 5, expire: day, key: address | fixed_window
        at_once: 5, algorithm: token_bucket, key: address | `at_once` is `algorithm: concurrency`
        at_once: 5, lease: { longest: 1s }, key: address | knows who has each slot, remove `lease`
        rate: 3/1m, key: address, algorithm: concurrency | line 3, has no time: write `at_once: 3`
        rate: { quota: 4 }, key: address, algorithm: concurrency | write `at_once: 4`
        at_once: 500, key: address, cost: 65 | can ever hold (64), lower the cost: one request takes at most 64 slots
        at_once: 5, key: address, cost: 65 | can ever hold (5), at most 64 slots
        at_once: 5, key: address, cost: 6 | can ever hold (5), lower the cost or raise the limit
        at_once: 5, key: address, cost: 0 | 0 is no cost: give 1 or more
        at_once: 5, key: address, cost: { reserve: 5, settle: { from: { bytes: true } } } | all of it is free when the request ends
        rate: 5/1s, key: address, longest: 1h | `longest` belongs to `algorithm: concurrency`
        rate: 5/1s, key: address, expire: 1m | `expire` goes with `at_once`
        rate: 5/1s | `key` is missing, `{ header: x-api-key }`
        rate: 5/1s, windows: [], key: address | more than one of `rate`, `tiers` and `windows`
        rate: 5/1s, key: x-api-key | `key` is `x-api-key`, `{ header: x-api-key }`
        rate: 5/1s, key: { heder: x } | `limits.l.key.heder`, did you mean `header`?
        rate: 5/1s, key: { header: x, cookie: y } | `limits.l.key`
        rate: 5/1s, key: 7 | `key` is `7`, `address`
        rate: 5/1s, key: address, match: login | `match` is `login`, write `/login`
        rate: 5/1s, key: address, match: post /login | `post` is no method: write `POST`
        rate: 5/1s, key: address, match: ^/api/ | path_regex: '^/api/'
        rate: 5/1s, key: address, match: /api/.* | `/api/.*`, path_regex, a path that ends in `/`
        rate: 5/1s, key: address, match: /api* | `*` stands for a whole segment
        rate: 5/1s, key: address, match: /a?b=c | a path has no query
        rate: 5/1s, key: address, match: api.example.com/v2/ | `{ host: api.example.com, path: /v2/ }`
        rate: 5/1s, key: address, match: { hosst: a.b } | `match` has no field `hosst`: did you mean `host`?
        rate: 5/1s, key: address, match: { host: a.example.com, hosts: [b.example.com] } | `match` has `hosts` twice
        rate: 5/1s, key: address, match: {} | `match` is a mapping
        rate: 5/1s, key: address, match: none | `key` is for requests, and `match: none` matches none
        rate: 5/1s, key: address, on_failure: open | `on_failure` is `open`, `allow` (the default) or `deny`
        rate: 5/1s, key: address, when_missing: alow | `limits.l.when_missing`, alow
        rate: 5/1s, key: address, cost: { default: 3 } | `cost` has no entry but `default`
        rate: 5/1s, key: address, cost: 0 | `limits.l.cost`, 0 is no cost
        tiers: { by: { jwt: plan }, gold: 5/1s }, key: address | `tiers` has no `default`
        tiers: { gold: 5/1s, default: 5/1s }, key: address | `tiers` is a mapping, `by`
        tiers: { by: { jwt: plan }, 'g old': 5/1s, default: 5/1s }, key: address | `g old` is no name of a tier
        tiers: { by: { jwt: plan }, gold: 5, default: 5/1s }, key: address | `rate` is 5
        rate: 5/1s, key: address, algorithm: leaky | `leaky`
        rate: 5/day, key: address, algorithm: sliding_log | `per: day`, `algorithm: fixed_window`
    ";
    for line in table.lines().filter(|line| !line.trim().is_empty()) {
        let (given, named) = line.split_once(" | ").unwrap();
        let text = format!("store: memory\nlimits:\n  l: {{ {} }}\n", given.trim());
        let why = Policy::parse(&text).expect_err(&text);
        has_all(&why, named.trim());
        has_all(&why, "line 3");
    }
    let why =
        Policy::parse("trusted_hop: 2\nlimits: { l: { rate: 5/s, key: address } }").unwrap_err();
    has_all(&why, "line 1, did you mean `trusted_hops`?");
    // `\n` is the end of a line. N13: a limit without its indentation is told there, not at the next one. C11: `trusted_hops: 0`.
    let table = r"
        limits:\n  l:\n    match: /a/\n\t rate: 5/s\n | not YAML, a tab
        limits:\n  l: { rate: 5/s, key: address }\n  l: { rate: 5/s, key: address }\n | line 3, twice
        limits:\n  l:\n  rate: 5/s\n  key: address\n | line 2, limit `l`, indent them below
        limits:\nl:\n  rate: 5/s\n  key: address\n | line 2, `l` looks like a limit: indent it
        limits:\n  a: { rate: 5/s, key: address }\n  l: match:/a/\n | line 3, limit `l`, a space after each colon
        reply: { headers: none }\nlimits: { l: { match: none, rate: 5/s } }\n | line 1, `reply`, `rules.SET`
        limits:\n  a:\n    rate: 5/s\n    key: address\nl: # mine\n    rate: 5/s\n    key: address\n  b:\n    rate: 5/s\n | line 5, `l` looks like a limit: indent it below `limits`
        limits:\n  a:\nrate: 5/s\n | line 3, `rate`: indent it below its limit's name
        limits:\n  a:\n    rate: 5/s\n    key: address\n    b:\n      rate: 5/s\n      key: address\n | line 5, limit `a`, `b` looks like a limit
        limits:\n    a:\n      rate: 5/s\n      key: address\n  b:\n      rate: 5/s\n | line 5, indent this line as its neighbours
        limits:\n  a:\n    key: address\n  rate: 5/s\n  b: { key: address, rate: 5/s }\n | line 3, `rate` is missing
        trusted_hops: 0\nlimits: { l: { key: address, rate: 5/s } }\n | line 1: `trusted_hops` is `0`: give, counted from the right
        limits: { l: { key: address, rate: 5/s } }\ntrusted_hops: two\n | line 2: `trusted_hops` is `two`
        jwt_payload: ''\nlimits: { l: { key: { jwt: sub }, rate: 5/s } }\n | line 1: `jwt_payload` is
        reply: { headers: all }\nlimits: { l: { key: address, rate: 5/s } }\n | line 1: `reply.headers`
        limits:\n  - { rate: 5/s, key: address }\n | line 2, a list, per-key
    ";
    for line in table.trim().lines() {
        let (text, named) = line.trim().split_once(" | ").unwrap();
        let text = text.replace("\\n", "\n").replace("\\t", "\t");
        has_all(&Policy::parse(&text).expect_err(&text), named);
    }
    let tab = Policy::parse("limits:\n\tl: { rate: 5/s, key: address }").unwrap_err();
    has_all(&tab, "line 2");
}

#[test]
fn the_schema_knows_the_short_form() {
    let validator = jsonschema::validator_for(&policy_schema()).unwrap();
    let read = |text: &str| serde_saphyr::from_str::<Value>(text).unwrap();
    for text in [
        include_str!("example.yaml"),
        include_str!("example-long.yaml"),
    ] {
        if let Err(error) = validator.validate(&read(text)) {
            panic!("{error} at {}", error.instance_path());
        }
    }
    for broken in [
        "rate: 5",
        "rates: 5/s",
        "rate: 5/s, windows: []",
        "rate: 5/s, on_failure: no",
        "key: address",
    ] {
        let text = format!("limits: {{ l: {{ {broken} }} }}");
        assert!(!validator.is_valid(&read(&text)), "{broken}");
    }
}

#[test]
fn the_file_of_consumers_is_part_of_the_policy() {
    let hash = "00112233445566778899aabbccddeeff";
    let folder = tempfile::tempdir().unwrap();
    let (path, of_consumers) = (folder.path().join("p.yaml"), folder.path().join("c.yaml"));
    let policy = |tiers: &str| {
        let text = format!(
            "limits:\n  partner:\n    key: {{ header: k, consumers: c.yaml }}\n    {tiers}\n"
        );
        let mut files = Files::beside(&path);
        let expanded = Expanded::read(&text, &mut files).and_then(|expanded| {
            expanded.policy()?;
            Ok(expanded.text)
        });
        (expanded.map_err(|why| why.join("; ")), files)
    };
    let tiers = "tiers: { by: consumer, acme: 5/1s, default: 1/1s }";
    let (missing, files) = policy(tiers);
    has_all(
        &missing.unwrap_err(),
        "line 3: limit `partner`: `consumers` is `c.yaml`",
    );
    let good = format!("pepper: 0123456789ab\nconsumers: {{ acme: [{hash}] }}\n");
    std::fs::write(&of_consumers, &good).unwrap();
    assert!(files.have_changed(), "it is there now");
    let (long, files) = policy(tiers);
    let value: Value = serde_saphyr::from_str(&long.unwrap()).unwrap();
    let expected = json!({ "partner": { "pepper": "0123456789ab", "keys": { hash: "acme" },
        "limits": { "acme": "partner.acme", "default": "partner.default" } } });
    assert_eq!(value["consumers"], expected);
    let check = &value["rules"]["default"]["rules"][0]["checks"][0];
    assert_eq!(
        (&check["limit"], &check["consumers"]),
        (&json!("partner"), &json!(true))
    );
    assert!(!files.have_changed());
    let (one, _) = policy("rate: 5/1s");
    assert!(one.unwrap().contains("limits: {default: partner}"));
    for (tiers, named) in [
        (
            "tiers: { by: { jwt: plan }, default: 1/1s }",
            "line 4, by `consumer`",
        ),
        ("rate: 5/1s\n    when_missing: deny", "when_missing"),
    ] {
        has_all(&policy(tiers).0.unwrap_err(), named);
    }
    let no_file = "limits: { l: { key: { header: k }, tiers: { by: consumer, default: 1/1s } } }";
    has_all(
        &Policy::parse(no_file).unwrap_err(),
        "`key` names no consumers",
    );
    std::fs::write(&of_consumers, good.replace(hash, "x")).unwrap();
    assert!(files.have_changed());
    has_all(
        &policy(tiers).0.unwrap_err(),
        "`consumers` is `c.yaml`: line 2, not the hash",
    );
}
