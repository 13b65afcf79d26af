//! `bench -- slots`: how soon a slot that is freed is in use again. Three times as many clients as slots ask, each again at once,
//! whether it was admitted or not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use axum::Router;
use futures_util::future::join_all;
use serde_json::json;
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::policy::{Policy, pushed, with_rules};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use sluicegate_tests_full::report::Report;

const SLOTS: usize = 8;
const CLIENTS: usize = 3 * SLOTS;

/// Adds a row for each time that a request takes.
pub async fn run(report: &mut Report, seconds: u32) {
    for ms in [500, 50, 5] {
        let length = Duration::from_secs(seconds.into()) + Duration::from_millis(4 * ms);
        let name =
            format!("{SLOTS} slots, {CLIENTS} clients that retry at once, requests of {ms} ms");
        let limited = measured(ms, length, CLIENTS, true).await;
        let unlimited = measured(ms, length, SLOTS, false).await;
        report.figure(&format!("{name}: slots in use"), limited.busy, "");
        report.figure(&format!("{name}: admitted"), limited.admitted, "/s");
        report.figure(&format!("{name}: denied"), limited.denied, "/s");
        let name = format!("{SLOTS} clients without a limit, requests of {ms} ms");
        report.figure(&format!("{name}: in use of {SLOTS}"), unlimited.busy, "");
        report.figure(&format!("{name}: admitted"), unlimited.admitted, "/s");
    }
}

struct Measured {
    admitted: f64,
    denied: f64,
    /// The part of the time in which a slot had a request at the upstream.
    busy: f64,
}

/// What so many clients get in this time.
async fn measured(ms: u64, length: Duration, clients: usize, limited: bool) -> Measured {
    let redis = Redis::start().await;
    let busy_us = Arc::new(AtomicU64::new(0));
    let at_upstream = Arc::clone(&busy_us);
    let answer = async move || {
        let began = Instant::now();
        tokio::time::sleep(Duration::from_millis(ms)).await;
        at_upstream.fetch_add(began.elapsed().as_micros() as u64, Relaxed);
        "done"
    };
    let up = upstream::serve(Router::new().fallback(answer)).await;
    let slots = if limited { SLOTS } else { 1_000 };
    let limit = format!("algorithm: concurrency, windows: [{{ quota: {slots}, per: 30s }}]");
    let rules = json!([{
        "name": "streams", "when_unavailable": "deny",
        "checks": [{ "limit": "streams", "key": [{ "constant": "all" }] }],
    }]);
    let policy = Policy::on(redis.url())
        .timeout("1s")
        .limit("streams", &limit);
    let sidecar = Sidecar::alone(&with_rules(&policy.text(), &rules)).await;
    let envoy = Envoy::asking(sidecar.port).upstream(up).plugin(pushed());
    let envoy = envoy.alone().await;
    envoy.has_rules().await;
    let (begin, url) = (Instant::now(), envoy.url("/"));
    let each = async || {
        let (client, mut counts) = (client(), [0_u32; 2]);
        while begin.elapsed() < length {
            let answer = client.get(&url).send().await.expect("an answer");
            let admitted = answer.status() == 200;
            answer.bytes().await.expect("its body");
            counts[usize::from(admitted)] += 1;
        }
        counts
    };
    let counts = join_all((0..clients).map(|_| each())).await;
    let took = begin.elapsed().as_secs_f64();
    let rate = |which: usize| counts.iter().map(|of| f64::from(of[which])).sum::<f64>() / took;
    Measured {
        admitted: rate(1),
        denied: rate(0),
        busy: busy_us.load(Relaxed) as f64 / 1e6 / took / SLOTS as f64,
    }
}
