//! Queries to the composed Prometheus.

use std::time::{Duration, Instant};

use serde_json::Value;
use sluicegate_tests::client::get;

/// Where docker-compose.yml publishes it.
const PROMETHEUS: &str = "http://127.0.0.1:9090";

/// Several times the scrape interval of deploy/prometheus/prometheus.yml.
const SEEN_WITHIN: Duration = Duration::from_secs(60);

/// Waits until an expression has this value.
///
/// # Panics
/// It does not reach the value in time.
pub async fn wait_for_value(expression: &str, expected: u64) {
    let deadline = Instant::now() + SEEN_WITHIN;
    loop {
        let value = value(expression).await;
        if value == Some(expected as f64) {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "Prometheus has {expression} = {value:?}, not {expected}"
        );
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// The value of an expression, if it has exactly one.
async fn value(expression: &str) -> Option<f64> {
    let mut url = reqwest::Url::parse(PROMETHEUS).expect("an address");
    url.set_path("/api/v1/query");
    url.query_pairs_mut().append_pair("query", expression);
    let (status, body) = get(url.as_str()).await;
    assert_eq!(status, 200, "{expression}: {body}");
    let body: Value = serde_json::from_str(&body).expect("JSON from Prometheus");
    match body["data"]["result"].as_array().map(Vec::as_slice) {
        Some([one]) => one["value"][1].as_str()?.parse().ok(),
        _ => None,
    }
}
