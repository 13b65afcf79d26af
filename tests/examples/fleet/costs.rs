//! What sidecars cost Redis and their host: idle ones, and a limit with leases beside the same without.

use std::fs::read_to_string;
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::client::client;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use tokio::time::{interval, sleep, timeout};

use super::Fleet;

/// The load with leases and without: so many decisions a second, for 100 keys of which a few get most.
const LEASED_RATE: u64 = 2_000;
const LEASED_FOR: Duration = Duration::from_secs(10);
const LEASED_RUNS: usize = 5;

/// What a decision costs: Redis's CPU and that of all sidecars in microseconds, the 99th percentile of the time that it takes in
/// milliseconds, the scripts of Redis for a thousand, and how many of all have no verdict.
type Cost = [f64; 5];

impl Fleet {
    /// What a sidecar costs Redis that nobody asks for anything.
    pub async fn idle(&self, redis: &Redis) {
        sleep(Duration::from_secs(2)).await;
        let calls = async || redis.script_calls().await as f64;
        let (began, before) = (Instant::now(), (self.store.look().await.cpu, calls().await));
        sleep(Duration::from_secs(20)).await;
        let per = began.elapsed().as_secs_f64() * self.sidecars.len() as f64;
        let cpu_us = (self.store.look().await.cpu - before.0) * 1e6 / per;
        let calls = (calls().await - before.1) / per;
        println!(
            "\nidle, each sidecar a second: {cpu_us:.0} us of Redis's CPU, {calls:.2} scripts"
        );
    }

    /// A limit with leases beside the same without, and how many of as many PINGs have no answer within the same time.
    pub async fn leases(&self, redis: &Redis) {
        let mut least = [[f64::MAX; 5]; 2];
        let mut pings = f64::MAX;
        for _ in 0..LEASED_RUNS {
            for (limit, least) in ["unleased", "leased"].into_iter().zip(&mut least) {
                let cost = self.cost(limit, redis).await;
                *least = std::array::from_fn(|index| least[index].min(cost[index]));
            }
            pings = pings.min(lost_pings(redis).await);
        }
        println!("\n{LEASED_RATE} decisions a second, least of {LEASED_RUNS} runs in turn\n");
        println!("| | Redis us | sidecars us | p99 ms | scripts for 1,000 | without a verdict |");
        println!("|---|---|---|---|---|---|");
        for (what, [redis, sidecars, p99, scripts, without]) in
            ["without leases", "with"].iter().zip(least)
        {
            println!(
                "| {what} | {redis:.1} | {sidecars:.0} | {p99:.1} | {scripts:.0} | {without} |"
            );
        }
        let ratio = |index: usize| least[1][index] / least[0][index];
        println!(
            "| ratio | {:.2} | {:.2} | {:.2} | {:.2} | |",
            ratio(0),
            ratio(1),
            ratio(2),
            ratio(3)
        );
        println!("\nPINGs at this rate without an answer within the same time: {pings}");
    }

    async fn cost(&self, limit: &'static str, store: &Redis) -> Cost {
        let client = client();
        let (redis, own) = (self.store.look().await.cpu, self.own_cpu());
        let calls = store.script_calls().await;
        let ask = |number: usize| {
            let sidecar = &self.sidecars[number % self.sidecars.len()];
            let part = (number.wrapping_mul(2_654_435_761) % 10_000) as f64 / 10_000.0;
            let key = 100.0_f64.powf(part) as u64;
            let check = json!({ "limit": limit, "key": key.to_string() });
            let body = json!({ "decisions": [{ "checks": [check] }] }).to_string();
            let request = client.post(sidecar.url("/v1/decide")).body(body);
            async move {
                let began = Instant::now();
                let answer = request.send().await.expect("an answer");
                let text = answer.text().await.expect("a text");
                (began.elapsed(), text.contains("unavailable"))
            }
        };
        let answers = paced(ask).await;
        let all = answers.len();
        let without = answers.iter().filter(|(_, is_without)| *is_without).count();
        let mut took: Vec<_> = answers.into_iter().map(|(time, _)| time).collect();
        took.sort_unstable();
        let p99 = took[took.len() * 99 / 100].as_secs_f64() * 1e3;
        let each = |seconds: f64| seconds * 1e6 / all as f64;
        let (redis, own) = (self.store.look().await.cpu - redis, self.own_cpu() - own);
        let scripts = (store.script_calls().await - calls) as f64 * 1e3 / all as f64;
        [each(redis), each(own), p99, scripts, without as f64]
    }

    /// The CPU time of all sidecars, in seconds.
    fn own_cpu(&self) -> f64 {
        let of = |one: &Sidecar| {
            let tasks = std::fs::read_dir(format!("/proc/{}/task", one.id()));
            let each = tasks.expect("its threads").filter_map(|task| {
                let times = read_to_string(task.ok()?.path().join("schedstat")).ok()?;
                times.split(' ').next()?.parse::<f64>().ok()
            });
            each.sum::<f64>()
        };
        self.sidecars.iter().map(of).sum::<f64>() / 1e9
    }
}

async fn lost_pings(redis: &Redis) -> f64 {
    let connections = [redis.connection().await, redis.connection().await];
    let ping = |number: usize| {
        let mut connection = connections[number % 2].clone();
        async move {
            let ping = redis::cmd("PING");
            let answer = ping.query_async::<String>(&mut connection);
            timeout(Duration::from_millis(20), answer).await.is_err()
        }
    };
    let lost = paced(ping).await;
    lost.into_iter().filter(|lost| *lost).count() as f64
}

/// What comes of each of so many calls a second, for so long. None waits for another.
async fn paced<T: Send + 'static, F>(call: impl Fn(usize) -> F) -> Vec<T>
where
    F: Future<Output = T> + Send + 'static,
{
    let mut ticks = interval(Duration::from_micros(1_000_000 / LEASED_RATE));
    let mut calls = Vec::new();
    for number in 0..(LEASED_RATE * LEASED_FOR.as_secs()) as usize {
        ticks.tick().await;
        calls.push(tokio::spawn(call(number)));
    }
    let mut answers = Vec::new();
    for call in calls {
        answers.push(call.await.expect("no panic"));
    }
    answers
}
