//! Clients who use what they may send to get around a limit, to make it costly, or to write where they must not.

use serde_json::json;
use sluicegate_protocol::{FILTER_HEADER, FilterInfo};
use sluicegate_tests::client::{client, get};
use sluicegate_tests::policy::with_rules;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::token::{jwt_authn, token};
use sluicegate_tests::wire::Wire;

use super::sources::Recorded;
use super::support::{
    Chain, ask, decided, filters, peek, per_key, plugin, policy, post_of, question, sent, take,
};

/// A denial is cached for its costs only, so each cost has a question of its own; but not each request.
#[tokio::test(flavor = "multi_thread")]
async fn costs_that_alternate_ask_redis_once_for_each_of_them() {
    const COSTS: u64 = 5;
    let mut rules = per_key("deny");
    rules[0]["checks"][0]["cost"] =
        json!({ "header": "x-cost", "max": COSTS, "trusted": true, "default": 1 });
    // All costs fit the quota: one above it is refused by the sidecar itself. The longest `denial_ttl`, so that no
    // denial ends before the test.
    let chain = Chain::start(
        |store| policy(store, "sliding_log", COSTS, "1h") + "denial_ttl: 60s\n",
        plugin(rules),
    )
    .await;
    let ask = async |cost: u64| {
        let fields = [("x-api-key", "k"), ("x-cost", &cost.to_string())];
        chain.envoy.get("/", &fields).await.status().as_u16()
    };
    assert_eq!(ask(COSTS).await, 200);
    for number in 0..500 {
        let cost = number % COSTS + 1;
        assert_eq!(ask(cost).await, 429, "cost {cost}");
    }
    let denied = decided(&chain.sidecar, "per-key", "store", "denied").await;
    assert_eq!(denied, COSTS);
}

/// Tiers by a verified claim: nothing else that a client writes selects one.
#[tokio::test]
async fn no_header_of_a_client_makes_it_another_tier() {
    let by = json!({ "jwt": { "payload": "payload", "claim": "plan" } });
    let tiers = json!({ "by": by, "map": { "gold": "gold", "default": "free" } });
    let rules = json!([{
        "name": "r",
        "checks": [{ "limit": tiers, "key": [{ "constant": "c" }] }],
        "when_unavailable": "deny",
    }]);
    let recorded = Recorded::start(rules, |config| filters(config).insert(0, jwt_authn())).await;
    let asked = async |line: &str| {
        let lines = ["GET / HTTP/1.1", "host: h", line];
        recorded.asked(&lines).await
    };
    let signed = token(&json!({ "iss": "issuer", "plan": "gold" }));
    let bearer = format!("authorization: Bearer {signed}");
    assert_eq!(asked(&bearer).await, ["gold @constant=c 1"]);
    for forged in [
        "plan: gold",
        "x-plan: gold",
        "tier: gold",
        "payload: {\"plan\":\"gold\"}",
        "ratelimit-policy: \"gold/3600s\";q=1000000;w=3600",
        "x-ratelimit-limit: 1000000",
    ] {
        assert_eq!(asked(forged).await, ["free @constant=c 1"], "{forged}");
    }
    // What the issuer has not signed is refused before our filter.
    let (head, _) = bearer.rsplit_once('.').unwrap();
    let nothing: [&str; 0] = [];
    assert_eq!(asked(&format!("{head}.AAAA")).await, nothing);
}

/// Envoy's own limits are 60 KiB and 100 fields.
#[tokio::test(flavor = "multi_thread")]
async fn headers_as_large_and_as_many_as_envoy_takes_are_keys_like_others() {
    let chain = Chain::of("sliding_log", 1, "1h").await;
    let mut wire = Wire::new(chain.envoy.port);
    let request = |fields: &str| format!("GET / HTTP/1.1\r\nhost: h\r\n{fields}\r\n").into_bytes();
    let large = "k".repeat(58 << 10);
    let many = |last: &str| {
        let values = (0..90).map(|number| format!("x-other-{number}: {number}\r\n"));
        values.collect::<String>() + &format!("x-api-key: {last}\r\n")
    };
    for (fields, status) in [
        (format!("x-api-key: {large}a\r\n"), 200),
        (format!("x-api-key: {large}a\r\n"), 429),
        // Only the last byte differs.
        (format!("x-api-key: {large}b\r\n"), 200),
        (many("m"), 200),
        (many("m"), 429),
        (format!("x-api-key: {large}{large}\r\n"), 431),
    ] {
        let told: String = fields.chars().take(40).collect();
        assert_eq!(
            wire.exchange(&request(&fields)).await,
            Some(status),
            "{told}"
        );
    }
    // An empty key is a missing one.
    let missing = wire.exchange(&request("")).await;
    assert_eq!(wire.exchange(&request("x-api-key:\r\n")).await, missing);
    chain.envoy.is_well().await;
}

/// Texts that mean something to Redis, to a log, to Prometheus or to a browser.
const TEXTS: [&str; 9] = [
    "}:per-key:fix1:3600000ms",
    "{a}{b}",
    "x\r\nSET stolen 1\r\n",
    "*3\r\n$3\r\nSET\r\n$6\r\nstolen\r\n$1\r\n1\r\n",
    "\"} 1\nsluicegate_decisions_total{limit=\"stolen\"",
    "{\"level\":\"ERROR\",\"message\":\"stolen\"}\n",
    "<script>stolen()</script>",
    "\u{1b}]0;stolen\u{7}\u{202e}",
    "'); return redis.call('SET', 'stolen', 1) --",
];

#[tokio::test(flavor = "multi_thread")]
async fn no_key_reaches_redis_as_a_command_or_a_log_or_a_metric_at_all() {
    let redis = Redis::start().await;
    let text = policy(&redis.url(), "fixed_window", 1, "1h");
    let sidecar = Sidecar::alone(&text).await;
    for outcome in ["admitted", "denied"] {
        for key in TEXTS {
            let verdict = take(&sidecar, "per-key", key).await;
            assert_eq!(verdict["outcome"], outcome, "{key:?}: {verdict}");
            assert!(!verdict.to_string().contains("stolen"), "{verdict}");
        }
    }
    for name in TEXTS {
        let verdict = take(&sidecar, name, "k").await;
        assert_eq!(verdict["outcome"], "error", "{verdict}");
    }
    let keys = redis.keys().await;
    assert_eq!(keys.len(), TEXTS.len(), "{keys:?}");
    let one_tag = |key: &String| key.matches(['{', '}']).count() == 2;
    assert!(keys.iter().all(|key| key.starts_with("sg:{")), "{keys:?}");
    assert!(keys.iter().all(one_tag), "{keys:?}");
    let printable = |key: &String| !key.contains(|c: char| c.is_control() || c == ' ');
    assert!(keys.iter().all(printable), "{keys:?}");
    let admin = |path: &str| sidecar.admin(path);
    for path in ["/metrics", "/v1/top", "/"] {
        let (status, text) = get(&admin(path)).await;
        assert!(status == 200 && !text.contains("stolen"), "{path}: {text}");
    }
    assert!(!sidecar.log().contains("stolen"), "{}", sidecar.log());
}

/// A filter that announces itself is a series in Prometheus, and whoever reaches the port may do so.
#[tokio::test(flavor = "multi_thread")]
async fn forged_announcements_make_few_series_and_none_with_text_of_their_own() {
    let text = policy("memory", "fixed_window", 1, "1h");
    let sidecar = Sidecar::alone(&text).await;
    let (client, url) = (client(), sidecar.url("/v1/decide"));
    for number in 0..200 {
        for (version, configuration) in [
            ("0.1.0", format!("{number:012x}")),
            ("stolen\\\"", format!("{number:012x}")),
            ("0.1.0", format!("<script>{number}")),
        ] {
            let value = FilterInfo {
                version,
                configuration: &configuration,
            };
            let request = client.post(&url).header(FILTER_HEADER, value.to_string());
            let answer = request.body(r#"{"decisions":[]}"#).send().await.unwrap();
            assert!(answer.status().as_u16() < 500, "{answer:?}");
        }
    }
    let text = sidecar.metrics().await;
    let series: Vec<_> = text
        .lines()
        .filter(|line| line.starts_with("sluicegate_filter_info{"))
        .collect();
    assert!((1..=32).contains(&series.len()), "{series:?}");
    assert!(!text.contains("<script>"), "{series:?}");
    assert!(!text.contains("stolen"), "{series:?}");
}

/// The policy knows its shadow rules, those of a minute ago too.
#[tokio::test(flavor = "multi_thread")]
async fn forged_names_of_shadow_rules_make_no_series() {
    let check = json!({ "limit": "per-key", "key": [{ "constant": "c" }] });
    let ruled = |name: &str| {
        let rule = json!({ "name": name, "shadow": true, "checks": [check] });
        let limits = policy("memory", "fixed_window", 1, "1h")
            + "  other: { algorithm: fixed_window, windows: [{ quota: 1, per: 1h }] }\n";
        with_rules(&limits, &json!([rule]))
    };
    let sidecar = Sidecar::alone(&ruled("trial")).await;
    let series = async || {
        let text = sidecar.metrics().await;
        assert!(!text.contains("stolen"), "{text}");
        text.lines()
            .filter(|line| line.starts_with("sluicegate_shadow_"))
            .count()
    };
    let usual = series().await;
    assert_eq!(usual, 3, "they are there from the start");
    std::fs::write(&sidecar.policy, ruled("later")).unwrap();
    sidecar.reaches("sluicegate_policy_epoch", 2.0).await;
    assert_eq!(series().await, 2 * usual);
    for number in 0..300 {
        let name = format!("stolen-{number}\u{1b}<b>");
        for limit in ["per-key", "other"] {
            let of = |shadow: &str| json!({ "limit": limit, "shadow": shadow, "count": 1 });
            let decision = json!({ "checks": [{ "limit": limit, "key": "k" }], "shadow": name });
            let denied = json!([of(&name), of("trial"), of("later")]);
            let asked = json!({ "decisions": [decision], "denied": denied });
            ask(sidecar.port, "/v1/decide", asked).await;
        }
    }
    for (rule, limit, count) in [
        ("trial", "per-key", 300.0),
        ("later", "per-key", 300.0),
        // 299 of its own decisions, and the reports under a name that asks for another limit.
        ("other", "per-key", 599.0),
        ("other", "other", 1_199.0),
    ] {
        let labels = format!("limit=\"{limit}\",rule=\"{rule}\",verdict=\"denied\"");
        let name = format!("sluicegate_shadow_decisions_total{{{labels}}}");
        assert_eq!(sidecar.metric(&name).await, count, "{name}");
    }
    // `other` of two limits, admitted and denied.
    assert_eq!(series().await, 2 * usual + 4);
}

/// Connections to a port of this machine that their clients have closed, and the server has not.
fn half_closed(port: u16) -> usize {
    const CLOSE_WAIT: &str = "08";
    let local = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let rows = table
        .lines()
        .map(|row| row.split_whitespace().collect::<Vec<_>>());
    let of_port = rows.filter(|row| row[1] == local && row[3] == CLOSE_WAIT);
    of_port.count()
}

/// A sidecar that stood still finds requests whose filters have answered their clients long ago.
#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_given_up_while_the_sidecar_stood_still_take_nothing() {
    const QUOTA: u64 = 1_000;
    let redis = Redis::start().await;
    for store in ["memory".to_owned(), redis.url()] {
        let text = policy(&store, "fixed_window", QUOTA, "1h");
        let sidecar = Sidecar::alone(&text).await;
        let left = async || peek(&sidecar, "per-key", "k").await["remaining"].as_u64();
        eventually("the store decides", async || left().await == Some(QUOTA)).await;
        sidecar.signal("STOP");
        for _ in 0..100 {
            sent(sidecar.port, &post_of(&question())).await;
        }
        eventually("all have ended", async || half_closed(sidecar.port) >= 100).await;
        sidecar.signal("CONT");
        eventually("all are handled", async || half_closed(sidecar.port) == 0).await;
        assert_eq!(left().await, Some(QUOTA), "{store}");
    }
}
