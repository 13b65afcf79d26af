//! Many concurrent callers on a real Redis, by its own clock: the sum of their admissions respects the limit.

use super::lua::Lua;
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take, script};
use std::time::{Duration, Instant};

const CALLERS: usize = 8;
const WINDOW_US: u64 = 40_000;
const LIMIT: u64 = 50;

/// All callers hammer one bucket for a second; returns the admissions, by Redis's clock.
fn admitted(algorithm: Algorithm) -> Vec<(u64, u64)> {
    let lua = Lua::start();
    let bucket = Bucket {
        key: format!("sg:{{hot}}:{algorithm:?}"),
        spec: BucketSpec {
            algorithm,
            quota: LIMIT,
            window_us: WINDOW_US,
        },
    };
    let batch = Batch {
        buckets: vec![bucket],
        decisions: (0..6)
            .map(|index| Decision {
                takes: vec![Take {
                    bucket: 0,
                    cost: index % 3 + 1,
                }],
                peek: index == 5,
                receipts: Vec::new(),
            })
            .collect(),
    };
    let until = Instant::now() + Duration::from_secs(1);
    let callers: Vec<_> = (0..CALLERS)
        .map(|_| {
            let (mut connection, batch) = (lua.another(), batch.clone());
            std::thread::spawn(move || {
                let mut admissions = Vec::new();
                let call = redis::Script::new(script::DECIDE);
                while Instant::now() < until {
                    let mut call = call.prepare_invoke();
                    for key in script::keys(&batch) {
                        call.key(key);
                    }
                    for argument in script::arguments(&batch, None) {
                        call.arg(argument);
                    }
                    let reply: Vec<u8> = call.invoke(&mut connection).expect("an answer");
                    let reply = script::outcomes(&batch, &reply).expect("outcomes");
                    let script::Reply::Done { each, .. } = reply else {
                        panic!("late without a not-after time");
                    };
                    for (decision, outcome) in batch.decisions.iter().zip(each) {
                        let outcome = outcome.expect("a key of this version");
                        if outcome.admitted && !decision.peek {
                            admissions.push((outcome.at_us, decision.takes[0].cost));
                        }
                    }
                }
                admissions
            })
        })
        .collect();
    let admissions = callers.into_iter().map(|caller| caller.join());
    let mut admissions: Vec<_> = admissions
        .flat_map(|admissions| admissions.expect("a caller"))
        .collect();
    admissions.sort_unstable();
    admissions
}

#[test]
fn no_trailing_window_ever_holds_more_than_the_limit() {
    let precision_us = 5_000;
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow {
            precision_us,
            leased: false,
        },
    ] {
        let admissions = admitted(algorithm);
        assert!(
            admissions.len() > 100,
            "too few admissions for a conclusion"
        );
        let (mut first, mut units) = (0, 0);
        for &(at, cost) in &admissions {
            units += cost;
            while admissions[first].0 + WINDOW_US <= at {
                units -= admissions[first].1;
                first += 1;
            }
            assert!(units <= LIMIT, "{units} in the window that ends at {at}");
        }
    }
}

#[test]
fn no_aligned_window_ever_holds_more_than_the_limit() {
    let admissions = admitted(Algorithm::FixedWindow);
    for window in admissions.chunk_by(|a, b| a.0 / WINDOW_US == b.0 / WINDOW_US) {
        let units: u64 = window.iter().map(|(_, cost)| cost).sum();
        assert!(units <= LIMIT, "{units} in the window of {}", window[0].0);
    }
}

#[test]
fn a_token_bucket_never_gives_more_than_its_burst_and_its_rate() {
    let burst = 20;
    let admissions = admitted(Algorithm::TokenBucket { burst });
    for (index, &(from, _)) in admissions.iter().enumerate() {
        let mut units = 0;
        for &(to, cost) in admissions[index..].iter().take(200) {
            units += cost;
            // Units times window, so that nothing is rounded.
            let most = burst * WINDOW_US + (to - from) * LIMIT;
            assert!(units * WINDOW_US <= most, "{units} from {from} to {to}");
        }
    }
}
