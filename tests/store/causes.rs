//! The reported cause when Redis cannot be reached or used.

use futures_util::future::join_all;
use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, documented_acl, failures, logs, policy, sidecar, wait_until_back,
};
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// Asks several times: every failure, including the first, is of this kind, and the cause is reported without the password.
async fn assert_reported(store: &str, kind: &str, words: &str) {
    let sidecar = sidecar(store, PATIENT, 10).await;
    let lost = async || failures(&sidecar, kind).await == 1.0;
    eventually("the loss of the store is counted", lost).await;
    for _ in 0..20 {
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
    }
    let (found, log) = (failures(&sidecar, kind).await, sidecar.log());
    assert_eq!(found, 21.0, "{store}: {kind}: {log}");
    let body = sidecar.readyz().await;
    let is_reported = body.contains(words) || log.contains(words);
    assert!(is_reported, "{store}: no `{words}` in {body}");
    assert!(!body.contains("secret") && !log.contains("secret"));
}

#[tokio::test]
async fn each_cause_is_reported_by_its_kind_and_in_words_without_the_password() {
    let (redis, replica) = (Redis::start().await, Redis::start().await);
    let guarded = Redis::start_with(&["--requirepass", "right"]).await;
    let words = format!("REPLICAOF 127.0.0.1 {}", redis.port());
    let _: () = replica.command(&words).await;
    let (port, url) = (redis.port(), redis.url());
    let on = |port| format!("redis://:secret@127.0.0.1:{port}");
    let causes = [
        (on(free_port()), "connection", "Connection refused"),
        (
            "redis://:secret@nowhere.invalid".to_owned(),
            "connection",
            "cannot be resolved",
        ),
        (
            "redis+unix:///nowhere/socket".to_owned(),
            "connection",
            "No such file",
        ),
        (on(guarded.port()), "auth", "refused the user and password"),
        (guarded.url(), "auth", "refused the user and password"),
        (format!("{url}/99"), "refused", "out of range"),
        (
            format!("redis+cluster://127.0.0.1:{port}"),
            "connection",
            "cluster support disabled",
        ),
        (replica.url(), "connection", "replica"),
        (
            format!("{{ url: '{url}', password_file: /nowhere/secret }}"),
            "connection",
            "password_file",
        ),
    ];
    let each = causes.iter();
    join_all(each.map(|(store, kind, words)| assert_reported(store, kind, words))).await;
}

/// Without traffic, when PING would succeed.
#[tokio::test]
async fn a_full_redis_is_down_until_a_write_succeeds() {
    let redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), PATIENT, 10).await;
    wait_until_back(&sidecar, "k").await;
    let is_up = async || sidecar.metric("sluicegate_store_up").await;
    eventually("it is up", async || is_up().await == 1.0).await;
    let _: () = redis.command("CONFIG SET maxmemory 1").await;
    eventually("it is down", async || is_up().await == 0.0).await;
    // Commands that write nothing succeed, and do not count as recovery.
    let pong: String = redis.command("PING").await;
    assert_eq!(pong, "PONG");
    let before = redis.script_calls().await;
    eventually("it is tried again", async || {
        redis.script_calls().await > before + 5
    })
    .await;
    assert_eq!(is_up().await, 0.0);
    let body = sidecar.readyz().await;
    assert!(body.contains("OOM"), "{body}");
    let _: () = redis.command("CONFIG SET maxmemory 0").await;
    eventually("it is up again", async || is_up().await == 1.0).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
}

#[tokio::test]
async fn a_redis_that_evicts_is_warned_about_once() {
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = Redis::start_with(&arguments).await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    logs(&sidecar, "allkeys-lru").await;
    let (roles, calls) = (redis.calls("role").await, redis.script_calls().await);
    let _: i64 = redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
    eventually(
        "another connection has been in use for some time",
        async || redis.calls("role").await > roles && redis.script_calls().await > calls + 6,
    )
    .await;
    wait_until_back(&sidecar, "k").await;
    assert_eq!(sidecar.log().matches("allkeys-lru").count(), 1);
}

/// R11: the script of logs wrote before it set an end, so that what it wrote stayed for ever.
#[tokio::test]
async fn where_ends_cannot_be_set_nothing_is_kept_without_one() {
    let redis = Redis::start().await;
    let acl = documented_acl().replace(" +pexpire", "");
    let _: () = redis.command(&acl).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    let limited = sidecar(store, PATIENT, PLENTY).await;
    assert_eq!(decide(&limited, "k").await, "unavailable");
    assert_without_eternal_keys(&redis).await;
    // And where the command is forbidden later.
    let _: () = redis.command("ACL SETUSER sluicegate +pexpire").await;
    wait_until_back(&limited, "k").await;
    limited.knows_of(1).await;
    let _: () = redis.command("ACL SETUSER sluicegate -pexpire").await;
    let _: () = redis.command("FLUSHALL").await;
    eventually("it is refused", async || {
        decide(&limited, "another").await == "unavailable"
    })
    .await;
    assert_without_eternal_keys(&redis).await;
}

async fn assert_without_eternal_keys(redis: &Redis) {
    for key in redis.all_keys().await {
        let left: i64 = redis.command(&format!("TTL {key}")).await;
        assert_ne!(left, -1, "{key}");
    }
}

/// R11: what Redis answers has the arguments of the call in it, which are no text. The redis crate could not read it.
#[tokio::test]
async fn a_command_that_was_renamed_is_named() {
    let redis = Redis::start_with(&["--rename-command", "EVALSHA", ""]).await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    let told = "refused the script: ResponseError: unknown command 'EVALSHA'";
    sidecar.reports(told).await;
    logs(&sidecar, told).await;
    for text in [sidecar.readyz().await, sidecar.log()] {
        assert!(!text.contains("sg:"), "{text}");
        let lines = text.lines().filter(|line| line.contains("EVALSHA"));
        assert!(lines.clone().all(|line| line.contains(told)), "{text}");
    }
}

/// R11: twemproxy closes a connection at a command that it does not know.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_closes_connections_at_once_is_told_in_words() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    for command in ["SETINFO", "ROLE"] {
        proxy.set(Mode::CutAfter(command));
        let sidecar = sidecar(proxy.url(), PATIENT, PLENTY).await;
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
        sidecar.reports("such as twemproxy").await;
    }
}

/// P8: Redis says why before it closes, and "some proxies, such as twemproxy" were told.
#[tokio::test]
async fn a_redis_with_too_many_clients_is_told_as_such() {
    let redis = Redis::start().await;
    let _only = redis.connection().await;
    let _: () = redis.command("CONFIG SET maxclients 1").await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    let why = "it closed a new connection and said: ERR max number of clients reached";
    sidecar.reports(why).await;
    logs(&sidecar, why).await;
    assert!(!sidecar.log().contains("twemproxy"), "{}", sidecar.log());
}

/// The probe's answer could not be read either, and calls that were not sent for that reason counted as calls that Redis may
/// have carried out: no share decided until Redis was back.
#[tokio::test(flavor = "multi_thread")]
async fn shares_decide_while_answers_cannot_be_read() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let policy = policy(proxy.url(), PATIENT, PLENTY).replace("deny", "share");
    let sidecar = Sidecar::alone(&policy).await;
    sidecar.knows_of(1).await;
    wait_until_back(&sidecar, "k").await;
    proxy.set(Mode::Garble);
    eventually("its share decides", async || {
        decide(&sidecar, "k").await == "admitted"
    })
    .await;
    // Redis is tried again meanwhile, several times.
    let before = redis.script_calls().await;
    while redis.script_calls().await < before + 5 {
        assert_eq!(decide(&sidecar, "k").await, "admitted");
    }
    // Such answers are not counted among those of the store, which would seem quick.
    let by_share = r#"sluicegate_decision_duration_seconds_count{source="share"}"#;
    assert!(sidecar.metric(by_share).await > 0.0);
    // Alerts call a store slow by it.
    sidecar
        .reaches("sluicegate_store_timeout_seconds", 2.0)
        .await;
    assert!(failures(&sidecar, "reply").await > 0.0);
    let text = sidecar.readyz().await;
    assert!(text.contains("the script's reply cannot be read"), "{text}");
    proxy.set(Mode::Pass);
    sidecar.written_back().await;
}
