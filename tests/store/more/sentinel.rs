//! Failovers on command.

use std::time::Duration;

use sluicegate_tests::ask::{PLENTY, decide, is_soon_back, sidecar, wait_until_back};
use sluicegate_tests::process::eventually;
use sluicegate_tests::proxy::{Mode, Proxy};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sentinel::Sentinels;

use super::super::sentinel::store;

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
