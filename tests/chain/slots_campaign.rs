//! Ten thousand streams on two Envoys of eight workers, with hang-ups in every phase, while sidecar, Redis and an Envoy are killed and
//! started again: those that are open, as the upstream counts them, are never more than the slots, and all slots are free at the end.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Uri;
use axum::response::Response;
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

use super::support::decide;

const SLOTS: u64 = 24;
const STREAMS: usize = 10_000;
const CLIENTS: usize = 72;

/// The streams that are open at the upstream, of clients that have not given them up.
#[derive(Default)]
struct Open {
    ids: Mutex<HashSet<usize>>,
    /// Those whose clients have: the upstream may not know it yet.
    given_up: Mutex<HashSet<usize>>,
    most: AtomicU64,
    reached: AtomicU64,
}

impl Open {
    fn begins(&self, id: usize) {
        self.reached.fetch_add(1, Relaxed);
        let mut ids = self.ids.lock().unwrap();
        if !self.given_up.lock().unwrap().contains(&id) {
            ids.insert(id);
            self.most.fetch_max(ids.len() as u64, Relaxed);
        }
    }

    fn ends(&self, id: usize) {
        self.ids.lock().unwrap().remove(&id);
    }

    fn is_given_up(&self, id: usize) {
        let mut ids = self.ids.lock().unwrap();
        self.given_up.lock().unwrap().insert(id);
        ids.remove(&id);
    }
}

/// `/ID/MILLISECONDS`: a body that takes so long, whose last byte is sent when the stream counts no more.
fn api(open: &Arc<Open>) -> Router {
    let open = Arc::clone(open);
    Router::new().fallback(async move |uri: Uri| {
        let numbers: Vec<usize> = uri
            .path()
            .split('/')
            .filter_map(|part| part.parse().ok())
            .collect();
        let (id, ms) = (numbers[0], numbers[1] as u64);
        open.begins(id);
        let body = stream::iter(0..3).then(move |part| {
            let open = Arc::clone(&open);
            async move {
                tokio::time::sleep(Duration::from_millis(ms / 2 * u64::from(part > 0))).await;
                if part == 2 {
                    open.ends(id);
                }
                Ok::<_, std::io::Error>("part ")
            }
        });
        Response::new(Body::from_stream(body))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_at_the_upstream_are_never_more_than_the_slots() {
    let mut redis = Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]).await;
    let limit = format!("algorithm: concurrency, windows: [{{ quota: {SLOTS}, per: 6s }}]");
    let rules = json!([{
        "name": "streams", "when_unavailable": "deny",
        "checks": [{ "limit": "streams", "key": [{ "constant": "all" }] }],
    }]);
    let policy = Policy::on(redis.url());
    let policy = policy.limit("streams", &format!("{limit}, when_store_is_down: deny"));
    let mut sidecar = Sidecar::alone(&with_rules(&policy.text(), &rules)).await;
    let open = Arc::new(Open::default());
    let up = upstream::serve(api(&open)).await;
    let port = sidecar.port;
    let envoy = async || {
        let planned = Envoy::asking(port).upstream(up).plugin(pushed()).workers(8);
        let envoy = planned.alone().await;
        envoy.has_rules().await;
        envoy
    };
    let envoys = [RwLock::new(envoy().await), RwLock::new(envoy().await)];
    let (next, is_over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let clients = [client(), client()];
    // Each asks again until it is admitted, and then for the next.
    let one = async |number: usize| {
        while !is_over.load(Relaxed) {
            let id = next.fetch_add(1, Relaxed);
            // A tenth hang up before an answer, a tenth in the middle of it.
            let (ms, patience) = match id % 10 {
                0 => (40, Some(id as u64 % 30)),
                1 => (400, Some(150)),
                _ => (id as u64 % 60, None),
            };
            let url = envoys[number % 2].read().await.url(&format!("/{id}/{ms}"));
            let asked = async {
                let answer = clients[number % 2].get(url).send().await.ok()?;
                let status = answer.status().as_u16();
                answer.text().await.ok().map(|_| status)
            };
            let status = match patience {
                None => asked.await,
                Some(patience) => {
                    let mut asked = Box::pin(asked);
                    let ended =
                        tokio::time::timeout(Duration::from_millis(patience), &mut asked).await;
                    // Before the connection is closed.
                    open.is_given_up(id);
                    drop(asked);
                    ended.ok().flatten()
                }
            };
            if status.is_none() {
                open.is_given_up(id);
            }
            if status != Some(200) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            if open.reached.load(Relaxed) as usize >= STREAMS {
                is_over.store(true, Relaxed);
            }
        }
    };
    let streams = stream::iter(0..CLIENTS).for_each_concurrent(CLIENTS, one);
    let faults = async {
        let reached = async |part: usize| {
            eventually("streams", async || {
                open.reached.load(Relaxed) as usize >= part
            })
            .await;
        };
        for round in 1..=3 {
            let part = STREAMS / 12;
            reached((4 * round - 3) * part).await;
            sidecar.kill();
            sidecar.restart().await;
            reached((4 * round - 2) * part).await;
            redis.kill();
            redis.restart().await;
            reached((4 * round - 1) * part).await;
            let mut one = envoys[round % 2].write().await;
            one.kill();
            *one = envoy().await;
        }
    };
    tokio::join!(streams, faults);
    let most = open.most.load(Relaxed);
    assert!(most <= SLOTS, "{most} at once of {SLOTS}");
    assert!(
        most > SLOTS / 2,
        "{most} at once of {SLOTS}: nothing was shown"
    );
    eventually("all slots are free", async || {
        let look = json!({ "limit": "streams", "key": "@constant=all", "cost": 0 });
        let verdict = decide(&sidecar, json!({ "checks": [look], "peek": true })).await;
        verdict["remaining"] == SLOTS
    })
    .await;
    for envoy in envoys {
        envoy.into_inner().is_well().await;
    }
}
