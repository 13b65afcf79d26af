//! Ten thousand streams on two Envoys, with hang-ups in every phase, and a sidecar and a Redis that are killed meanwhile: the
//! engine's total is what was used and what stays reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use futures_util::{StreamExt, stream};
use serde_json::json;
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::policy::{Policy, pushed, with_rules};
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;

use super::settled::{metadata, model, parsers};
use super::support::decide;

const QUOTA: u64 = 2_000_000_000;
const RESERVE: u64 = 1_000;
const STREAMS: usize = 10_000;

/// What became of the requests.
#[derive(Default)]
struct Total {
    /// Units that are known to be used or kept.
    units: AtomicU64,
    /// Requests without a verdict: what they reserved may be taken, as their answer was lost.
    lost: AtomicU64,
}

#[tokio::test(flavor = "multi_thread")]
async fn the_total_is_what_was_used_and_what_stays_reserved() {
    let redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let limit = format!("algorithm: sliding_window, windows: [{{ quota: {QUOTA}, per: 24h }}]");
    let cost = json!({ "reserve": RESERVE, "settle": { "from": metadata("total"), "max": 5000 } });
    let rules = json!([{
        "name": "tokens", "when_unavailable": "deny",
        "checks": [{ "limit": "tokens", "key": [{ "constant": "all" }], "cost": cost }],
    }]);
    let policy =
        Policy::on(redis.url()).limit("tokens", &format!("{limit}, when_store_is_down: deny"));
    let mut sidecar = Sidecar::alone(&with_rules(&policy.text(), &rules)).await;
    // Clients hang up on these; whether before their verdict came, the upstream knows.
    let reached = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&reached);
    let answer = async move |uri: Uri| {
        if matches!(uri.path(), "/slow" | "/hang") {
            count.fetch_add(1, Relaxed);
        }
        model(uri).await
    };
    let api = upstream::serve(Router::new().fallback(answer)).await;
    let envoy = async || {
        let planned = Envoy::asking(sidecar.port)
            .upstream(api)
            .plugin(pushed())
            .patch(parsers);
        planned.alone().await
    };
    let envoys = [envoy().await, envoy().await];
    let (total, mut redis) = (Total::default(), redis);
    let clients = [client(), client()];
    let one = async |number: usize| {
        let (client, envoy) = (&clients[number % 2], &envoys[number % 2]);
        let used = (number as u64 * 7_919) % 3_000;
        let (path, patience, units) = match number % 10 {
            0 => ("/slow".to_owned(), 150, 0),
            1 => ("/hang".to_owned(), 150, 0),
            2 => ("/none".to_owned(), 20_000, RESERVE),
            3 => ("/status/503".to_owned(), 20_000, RESERVE),
            4 => (format!("/json?{used}"), 20_000, used),
            _ => (format!("/sse?{used}"), 20_000, used),
        };
        let answer = client
            .get(envoy.url(&path))
            .timeout(Duration::from_millis(patience));
        let answer = answer.send().await;
        if patience < 1_000 {
            return;
        }
        let (status, text) = match answer {
            Ok(answer) => (
                answer.status().as_u16(),
                answer.text().await.unwrap_or_default(),
            ),
            Err(_) => (0, String::new()),
        };
        let has_verdict = status == 200 || status == 503 && !text.contains("rate limiter");
        let (to, more) = if has_verdict {
            (&total.units, units)
        } else {
            (&total.lost, 1)
        };
        to.fetch_add(more, Relaxed);
    };
    let run = async |numbers: std::ops::Range<usize>| {
        stream::iter(numbers).for_each_concurrent(64, one).await;
    };
    // Nothing while the store is away.
    let taken = async |sidecar: &Sidecar| {
        let look = json!({ "limit": "tokens", "key": "@constant=all", "cost": 0 });
        let verdict = decide(sidecar, json!({ "checks": [look], "peek": true })).await;
        Some(QUOTA - verdict["remaining"].as_u64()?)
    };

    // Of clients that hung up; some before their request had left Envoy, which cannot be known.
    let cut = async || {
        let name = "rule=.=tokens;.;rule_settle_cut";
        envoys[0].counted(name).await + envoys[1].counted(name).await
    };

    // While everything runs, to the unit.
    run(0..STREAMS / 2).await;
    let lost = total.lost.load(Relaxed);
    assert_eq!(lost, 0, "no request lacks a verdict");
    eventually("the total is exact", async || {
        taken(&sidecar).await == Some(total.units.load(Relaxed) + cut().await * RESERVE)
    })
    .await;

    assert!(reached.load(Relaxed) <= cut().await);

    // The sidecar and Redis die, several times. What was reserved by a call whose answer was lost stays.
    let rest = run(STREAMS / 2..STREAMS);
    let kill = async {
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_millis(700)).await;
            sidecar.kill();
            sidecar.restart().await;
            tokio::time::sleep(Duration::from_millis(700)).await;
            redis.kill();
            redis.restart().await;
        }
    };
    tokio::join!(rest, kill);
    let (units, lost) = (total.units.load(Relaxed), total.lost.load(Relaxed));
    eventually("all is settled", async || {
        let (taken, known) = (taken(&sidecar).await, units + cut().await * RESERVE);
        taken.is_some_and(|taken| (known..=known + lost * RESERVE).contains(&taken))
    })
    .await;
    for envoy in &envoys {
        envoy.is_well().await;
    }
}
