//! `make fleet`: many sidecars on one Redis, and what they make of its faults: connections made of those that are needed, and
//! how long until each is back. Prints a table; the load counts by its own clock.

use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::ask::policy;
use sluicegate_tests::client::client;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use tokio::time::{interval, sleep, timeout};

/// The default `connections` of the policy's `store`.
const CONNECTIONS: u64 = 2;
/// How many requests a second all sidecars get together.
const RATE: u64 = 200;
/// A fault that is not over by then never is.
const PATIENCE: Duration = Duration::from_secs(60);

struct Fleet {
    redis: Redis,
    sidecars: Vec<Sidecar>,
    /// When the last request had no verdict, in milliseconds since `began`.
    missing_ms: Arc<AtomicU64>,
    began: Instant,
}

#[tokio::main]
async fn main() {
    let count = std::env::var("SIDECARS").map_or(50, |text| text.parse().expect("a number"));
    let redis = Redis::start_with(&["--maxclients", "20000"]).await;
    let text = policy(redis.url(), "20ms", 1_000_000_000);
    let began = Instant::now();
    let mut sidecars = Vec::new();
    for _ in 0..count {
        sidecars.push(Sidecar::alone(&text).await);
    }
    let mut fleet = Fleet {
        redis,
        sidecars,
        missing_ms: Arc::default(),
        began,
    };
    println!("{count} sidecars, {CONNECTIONS} connections each, store_timeout 20ms\n");
    println!(
        "| | connections made / needed | all connected after | last missing answer after | load |"
    );
    println!("|---|---|---|---|---|");
    let stop = Arc::new(AtomicBool::new(false));
    let load = tokio::spawn(load(&fleet, Arc::clone(&stop)));
    fleet.row("cold start", 0, Instant::now()).await;
    fleet.redis.kill();
    sleep(Duration::from_secs(8)).await;
    fleet.redis.restart().await;
    fleet.row("killed for 8 s", 0, Instant::now()).await;
    let before = fleet.made().await;
    fleet.redis.pause();
    sleep(Duration::from_millis(1_500)).await;
    fleet.redis.resume();
    fleet.row("SIGSTOP for 1.5 s", before, Instant::now()).await;
    stop.store(true, Ordering::Relaxed);
    load.await.expect("no panic");
    fleet.idle().await;
}

/// Asks one sidecar after the other, and notes when there was no verdict.
fn load(fleet: &Fleet, stop: Arc<AtomicBool>) -> impl Future<Output = ()> + use<> {
    let urls: Vec<_> = fleet
        .sidecars
        .iter()
        .map(|one| one.url("/v1/decide"))
        .collect();
    let (missing_ms, began) = (Arc::clone(&fleet.missing_ms), fleet.began);
    async move {
        let client = client();
        let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
        for (number, url) in urls.into_iter().cycle().enumerate() {
            ticks.tick().await;
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let check = json!({ "limit": "per-key", "key": (number % 100).to_string() });
            let body = json!({ "decisions": [{ "checks": [check] }] }).to_string();
            let request = client.post(url).body(body);
            let missing_ms = Arc::clone(&missing_ms);
            tokio::spawn(async move {
                let answer = request.send().await.expect("an answer");
                let text = answer.text().await.expect("a text");
                if text.contains("unavailable") {
                    missing_ms.fetch_max(millis(began.elapsed()), Ordering::Relaxed);
                }
            });
        }
    }
}

impl Fleet {
    fn needed(&self) -> u64 {
        CONNECTIONS * self.sidecars.len() as u64
    }

    async fn field(&self, section: &str, name: &str) -> f64 {
        let info: String = self.redis.command(&format!("INFO {section}")).await;
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':')?.parse().ok());
        value.unwrap_or_else(|| panic!("Redis tells no {name}"))
    }

    /// Connections that this Redis has accepted.
    async fn made(&self) -> u64 {
        self.field("stats", "total_connections_received").await as u64
    }

    /// What has happened since Redis was there again, when all are connected and have been for ten seconds.
    async fn row(&self, what: &str, made_before: u64, since: Instant) {
        // Each question is a connection of its own.
        let mut asked = 0;
        let all = async {
            loop {
                asked += 1;
                let connected = self.field("clients", "connected_clients").await;
                if connected as u64 > self.needed() {
                    return;
                }
                sleep(Duration::from_millis(50)).await;
            }
        };
        let connected = timeout(PATIENCE, all).await.map(|()| since.elapsed());
        sleep(Duration::from_secs(10)).await;
        let made = self.made().await - made_before - asked;
        let ratio = made as f64 / self.needed() as f64;
        let connected = connected.map_or("never".to_owned(), |after| format!("{after:.1?}"));
        let missing = self.missing_ms.swap(0, Ordering::Relaxed);
        let after = missing.saturating_sub(millis(since - self.began));
        let load = read_to_string("/proc/loadavg").expect("the load of the machine");
        let load = load.split(' ').next().unwrap_or_default();
        println!("| {what} | {ratio:.2} | {connected} | {after} ms | {load} |");
    }

    /// What a sidecar costs Redis that nobody asks for anything.
    async fn idle(&self) {
        sleep(Duration::from_secs(2)).await;
        let cpu = async || {
            let user = self.field("cpu", "used_cpu_user").await;
            user + self.field("cpu", "used_cpu_sys").await
        };
        let calls = async || self.redis.script_calls().await as f64;
        let (began, before) = (Instant::now(), (cpu().await, calls().await));
        sleep(Duration::from_secs(20)).await;
        let per = began.elapsed().as_secs_f64() * self.sidecars.len() as f64;
        let (cpu_us, calls) = (
            (cpu().await - before.0) * 1e6 / per,
            (calls().await - before.1) / per,
        );
        println!(
            "\nidle, each sidecar a second: {cpu_us:.0} us of Redis's CPU, {calls:.2} scripts"
        );
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
