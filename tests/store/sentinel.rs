//! Finding the primary through sentinels, and following a failover.

use sluicegate_tests::ask::{PATIENT, PLENTY, decide, is_soon_back, sidecar, wait_until_back};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sentinel::Sentinels;

/// The store in database 1.
pub fn store(sentinels: &Sentinels, options: &str) -> String {
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

/// Those of a part that was cut off name the primary of before, and are named first.
#[tokio::test(flavor = "multi_thread")]
async fn sentinels_of_the_highest_epoch_are_believed() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let before = Sentinels::start_with(folders[0].path(), "sentinel config-epoch main 3").await;
    let after = Sentinels::start_with(folders[1].path(), "sentinel config-epoch main 4").await;
    let [stale, url] = [&before, &after].map(Sentinels::url);
    let hosts = stale.strip_suffix("/main").unwrap();
    let others = url.strip_prefix("redis+sentinel://").unwrap();
    let sidecar = sidecar(format!("{hosts},{others}"), PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let calls = async |of: &Sentinels| of.first.script_calls().await;
    eventually("only the later primary is called", async || {
        let (stale, begin) = (calls(&before).await, calls(&after).await);
        eventually("it announces itself", async || {
            calls(&after).await > begin + 3 || calls(&before).await > stale
        })
        .await;
        calls(&before).await == stale
    })
    .await;
}
