//! A request that slots alone deny is asked again once, before a fake sidecar: whatever comes of it, nobody else waits, and no slot is
//! left behind.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::http::{StatusCode, Uri};
use serde_json::{Value, json};
use sluicegate_tests::client::{client, get_with};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually;
use sluicegate_tests::upstream::serve;
use tokio::io::AsyncWriteExt;
use tokio::sync::Notify;

use super::support::{envoy, plugin, sent};

/// A sidecar that denies `busy` for want of a slot, until it is asked again.
#[derive(Clone, Default)]
struct Fake {
    /// What it answers then; nothing, until it is told to.
    again: Arc<Mutex<Option<(StatusCode, Value)>>>,
    go_on: Arc<Notify>,
    asked: Arc<Mutex<Vec<Value>>>,
    freed: Arc<Mutex<Vec<String>>>,
}

fn status(more: &Value) -> Value {
    let mut status = json!({
        "outcome": "denied", "check": 0, "limit": "streams", "quota": 4, "window_ms": 30_000, "remaining": 0, "reset_ms": 0,
        "retry_after_ms": 1_800, "at_once": true,
    });
    let more = more.as_object().unwrap().clone();
    status.as_object_mut().unwrap().extend(more);
    status
}

fn answer(verdicts: &Value) -> Value {
    json!({ "epoch": 1, "verdicts": verdicts })
}

fn admitted(receipt: &str) -> Value {
    status(
        &json!({ "outcome": "admitted", "remaining": 3, "retry_after_ms": 0, "receipt": [receipt] }),
    )
}

impl Fake {
    async fn start(&self) -> u16 {
        let this = self.clone();
        let router = Router::new().fallback(async move |uri: Uri, body: String| {
            let body: Value = serde_json::from_str(&body).unwrap();
            if uri.path() == "/v1/settle" {
                return (StatusCode::OK, this.settle(&body).to_string());
            }
            if body.get("wait_ms").is_none() {
                let decisions = body["decisions"].as_array().unwrap();
                let verdicts = decisions.iter().map(Self::first).collect();
                return (StatusCode::OK, answer(&verdicts).to_string());
            }
            this.asked.lock().unwrap().push(body);
            let again = loop {
                let told = this.go_on.notified();
                if let Some(again) = this.again.lock().unwrap().clone() {
                    break again;
                }
                told.await;
            };
            (again.0, again.1.to_string())
        });
        serve(router).await
    }

    fn first(decision: &Value) -> Value {
        let key = decision["checks"][0]["key"].as_str().unwrap();
        match key.rsplit_once('=').unwrap().1 {
            _ if decision.get("shadow").is_some() => admitted("of-shadow"),
            "busy" => status(&json!({})),
            other => admitted(other),
        }
    }

    fn settle(&self, body: &Value) -> Value {
        let settles = body["settles"].as_array().unwrap();
        let freed = settles.iter().filter(|settle| settle["units"] == 0);
        let receipts = freed.map(|settle| settle["receipt"].as_str().unwrap().to_owned());
        self.freed.lock().unwrap().extend(receipts);
        json!({ "outcomes": vec![json!({ "outcome": "returned", "units": 1 }); settles.len()] })
    }

    fn answers(&self, again: impl Into<Option<(StatusCode, Value)>>) {
        *self.again.lock().unwrap() = again.into();
        self.go_on.notify_waiters();
    }

    /// Waits until exactly these receipts are freed.
    async fn frees(&self, expected: &[&str]) {
        eventually("they are freed", async || {
            let mut freed = self.freed.lock().unwrap().clone();
            freed.sort();
            freed == expected
        })
        .await;
        self.freed.lock().unwrap().clear();
    }

    async fn is_asked_again(&self) -> Value {
        eventually("it is asked again", async || {
            !self.asked.lock().unwrap().is_empty()
        })
        .await;
        let mut asked = self.asked.lock().unwrap();
        assert_eq!(asked.len(), 1);
        asked.remove(0)
    }
}

/// An Envoy before a fake sidecar, whose verdicts may take so long.
async fn chain(timeout: &str) -> (Fake, Envoy) {
    let fake = Fake::default();
    let checks = json!([{ "limit": "streams", "key": [{ "header": "x-user", "plain": true }] }]);
    let mut plugin = plugin(json!([
        { "name": "streams", "when_unavailable": "deny", "checks": checks },
        { "name": "trial", "shadow": true, "checks": checks },
    ]));
    plugin["sidecar"]["timeout"] = json!(timeout);
    let envoy = envoy(fake.start().await, plugin).await;
    envoy.has_rules().await;
    (fake, envoy)
}

#[tokio::test]
async fn the_second_verdict_decides_and_in_place_of_one_the_first() {
    let (fake, envoy) = chain("1s").await;
    let ok = |body: Value| Some((StatusCode::OK, body));
    let of = |more: Value| ok(answer(&json!([status(&more)])));
    for (what, again, expected, retry_after, freed) in [
        (
            "admitted",
            ok(answer(&json!([admitted("late")]))),
            200,
            None,
            &["late", "of-shadow"][..],
        ),
        (
            "denied",
            of(json!({ "retry_after_ms": 7_000 })),
            429,
            Some("7"),
            &["of-shadow"],
        ),
        (
            "by a rate",
            of(json!({ "retry_after_ms": 9_000, "at_once": false })),
            429,
            Some("9"),
            &["of-shadow"],
        ),
        (
            "no store",
            ok(answer(
                &json!([{ "outcome": "unavailable", "then": "deny" }]),
            )),
            429,
            Some("2"),
            &["of-shadow"],
        ),
        (
            "an error",
            ok(answer(
                &json!([{ "outcome": "error", "code": "unknown_limit", "message": "m" }]),
            )),
            429,
            Some("2"),
            &["of-shadow"],
        ),
        (
            "two",
            ok(answer(&json!([admitted("a"), admitted("b")]))),
            429,
            Some("2"),
            &["of-shadow"],
        ),
        (
            "no answer",
            ok(json!("what?")),
            429,
            Some("2"),
            &["of-shadow"],
        ),
        (
            "500",
            Some((StatusCode::INTERNAL_SERVER_ERROR, json!({}))),
            429,
            Some("2"),
            &["of-shadow"],
        ),
        ("nothing in time", None, 429, Some("2"), &["of-shadow"]),
    ] {
        fake.answers(again);
        let answer = get_with(&envoy.url("/"), &[("x-user", "busy")]).await;
        assert_eq!(answer.status(), expected, "{what}");
        let told = answer
            .headers()
            .get("retry-after")
            .map(|one| one.to_str().unwrap());
        assert_eq!(told, retry_after, "{what}");
        let asked = fake.is_asked_again().await;
        assert_eq!(
            (
                &asked["wait_ms"],
                asked["decisions"].as_array().unwrap().len()
            ),
            (&json!(10), 1),
            "{what}"
        );
        assert!(asked["decisions"][0].get("shadow").is_none(), "{what}");
        fake.frees(freed).await;
    }
    envoy.is_well().await;
}

#[tokio::test]
async fn nobody_else_waits_and_a_client_that_hangs_up_meanwhile_leaves_no_slot_behind() {
    let (fake, envoy) = chain("8s").await;
    let mut client = sent(
        envoy.port,
        "GET / HTTP/1.1\r\nhost: h\r\nx-user: busy\r\n\r\n",
    )
    .await;
    fake.is_asked_again().await;
    for user in ["other", "another"] {
        let answer = client_of(&envoy, user).await;
        assert_eq!(answer, 200);
        let mut freed = [user, "of-shadow"];
        freed.sort_unstable();
        fake.frees(&freed).await;
    }
    client.shutdown().await.unwrap();
    drop(client);
    eventually("its stream has ended", async || envoy.active().await == 0).await;
    fake.answers((StatusCode::OK, answer(&json!([admitted("late")]))));
    fake.frees(&["late", "of-shadow"]).await;

    // A sidecar that closes the connection: the first denial stands.
    fake.answers(None);
    let denied = tokio::spawn(get_with_user(envoy.url("/")));
    fake.is_asked_again().await;
    fake.answers((StatusCode::SERVICE_UNAVAILABLE, json!({})));
    assert_eq!(denied.await.unwrap(), 429);
    fake.frees(&["of-shadow"]).await;
    envoy.is_well().await;
}

async fn client_of(envoy: &Envoy, user: &str) -> u16 {
    let request = client().get(envoy.url("/")).header("x-user", user);
    let answer = request.timeout(Duration::from_secs(5)).send().await;
    answer.unwrap().status().as_u16()
}

async fn get_with_user(url: String) -> u16 {
    get_with(&url, &[("x-user", "busy")])
        .await
        .status()
        .as_u16()
}
