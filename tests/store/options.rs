//! Every option of the policy's `store`.

use sluicegate_tests::ask::{PATIENT, PLENTY, decide, logs, policy, sidecar, wait_until_back};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// Keys of limits in a database, without those of connection probes and of the list of sidecars.
async fn keys(redis: &Redis, database: u32) -> Vec<String> {
    let mut connection = redis.connection().await;
    let mut commands = redis::pipe();
    commands.cmd("SELECT").arg(database).ignore();
    commands.cmd("KEYS").arg("*");
    let (keys,): (Vec<String>,) = commands.query_async(&mut connection).await.unwrap();
    keys.into_iter()
        .filter(|key| !key.ends_with(":probe") && !key.contains("{sidecars}"))
        .collect()
}

#[tokio::test]
async fn the_database_number_and_the_prefix_apply_to_every_key() {
    let redis = Redis::start().await;
    let store = format!("{{ url: '{}/3', key_prefix: 'team-a/' }}", redis.url());
    let sidecar = sidecar(&store, PATIENT, 1).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert_eq!(decide(&sidecar, "k").await, "denied");
    assert!(keys(&redis, 0).await.is_empty());
    let held = keys(&redis, 3).await;
    assert!(
        held.len() == 1 && held[0].starts_with("team-a/sg") && held[0].contains("{k}:"),
        "{held:?}"
    );
    // A reset uses the same prefix and database.
    let answer = sidecar.reset("per-key", "k").await;
    assert!(answer.contains("\"held\":true"), "{answer}");
    assert!(keys(&redis, 3).await.is_empty());
}

#[tokio::test]
async fn a_unix_socket() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("redis.sock");
    let socket = socket.display().to_string();
    let arguments = ["--unixsocket", &socket, "--requirepass", "p w"];
    let redis = Redis::start_with(&arguments[..2]).await;
    let _: () = redis.command("CONFIG SET requirepass p:w").await;
    let store = format!("redis+unix://{socket}?db=2&pass=p%3Aw");
    let sidecar = sidecar(&store, PATIENT, 1).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert_eq!(decide(&sidecar, "k").await, "denied");
}

#[tokio::test]
async fn a_broken_connection_of_several_fails_no_decision() {
    let redis = Redis::start().await;
    let store = format!("{{ url: '{}', connections: 3 }}", redis.url());
    let sidecar = sidecar(&store, PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let ours = async || -> Vec<String> {
        let list: String = redis.command("CLIENT LIST").await;
        let ours = list.lines().filter(|line| {
            line.contains("cmd=unlink") || line.contains("cmd=evalsha") || line.contains("cmd=info")
        });
        ours.map(|line| line.split([' ', '=']).nth(1).unwrap().to_owned())
            .collect()
    };
    eventually("three connections are open", async || {
        ours().await.len() == 3
    })
    .await;
    for round in 0..5 {
        let victim = ours().await.swap_remove(round % 2);
        let _: i64 = redis.command(&format!("CLIENT KILL ID {victim}")).await;
        eventually("it is closed", async || !ours().await.contains(&victim)).await;
        // An answer shows that the sidecar has been running since then.
        wait_until_back(&sidecar, "k").await;
        for _ in 0..4 {
            assert_eq!(decide(&sidecar, "k").await, "admitted");
        }
        eventually("three connections are open again", async || {
            ours().await.len() == 3
        })
        .await;
    }
}

#[tokio::test]
async fn the_environment_variable_overrides_the_url_and_keeps_the_options() {
    let redis = Redis::start().await;
    let store = "{ url: 'redis://nowhere.invalid', key_prefix: 'p/' }";
    let url = redis.url();
    let planned = Sidecar::with(&policy(store, PATIENT, 1)).store(Some(&url));
    let sidecar = planned.alone().await;
    assert_eq!(decide(&sidecar, "k").await, "admitted");
    assert!(keys(&redis, 0).await[0].starts_with("p/sg"));
}

/// R6: fleets that share a Redis without knowing of each other divide each other's shares.
#[tokio::test(flavor = "multi_thread")]
async fn other_limits_and_other_prefixes_on_the_same_redis_are_told() {
    let redis = Redis::start().await;
    let policy = |prefix: &str, quota| {
        let store = format!("{{ url: {}, key_prefix: '{prefix}' }}", redis.url());
        policy(store, PATIENT, quota)
    };
    let others = async |sidecar: &Sidecar| {
        let of = |other| format!("sluicegate_neighbours{{other=\"{other}\"}}");
        let (limits, prefixes) = (of("limits"), of("prefixes"));
        eventually("it has looked", async || {
            sidecar.metrics().await.contains(&prefixes)
        })
        .await;
        (
            sidecar.metric(&limits).await,
            sidecar.metric(&prefixes).await,
        )
    };
    let one = Sidecar::alone(&policy("", 5)).await;
    assert_eq!(others(&one).await, (0.0, 0.0));
    let same = Sidecar::alone(&policy("", 5)).await;
    assert_eq!(others(&same).await, (0.0, 0.0));
    let differs = Sidecar::alone(&policy("", 6)).await;
    assert_eq!(others(&differs).await, (1.0, 0.0));
    let elsewhere = Sidecar::alone(&policy("staging/", 6)).await;
    assert_eq!(others(&elsewhere).await, (0.0, 1.0));
    logs(&elsewhere, "other key prefixes are in use").await;
}
