//! `check-store` on stores that are set up right and wrong.

use sluicegate_tests::ask::{documented_acl, policy};
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::process::free_port;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sentinel::Sentinels;
use sluicegate_tests::sidecar::Sidecar;
use std::time::Duration;

use super::shell::{Ran, Shell};

/// Long enough for a machine that stalls, at all of several round trips.
const PATIENT: &str = "10s";

/// Checks the store of a policy, with this `store_timeout`.
async fn check(store: &str, timeout: &str, more: &str) -> Ran {
    let shell = Shell::new();
    shell.write("policy.yaml", &policy(store, timeout, 10));
    let ran = shell
        .sluicegate(&format!("check-store --policy policy.yaml {more}"))
        .await;
    assert!(!ran.out.contains("secret"), "{ran:?}");
    assert!(!ran.err.contains("secret"), "{ran:?}");
    ran
}

/// The store is told to be wrong, by a line with all these words.
async fn is_wrong(store: &str, timeout: &str, words: [&str; 3]) {
    let ran = check(store, timeout, "").await;
    assert_eq!(ran.code(), 1, "{words:?}: {ran:?}");
    let told = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(ran.out.lines().any(told), "{words:?}: {}", ran.out);
    assert_eq!(ran.err, "sluicegate: the store has to be changed\n");
}

/// One whose user has the documented ACL, with this in place of that.
async fn with_acl(redis: &Redis, this: &str, that: &str) -> String {
    let acl = documented_acl();
    assert!(acl.contains(that), "{that}");
    let acl = acl.replace(that, this);
    let _: () = redis.command(&acl).await;
    format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port())
}

#[tokio::test(flavor = "multi_thread")]
async fn each_mistake_in_a_redis_or_its_url_is_told_with_its_remedy() {
    let redis = Redis::start().await;
    let guarded = Redis::start_with(&["--requirepass", "right"]).await;
    let on_guarded = format!("redis://:secret@127.0.0.1:{}", guarded.port());
    let words = [
        "credentials: error",
        "refused the user and password",
        "; correct the user",
    ];
    is_wrong(&on_guarded, PATIENT, words).await;

    let away = format!("redis://:secret@127.0.0.1:{}", free_port());
    let words = ["address: error", "Connection refused", "; correct the URL"];
    is_wrong(&away, PATIENT, words).await;

    let bus = free_port().to_string();
    let lone = Redis::start_with(&["--cluster-enabled", "yes", "--cluster-port", &bus]).await;
    for scheme in ["redis", "redis+cluster"] {
        let lone = format!("{scheme}://127.0.0.1:{}", lone.port());
        let words = [
            "slots: error",
            "lot",
            "a node of a Cluster that serves none",
        ];
        is_wrong(&lone, PATIENT, words).await;
    }

    let no_lists = " +zadd +zrem +zcard +zrank +zrangebyscore";
    let store = with_acl(&redis, "", no_lists).await;
    let words = ["permissions: error", "ZADD is forbidden", "; add `+zadd`"];
    is_wrong(&store, PATIENT, words).await;
    for (command, rule) in [
        ("PEXPIRE", "+pexpire"),
        ("EVALSHA", "+evalsha"),
        ("SET", "+set"),
    ] {
        let store = with_acl(&redis, "", &format!(" {rule}")).await;
        let [forbidden, add] = [format!("{command} is forbidden"), format!("; add `{rule}`")];
        is_wrong(&store, PATIENT, ["permissions: error", &forbidden, &add]).await;
    }
    let store = with_acl(&redis, "~other:*", "~sg:*").await;
    let words = [
        "permissions: error",
        "may not use the keys",
        "; add `~team/sg:*`",
    ];
    let prefixed = format!("{{ url: '{store}', key_prefix: 'team/' }}");
    is_wrong(&prefixed, PATIENT, words).await;
    // What was tried left nothing that would stay.
    for key in redis.all_keys().await {
        let left: i64 = redis.command(&format!("TTL {key}")).await;
        assert_ne!(left, -1, "{key}");
    }

    for evicting in ["allkeys-lru", "volatile-ttl"] {
        let arguments = ["--maxmemory", "100mb", "--maxmemory-policy", evicting];
        let redis = Redis::start_with(&arguments).await;
        let words = [
            "eviction: error",
            evicting,
            "; set `maxmemory-policy noeviction`",
        ];
        is_wrong(&redis.url(), PATIENT, words).await;
    }

    let replica = Redis::start().await;
    let follow = format!("REPLICAOF 127.0.0.1 {}", redis.port());
    let _: () = replica.command(&follow).await;
    let words = ["role: error", "it is a replica", "; name the primary"];
    is_wrong(&replica.url(), PATIENT, words).await;

    let renamed = Redis::start_with(&["--rename-command", "EVALSHA", ""]).await;
    let words = [
        "permissions: error",
        "EVALSHA is renamed",
        "; remove `rename-command`",
    ];
    is_wrong(&renamed.url(), PATIENT, words).await;

    let strange = Redis::start().await;
    let _: () = strange.command("SET sg:{overrides} x").await;
    let words = ["permissions: error", "HDEL finds what", "; delete it"];
    is_wrong(&strange.url(), PATIENT, words).await;

    let full = Redis::start_with(&["--maxmemory", "1"]).await;
    is_wrong(
        &full.url(),
        PATIENT,
        ["permissions: error", "OOM", "; change"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_round_trip_over_store_timeout_is_told_with_what_to_set() {
    let redis = Redis::start().await;
    let proxy = Proxy::start(redis.port()).await;
    proxy.set(Mode::Slow(Duration::from_millis(60)));
    let words = ["round trip: error", "of 20ms", "; set `store_timeout: "];
    is_wrong(&proxy.url(), "20ms", words).await;
    // It is used, and often late: that is only warned of.
    let ran = check(&proxy.url(), "400ms", "").await;
    let told =
        ran.out.contains("round trip: warning") && ran.out.contains("; set `store_timeout: ");
    // Unless the machine stalls in each of five round trips.
    assert!(told || ran.out.contains("round trip: error"), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_checked_node_by_node_and_by_its_own_kind_of_url() {
    let cluster = Cluster::start().await;
    let single = format!("redis://127.0.0.1:{}", cluster.ports()[0]);
    let words = [
        "sharding: error",
        "several Redis",
        "or use `redis+cluster://`",
    ];
    is_wrong(&single, PATIENT, words).await;
    let ran = check(&cluster.url(), PATIENT, "").await;
    assert_eq!(ran.code(), 0, "{ran:?}");
    for port in cluster.ports() {
        let line = format!("127.0.0.1:{port}: permissions: ok");
        assert!(ran.out.contains(&line), "{ran:?}");
    }
    let redis = Redis::start().await;
    let seed = format!("redis+cluster://127.0.0.1:{}", redis.port());
    is_wrong(
        &seed,
        PATIENT,
        ["answer: error", "cluster support disabled", "; correct"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_sentinel_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let sentinels = Sentinels::start(folder.path()).await;
    let ran = check(&sentinels.url(), PATIENT, "").await;
    assert_eq!(ran.code(), 0, "{ran:?}");
    let primary = format!("127.0.0.1:{}: permissions: ok", sentinels.first.port());
    assert!(ran.out.contains(&primary), "{ran:?}");
    let nowhere = free_port();
    let store = sentinels
        .url()
        .replace("/main", &format!(",127.0.0.1:{nowhere}/main"));
    let ran = check(&store, PATIENT, "").await;
    let silent = format!("127.0.0.1:{nowhere}: address: warning");
    assert!(
        ran.out.contains(&silent) && ran.out.contains(&primary),
        "{ran:?}"
    );
    assert_eq!(ran.code(), 0, "two of three answer: {ran:?}");
    let store = sentinels.url().replace("/main", "/other");
    is_wrong(
        &store,
        PATIENT,
        ["sentinel: error", "no sentinel knows", "; correct"],
    )
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_set_up_as_documented_has_nothing_to_change() {
    let redis = Redis::start().await;
    let store = with_acl(&redis, "~team/sg:*", "~sg:*").await;
    let store = format!("{{ url: '{store}', key_prefix: 'team/' }}");
    let other = Sidecar::alone(&policy(&store, PATIENT, 11)).await;
    let ran = check(&store, PATIENT, "").await;
    assert_eq!((ran.code(), ran.err.as_str()), (0, ""), "{ran:?}");
    let lines = ran.out.lines();
    let others = lines.filter(|line| line.contains("warning:") || line.contains("error:"));
    let others: Vec<_> = others.collect();
    assert!(
        others.len() <= 1 && others.iter().all(|line| line.contains("fleets")),
        "{ran:?}"
    );
    // The other sidecar enters its limits into the store's list within a moment.
    sluicegate_tests::process::eventually("the other fleet is told", async || {
        let json = check(&store, PATIENT, "--output json").await.json();
        let all = json["findings"].as_array().unwrap();
        let fleets = all.iter().find(|one| one["check"] == "fleets").unwrap();
        assert_eq!(json["errors"], 0, "{json}");
        fleets["state"] == "warning" && fleets["remedy"].as_str().unwrap().contains("key_prefix")
    })
    .await;
    drop(other);
    let ran = check("memory", PATIENT, "").await;
    assert_eq!(ran.code(), 0, "{ran:?}");
    assert!(ran.out.starts_with("the store is `memory`"), "{ran:?}");
}
