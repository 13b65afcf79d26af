//! Finding the primary through sentinels, and following a failover.

use std::time::Duration;

use sluicegate_tests::ask::{PATIENT, PLENTY, decide, is_soon_back, sidecar, wait_until_back};
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sentinel::Sentinels;

/// The store in database 1.
fn store(sentinels: &Sentinels, options: &str) -> String {
    format!("{{ url: '{}/1'{options} }}", sentinels.url())
}

#[tokio::test]
async fn the_primary_is_found_and_followed_when_it_dies() {
    let folder = tempfile::tempdir().unwrap();
    let mut sentinels = Sentinels::start(folder.path()).await;
    // One of the configured sentinels is down.
    sentinels.kill_one();
    let sidecar = sidecar(store(&sentinels, ""), "500ms", PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let size: i64 = {
        let mut connection = sentinels.first.connection().await;
        let mut commands = redis::pipe();
        commands.cmd("SELECT").arg(1).ignore().cmd("DBSIZE");
        let (size,): (i64,) = commands.query_async(&mut connection).await.unwrap();
        size
    };
    assert!(size >= 1, "it is not in database 1 of the primary");
    sentinels.first.kill();
    sentinels.promoted().await;
    let what = "Sentinel: primary killed, after its replica was promoted";
    is_soon_back(&sidecar, "k", what).await;
}

#[tokio::test]
async fn a_failover_on_command_is_followed_with_the_old_primary_up() {
    let folder = tempfile::tempdir().unwrap();
    let sentinels = Sentinels::start(folder.path()).await;
    let sidecar = sidecar(store(&sentinels, ""), "500ms", PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    sentinels.fail_over().await;
    sentinels.promoted().await;
    sentinels.demoted().await;
    is_soon_back(&sidecar, "k", "Sentinel: failover on command").await;
    // It stays with the new one, which has room for a stall.
    for _ in 0..100 {
        let outcome = decide(&sidecar, "k").await;
        assert_eq!(outcome, "admitted", "{}", sidecar.log());
    }
}

/// It was missed, and the sidecar stayed with the old primary for as long as that answered.
#[tokio::test]
async fn a_primary_that_changes_while_a_connection_is_made_is_followed() {
    /// Each way: the connection takes several answers.
    const SLOW: Duration = Duration::from_millis(400);
    let folder = tempfile::tempdir().unwrap();
    let sentinels = Sentinels::start_with(folder.path(), "").await;
    let proxy = Proxy::start(sentinels.first.port()).await;
    proxy.set(Mode::Slow(SLOW));
    sentinels.monitor(proxy.port).await;
    let sidecar = sidecar(sentinels.url(), "3s", PLENTY).await;
    let other = Redis::start().await;
    sentinels.monitor(other.port()).await;
    eventually("the new primary decides", async || {
        decide(&sidecar, "k").await;
        !other.keys().await.is_empty()
    })
    .await;
}

#[tokio::test]
async fn sentinels_with_a_password_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let sentinels = Sentinels::start_with(folder.path(), "requirepass guard").await;
    let file = folder.path().join("guard");
    std::fs::write(&file, "wrong").unwrap();
    let options = format!(", sentinel: {{ password_file: {} }}", file.display());
    let store = store(&sentinels, &options);
    let sidecar = sidecar(store, PATIENT, PLENTY).await;
    eventually("the sentinels refuse it", async || {
        decide(&sidecar, "k").await == "unavailable" && sidecar.log().contains("refused the user")
    })
    .await;
    std::fs::write(&file, "guard").unwrap();
    is_soon_back(&sidecar, "k", "Sentinel: password corrected").await;
}
