//! Overrides: set on one sidecar and felt on all, kept over restarts and outages, with the counts kept.

use std::time::{Duration, Instant};

use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::client::{client, post};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tempfile::TempDir;

use crate::support::{number, plugin, policy};

/// What docs/overrides.md promises is a second; a machine that stands still may take longer.
const FELT_WITHIN: Duration = Duration::from_secs(5);

async fn change(sidecar: &Sidecar, method: Method, body: &Value) -> (u16, Value) {
    let (status, answer) = sidecar.change_override(method, body.to_string()).await;
    (status, serde_json::from_str(&answer).unwrap())
}

async fn set(sidecar: &Sidecar, limit: &str, key: &str, terms: Value) -> Value {
    let mut body = json!({ "limit": limit, "key": key });
    let fields = body.as_object_mut().unwrap();
    fields.extend(terms.as_object().unwrap().clone());
    let (status, answer) = change(sidecar, Method::PUT, &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn remove(sidecar: &Sidecar, limit: &str, key: &str) -> Value {
    let body = json!({ "limit": limit, "key": key });
    let (status, answer) = change(sidecar, Method::DELETE, &body).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

async fn list(sidecar: &Sidecar) -> Vec<Value> {
    let url = format!("http://127.0.0.1:{}/v1/overrides", sidecar.admin_port);
    let (status, answer) = sluicegate_tests::client::get(&url).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["overrides"].as_array().unwrap().clone()
}

/// The verdict of a decision of these fields.
async fn decide(sidecar: &Sidecar, decision: Value) -> Value {
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let body = json!({ "decisions": [decision] });
    let (status, answer) = post(&url, body.to_string()).await;
    assert_eq!(status, 200, "{answer}");
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["verdicts"][0].clone()
}

async fn take(sidecar: &Sidecar, limit: &str, key: &str) -> Value {
    decide(
        sidecar,
        json!({ "checks": [{ "limit": limit, "key": key }] }),
    )
    .await
}

/// How many of so many are admitted.
async fn admitted(sidecar: &Sidecar, limit: &str, key: &str, asked: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..asked {
        admitted += usize::from(take(sidecar, limit, key).await["outcome"] == "admitted");
    }
    admitted
}

fn rfc3339_in(seconds: u64) -> String {
    let at = std::time::SystemTime::now() + Duration::from_secs(seconds);
    humantime::format_rfc3339_millis(at).to_string()
}

/// Two sidecars on one store, with denials that are held for a minute: only what voids them lets a change be felt.
struct Fleet {
    sidecars: [Sidecar; 2],
    _folder: TempDir,
}

impl Fleet {
    async fn start(store: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let text = policy(store, "sliding_log", 5, "1h")
            + "  rate:\n    algorithm: token_bucket\n    windows: [{ quota: 5, per: 1h }]\n"
            + "  many:\n    algorithm: fixed_window\n    windows: [{ quota: 5, per: 1h }, { quota: 50, per: 24h }]\n"
            + "denial_ttl: 1m\n";
        let one = Sidecar::start(&text, folder.path()).await;
        let other = Sidecar::start(&text, folder.path()).await;
        Self {
            sidecars: [one, other],
            _folder: folder,
        }
    }
}

/// Asks until what comes is as expected; how long it took.
async fn felt(sidecar: &Sidecar, what: &str, limit: &str, key: &str, outcome: &str) -> Duration {
    let changed = Instant::now();
    loop {
        let peek = json!({ "checks": [{ "limit": limit, "key": key }], "peek": true });
        if decide(sidecar, peek).await["outcome"] == outcome {
            let took = changed.elapsed();
            println!("{what}: felt by the other sidecar after {took:?}");
            return took;
        }
        assert!(changed.elapsed() < FELT_WITHIN, "{what} is not felt");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn a_fleet_obeys(fleet: &mut Fleet) {
    let [here, there] = &fleet.sidecars;
    for limit in ["per-key", "rate"] {
        assert_eq!(admitted(here, limit, "k", 6).await, 5);
        // Both hold the denial now, for a minute.
        for sidecar in [here, there] {
            assert_eq!(admitted(sidecar, limit, "k", 2).await, 0);
        }
        let answer = set(
            here,
            limit,
            "k",
            json!({ "quota": 8, "reason": "INC-7", "by": "ann" }),
        )
        .await;
        assert_eq!(
            (&answer["replaced"], &answer["override"]["state"]),
            (&json!(false), &json!("in_force")),
            "{answer}"
        );
        assert_eq!(
            take(here, limit, "k").await["outcome"],
            "admitted",
            "at once"
        );
        felt(there, "a raised quota", limit, "k", "admitted").await;
        // Five were taken before and one just now: counts are kept.
        assert_eq!(admitted(there, limit, "k", 5).await, 2, "{limit}");
        assert_eq!(admitted(here, limit, "other", 7).await, 5, "nobody else's");

        set(there, limit, "k", json!({ "unlimited": true })).await;
        felt(here, "unlimited", limit, "k", "admitted").await;
        assert_eq!(admitted(here, limit, "k", 20).await, 20);
        set(here, limit, "k", json!({ "blocked": true })).await;
        felt(there, "blocked", limit, "k", "denied").await;
        // Clients do not see when it ends: clients are to wait for the longest window.
        let denied = take(there, limit, "k").await;
        assert_eq!(
            (&denied["outcome"], &denied["retry_after_ms"]),
            (&json!("denied"), &json!(3_600_000))
        );

        let answer = remove(here, limit, "k").await;
        assert_eq!(answer, json!({ "removed": true }));
        assert_eq!(remove(here, limit, "k").await, json!({ "removed": false }));
        eventually("the other sidecar knows of no override", async || {
            list(there).await.is_empty()
        })
        .await;
        assert_eq!(admitted(there, limit, "k", 3).await, 0, "it had taken all");
    }
    set(here, "per-key", "k", json!({ "quota": 9 })).await;
    for sidecar in &mut fleet.sidecars {
        sidecar.restart().await;
        // From the first decision on.
        assert_eq!(list(sidecar).await[0]["quota"], 9);
        assert_eq!(
            sidecar
                .metric("sluicegate_overrides{allowance=\"quota\"}")
                .await,
            1.0
        );
    }
    let [here, there] = &fleet.sidecars;
    assert_eq!(
        admitted(here, "per-key", "k", 1).await,
        1,
        "8 of 9 were taken"
    );
    assert_eq!(admitted(there, "per-key", "k", 1).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_is_felt_by_all_sidecars_and_survives_their_restart() {
    let redis = Redis::start().await;
    let mut fleet = Fleet::start(&redis.url()).await;
    a_fleet_obeys(&mut fleet).await;
    let log = fleet.sidecars[0].log() + &fleet.sidecars[1].log();
    let audited: Vec<_> = log
        .lines()
        .filter(|line| line.contains(" audit: "))
        .collect();
    let set = audited.iter().find(|line| line.contains("INC-7")).unwrap();
    // The first digits of printf %s k | sha256sum.
    for part in ["override set", "per-key", "8254c329a928", "quota 8", "ann"] {
        assert!(set.contains(part), "no {part} in {set}");
    }
    assert!(audited.iter().any(|line| line.contains("override removed")));
    let [here, _] = &fleet.sidecars;
    remove(here, "per-key", "k").await;
    assert!(
        !redis
            .all_keys()
            .await
            .iter()
            .any(|key| key.contains("overrides"))
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_cluster_keeps_overrides_too() {
    let cluster = Cluster::start().await;
    let mut fleet = Fleet::start(&cluster.url()).await;
    a_fleet_obeys(&mut fleet).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_ends_by_itself() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [here, there] = &fleet.sidecars;
    let until = rfc3339_in(3);
    set(
        here,
        "per-key",
        "b",
        json!({ "blocked": true, "until": until }),
    )
    .await;
    let denied = take(here, "per-key", "b").await;
    let retry_ms = denied["retry_after_ms"].as_u64().unwrap();
    assert_eq!(denied["outcome"], "denied");
    assert!((1..=3_000).contains(&retry_ms), "{denied}");
    assert!(denied["hold_ms"].as_u64().unwrap() <= retry_ms, "{denied}");
    felt(there, "blocked", "per-key", "b", "denied").await;
    tokio::time::sleep(Duration::from_millis(retry_ms)).await;
    for sidecar in [here, there] {
        assert_eq!(take(sidecar, "per-key", "b").await["outcome"], "admitted");
    }
    assert_eq!(list(here).await[0]["state"], "ended");
    // All of them have an end, so Redis forgets the hash by itself.
    let ttl: i64 = redis.command("PTTL sg:{overrides}").await;
    assert!((1..=64_000).contains(&ttl), "{ttl}");
    set(here, "per-key", "u", json!({ "unlimited": true })).await;
    let ttl: i64 = redis.command("PTTL sg:{overrides}").await;
    assert_eq!(ttl, -1, "one without an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn overrides_hold_while_the_store_is_away() {
    let mut redis = Redis::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = policy(&redis.url(), "sliding_log", 5, "1h")
        .replace("store_timeout: 2s", "store_timeout: 50ms");
    let sidecar = Sidecar::start(&text, folder.path()).await;
    set(&sidecar, "per-key", "u", json!({ "unlimited": true })).await;
    set(&sidecar, "per-key", "b", json!({ "blocked": true })).await;
    set(&sidecar, "per-key", "q", json!({ "quota": 7 })).await;
    eventually("the store knows of the sidecar", async || {
        sidecar.metric("sluicegate_sidecars").await == 1.0
    })
    .await;
    redis.kill();
    eventually("the store is down", async || {
        take(&sidecar, "per-key", "probe").await["outcome"] == "admitted"
            && sidecar.metric("sluicegate_store_up").await == 0.0
    })
    .await;
    assert_eq!(admitted(&sidecar, "per-key", "u", 20).await, 20);
    assert_eq!(take(&sidecar, "per-key", "b").await["outcome"], "denied");
    // Its share is of the override's quota.
    assert_eq!(admitted(&sidecar, "per-key", "q", 10).await, 7);
    let body = json!({ "limit": "per-key", "key": "x", "blocked": true });
    let (status, answer) = change(&sidecar, Method::PUT, &body).await;
    assert_eq!(
        (status, &answer["code"]),
        (503, &json!("store_unavailable")),
        "{answer}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_override_decides_for_its_check_and_the_others_decide_still() {
    let redis = Redis::start().await;
    let fleet = Fleet::start(&redis.url()).await;
    let [sidecar, _] = &fleet.sidecars;
    set(sidecar, "per-key", "u", json!({ "unlimited": true })).await;
    let both = json!({ "checks": [
        { "limit": "per-key", "key": "u", "cost": 1_000 },
        { "limit": "rate", "key": "u", "cost": 3 },
    ], "receipt": true });
    let verdict = decide(sidecar, both.clone()).await;
    assert_eq!(
        (&verdict["outcome"], &verdict["limit"]),
        (&json!("admitted"), &json!("rate"))
    );
    let receipts = verdict["receipt"].as_array().unwrap().clone();
    assert_eq!(receipts.len(), 2, "one for each check");
    assert_eq!(decide(sidecar, both).await["outcome"], "denied");
    for (index, (limit, units)) in [("per-key", 0), ("rate", 3)].into_iter().enumerate() {
        let entry = json!({ "limit": limit, "key": "u", "receipt": receipts[index] });
        let url = format!("http://127.0.0.1:{}/v1/give-back", sidecar.port);
        let (_, answer) = post(&url, json!({ "give_backs": [entry] }).to_string()).await;
        assert!(
            answer.contains(&format!("\"units\":{units}")),
            "{limit}: {answer}"
        );
    }
    // A denial takes nothing from the others.
    set(sidecar, "per-key", "b", json!({ "blocked": true })).await;
    let blocked = json!({ "checks": [
        { "limit": "rate", "key": "b" }, { "limit": "per-key", "key": "b" },
    ] });
    for _ in 0..3 {
        let verdict = decide(sidecar, blocked.clone()).await;
        assert_eq!(
            (&verdict["outcome"], &verdict["check"]),
            (&json!("denied"), &json!(1))
        );
    }
    assert_eq!(admitted(sidecar, "rate", "b", 6).await, 5);
    let by_override = |verdict: &str| {
        format!(
            "sluicegate_decisions_total{{limit=\"per-key\",source=\"override\",verdict=\"{verdict}\"}}"
        )
    };
    assert_eq!(sidecar.metric(&by_override("denied")).await, 3.0);
    let alone = json!({ "checks": [{ "limit": "per-key", "key": "u" }], "receipt": true });
    let verdict = decide(sidecar, alone).await;
    assert_eq!(verdict["receipt"].as_array().unwrap().len(), 1);
    assert_eq!(sidecar.metric(&by_override("admitted")).await, 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_meant_is_refused_with_field_and_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let text = policy("memory", "sliding_log", 5, "1h")
        + "    overrides: [{ key: file, quota: 6 }]\n"
        + "  many:\n    algorithm: fixed_window\n    windows: [{ quota: 5, per: 1h }, { quota: 50, per: 24h }]\n";
    let sidecar = Sidecar::start(&text, folder.path()).await;
    let past = "2020-01-01T00:00:00Z";
    for (body, code, named) in [
        (
            json!({ "limit": "per-kee", "key": "k", "quota": 5 }),
            "unknown_limit",
            "`per-key`",
        ),
        (
            json!({ "limit": "per-key", "key": "k" }),
            "malformed_entry",
            "exactly one",
        ),
        (
            json!({ "limit": "per-key", "key": "k", "qouta": 5 }),
            "malformed_entry",
            "qouta",
        ),
        (
            json!({ "limit": "per-key", "key": "k", "quota": 0 }),
            "malformed_entry",
            "`quota` is 0",
        ),
        (
            json!({ "limit": "per-key", "key": "k", "quota": 5, "burst": 5 }),
            "malformed_entry",
            "token_bucket",
        ),
        (
            json!({ "limit": "many", "key": "k", "quota": 5 }),
            "malformed_entry",
            "`1h`, `1day`",
        ),
        (
            json!({ "limit": "per-key", "key": "k", "blocked": true, "until": past }),
            "malformed_entry",
            "has passed",
        ),
        (
            json!({ "limit": "per-key", "key": "", "blocked": true }),
            "empty_key",
            "`key`",
        ),
    ] {
        let (status, answer) = change(&sidecar, Method::PUT, &body).await;
        assert_eq!(
            (status, answer["code"].as_str()),
            (400, Some(code)),
            "{body}: {answer}"
        );
        assert!(answer.to_string().contains(named), "{body}: {answer}");
    }
    assert_eq!(
        admitted(&sidecar, "per-key", "file", 9).await,
        6,
        "the policy file's"
    );
    set(&sidecar, "per-key", "file", json!({ "quota": 8 })).await;
    assert_eq!(
        admitted(&sidecar, "per-key", "file", 9).await,
        2,
        "the store's comes first"
    );
    let answer = remove(&sidecar, "per-key", "file").await;
    assert_eq!(answer["in_policy"]["quota"], 6, "{answer}");
    let listed = list(&sidecar).await;
    assert_eq!((listed.len(), &listed[0]["source"]), (1, &json!("policy")));
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_envoy_feel_overrides() {
    let redis = Redis::start().await;
    let folder = tempfile::tempdir().unwrap();
    let text = policy(&redis.url(), "sliding_log", 5, "1h");
    let sidecar = Sidecar::start(&text, folder.path()).await;
    // Plain, so that the test can spell the key.
    let rules = json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key", "plain": true }] }],
        "when_unavailable": "deny",
    }]);
    let upstream = upstream::start().await;
    let envoy = Envoy::start(folder.path(), sidecar.port, upstream, Some(plugin(rules))).await;
    let get = async |key: &str| {
        let request = client().get(envoy.url("/")).header("x-api-key", key);
        request.send().await.unwrap()
    };
    let key = |name: &str| format!("x-api-key={name}");
    for _ in 0..5 {
        assert_eq!(get("t").await.status(), 200);
    }
    assert_eq!(get("t").await.status(), 429);
    set(&sidecar, "per-key", &key("t"), json!({ "quota": 7 })).await;
    // The filter's own certificate ends within denial_ttl.
    eventually("the client feels the raised quota", async || {
        get("t").await.status() == 200
    })
    .await;
    set(&sidecar, "per-key", &key("u"), json!({ "unlimited": true })).await;
    for _ in 0..20 {
        assert_eq!(get("u").await.status(), 200);
    }
    let until = rfc3339_in(3_600);
    let reason = "said to nobody";
    set(
        &sidecar,
        "per-key",
        &key("b"),
        json!({ "blocked": true, "until": until, "reason": reason }),
    )
    .await;
    let denied = get("b").await;
    assert_eq!(denied.status(), 429);
    assert!(
        (3_500..=3_600).contains(&number(&denied, "retry-after")),
        "{denied:?}"
    );
    assert!(!denied.text().await.unwrap().contains(reason));
    remove(&sidecar, "per-key", &key("b")).await;
    eventually("the client is let in again", async || {
        get("b").await.status() == 200
    })
    .await;
}

/// Status and output of `sluicegate override` with these arguments.
fn command(sidecar: &Sidecar, words: &[&str]) -> (Option<i32>, String) {
    let admin = format!("http://127.0.0.1:{}", sidecar.admin_port);
    let done = std::process::Command::new(sluicegate_tests::sidecar::binary())
        .arg("override")
        .args(words)
        .args(["--admin", &admin])
        .output()
        .unwrap();
    let printed =
        String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    (done.status.code(), printed)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sets_lists_and_removes() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(&policy("memory", "sliding_log", 5, "1h"), folder.path()).await;
    let whom = ["--limit", "per-key", "--key", "acme"];
    let run = |verb: &str, words: &[&str]| command(&sidecar, &[&[verb], &whom[..], words].concat());
    assert_eq!(run("set", &[]).0, Some(64), "nothing is said to be allowed");
    assert_eq!(run("set", &["--quota", "7", "--blocked"]).0, Some(64));
    let (status, printed) = run("set", &["--quota", "7/1m"]);
    assert!(
        status == Some(64) && printed.contains("it has `1h`"),
        "{printed}"
    );
    let words = ["--quota", "7/1h", "--for", "2h", "--reason", "INC-7"];
    let (status, printed) = run("set", &words);
    assert!(
        status == Some(0) && printed.contains("quota 7/1h until 2"),
        "{printed}"
    );
    assert_eq!(admitted(&sidecar, "per-key", "acme", 9).await, 7);
    let (status, printed) = command(&sidecar, &["list", "--limit", "per-key"]);
    let row = printed.lines().nth(1).unwrap_or_default();
    let by = format!(
        "@{}",
        std::fs::read_to_string("/proc/sys/kernel/hostname")
            .unwrap()
            .trim()
    );
    for part in ["acme", "quota 7/1h", "store", "in force", "INC-7", &by] {
        assert!(
            status == Some(0) && row.contains(part),
            "no {part} in {printed}"
        );
    }
    let (status, printed) = run("remove", &["--by", "bob"]);
    assert!(
        status == Some(0) && printed.contains("removed"),
        "{printed}"
    );
    assert!(command(&sidecar, &["list"]).1.contains("no overrides"));
    assert_eq!(admitted(&sidecar, "per-key", "acme", 1).await, 0);
}
