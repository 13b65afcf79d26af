//! What people do to a Redis that is in use: it is demoted, moved, given other credentials, or told to evict.

use std::time::Duration;

use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, documented_acl, logs, policy, sidecar, wait_until_back,
};
use sluicegate_tests::name;
use sluicegate_tests::process::{eventually, eventually_within};
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::redis_proxy::redis_proxy;
use sluicegate_tests::sidecar::Sidecar;

use super::away::{MOVED, at_a_name, elsewhere};

/// For three looks, half a minute apart, and as much again.
const LOOKS: Duration = Duration::from_secs(180);

/// The ids of a sidecar's connections to this Redis.
async fn connections(redis: &Redis) -> Vec<String> {
    let list: String = redis.command("CLIENT LIST TYPE normal").await;
    let others = list.lines().filter(|line| !line.contains("cmd=client"));
    let ids = others.filter_map(|line| line.split(' ').next()?.strip_prefix("id="));
    ids.map(str::to_owned).collect()
}

async fn made(sidecar: &Sidecar, cause: &str) -> f64 {
    let name = format!("sluicegate_store_connections_total{{cause=\"{cause}\"}}");
    sidecar.metric(&name).await
}

/// One that takes writes as a replica loses them; nothing but ROLE tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_primary_that_still_takes_writes_is_left() {
    let (redis, other) = (Redis::start().await, Redis::start().await);
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let _: () = redis.command("CONFIG SET replica-read-only no").await;
    let demote = format!("REPLICAOF 127.0.0.1 {}", other.port());
    let _: () = redis.command(&demote).await;
    sidecar.reports("it is a replica").await;
}

/// Also where the user may ask for neither role nor server.
#[tokio::test(flavor = "multi_thread")]
async fn connections_have_a_longest_life_and_nobody_notices_its_end() {
    let redis = Redis::start().await;
    for forbidden in ["", " -role -info"] {
        let acl = documented_acl() + forbidden;
        let _: () = redis.command(&acl).await;
        let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
        let sidecar = sidecar(store, PATIENT, PLENTY).await;
        wait_until_back(&sidecar, "k").await;
        let before = connections(&redis).await;
        eventually_within(LOOKS, "each has a successor", async || {
            assert_eq!(decide(&sidecar, "k").await, "admitted");
            let now = connections(&redis).await;
            now.len() == 2 && !now.iter().any(|one| before.contains(one))
        })
        .await;
        assert_eq!(made(&sidecar, "planned").await, 2.0);
        assert_eq!(made(&sidecar, "start").await, 2.0);
    }
}

/// An address leads to another server, and only one of the two connections is made anew.
#[tokio::test(flavor = "multi_thread")]
async fn all_connections_follow_to_the_newest_server_of_an_address() {
    let (old, new) = (Redis::start().await, Redis::start().await);
    let proxy = Proxy::start(old.port()).await;
    let sidecar = sidecar(proxy.url(), PATIENT, PLENTY).await;
    eventually("both are there", async || {
        connections(&old).await.len() == 2
    })
    .await;
    proxy.lead_to(new.port());
    let kill = format!("CLIENT KILL ID {}", connections(&old).await[0]);
    let _: i64 = old.command(&kill).await;
    eventually_within(LOOKS, "both are at the new one", async || {
        connections(&old).await.is_empty() && connections(&new).await.len() == 2
    })
    .await;
    logs(&sidecar, "two servers have answered at the store's address").await;
    assert_eq!(made(&sidecar, "moved").await, 1.0);
    sidecar
        .reaches("sluicegate_store_server_changes_total", 1.0)
        .await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
}

/// As behind a load balancer that leaves connections where they are.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_live_on_follow_an_address_too() {
    let (old, new) = (Redis::start().await, Redis::start().await);
    let proxy = Proxy::start(old.port()).await;
    let sidecar = sidecar(proxy.url(), PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    proxy.lead_to(new.port());
    eventually_within(LOOKS, "both are at the new one", async || {
        assert_eq!(decide(&sidecar, "k").await, "admitted");
        connections(&old).await.is_empty()
    })
    .await;
    logs(&sidecar, "two servers have answered at the store's address").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_moves_is_followed_while_the_old_redis_lives() {
    let folder = tempfile::tempdir().unwrap();
    let (old, sidecar) = at_a_name(folder.path()).await;
    let _new = elsewhere(folder.path(), old.port());
    name::leads_to(MOVED, folder.path());
    eventually_within(LOOKS, "the old one is left", async || {
        assert_eq!(decide(&sidecar, "k").await, "admitted");
        connections(&old).await.is_empty()
    })
    .await;
    // The other one was only planned.
    let moved = "sluicegate_store_connections_total{cause=\"moved\"}";
    sidecar.reaches(moved, 1.0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_password_is_used_and_nobody_notices() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, "before").unwrap();
    let redis = Redis::start().await;
    let user = "ACL SETUSER gate on >before >after ~* +@all";
    let _: () = redis.command(user).await;
    let user = folder.path().join("user");
    std::fs::write(&user, "gate").unwrap();
    let store = format!(
        "{{ url: '{}', username_file: {}, password_file: {} }}",
        redis.url(),
        user.display(),
        file.display()
    );
    let sidecar = Sidecar::alone(&policy(store, PATIENT, PLENTY)).await;
    wait_until_back(&sidecar, "k").await;
    std::fs::write(&file, "wrong").unwrap();
    logs(&sidecar, "keeps the connection that it has").await;
    let before = connections(&redis).await;
    std::fs::write(&file, "after").unwrap();
    // One that broke meanwhile was made anew for that reason.
    eventually_within(LOOKS, "all are made anew", async || {
        assert_eq!(decide(&sidecar, "k").await, "admitted");
        let now = connections(&redis).await;
        now.len() == 2 && !now.iter().any(|one| before.contains(one))
    })
    .await;
    assert!(made(&sidecar, "credentials").await >= 1.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_eviction_policy_is_told_when_it_is_set() {
    let redis = Redis::start().await;
    let sidecar = sidecar(redis.url(), PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    for (memory, policy, evicting) in [("1gb", "volatile-ttl", 1.0), ("0", "volatile-ttl", 0.0)] {
        let set = format!("CONFIG SET maxmemory {memory} maxmemory-policy {policy}");
        let _: () = redis.command(&set).await;
        sidecar.reaches("sluicegate_store_evicting", evicting).await;
    }
    logs(&sidecar, "volatile-ttl").await;
}

/// It would count a subject once on each: 3,000 where 1,000 are allowed. With one upstream a proxy does no harm.
#[tokio::test(flavor = "multi_thread")]
async fn a_proxy_that_shards_is_refused_and_one_that_does_not_is_used() {
    let redis = [
        Redis::start().await,
        Redis::start().await,
        Redis::start().await,
    ];
    let ports = redis.each_ref().map(Redis::port);
    let front = Proxy::start(ports[0]).await;
    let sidecar = sidecar(front.url(), PATIENT, PLENTY).await;
    for (count, is_used) in [(1, true), (3, false), (1, true)] {
        let folder = tempfile::tempdir().unwrap();
        let proxy = redis_proxy(folder.path(), &ports[..count], true).await;
        front.lead_to(proxy.port);
        front.set(Mode::Refuse);
        eventually("its connections are cut", async || {
            sidecar.metric("sluicegate_store_up").await == 0.0
        })
        .await;
        front.set(Mode::Pass);
        if is_used {
            eventually_within(LOOKS, "it is used", async || {
                decide(&sidecar, "k").await == "admitted"
            })
            .await;
        } else {
            sidecar.reports("a proxy spreads its keys").await;
            assert_eq!(decide(&sidecar, "k").await, "unavailable");
        }
    }
}
