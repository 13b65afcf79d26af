//! The bench's own Redis with the scripts loaded, and interleaved measurements.

use crate::wire::{Wire, command};
use sluicegate_engine::script::{self, Operation};
use sluicegate_engine::{Algorithm, Batch, Bucket, BucketSpec, Decision, Take};
use sluicegate_tests::redis::Redis;
use std::time::Instant;

/// Ratios come only from interleaved runs: on shared machines the same load differs from minute to minute.
const ROUNDS: usize = 9;

/// One second, in microseconds.
pub const SECOND: u64 = 1_000_000;

pub struct Rig {
    _redis: Redis,
    pub wire: Wire,
    pub decide: String,
    pub zset: String,
    pub incrby: String,
}

/// Something to send over and over: `decisions` are made by each command.
pub struct Load {
    pub commands: Vec<Vec<u8>>,
    pub decisions: usize,
    /// Commands in a round.
    pub count: usize,
}

impl Rig {
    pub async fn start() -> Self {
        let redis = Redis::start().await;
        let url = redis.url();
        let mut wire = Wire::connect(url.trim_start_matches("redis://"));
        let mut load = |script: &str| {
            wire.ask(&[b"SCRIPT", b"LOAD", script.as_bytes()])
                .text()
                .to_owned()
        };
        let decide = load(script::DECIDE);
        let zset = load(include_str!("zset.lua"));
        let incrby = load(include_str!("incrby.lua"));
        Rig {
            _redis: redis,
            wire,
            decide,
            zset,
            incrby,
        }
    }

    pub fn empty(&mut self) {
        self.wire.ask(&[b"FLUSHALL"]);
    }

    /// A call of the script for that batch; without a time by Redis's clock, as in production.
    pub fn decide(&self, batch: &Batch, now_us: Option<u64>) -> Vec<u8> {
        let keys: Vec<&str> = batch.keys().collect();
        let number = keys.len().to_string();
        let mut arguments = vec![batch.request(None)];
        arguments.extend(now_us.map(script::clock));
        let mut parts: Vec<&[u8]> = vec![b"EVALSHA", self.decide.as_bytes(), number.as_bytes()];
        parts.extend(keys.iter().map(|key| key.as_bytes()));
        parts.extend(arguments.iter().map(Vec::as_slice));
        command(&parts)
    }

    /// A call of one of the reference scripts: limit, window, cost.
    pub fn yardstick(&self, sha: &str, key: &str, arguments: [u64; 3]) -> Vec<u8> {
        let [limit, window, cost] = arguments.map(|n| n.to_string().into_bytes());
        command(&[
            b"EVALSHA",
            sha.as_bytes(),
            b"1",
            key.as_bytes(),
            &limit,
            &window,
            &cost,
        ])
    }

    /// Decisions per second of each load: the median of interleaved rounds, after a warm-up round.
    pub fn rates<const N: usize>(&mut self, loads: [&Load; N]) -> [f64; N] {
        let mut rates: [Vec<f64>; N] = std::array::from_fn(|_| Vec::new());
        for round in 0..=ROUNDS {
            for (load, rates) in loads.iter().zip(&mut rates) {
                let start = Instant::now();
                self.wire.flood(&load.commands, load.count);
                let decisions = (load.count * load.decisions) as f64;
                if round > 0 {
                    rates.push(decisions / start.elapsed().as_secs_f64());
                }
            }
        }
        rates.map(|rates| median(&rates))
    }

    /// Bytes of a key, without sampling.
    pub fn bytes(&mut self, key: &str) -> f64 {
        let reply = self
            .wire
            .ask(&[b"MEMORY", b"USAGE", key.as_bytes(), b"SAMPLES", b"0"]);
        reply.integer() as f64
    }

    /// Microseconds that Redis itself spent on scripts, and how many it ran, since the last call.
    pub fn script_us(&mut self) -> (f64, f64) {
        let stats = self.wire.ask(&[b"INFO", b"commandstats"]);
        let figure = |name: &str| -> f64 {
            let line = stats
                .text()
                .lines()
                .find(|line| line.starts_with("cmdstat_evalsha:"));
            let field =
                line.and_then(|line| line.split([':', ',']).find_map(|f| f.strip_prefix(name)));
            field.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        let figures = (figure("usec="), figure("calls="));
        self.wire.ask(&[b"CONFIG", b"RESETSTAT"]);
        figures
    }
}

pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A batch of this many decisions, one take each, on one bucket.
pub fn batch(key: &str, spec: BucketSpec, cost: u64, decisions: usize) -> Batch {
    let decision = Decision {
        takes: vec![Take { bucket: 0, cost }],
        peek: false,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    };
    Batch {
        buckets: vec![Bucket {
            key: key.to_owned(),
            spec,
        }],
        decisions: vec![decision; decisions],
    }
}

pub fn spec(algorithm: Algorithm, quota: u64, window_us: u64) -> BucketSpec {
    BucketSpec {
        algorithm,
        quota,
        window_us,
    }
}
