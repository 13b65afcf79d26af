//! A sidecar that decides by its shares, and what its store has counted afterwards. `tests/chaos` breaks the store in more
//! ways, with several sidecars under load, and judges who was admitted; this has every algorithm and `when_store_is_down`.

use serde_json::{Value, json};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{ALGORITHMS, Policy, left, peek, take};

const QUOTA: u64 = 300;

fn policy(store: &str) -> String {
    let window = format!("windows: [{{ quota: {QUOTA}, per: 366d }}]");
    let mut policy = Policy::on(store).timeout("100ms").line("denial_ttl: 0s");
    for algorithm in ALGORITHMS {
        policy = policy.limit(algorithm, &format!("algorithm: {algorithm}, {window}"));
    }
    for down in ["allow", "deny"] {
        let fields = format!("algorithm: sliding_log, when_store_is_down: {down}, {window}");
        policy = policy.limit(down, &fields);
    }
    policy.text()
}

/// Takes so many units of each algorithm's limit; adds the admissions to `taken`.
async fn take_each(sidecar: &Sidecar, times: usize, taken: &mut [u64; ALGORITHMS.len()]) {
    for _ in 0..times {
        for (limit, taken) in ALGORITHMS.iter().zip(taken.iter_mut()) {
            *taken += u64::from(take(sidecar, limit, "k").await["outcome"] == "admitted");
        }
    }
}

#[tokio::test]
async fn what_shares_admitted_while_redis_was_away_is_counted_exactly_by_every_algorithm() {
    for forgets in [false, true] {
        let mut redis = Redis::start().await;
        let sidecar = Sidecar::alone(&policy(&redis.url())).await;
        sidecar.knows_of(1).await;
        let mut taken = [0; ALGORITHMS.len()];
        if forgets {
            redis.kill();
        } else {
            take_each(&sidecar, 9, &mut taken).await;
            redis.pause();
        }
        // Peeks, so that nothing is taken.
        eventually("the sidecar decides by its shares", async || {
            peek(&sidecar, "deny", "nobody").await["outcome"] == "unavailable"
                && peek(&sidecar, "sliding_log", "nobody").await["outcome"] == "admitted"
        })
        .await;
        let during = taken;
        take_each(&sidecar, 12, &mut taken).await;
        assert_eq!(taken, during.map(|before| before + 12));
        for down in ["allow", "deny"] {
            let expected = json!({ "outcome": "unavailable", "then": down });
            assert_eq!(take(&sidecar, down, "k").await, expected);
        }
        if forgets {
            redis.restart().await;
        } else {
            redis.resume();
        }
        sidecar.reaches("sluicegate_store_up", 1.0).await;
        sidecar.written_back().await;
        take_each(&sidecar, 9, &mut taken).await;
        for (limit, taken) in ALGORITHMS.iter().zip(taken) {
            let used = QUOTA - left(&sidecar, limit, "k").await;
            assert_eq!(used, taken, "{limit}, forgets: {forgets}");
        }
        let shut: Value = take(&sidecar, "deny", "k").await;
        assert_eq!(shut["outcome"], "admitted");
    }
}
