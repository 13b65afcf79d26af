//! A fake sidecar that admits everything and records the questions, for tests of what the filter asks.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use serde_json::{Value, json};

use crate::upstream::serve;

/// A recording sidecar, in this runtime.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    asked: Arc<Mutex<Vec<Value>>>,
    /// Where it listens.
    pub port: u16,
}

impl Recorder {
    /// Starts one.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn start() -> Self {
        Self::slow(Duration::ZERO).await
    }

    /// Starts one that delays each answer.
    ///
    /// # Panics
    /// There is no free port.
    pub async fn slow(delay: Duration) -> Self {
        let mut recorder = Self::default();
        let asked = Arc::clone(&recorder.asked);
        let router = Router::new().fallback(async move |body: Body| {
            let body = to_bytes(body, usize::MAX).await.expect("a whole body");
            let question: Value = serde_json::from_slice(&body).expect("JSON");
            let decisions = question["decisions"].as_array().expect("decisions").clone();
            let admitted = json!({ "outcome": "admitted", "check": 0, "limit": "l", "quota": 10, "window_ms": 60_000,
                "remaining": 9, "reset_ms": 60_000, "retry_after_ms": 0 });
            let verdicts = vec![admitted; decisions.len()];
            asked.lock().expect("no test panics here").extend(decisions);
            tokio::time::sleep(delay).await;
            json!({ "epoch": 1, "verdicts": verdicts }).to_string()
        });
        recorder.port = serve(router).await;
        recorder
    }

    /// The checks of the decisions asked since the last call, spelt `limit key cost`.
    ///
    /// # Panics
    /// A check is not of the contract's shape.
    pub fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().expect("no test panics here");
        let spell = |check: &Value| {
            let text = |field: &str| check[field].as_str().expect("a text").to_owned();
            let cost = check["cost"].as_u64().unwrap_or(1);
            format!("{} {} {cost}", text("limit"), text("key"))
        };
        let decisions = asked.drain(..);
        decisions
            .flat_map(|decision| {
                let checks = decision["checks"].as_array().expect("checks").clone();
                checks.iter().map(spell).collect::<Vec<_>>()
            })
            .collect()
    }
}
