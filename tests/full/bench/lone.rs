//! `make bench-fleet`: what most fleets see, some hundred requests a second that arrive one by one, of keys of which a few are warm.
//!
//! Each request waits alone, so its price is how many processes have to wake up for it. Variants are measured in turns. CPU is the
//! least of the rounds, since other work only adds to it; latencies are medians of the rounds.

use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::policy::{Policy, pushed, with_rules};
use sluicegate_tests::process::Process;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use sluicegate_tests_full::ratelimit;
use sluicegate_tests_full::report::Report;
use tempfile::TempDir;

use crate::arrivals::{self, Seen};
use crate::chart::{self, Bars};
use crate::load::{cpu_seconds, median};
use crate::module;
use crate::variant::{Keys, local_ratelimit};

/// Rounds, and seconds of each measurement.
const ROUNDS: (u32, u64) = (4, 6);
const QUICK: (u32, u64) = (1, 3);
/// Before each round: caches, and the rates of keys, which are forgotten while others are measured.
const WARM_UP: Duration = Duration::from_secs(3);
/// Requests a second and keys.
const CELLS: [(u32, u32); 3] = [(200, 50), (1_000, 1_000), (1_000, 100_000)];
/// The cell in which everything is measured.
const WHOLE: (u32, u32) = CELLS[1];
/// Units a minute of each key.
const QUOTA: u64 = 6_000;
/// Rates at which it is tried whether all that arrives is answered.
const RATES: [u32; 8] = [2_000, 3_000, 4_500, 6_500, 9_000, 12_000, 16_000, 22_000];

const NONE: &str = "no filter";
const UNLEASED: &str = "Sluicegate without leases";
const LEASED: &str = "Sluicegate with leases";
const OTHER: &str = "envoyproxy/ratelimit";
const EACH: [&str; 4] = [NONE, UNLEASED, LEASED, OTHER];
const NOTHING: &str = "a wasm filter that does nothing";
const CACHED: &str = "envoyproxy/ratelimit with its cache";
const LOCAL: &str = "local_ratelimit";
/// Precision and lease of five seconds.
const LONG: &str = "Sluicegate with leases of 5 s";
const ONCE: [&str; 4] = [LONG, NOTHING, CACHED, LOCAL];

/// Envoy and what it asks.
struct Chain {
    name: &'static str,
    envoy: Envoy,
    sidecar: Option<Sidecar>,
    other: Option<Process>,
    redis: Option<Redis>,
    _folder: TempDir,
}

/// One measurement.
struct Sample {
    seen: Seen,
    /// Microseconds of Envoy, limiter, Redis and upstream for each request.
    cpu_us: [f64; 4],
    /// Calls of the limiter and of Redis for 1,000 requests.
    calls: [f64; 2],
}

pub async fn run(quick: bool) {
    let (rounds, seconds) = if quick { QUICK } else { ROUNDS };
    let length = Duration::from_secs(seconds);
    let (upstream, up) = upstream_apart().await;
    if !ratelimit::is_built() {
        println!(
            "bench: without envoyproxy/ratelimit, which needs Go to be built: see tests/setup"
        );
    }
    println!("bench: the least CPU and the median latency of {rounds} rounds of {seconds} s");
    let (mut report, mut bars) = (Report::default(), Vec::new());
    for (per_second, count) in CELLS {
        let keys = Keys::Zipf(count);
        let cell = format!("{per_second}/s, {count} keys");
        let mut names = EACH.to_vec();
        if (per_second, count) == WHOLE {
            names.extend(ONCE);
        }
        names.retain(|name| ![OTHER, CACHED].contains(name) || ratelimit::is_built());
        let mut chains = Vec::new();
        for name in names {
            chains.push(Chain::start(name, up).await);
        }
        let mut samples: Vec<Vec<Sample>> = chains.iter().map(|_| Vec::new()).collect();
        for _ in 0..rounds {
            for (chain, samples) in chains.iter().zip(&mut samples) {
                let measured =
                    async |length| chain.measure(per_second, keys, length, upstream.id()).await;
                measured(WARM_UP).await;
                samples.push(measured(length).await);
            }
        }
        let rows: Vec<Row> = samples.iter().map(|samples| Row::of(samples)).collect();
        bars.extend(table(&mut report, &cell, &chains, &rows));
        if (per_second, count) == WHOLE {
            highest(&mut report, &chains, keys, upstream.id()).await;
        }
    }
    report.finish("fleet");
    chart::bars("target/bench/fleet.svg", &bars);
}

/// The medians or least values of the rounds.
struct Row {
    cpu_us: [f64; 4],
    mean_us: f64,
    median_us: f64,
    slowest_us: f64,
    calls: [f64; 2],
    denied: usize,
    fell_behind: bool,
}

impl Row {
    fn of(samples: &[Sample]) -> Self {
        let least = |index: usize| {
            let each = samples.iter().map(|sample| sample.cpu_us[index]);
            each.fold(f64::MAX, f64::min)
        };
        let middle = |pick: fn(&Sample) -> f64| median(samples.iter().map(pick));
        Self {
            cpu_us: [0, 1, 2, 3].map(least),
            mean_us: middle(|s| s.seen.mean_us()),
            median_us: middle(|s| s.seen.part_us(0.5)),
            slowest_us: middle(|s| s.seen.part_us(0.99)),
            calls: [middle(|s| s.calls[0]), middle(|s| s.calls[1])],
            denied: samples.iter().map(|s| s.seen.denied).sum(),
            fell_behind: samples.iter().any(|s| s.seen.fell_behind()),
        }
    }

    fn cpu(&self) -> f64 {
        self.cpu_us.iter().sum()
    }
}

/// Prints a cell, records its figures and goals, and returns what it adds, for the picture.
fn table(report: &mut Report, cell: &str, chains: &[Chain], rows: &[Row]) -> Option<Bars> {
    println!("\n{cell}: CPU us a request, latency in ms, calls for 1,000 requests");
    println!(
        "  {:<36}{:>7}{:>8}{:>7}{:>9}{:>7}{:>7}{:>8}{:>7}{:>9}{:>7}",
        "",
        "Envoy",
        "limiter",
        "Redis",
        "upstream",
        "added",
        "mean",
        "median",
        "99 %",
        "limiter",
        "Redis"
    );
    let of = |name| {
        rows.iter()
            .zip(chains)
            .find(|(_, chain)| chain.name == name)
            .map(|(row, _)| row)
    };
    let none = of(NONE)?;
    for (chain, row) in chains.iter().zip(rows) {
        let ([envoy, limiter, redis, upstream], [asked, calls]) = (row.cpu_us, row.calls);
        let added = row.cpu() - none.cpu();
        let [mean, middle, slowest] =
            [row.mean_us, row.median_us, row.slowest_us].map(|us| us / 1e3);
        let behind = if row.fell_behind { " FELL BEHIND" } else { "" };
        let denied = if row.denied > 0 {
            format!(" {} denied", row.denied)
        } else {
            String::new()
        };
        println!(
            "  {:<36}{envoy:>7.0}{limiter:>8.0}{redis:>7.0}{upstream:>9.0}{added:>7.0}{mean:>7.2}{middle:>8.2}{slowest:>7.2}{asked:>9.0}{calls:>7.0}{behind}{denied}",
            chain.name
        );
        if !row.fell_behind {
            let name = format!("{cell}, {}", chain.name);
            report.record(&format!("{name}: added CPU"), added, "us per request");
            report.record(
                &format!("{name}: added mean latency"),
                row.mean_us - none.mean_us,
                "us",
            );
            report.record(
                &format!("{name}: added median latency"),
                row.median_us - none.median_us,
                "us",
            );
            report.record(&format!("{name}: calls of the limiter"), asked, "per 1,000");
            report.record(&format!("{name}: calls of Redis"), calls, "per 1,000");
        }
    }
    let other = of(OTHER)?;
    let whole = cell == format!("{}/s, {} keys", WHOLE.0, WHOLE.1);
    for (name, cpu, latency) in [
        (
            LEASED,
            if cell.contains("100000") { 0.6 } else { 0.45 },
            whole.then_some(0.5),
        ),
        (LONG, 0.3, None),
    ] {
        let Some(row) = of(name).filter(|row| !row.fell_behind && !other.fell_behind) else {
            continue;
        };
        let over = |pick: fn(&Row) -> f64| (pick(row) - pick(none)) / (pick(other) - pick(none));
        report.at_most(
            &format!("{cell}, {name}: added CPU over {OTHER}'s"),
            over(Row::cpu),
            cpu,
        );
        if let Some(goal) = latency {
            let mean = over(|row| row.mean_us);
            report.at_most(
                &format!("{cell}, {name}: added mean latency over {OTHER}'s"),
                mean,
                goal,
            );
        }
    }
    let bar = |name: &'static str| {
        let row = of(name)?;
        Some((
            name,
            row.cpu() - none.cpu(),
            (row.mean_us - none.mean_us) / 1e3,
        ))
    };
    let rows = [LEASED, UNLEASED, OTHER]
        .into_iter()
        .filter_map(bar)
        .collect();
    Some(Bars {
        title: cell.to_owned(),
        rows,
    })
}

/// The highest rate at which each still answers all that arrives.
async fn highest(report: &mut Report, chains: &[Chain], keys: Keys, upstream: u32) {
    println!("\nthe highest of {RATES:?} requests a second at which all that arrives is answered");
    for chain in chains {
        let mut reached = 0;
        for rate in RATES {
            let sample = chain
                .measure(rate, keys, Duration::from_secs(2), upstream)
                .await;
            if sample.seen.fell_behind() {
                break;
            }
            reached = rate;
        }
        let name = format!("{}: all that arrives is answered up to", chain.name);
        report.figure(&name, f64::from(reached), "/s");
    }
}

impl Chain {
    async fn start(name: &'static str, up: u16) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let other = [OTHER, CACHED].contains(&name);
        let ours = [UNLEASED, LEASED, LONG].contains(&name);
        let redis = if other || ours {
            Some(Redis::start().await)
        } else {
            None
        };
        let (mut sidecar, mut process, mut port) = (None, None, up);
        if let Some(redis) = &redis {
            if ours {
                let started = Sidecar::with(&policy(name, redis))
                    .start(folder.path())
                    .await;
                port = started.port;
                sidecar = Some(started);
            } else {
                let limits = ratelimit::by_key(QUOTA);
                let (started, grpc) =
                    ratelimit::start(folder.path(), redis.port(), &limits, name == CACHED).await;
                port = grpc;
                process = Some(started);
            }
        }
        let nothing = folder.path().join("nothing.wasm");
        std::fs::write(&nothing, module::does_nothing()).expect("a file");
        let edit = |config: &mut Value| {
            let manager = at(config, MANAGER).as_object_mut().expect("an object");
            // It would be most of what some variants cost.
            drop(manager.remove("access_log"));
            let filters = manager["http_filters"].as_array_mut().expect("a list");
            match name {
                NONE => drop(filters.remove(0)),
                NOTHING => {
                    let code = &mut filters[0]["typed_config"]["config"]["vm_config"]["code"];
                    code["local"]["filename"] = json!(nothing);
                }
                LOCAL => filters[0] = local_ratelimit(1_000_000_000),
                OTHER | CACHED => ratelimit::ask(config, port),
                _ => {}
            }
        };
        let envoy = Envoy::asking(port)
            .upstream(up)
            .plugin(pushed())
            .patch(edit);
        let envoy = envoy.start(folder.path()).await;
        if ours {
            envoy.has_rules().await;
        }
        Self {
            name,
            envoy,
            sidecar,
            other: process,
            redis,
            _folder: folder,
        }
    }

    async fn measure(
        &self,
        per_second: u32,
        keys: Keys,
        length: Duration,
        upstream: u32,
    ) -> Sample {
        let limiter = self.sidecar.as_ref().map(Sidecar::id);
        let limiter = limiter.or(self.other.as_ref().map(Process::id));
        let redis = self.redis.as_ref().map(Redis::id);
        let processes = [Some(self.envoy.id()), limiter, redis, Some(upstream)];
        let (before, calls) = (processes.map(cpu_seconds), self.calls().await);
        let (port, seed) = (self.envoy.port, u64::from(per_second) + length.as_secs());
        let sent = move || arrivals::send(port, per_second, keys, length, seed);
        let seen = tokio::task::spawn_blocking(sent)
            .await
            .expect("a generator");
        let requests = seen.latencies_us.len().max(1) as f64;
        let after = self.calls().await;
        Sample {
            cpu_us: [0, 1, 2, 3].map(|n| (cpu_seconds(processes[n]) - before[n]) * 1e6 / requests),
            calls: [0, 1].map(|n| (after[n] - calls[n]) * 1e3 / requests),
            seen,
        }
    }

    /// Calls of the limiter and of Redis so far.
    async fn calls(&self) -> [f64; 2] {
        let Some(redis) = &self.redis else {
            return [0.0; 2];
        };
        let limiter = self
            .envoy
            .stat("cluster.sluicegate.upstream_rq_total")
            .await;
        let mut calls = redis.script_calls().await;
        for command in ["incrby", "expire"] {
            calls += redis.calls(command).await;
        }
        [limiter as f64, calls as f64]
    }
}

fn policy(name: &str, redis: &Redis) -> String {
    let (precision, lease) = match name {
        UNLEASED => ("1s", ""),
        LONG => ("5s", ", lease: { longest: 5s }"),
        _ => ("1s", ", lease: {}"),
    };
    let limit = format!(
        "algorithm: sliding_window, windows: [{{ quota: {QUOTA}, per: 1m, precision: {precision} }}]{lease}"
    );
    let policy = Policy::on(redis.url())
        .timeout("1s")
        .limit("per-key", &limit);
    let rules = json!([{
        "name": "per-key",
        "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }] }],
        "when_unavailable": "deny",
    }]);
    with_rules(&policy.text(), &rules)
}

/// `bench -- upstream`: the process whose CPU is the upstream's. Never returns.
pub async fn upstream() {
    println!("{}", upstream::start().await);
    std::future::pending().await
}

async fn upstream_apart() -> (Process, u16) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("upstream");
    let program = std::env::current_exe().expect("this program");
    let mut command = std::process::Command::new(program);
    let mut process = Process::start(command.arg("upstream"), &log, "");
    process
        .wait_until("the upstream", async || {
            std::fs::read_to_string(&log).is_ok_and(|port| port.ends_with('\n'))
        })
        .await;
    let port = process.log().trim().parse().expect("a port");
    (process, port)
}
