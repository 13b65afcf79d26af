//! Ten thousand streams on two Envoys, with hang-ups in every phase, and a sidecar, a Redis and an Envoy that are killed meanwhile:
//! the engine's total is what was used and what stays reserved.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
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
use tokio::sync::RwLock;

use super::settled::{metadata, model, parsers};
use super::support::decide;

const QUOTA: u64 = 2_000_000_000;
const RESERVE: u64 = 1_000;
/// No request uses more.
const MOST_USED: u64 = 2_999;
const STREAMS: usize = 10_000;

/// What became of the requests.
#[derive(Default)]
struct Total {
    /// Units of requests whose whole answer came: used or kept.
    units: AtomicU64,
    /// Requests without a verdict: if only the answer was lost, their hold is left.
    lost: AtomicU64,
    /// Requests whose answer broke off, or whose connection did before it: their Envoy died.
    broken: AtomicU64,
    /// Requests whose clients hung up.
    given_up: AtomicU64,
    ended: AtomicUsize,
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
    let port = sidecar.port;
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
        let planned = Envoy::asking(port)
            .upstream(api)
            .plugin(pushed())
            .patch(parsers);
        let envoy = planned.alone().await;
        envoy.has_rules().await;
        envoy
    };
    let envoys = [RwLock::new(envoy().await), RwLock::new(envoy().await)];
    let (total, mut redis) = (Total::default(), redis);
    let clients = [client(), client()];
    let one = async |number: usize| {
        let used = (number as u64 * 7_919) % (MOST_USED + 1);
        let (path, patience, units) = match number % 10 {
            0 => ("/slow".to_owned(), 150, 0),
            1 => ("/hang".to_owned(), 150, 0),
            2 => ("/none".to_owned(), 20_000, RESERVE),
            3 => ("/status/503".to_owned(), 20_000, RESERVE),
            4 => (format!("/json?{used}"), 20_000, used),
            _ => (format!("/sse?{used}"), 20_000, used),
        };
        let url = envoys[number % 2].read().await.url(&path);
        let asked = async {
            let answer = clients[number % 2].get(url);
            let answer = answer.timeout(Duration::from_millis(patience)).send();
            let answer = answer.await.ok()?;
            let status = answer.status().as_u16();
            Some((status, answer.text().await.ok()?))
        };
        let (to, more) = match asked.await {
            _ if patience < 1_000 => (&total.given_up, 1),
            Some((200, _)) => (&total.units, units),
            Some((503, text)) if !text.contains("rate limiter") => (&total.units, units),
            Some(_) => (&total.lost, 1),
            None => (&total.broken, 1),
        };
        to.fetch_add(more, Relaxed);
        total.ended.fetch_add(1, Relaxed);
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

    let holds = async |redis: &Redis| {
        let keys = redis.keys().await.into_iter();
        keys.filter(|key| key.contains(":hold:")).count() as u64
    };
    // Of clients that hung up; some before their request had left Envoy, which cannot be known.
    let cut = async || {
        let mut cut = 0;
        for envoy in &envoys {
            let name = "rule=.=tokens;.;rule_settle_cut";
            cut += envoy.read().await.counted(name).await;
        }
        cut
    };

    // While everything runs, to the unit.
    run(0..STREAMS / 2).await;
    for without_answer in [&total.lost, &total.broken] {
        assert_eq!(without_answer.load(Relaxed), 0);
    }
    eventually("the total is exact", async || {
        let known = total.units.load(Relaxed) + cut().await * RESERVE;
        taken(&sidecar).await == Some(known) && holds(&redis).await == 0
    })
    .await;
    let (reached_before, cut_before) = (reached.load(Relaxed), cut().await);
    assert!(reached_before <= cut_before);
    let given_up_before = total.given_up.load(Relaxed);
    // The sidecar, Redis and an Envoy die, several times.
    let rest = run(STREAMS / 2..STREAMS);
    let kill = async {
        let ended = async |part: usize| {
            eventually("streams", async || total.ended.load(Relaxed) >= part).await;
        };
        for round in 0..3 {
            let part = STREAMS / 20;
            ended(STREAMS / 2 + (3 * round + 1) * part).await;
            sidecar.kill();
            sidecar.restart().await;
            ended(STREAMS / 2 + (3 * round + 2) * part).await;
            redis.kill();
            redis.restart().await;
            ended(STREAMS / 2 + (3 * round + 3) * part).await;
            let mut one = envoys[round % 2].write().await;
            one.kill();
            *one = envoy().await;
        }
    };
    tokio::join!(rest, kill);
    let load = |counter: &AtomicU64| counter.load(Relaxed);
    let broken = load(&total.broken);
    // A request that its upstream has seen was admitted, and a hang-up keeps what was reserved.
    let reached = load(&reached) - reached_before;
    let known = load(&total.units) + (cut_before + reached) * RESERVE;
    // Others that hung up kept it or got it back.
    let others = load(&total.given_up) - given_up_before - reached;
    eventually("all is settled", async || {
        // A hold that is left was never settled: its Envoy died first, or the answer with its receipt was lost. Its reserve stays:
        // of a request that used U, RESERVE in place of U, which is between 0 and MOST_USED.
        let (left, Some(taken)) = (holds(&redis).await, taken(&sidecar).await) else {
            return false;
        };
        // An answer that broke off with its Envoy may have been settled before.
        let most = known + (left + others) * RESERVE + broken * MOST_USED;
        let least = known.saturating_sub(left * (MOST_USED - RESERVE));
        left > 0 && (least..=most).contains(&taken)
    })
    .await;
    for envoy in envoys {
        envoy.into_inner().is_well().await;
    }
}
