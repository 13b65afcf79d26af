//! Tests of the policy file.

use super::*;
use crate::test_table::{has_all, rows};

const GOOD: &str = "
limits:
  per-key:
    algorithm: sliding_log
    windows:
      - { quota: 10, per: 1s }
      - { quota: 120, per: 1m }
";

#[test]
fn the_smallest_policy_keeps_its_state_in_memory() {
    let policy = Policy::parse(GOOD).unwrap();
    assert_eq!(policy.store, StoreAddress::Memory);
    assert_eq!(policy.store_timeout, DEFAULT_STORE_TIMEOUT);
    let limit = policy.limit("per-key").unwrap();
    assert_eq!(limit.windows[1].quota, 120);
    assert_eq!(limit.windows[1].window_us, 60_000_000);
}

#[test]
fn store_timeout_is_bounded() {
    let with = |timeout: &str| Policy::parse(&format!("store_timeout: {timeout}\n{GOOD}"));
    for timeout in ["1y", "11s", "10001ms"] {
        let message = with(timeout).unwrap_err();
        assert!(message.contains("line 1: `store_timeout`") && message.contains("10s"));
    }
    assert!(with("10s").is_ok());
}

#[test]
fn a_mapping_says_where_redis_is_and_how_to_talk_to_it() {
    let text = "
store:
  url: rediss+sentinel://a,b:1/main/2
  username_file: u
  password_file: p
  tls: { ca: ca.pem, certificate: c.pem, key: k.pem, server_name: redis.internal }
  key_prefix: edge/
  connections: 16
  sentinel: { password_file: s }
";
    let policy = Policy::parse(&format!("{text}{GOOD}")).unwrap();
    let StoreAddress::Redis(redis) = &policy.store else {
        panic!("{:?}", policy.store)
    };
    assert_eq!(redis.options.key_prefix, "edge/");
    assert_eq!(redis.options.connections, 16);
    let server_name = redis.options.tls.server_name.as_deref();
    assert_eq!(server_name, Some("redis.internal"));
    assert_eq!(redis.url.database, 2);
    // Another URL keeps the options, and has to go with them.
    let other = policy.store.with_url("rediss+sentinel://c/other").unwrap();
    assert!(matches!(other, StoreAddress::Redis(other) if other.options == redis.options));
    let why = policy.store.with_url("redis://c").unwrap_err();
    has_all(&why, "`redis+sentinel://`, sentinel");
    assert_eq!(policy.store.with_url("memory"), Ok(StoreAddress::Memory));
}

#[test]
fn a_limit_may_accept_quotas_from_requests_up_to_a_maximum() {
    let limit = |text: &str| {
        let text = format!("limits:\n  l:\n    {text}\n");
        Policy::parse(&text).map(|policy| Arc::clone(policy.limit("l").unwrap()))
    };
    let up_to = |windows, max: u64| {
        limit(&format!(
            "{windows}\n    quota_from_request: {{ max: {max} }}"
        ))
    };
    let windows = "algorithm: sliding_window\n    windows: [{ quota: 100, per: 1m }]";
    let accepts = up_to(windows, 5_000).unwrap();
    for quota in [1, 100, 5_000] {
        assert_eq!(accepts.accepted_quota(Some(quota)), Some(quota));
    }
    for quota in [None, Some(0), Some(5_001), Some(u64::MAX)] {
        assert_eq!(accepts.accepted_quota(quota), None, "{quota:?}");
    }
    assert_eq!(limit(windows).unwrap().accepted_quota(Some(5)), None);

    let two = "algorithm: sliding_log\n    windows: [{ quota: 1, per: 1s }, { quota: 9, per: 1m }]";
    let tokens = "algorithm: token_bucket\n    windows: [{ quota: 100, per: 1m }]";
    for (windows, max, named) in [
        (two, 5_000, "2 windows"),
        (tokens, 5_000, "sliding_window"),
        (windows, 99, "100"),
        (windows, 3_000_000_000_u64, "2147483647"),
    ] {
        let why = up_to(windows, max).unwrap_err();
        assert!(why.contains("line 5: ") && why.contains(named), "{why}");
    }
}

#[test]
fn a_broken_policy_is_refused_with_line_field_and_remedy() {
    let table = r"
        quota: 10, | qouta: 10, | line 6, qouta, `quota`
        sliding_log | sliding-log | sliding-log, sliding_log
        per: 1m | per: 1 fortnight | line 7, `per-key`, window 2, `per`, fortnight
        per: 1m | per: 10us | line 7, 10us, `ms`
        per: 1m | per: 400d | line 7, is 34560000s
        per: 1m | per: 1s | line 7, occurs twice
        quota: 120 | quota: 0 | line 7, window 2, 0
        quota: 120 | quota: -1 | line 7, `quota`, -1
        quota: 120 | quota: 120, burst: 5 | line 7, `burst`, token_bucket
        quota: 120 | quota: 120, precision: 1s | line 7, `precision`, sliding_window
        per-key | per key | line 4, `per key`
        limits: | store: rediss//:hunter2@h\nlimits: | `store`, redis://
        limits: | store_timeout: soon\nlimits: | line 2, `store_timeout`, soon
        limits: | memory_limit: 10kB\nlimits: | line 2, `memory_limit`, 10kB, 256MiB
        limits: | limit: | line 2, `limits`
        limits: | limits: {}\nstore_timeout: 1s\nx: | line 4, `x` is not a field, `limits`
        quota: 120 | quota: five | line 7, column 18, `quota` is `five`, a whole number; 0 allows nothing
        - { quota: 10, per: 1s } | - [10, 1s] | line 6, a mapping, a list
        sliding_log | { sliding_log: 1 } | line 4, `algorithm`
        algorithm: sliding_log | algorithm: sliding_log\n    lease: [1s] | line 5, `lease` is a list
        quota: 120 | quota: '5' | line 7, `quota` is `5`, without quotes
        , per: 1m | | line 7, `per` is missing, `10s`, the time after which a slot of `algorithm: concurrency` ends
        per: 1m | per: 60 | line 7, `per` is `60`, in quotes
        quota: 120 | quota: [5] | line 7, `quota` is a list, a whole number
        per: 1m | per: { a: 1 } | line 7, `per` is a mapping, `10s`
        - { quota: 10, per: 1s } | - 5 | line 6, `windows` is `5`, - { quota: 100
        sliding_log | leaky | `algorithm` is `leaky`, `token_bucket`
        algorithm: sliding_log | when_store_is_down: fail | `when_store_is_down` is `fail`, `share`
    ";
    for [from, to, named] in rows(table) {
        let message = Policy::parse(&GOOD.replacen(&from, &to, 1)).unwrap_err();
        has_all(&message, &named);
        assert!(!message.contains("hunter2"), "{message}");
    }
}

#[test]
fn the_mistakes_of_all_limits_are_found_together() {
    let one = "{ algorithm: sliding_log, windows: [{ quota: 1, per: 400d }] }";
    let text = format!("limits:\n  a: {one}\n  b: {one}\n");
    let mistakes = Expanded::read(&text, &mut Files::default())
        .unwrap()
        .policy()
        .unwrap_err();
    assert_eq!(mistakes.len(), 2, "{mistakes:?}");
    for (mistake, begins) in mistakes
        .iter()
        .zip(["line 2: limit `a`", "line 3: limit `b`"])
    {
        assert!(mistake.starts_with(begins), "{mistake}");
    }
    assert_eq!(Policy::parse(&text).unwrap_err(), mistakes[0]);
}

#[test]
fn the_mistakes_of_all_rules_are_found_together_at_the_lines_of_their_fields() {
    let text = "limits:
  a: { algorithm: sliding_log, windows: [{ quota: 1, per: 1s }] }
rules:
  gateway:
    rules:
      - name: one
        match: { path_prefix: x }
        checks: [{ limit: a, key: [{ constant: c }] }]
        when_unavailable: deny
      - name: two
        checks:
          - limit: a
            key: [{ constant: c }]
          - key: [{ constant: c }]
            limit: { by: { header: h }, map: { x: b, default: a } }
        when_unavailable: deny
  bad name: { rules: [] }
  empty: {}
  odd:
    - rules
  unknown: { ruls: [] }
";
    let mistakes = Expanded::read(text, &mut Files::default())
        .unwrap()
        .policy()
        .unwrap_err();
    let expected = [
        "line 17: a rule set's name",
        "line 18: `rules.empty`: missing field `rules`",
        "line 7: `rules.gateway.rules[0].match.path_prefix`: ",
        "line 15: `rules.gateway.rules[1].checks[1].limit.map.x`: the policy has no limit `b`: add it to `limits`",
        "line 20: `rules.odd`: ",
        "line 21: `rules.unknown.ruls`: unknown field `ruls`",
    ];
    assert_eq!(mistakes.len(), expected.len(), "{mistakes:#?}");
    for (mistake, begins) in mistakes.iter().zip(expected) {
        assert!(mistake.starts_with(begins), "{mistakes:#?}");
    }
    assert_eq!(Policy::parse(text).unwrap_err(), mistakes[0]);
}

#[test]
fn a_section_may_be_empty() {
    let text = format!("store:\nrules:\nconsumers: # later\n{GOOD}    overrides:\n");
    assert_eq!(
        Policy::parse(&text).map(|policy| policy.store),
        Ok(StoreAddress::Memory)
    );
    // A misspelt one is told all the same.
    assert!(Policy::parse(&format!("{GOOD}    defualt:\n")).is_err());
}

#[test]
fn a_file_of_comments_is_empty() {
    let why = Policy::parse("# limits:\n\n  # later\n").unwrap_err();
    assert!(
        why.ends_with(": the file is empty: it needs `limits`"),
        "{why}"
    );
}

/// C9: everybody would get 503 or 422. What an override, another path or a missing key can avoid is not certain.
#[test]
fn what_fails_for_every_request_of_a_limit_is_refused() {
    let limits = |count: usize, fields: &str| {
        let limit = |n| format!("  l{n}: {{ rate: 5/1s, {fields} }}\n");
        (1..=count).map(limit).collect::<String>()
    };
    let refused = |text: &str| Policy::parse(&format!("limits:\n{text}")).err();
    let all = limits(32, "key: address");
    assert_eq!(refused(&all), None);
    let one = |fields: &str| format!("{all}  x: {{ rate: 5/1s, {fields} }}\n");
    for fields in [
        "key: address",
        "key: { header: k }, match: /a",
        "key: address, match: [/a, POST /b], cost: 5",
    ] {
        let why = refused(&one(fields)).expect(fields);
        has_all(&why, "line 34, `limits.x.match`, more than 32 checks, 503");
    }
    for fields in [
        "key: { header: k }, when_missing: skip",
        "key: address, shadow: true",
        "match: none",
        "key: address, match: OPTIONS",
    ] {
        assert_eq!(refused(&one(fields)), None, "{fields}");
    }
    let stop = "  s: { rate: 5/1s, key: address, stop: true, match: /s/ }\n";
    assert_eq!(refused(&format!("{stop}{all}")), None);
    for (fields, fails) in [
        ("cost: 6", true),
        ("cost: 5", false),
        ("cost: { /a: 6, default: 7 }", true),
        ("cost: { /a: 6 }", false),
        ("cost: { header: x, max: 6, trusted: true }", false),
        ("cost: 6, shadow: true", false),
        ("cost: 6, enforce: false", false),
        ("cost: 6, overrides: [{ key: k, quota: 9 }]", false),
        (
            "cost: 6, quota: { jwt: q }, quota_from_request: { max: 9 }",
            false,
        ),
    ] {
        let text = format!("  l: {{ rate: 5/1s, key: address, {fields} }}\n");
        let why = refused(&text);
        assert_eq!(why.is_some(), fails, "{fields}: {why:?}");
        if let Some(why) = why {
            has_all(&why, "line 2, `limits.l.cost`, never admitted");
        }
    }
}
