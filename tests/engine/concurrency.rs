//! Many concurrent callers on a real Redis, by its own clock: the sum of their admissions respects the limit.

use super::lua::Lua;
use super::made::{bucket, decision, sliding};
use sluicegate_engine::{Algorithm, Batch, script};
use std::sync::atomic::{AtomicUsize, Ordering};

const CALLERS: usize = 8;
const WINDOW_US: u64 = 40_000;
const LIMIT: u64 = 50;

/// Admissions of each run, which are those of a dozen windows.
const ADMISSIONS: usize = 300;

/// All callers hammer one bucket until they have so many admissions; returns these, by Redis's clock.
fn admitted(algorithm: Algorithm) -> Vec<(u64, u64)> {
    let lua = Lua::start();
    let key = format!("sg:{{hot}}:{algorithm:?}");
    let decisions = (0..6).map(|index| decision(&[(0, index % 3 + 1)], index == 5));
    let batch = Batch {
        buckets: vec![bucket(&key, algorithm, LIMIT, WINDOW_US)],
        decisions: decisions.collect(),
    };
    let count = &AtomicUsize::new(0);
    let caller = |mut connection: redis::Connection| {
        let mut admissions = Vec::new();
        let call = redis::Script::new(script::DECIDE);
        while count.load(Ordering::Relaxed) < ADMISSIONS {
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
                    count.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        admissions
    };
    let mut admissions: Vec<_> = std::thread::scope(|scope| {
        let connections = (0..CALLERS).map(|_| lua.another());
        let callers = connections.map(|connection| scope.spawn(|| caller(connection)));
        let callers: Vec<_> = callers.collect();
        let each = callers.into_iter().map(|caller| caller.join());
        each.flat_map(|admissions| admissions.expect("a caller"))
            .collect()
    });
    admissions.sort_unstable();
    admissions
}

#[test]
fn no_trailing_window_ever_holds_more_than_the_limit() {
    for algorithm in [Algorithm::SlidingLog, sliding(5_000, false)] {
        let admissions = admitted(algorithm);
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
