//! What a fleet costs Redis if every sidecar is asked for the same key: as many sidecars as the machine can run, with leases and
//! without, and what follows for a thousand.

use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::client::client;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests_full::report::Report;

use crate::load::cpu_seconds;

/// Sidecars that two cores can run.
const SIDECARS: u32 = 12;
/// Decisions a second of each.
const RATE: u32 = 1_000;
/// Decisions in one request, as of that many requests that wait together.
const AT_ONCE: u32 = 10;
/// Before anything is counted: rates are averages.
const WARM_UP: Duration = Duration::from_secs(2);

/// Adds the figures of both to a report; each is measured for so long.
pub async fn run(report: &mut Report, seconds: u32) {
    for (name, lease) in [
        ("without leases", ""),
        ("with leases", ", lease: {}"),
        ("with leases of 250 ms", ", lease: { longest: 250ms }"),
    ] {
        let (calls, cpu_us, admitted) = measured(lease, Duration::from_secs(seconds.into())).await;
        let name =
            format!("one key, {SIDECARS} sidecars with {RATE} decisions a second each, {name}");
        report.figure(&format!("{name}: calls of Redis a sidecar"), calls, "/s");
        report.figure(&format!("{name}: Redis"), cpu_us, "CPU us per call");
        report.figure(&format!("{name}: admitted of what was asked"), admitted, "");
        let cores = calls * 1_000.0 * cpu_us / 1e6;
        report.figure(&format!("{name}: 1,000 sidecars"), cores, "cores of Redis");
    }
}

/// Calls of Redis for each sidecar and second, their cost, and the share of what was asked that was admitted.
async fn measured(lease: &str, length: Duration) -> (f64, f64, f64) {
    let redis = Redis::start().await;
    let limit =
        format!("algorithm: sliding_window, windows: [{{ quota: 1000000000, per: 1m }}]{lease}");
    let policy = Policy::on(redis.url()).timeout("1s").limit("l", &limit);
    let policy = policy.text();
    let mut sidecars = Vec::new();
    for _ in 0..SIDECARS {
        sidecars.push(Sidecar::alone(&policy).await);
    }
    let until = Instant::now() + WARM_UP + length;
    let loads = sidecars.iter().map(|sidecar| {
        let url = sidecar.url("/v1/decide");
        tokio::spawn(load(url, until))
    });
    let loads: Vec<_> = loads.collect();
    tokio::time::sleep(WARM_UP).await;
    let (calls, seconds) = (redis.script_calls().await, cpu_seconds(Some(redis.id())));
    tokio::time::sleep(until - Instant::now()).await;
    let (calls, seconds) = (
        (redis.script_calls().await - calls) as f64,
        cpu_seconds(Some(redis.id())) - seconds,
    );
    let mut totals = (0, 0);
    for load in loads {
        let (asked, admitted) = load.await.expect("it does not panic");
        totals = (totals.0 + asked, totals.1 + admitted);
    }
    (
        calls / f64::from(SIDECARS) / length.as_secs_f64(),
        seconds * 1e6 / calls,
        f64::from(totals.1) / f64::from(totals.0),
    )
}

/// Asks at a steady rate; how many decisions were asked for, and how many were admitted.
async fn load(url: String, until: Instant) -> (u32, u32) {
    let client = client();
    let decision = json!({ "checks": [{ "limit": "l", "key": "k" }] });
    let body = json!({ "decisions": vec![decision; AT_ONCE as usize] }).to_string();
    let mut ticks = tokio::time::interval(Duration::from_secs(1) * AT_ONCE / RATE);
    let (mut asked, mut admitted) = (0, 0);
    while Instant::now() < until {
        ticks.tick().await;
        let request = client.post(&url).header("content-type", "application/json");
        let answer = request.body(body.clone()).send().await.expect("an answer");
        let text = answer.text().await.expect("a text");
        asked += AT_ONCE;
        admitted += u32::try_from(text.matches("\"admitted\"").count()).expect("a few");
    }
    (asked, admitted)
}
