//! The reported cause when Redis cannot be reached or used.

use std::time::Duration;

use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use sluicegate_tests::ask::{decide, decide_for, failures, policy, wait_until_back};

/// Asks several times: every failure, including the first, is of this kind, and the cause is reported without the password.
async fn assert_reported(store: &str, kind: &str, words: &str) {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::start(&policy(store, "500ms", 10), folder.path()).await;
    for _ in 0..20 {
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
    }
    assert_eq!(failures(&sidecar, kind).await, 20.0, "{}", sidecar.log());
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    let (_, body) = sluicegate_tests::client::get(&ready).await;
    assert!(
        body.contains(words) || sidecar.log().contains(words),
        "{body}"
    );
    assert!(!body.contains("secret") && !sidecar.log().contains("secret"));
}

#[tokio::test]
async fn s23_a_port_where_nobody_listens() {
    let store = format!("redis://:secret@127.0.0.1:{}", free_port());
    assert_reported(&store, "connection", "Connection refused").await;
}

#[tokio::test]
async fn s23_a_name_that_does_not_exist() {
    assert_reported(
        "redis://:secret@nowhere.invalid",
        "connection",
        "cannot be resolved",
    )
    .await;
}

#[tokio::test]
async fn s23_a_socket_that_does_not_exist() {
    assert_reported("redis+unix:///nowhere/socket", "connection", "No such file").await;
}

#[tokio::test]
async fn s23_a_wrong_password() {
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let store = format!("redis://:secret@127.0.0.1:{}", redis.port());
    assert_reported(&store, "auth", "refused the user and password").await;
}

#[tokio::test]
async fn s23_a_password_that_is_missing() {
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    assert_reported(&redis.url(), "auth", "refused the user and password").await;
}

#[tokio::test]
async fn s23_a_database_that_does_not_exist() {
    let redis = Redis::start().await;
    assert_reported(&format!("{}/99", redis.url()), "refused", "out of range").await;
}

#[tokio::test]
async fn s23_a_cluster_url_for_a_redis_without_cluster_support() {
    let redis = Redis::start().await;
    let store = format!("redis+cluster://127.0.0.1:{}", redis.port());
    assert_reported(&store, "connection", "cluster support disabled").await;
}

#[tokio::test]
async fn s23_a_replica() {
    let (primary, replica) = (Redis::start().await, Redis::start().await);
    let words = format!("REPLICAOF 127.0.0.1 {}", primary.port());
    let _: () = replica.command(&words).await;
    assert_reported(&replica.url(), "connection", "replica").await;
}

#[tokio::test]
async fn s23_a_file_that_is_missing() {
    let redis = Redis::start().await;
    let store = format!(
        "{{ url: '{}', password_file: /nowhere/secret }}",
        redis.url()
    );
    assert_reported(&store, "connection", "password_file").await;
}

/// Without traffic, when PING would succeed.
#[tokio::test]
async fn s10_a_full_redis_is_down_until_a_write_succeeds() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let sidecar = Sidecar::start(&policy(&redis.url(), "500ms", 10), folder.path()).await;
    wait_until_back(&sidecar, "k").await;
    let is_up = async || sidecar.metric("sluicegate_store_up").await;
    eventually("it is up", async || is_up().await == 1.0).await;
    let _: () = redis.command("CONFIG SET maxmemory 1").await;
    eventually("it is down", async || is_up().await == 0.0).await;
    // Commands that write nothing succeed, and do not count as recovery.
    let pong: String = redis.command("PING").await;
    assert_eq!(pong, "PONG");
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(is_up().await, 0.0);
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    let (_, body) = sluicegate_tests::client::get(&ready).await;
    assert!(body.contains("OOM"), "{body}");
    let _: () = redis.command("CONFIG SET maxmemory 0").await;
    eventually("it is up again", async || is_up().await == 1.0).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
}

#[tokio::test]
async fn s20_a_redis_that_evicts_is_warned_about_once() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"];
    let redis = Redis::start_with(&arguments).await;
    let sidecar = Sidecar::start(&policy(&redis.url(), "500ms", 10), folder.path()).await;
    eventually("the sidecar warns", async || {
        sidecar.log().contains("allkeys-lru")
    })
    .await;
    let _: i64 = redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    wait_until_back(&sidecar, "k").await;
    assert_eq!(sidecar.log().matches("allkeys-lru").count(), 1);
}

/// The probe's answer could not be read either, and calls that were not sent for that reason counted as calls that Redis may
/// have carried out: no share decided until Redis was back.
#[tokio::test(flavor = "multi_thread")]
async fn shares_decide_while_answers_cannot_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    let policy = policy(&proxy.url(), "1s", 1_000).replace("deny", "share");
    let sidecar = Sidecar::start(&policy, folder.path()).await;
    sidecar.knows_of(1).await;
    wait_until_back(&sidecar, "k").await;
    proxy.set(Mode::Garble);
    eventually("its share decides", async || {
        decide(&sidecar, "k").await == "admitted"
    })
    .await;
    let during = decide_for(&sidecar, "k", Duration::from_secs(1)).await;
    assert!(during.iter().all(|outcome| outcome == "admitted"));
    assert!(failures(&sidecar, "reply").await > 0.0);
    let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
    let (_, text) = sluicegate_tests::client::get(&ready).await;
    assert!(text.contains("the script's reply cannot be read"), "{text}");
    proxy.set(Mode::Pass);
    eventually("everything is written back", async || {
        sidecar.metric("sluicegate_unwritten_buckets").await == 0.0
    })
    .await;
}
