//! Decisions per second, compared with the reference scripts.

use crate::rig::{Load, Rig, SECOND, batch, spec};
use sluicegate_engine::{Algorithm, BucketSpec};
use sluicegate_tests_full::report::Report;

const KEYS: usize = 1_000;
/// About half a second's work a round.
const CALLS: usize = 40_000;

fn ours(rig: &Rig, name: &str, spec: BucketSpec, cost: u64, keys: usize) -> Load {
    let call = |key| rig.decide(&batch(&format!("sg:{{{key}}}:{name}"), spec, cost, 1), None);
    load((0..keys).map(call).collect())
}

fn theirs(rig: &Rig, sha: &str, arguments: [u64; 3], keys: usize) -> Load {
    let call = |key| rig.yardstick(sha, &format!("sg:{{{key}}}:yardstick"), arguments);
    load((0..keys).map(call).collect())
}

fn load(commands: Vec<Vec<u8>>) -> Load {
    Load {
        commands,
        decisions: 1,
        count: CALLS,
    }
}

/// Fixed windows and token buckets beside a plain INCRBY.
pub fn counters(rig: &mut Rig, report: &mut Report) {
    rig.empty();
    let (limit, window) = (1_000, 60 * SECOND);
    let plain = theirs(rig, &rig.incrby, [limit, window / 1_000, 1], KEYS);
    let fixed = spec(Algorithm::FixedWindow, limit, window);
    let fixed = ours(rig, "fixed", fixed, 1, KEYS);
    // As much drains as is asked for, so that it mostly admits.
    let token = Algorithm::TokenBucket { burst: 1_000 };
    let token = ours(rig, "token", spec(token, 10_000, 60 * SECOND), 1, KEYS);
    let [plain, fixed, token] = rig.rates([&plain, &fixed, &token]);
    report.figure("plain INCRBY, 1,000 keys", plain, "decisions/s");
    report.figure("fixed_window, 1,000 keys", fixed, "decisions/s");
    report.figure("token_bucket, 1,000 keys", token, "decisions/s");
    report.at_least("fixed_window over plain INCRBY", fixed / plain, 0.6);
    report.at_least("token_bucket over plain INCRBY", token / plain, 0.6);
}

/// Logs of up to a thousand entries beside sorted sets.
pub fn logs(rig: &mut Rig, report: &mut Report) {
    rig.empty();
    // A third of a window passes during the other loads' turns: entries are added and expire all the time.
    let (limit, window) = (1_000, 3 * SECOND);
    let zset = theirs(rig, &rig.zset, [limit, window, 1], KEYS);
    let log = spec(Algorithm::SlidingLog, limit, window);
    let log = ours(rig, "log", log, 1, KEYS);
    let precise = Algorithm::SlidingWindow {
        precision_us: window / 100,
        leased: false,
    };
    let sliding = ours(rig, "window", spec(precise, limit, window), 1, KEYS);
    let [zset, log, sliding] = rig.rates([&zset, &log, &sliding]);
    report.figure("sorted set, cost 1, 1,000 keys", zset, "decisions/s");
    report.figure("sliding_log, cost 1, 1,000 keys", log, "decisions/s");
    report.figure("sliding_window, cost 1, 1,000 keys", sliding, "decisions/s");
    report.at_least("sliding_log over sorted set, cost 1", log / zset, 1.3);
}

/// Requests that cost 100 units.
pub fn weighted(rig: &mut Rig, report: &mut Report) {
    rig.empty();
    let (limit, window) = (100_000, 3 * SECOND);
    let mut zset = theirs(rig, &rig.zset, [limit, window, 100], KEYS / 10);
    zset.count = CALLS / 40;
    let log = spec(Algorithm::SlidingLog, limit, window);
    let log = ours(rig, "log", log, 100, KEYS / 10);
    let [zset, log] = rig.rates([&zset, &log]);
    report.figure("sorted set, cost 100", zset, "decisions/s");
    report.figure("sliding_log, cost 100", log, "decisions/s");
    report.at_least("sliding_log over sorted set, cost 100", log / zset, 20.0);
}

/// A batch of 64 decisions on one hot key beside 64 calls in a pipeline.
pub fn batches(rig: &mut Rig, report: &mut Report) {
    let mut worst = f64::INFINITY;
    for (name, algorithm) in [
        ("sliding_log", Algorithm::SlidingLog),
        ("fixed_window", Algorithm::FixedWindow),
        ("token_bucket", Algorithm::TokenBucket { burst: 1_000_000 }),
    ] {
        rig.empty();
        let spec = spec(algorithm, 1_000_000, 3 * SECOND);
        let single = ours(rig, name, spec, 1, 1);
        let hot = batch(&format!("sg:{{0}}:{name}"), spec, 1, 64);
        let mut together = load(vec![rig.decide(&hot, None)]);
        (together.decisions, together.count) = (64, CALLS / 32);
        let [single, together] = rig.rates([&single, &together]);
        for (what, rate) in [("single calls", single), ("batches of 64", together)] {
            let name = format!("{name}, one hot key, {what}");
            report.figure(&name, rate, "decisions/s");
        }
        worst = worst.min(together / single);
    }
    report.at_least("batches of 64 over single calls, the slowest", worst, 3.0);
}
