//! The admin port: endpoints for Prometheus, probes and operators.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse, Response};
use sluicegate_protocol::{Code, read_remove_override, read_resets, read_set_override};

use super::access::{Access, guard};
use super::body::{JSON, answer, whole};
use super::openapi::{self, admin as operations};
use super::readiness::Readiness;
use super::refusal::{Refusal, not_found};
use super::routes::Routes;
use crate::decide::Service;
use crate::page;

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The state of the handlers.
#[derive(Clone, Debug)]
pub(super) struct Admin {
    pub service: Arc<Service>,
    pub readiness: Readiness,
}

/// The routes.
pub(super) fn routes() -> Routes<Admin> {
    Routes::new()
        .only_json()
        .with(&operations::HEALTHZ, async || "alive\n")
        .with(&operations::READYZ, ready)
        .with(&operations::METRICS, metrics)
        .with(&operations::RESET, reset)
        .with(&operations::OVERRIDES, list_overrides)
        .with(&operations::SET_OVERRIDE, set_override)
        .with(&operations::REMOVE_OVERRIDE, remove_override)
        .with(&operations::SUBJECT, find_key)
        .with(&operations::TOP, top)
        .with(&operations::OPENAPI, openapi::serve)
        .with(&operations::PAGE, async || page::page())
        .with(&operations::PAGE_SNAPSHOT, snapshot)
        .with(&operations::PAGE_FILE, file)
}

/// The router of the port.
pub(super) fn router(admin: Admin, access: Access) -> Router {
    routes()
        .into_router()
        .with_state(admin)
        .layer(from_fn_with_state(Arc::new(access), guard))
}

async fn ready(State(admin): State<Admin>) -> Response {
    admin.readiness.answer(&admin.service)
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.service.metrics_text() {
        Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response(),
        Err(error) => {
            tracing::error!("the metrics cannot be encoded: {error}");
            let why = "the metrics cannot be encoded: see the sidecar's log for the cause";
            Refusal::of_server(StatusCode::INTERNAL_SERVER_ERROR, Code::Internal, why)
                .into_response()
        }
    }
}

async fn reset(State(admin): State<Admin>, body: Body) -> Response {
    answer(async {
        let body = whole(body).await?;
        Ok(admin.service.reset(&read_resets(&body)?).await)
    })
    .await
}

async fn list_overrides(State(admin): State<Admin>) -> Response {
    answer(async { Ok(admin.service.list_overrides()) }).await
}

async fn set_override(State(admin): State<Admin>, body: Body) -> Response {
    answer(async {
        let asked = read_set_override(&whole(body).await?)?;
        Ok(admin.service.set_override(asked).await?)
    })
    .await
}

async fn remove_override(State(admin): State<Admin>, body: Body) -> Response {
    answer(async {
        let asked = read_remove_override(&whole(body).await?)?;
        Ok(admin.service.remove_override(asked).await?)
    })
    .await
}

async fn find_key(
    State(admin): State<Admin>,
    subject: Result<Path<String>, PathRejection>,
) -> Response {
    let subject = subject.map_or_else(|_| String::new(), |Path(subject)| subject);
    answer(async { Ok(admin.service.find_key(&subject)?) }).await
}

async fn top(State(admin): State<Admin>) -> Response {
    answer(async { Ok(admin.service.metrics.top()) }).await
}

/// Whatever is asked for instead of the samples after a time is answered with all of them.
async fn snapshot(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    let after_ms = query
        .as_deref()
        .and_then(|query| query.strip_prefix("after=")?.parse().ok());
    let shown = page::snapshot(&admin.service, after_ms.unwrap_or(0));
    ([(header::CONTENT_TYPE, JSON)], shown).into_response()
}

async fn file(name: Result<Path<String>, PathRejection>) -> Response {
    // No file has a name that is not UTF-8.
    match name.ok().and_then(|Path(name)| page::named(&name)) {
        Some(file) => file,
        None => not_found().await.into_response(),
    }
}
