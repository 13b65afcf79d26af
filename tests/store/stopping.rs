//! A sidecar that stops, beside a store that answers or does not.

use std::time::{Duration, Instant};

use sluicegate_tests::ask::{policy, wait_until_back};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

/// A sidecar that finishes what is under way for as long as this when it is told to stop.
pub async fn stops_within(shutdown: &str, policy: &str) -> Sidecar {
    let arguments = ["--drain", "0s", "--shutdown-timeout", shutdown];
    let sidecar = Sidecar::with(policy).arguments(&arguments).alone().await;
    wait_until_back(&sidecar, "k").await;
    sidecar
}

#[tokio::test]
async fn a_store_that_does_not_answer_does_not_hold_a_shutdown_up() {
    let redis = Redis::start().await;
    let text = policy(redis.url(), "10s", 9);
    let mut sidecar = stops_within("500ms", &text).await;
    redis.pause();
    let since = Instant::now();
    sidecar.signal("TERM");
    sidecar.wait().await;
    // Less than `store_timeout`.
    let took = since.elapsed();
    assert!(took < Duration::from_secs(9), "{took:?}");
}
