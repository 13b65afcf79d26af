//! `decide --wait`.

use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::shell::Shell;

#[tokio::test]
async fn a_wait_ends_when_the_units_are_free() {
    let (shell, sidecar) = Shell::with_sidecar().await;
    shell.must("decide --limit brief --key k --cost 2").await;
    let decide = "decide --limit brief --key k --output json";
    let denied = shell.ends(75, decide).await;
    let asked = Instant::now();
    let due = Duration::from_millis(denied.json()["retry_after_ms"].as_u64().unwrap());
    shell.must("decide --limit brief --key k --wait 30s").await;
    let took = asked.elapsed();
    assert!(took + Duration::from_millis(100) > due, "{took:?}, {due:?}");
    // It slept in between: `denied` was the first denial, and its own the second.
    let page = sidecar.metrics().await;
    let denied = page.lines().filter_map(|line| {
        let labels = line.strip_prefix("sluicegate_decisions_total{")?;
        let (labels, count) = labels.split_once("} ")?;
        let is_one = labels.contains(r#"limit="brief""#) && labels.contains(r#"verdict="denied""#);
        is_one.then(|| count.parse::<u64>().ok())?
    });
    assert_eq!(denied.sum::<u64>(), 2, "{page}");
    assert_eq!(shell.left("brief", "").await, 1);
}

#[tokio::test]
async fn a_wait_in_vain_is_not_begun() {
    let (shell, _sidecar) = Shell::with_sidecar().await;
    shell.must("decide --limit hourly --key k --cost 10").await;
    // The shell allows it a minute.
    let wait = "decide --limit hourly --key k --wait 40m";
    shell.ends(75, wait).await;
}

#[tokio::test]
async fn eight_jobs_that_wait_get_their_turns_and_never_more_than_the_quota() {
    let (shell, redis) = Shell::with_redis().await;
    let started = Instant::now();
    let wait = "decide --limit short --key k --policy policy.yaml --wait 50s --quiet";
    let jobs = join_all((0..8).map(|_| shell.sluicegate(wait))).await;
    assert!(jobs.iter().all(|job| job.code() == 0), "{jobs:?}");
    // Two in any 3 s: the last two three windows after the first two.
    let took = started.elapsed();
    assert!(took > Duration::from_secs(9), "{took:?}");
    drop(redis);
}

#[tokio::test]
async fn a_wait_lasts_through_an_outage() {
    let (shell, mut sidecar) = Shell::with_sidecar().await;
    sidecar.kill();
    let back = async {
        // An outage has to last.
        tokio::time::sleep(Duration::from_secs(2)).await;
        sidecar.restart().await;
    };
    let wait = shell.sluicegate("decide --limit hourly --key k --wait 50s");
    let (ran, ()) = tokio::join!(wait, back);
    assert_eq!(ran.code(), 0, "{ran:?}");
    sidecar.kill();
    let wait = "decide --limit hourly --key k --wait 2s";
    shell.ends(69, wait).await;
}
