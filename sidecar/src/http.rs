//! The two HTTP faces: `decisions` for filters and workers, `admin` for Prometheus, probes and people.
//!
//! | on | path | answers |
//! |---|---|---|
//! | decisions | `POST /v1/decide` | a verdict for each decision |
//! | admin | `GET /metrics` | Prometheus's text format |
//! | admin | `GET /healthz` | 200 while the process serves |
//! | admin | `GET /readyz` | 200 when a policy is loaded and the store answers, else 503 and why |

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sluicegate_protocol::{Code, DECIDE_PATH, MAX_BODY_BYTES, Problem};

use crate::service::Service;

const JSON: &str = "application/json";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What filters and workers may call.
pub fn decisions(service: Arc<Service>) -> Router {
    Router::new()
        .route(DECIDE_PATH, post(decide))
        .with_state(service)
}

/// What Prometheus, probes and people may call.
pub fn admin(service: Arc<Service>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .with_state(service)
}

async fn decide(State(service): State<Arc<Service>>, body: Body) -> Response {
    let Ok(body) = to_bytes(body, MAX_BODY_BYTES).await else {
        return refusal(&Problem::new(
            Code::BodyTooLarge,
            format_args!(
                "the body may have {MAX_BODY_BYTES} bytes: send fewer decisions at a time"
            ),
        ));
    };
    match service.decide(&body).await {
        Ok(answer) => ([(header::CONTENT_TYPE, JSON)], answer).into_response(),
        Err(problem) => refusal(&problem),
    }
}

fn refusal(problem: &Problem) -> Response {
    let status = match problem.code {
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        _ => StatusCode::BAD_REQUEST,
    };
    let body = serde_json::to_vec(problem).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
}

async fn metrics(State(service): State<Arc<Service>>) -> Response {
    match service.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(service): State<Arc<Service>>) -> Response {
    let epoch = service.epoch();
    match service.store_answers().await {
        Ok(()) => format!("ready: policy epoch {epoch}, the store answers\n").into_response(),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("not ready: policy epoch {epoch}, {error}\n"),
        )
            .into_response(),
    }
}
