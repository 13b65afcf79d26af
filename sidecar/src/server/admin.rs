//! What Prometheus, probes and operators may call.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use sluicegate_protocol::{RESET_PATH, TOP_PATH};

use super::access::{Access, guard};
use super::body::{answer, whole};
use super::paths::{HEALTHZ_PATH, METRICS_PATH, READYZ_PATH};
use super::readiness::Readiness;
use crate::decide::Service;
use crate::page::{self, Feed};

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The routes.
pub(super) fn routes(
    service: Arc<Service>,
    feed: Arc<Feed>,
    access: Access,
    readiness: Readiness,
) -> Router {
    let reset = async |State(service): State<Arc<Service>>, body: Body| {
        answer(async { Ok(service.reset(&whole(body).await?).await?) }).await
    };
    let top = async |State(service): State<Arc<Service>>| answer(async { Ok(service.top()) }).await;
    let ready = async move |State(service): State<Arc<Service>>| readiness.answer(&service);
    Router::new()
        .route(METRICS_PATH, get(metrics))
        .route(HEALTHZ_PATH, get(async || "alive\n"))
        .route(READYZ_PATH, get(ready))
        .route(RESET_PATH, post(reset))
        .route(TOP_PATH, get(top))
        .with_state(service)
        .merge(page::routes(feed))
        .layer(from_fn_with_state(Arc::new(access), guard))
}

async fn metrics(State(service): State<Arc<Service>>) -> Response {
    match service.metrics_text() {
        Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
