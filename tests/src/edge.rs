//! A window's boundary: 50 requests just before it and 50 just after, through the whole chain on Redis, once against a
//! fixed window and once against a sliding log. A test checks the run, `make picture` draws it.

use std::time::{Duration, SystemTime};

use serde_json::json;

use crate::client::client;
use crate::envoy::Envoy;
use crate::policy::{Policy, plugin};
use crate::redis::Redis;
use crate::sidecar::Sidecar;

/// Units per window.
pub const QUOTA: u64 = 50;
/// The window's length.
pub const PER_SECONDS: u64 = 10;
/// The algorithms that are compared.
pub const ALGORITHMS: [&str; 2] = ["fixed_window", "sliding_log"];

/// One request of the run.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// The algorithm of its limit.
    pub algorithm: &'static str,
    /// When it was answered: seconds after the boundary, negative before.
    pub seconds: f64,
    /// Answered with 200, not 429.
    pub admitted: bool,
}

/// All requests in the order of their answers.
#[derive(Debug)]
pub struct Run(pub Vec<Request>);

impl Run {
    /// How many requests an algorithm admitted.
    pub fn admitted(&self, algorithm: &str) -> u64 {
        self.0
            .iter()
            .map(|request| u64::from(request.admitted && request.algorithm == algorithm))
            .sum()
    }

    /// Time from the first answer to the last.
    pub fn seconds(&self) -> f64 {
        let first = self.0.first().map_or(0.0, |request| request.seconds);
        self.0.last().map_or(0.0, |request| request.seconds) - first
    }
}

/// Runs it.
///
/// # Panics
/// A part of the chain fails.
pub async fn bursts_around_an_edge() -> Run {
    let folder = tempfile::tempdir().expect("a folder");
    let redis = Redis::start().await;
    let per = format!("{PER_SECONDS}s");
    let policy = ALGORITHMS
        .into_iter()
        .fold(Policy::on(redis.url()), |policy, algorithm| {
            policy.window(algorithm, algorithm, QUOTA, &per)
        });
    let sidecar = Sidecar::start(&policy.text(), folder.path()).await;
    let rules = ALGORITHMS.map(|algorithm| {
        json!({
            "name": algorithm, "match": { "path_prefix": format!("/{algorithm}") },
            "checks": [{ "limit": algorithm, "key": [{ "header": "x-attempt" }] }], "when_unavailable": "deny",
        })
    });
    let planned = Envoy::asking(sidecar.port).plugin(plugin(json!(rules)));
    let envoy = planned.start(folder.path()).await;

    let client = client();
    let mut attempt = 0;
    loop {
        attempt += 1;
        let run = burst_twice(&client, &envoy, attempt).await;
        // On a machine that stalls, the first burst may not end before the boundary, or the second one late.
        let before = |request: &&Request| request.seconds < 0.0;
        let in_time = run.0.iter().filter(before).count() as u64 == QUOTA * 2;
        if in_time && run.seconds() < PER_SECONDS as f64 {
            return run;
        }
        assert!(attempt < 5, "too slow for two bursts in a window: {run:?}");
    }
}

fn now() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.expect("a clock after 1970").as_secs_f64()
}

/// Two bursts under a key of their own, the first of which has more time with each attempt.
async fn burst_twice(client: &reqwest::Client, envoy: &Envoy, attempt: u32) -> Run {
    // The next boundary that leaves time to prepare; Redis runs on this machine, so its clock is ours.
    let per = PER_SECONDS as f64;
    let before = 1.5 * f64::from(attempt.min(3));
    let edge = ((now() + before + 1.0) / per).ceil() * per;
    let mut run = Vec::new();
    for start in [edge - before, edge + 0.2] {
        tokio::time::sleep(Duration::from_secs_f64((start - now()).max(0.0))).await;
        for _ in 0..QUOTA {
            for algorithm in ALGORITHMS {
                let url = envoy.url(&format!("/{algorithm}"));
                let request = client.get(url).header("x-attempt", attempt.to_string());
                let answer = request.send().await.expect("an answer");
                let admitted = match answer.status().as_u16() {
                    200 => true,
                    429 => false,
                    other => panic!("status {other}"),
                };
                run.push(Request {
                    algorithm,
                    seconds: now() - edge,
                    admitted,
                });
            }
        }
    }
    Run(run)
}
