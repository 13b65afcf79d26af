//! Which thread of a sidecar does what.

use std::fmt::Write;
use std::fs::read_to_string;

use sluicegate_tests::sidecar::Sidecar;

use super::support::take;

/// CPU time of the main thread, and of all, in nanoseconds.
fn cpu(sidecar: &Sidecar) -> [u64; 2] {
    let id = sidecar.id();
    let of = |path: String| {
        let times = read_to_string(path).unwrap_or_default();
        let first = times.split(' ').next().map(str::parse);
        first.and_then(Result::ok).unwrap_or(0)
    };
    let tasks = std::fs::read_dir(format!("/proc/{id}/task")).unwrap();
    let tasks = tasks.map(|task| of(format!("{}/schedstat", task.unwrap().path().display())));
    [of(format!("/proc/{id}/task/{id}/schedstat")), tasks.sum()]
}

#[tokio::test]
async fn what_takes_long_is_not_on_a_thread_that_decides() {
    let mut policy = "limits:\n".to_owned();
    for number in 0..500 {
        let windows = "windows: [{ quota: 1000000, per: 1h }]";
        writeln!(
            policy,
            "  l{number}: {{ algorithm: fixed_window, {windows} }}"
        )
        .unwrap();
    }
    let sidecar = Sidecar::alone(&policy).await;
    let before = cpu(&sidecar);
    for _ in 0..20 {
        sidecar.metrics().await;
    }
    let between = cpu(&sidecar);
    for _ in 0..200 {
        take(&sidecar, "l7", "k").await;
    }
    let after = cpu(&sidecar);
    let on_main = |from: [u64; 2], to: [u64; 2]| {
        (to[0] - from[0]) as f64 / to[1].saturating_sub(from[1]).max(1) as f64
    };
    let (scraping, deciding) = (on_main(before, between), on_main(between, after));
    assert!(scraping > 0.5, "{scraping} of the CPU time of scrapes");
    assert!(deciding < 0.5, "{deciding} of the CPU time of decisions");
}

#[test]
fn the_threads_that_decide_are_a_number() {
    for wrong in ["0", "-1", "many"] {
        let words = format!("serve --policy none.yaml --threads {wrong}");
        let (status, said) = sluicegate_tests::sidecar::command(&words);
        assert_eq!(status, Some(64), "{said}");
        assert!(said.contains("--threads") && said.contains(wrong), "{said}");
    }
}
