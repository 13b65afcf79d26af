//! The admin port: endpoints for Prometheus, probes and operators.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, RawQuery, State};
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get};
use sluicegate_protocol::{
    Answer, Code, FILTERS_PATH, FilterList, HOLDS_PATH, HoldList, Listed, OPENAPI_PATH,
    OVERRIDES_PATH, OverrideList, OverrideWasRemoved, OverrideWasSet, PEEK_PATH, RESET_PATH,
    RemoveOverride, Request, Resets, SetOverride, TOP_PATH, Top, WasReset, read_decisions,
    read_remove_override, read_resets, read_set_override,
};
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::access::{
    Access, HEALTHZ_PATH, METRICS_PATH, MISDIRECTED, NEEDS_TOKEN, NO_TOKEN, READYZ_PATH, guard,
};
use super::body::{ok, turns, whole};
use super::describe::{Describe, of};
use super::readiness::Readiness;
use super::refusal::{Refusal, UNKNOWN_PATH, with_fallbacks};
use super::web_pages::{BAD_HOST, NOT_JSON, ORIGIN_FIELD, foreign, only_json};
use crate::decide::Service;
use crate::page;

const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

static LARGE_BODIES: Semaphore = turns();

const NOT_ENCODED: Refusal = Refusal::of_server(
    Code::Internal,
    "the metrics cannot be encoded: see the sidecar's log for the cause",
);
// Answers say these in more detail.
const NOT_READY: Refusal = Refusal::of_server(
    Code::NotReady,
    "not ready: sidecar 1e322f1ba85c01, policy epoch 1, the store answers\ndraining: this sidecar is shutting down",
);
const TOO_MANY_OVERRIDES: Refusal = Refusal::of_server(
    Code::TooManyOverrides,
    "the store holds the maximum number or size of overrides",
);
const UNCONFIRMED: Refusal = Refusal::of_server(
    Code::StoreUnavailable,
    "the store did not confirm the change; it may have made it, and repeating the request is safe",
);
const UNREAD: Refusal = Refusal::of_server(
    Code::StoreUnavailable,
    "the store's overrides have not been read since this sidecar started",
);

const BAD_HOLDS: Refusal = Refusal::new(
    Code::BadQuery,
    "query",
    "a parameter is unknown: give `limit=NAME`, `subject=DIGITS` (or a consumer's name), both or none",
);
// The answer names it.
const UNKNOWN_HOLDS: Refusal = Refusal::new(
    Code::UnknownLimit,
    "limit",
    "the policy has no such limit, and no slots of an earlier one of this name are in use",
)
.with_status(StatusCode::NOT_FOUND);

/// The state of the handlers.
#[derive(Clone)]
pub(super) struct Admin {
    pub service: Arc<Service>,
    pub readiness: Readiness,
}

/// The routes that the document describes.
pub(super) fn routes() -> OpenApiRouter<Admin> {
    let probes = OpenApiRouter::new()
        .routes(routes!(healthz))
        .routes(routes!(readyz).refusing(&[NOT_READY]))
        .tagged("probes");
    let overrides = OpenApiRouter::new()
        .routes(routes!(set_override).refusing(&[TOO_MANY_OVERRIDES]))
        .routes(routes!(remove_override))
        .refusing(&[UNCONFIRMED]);
    let changes = overrides
        .routes(routes!(reset))
        .routes(routes!(peek))
        .with_body()
        .refusing(&[NOT_JSON])
        .route_layer(from_fn(only_json));
    let guarded = changes
        .routes(routes!(list_overrides).refusing(&[UNREAD]))
        .refusing(&[NEEDS_TOKEN]);
    let operators = guarded
        .routes(routes!(metrics).refusing(&[NOT_ENCODED]))
        .routes(routes!(top))
        .routes(routes!(filters))
        .routes(routes!(holds).refusing(&[BAD_HOLDS, UNKNOWN_HOLDS]))
        .tagged("admin")
        .with_token()
        .refusing(&[NO_TOKEN]);
    let all = operators.merge(probes);
    all.refusing(&[BAD_HOST, foreign(ORIGIN_FIELD), MISDIRECTED])
}

/// The router of the port.
#[expect(
    clippy::disallowed_methods,
    reason = "the document leaves out itself and the live page, whose files change together"
)]
pub(super) fn router(admin: Admin, access: Access, document: MethodRouter<Admin>) -> Router {
    let all = routes()
        .route(OPENAPI_PATH, document)
        .route("/", get(async || page::page()))
        .route("/page/snapshot", get(snapshot))
        .route("/page/{name}", get(file));
    with_fallbacks(all)
        .with_state(admin)
        .layer(from_fn_with_state(Arc::new(access), guard))
}

/// Liveness
///
/// Answers 200 while the process serves requests.
#[utoipa::path(
    get,
    path = HEALTHZ_PATH,
    responses((status = 200, description = "The process serves requests.", body = String)),
)]
async fn healthz() -> &'static str {
    "alive\n"
}

/// Readiness
///
/// Whether clients should send requests to this sidecar, with the state of the store and of the policy file. 503 while it is
/// shutting down, and if it was started with `--ready-needs-store`, while its store does not answer. Answers from the known
/// state without waiting for the store.
#[utoipa::path(
    get,
    path = READYZ_PATH,
    responses((status = 200, description = "The sidecar is ready.", body = String)),
)]
async fn readyz(State(admin): State<Admin>) -> Response {
    admin.readiness.answer(&admin.service)
}

/// Metrics for Prometheus
///
/// Prometheus's text format; `docs/metrics.md` lists every metric. Requires no token if the sidecar was started with
/// `--open-metrics`.
#[utoipa::path(
    get,
    path = METRICS_PATH,
    responses((status = 200, description = "The metrics.", body = String)),
)]
async fn metrics(State(admin): State<Admin>) -> Result<Response, Refusal> {
    let text = admin.service.metrics_text().map_err(|error| {
        tracing::error!("the metrics cannot be encoded: {error}");
        NOT_ENCODED
    })?;
    Ok(([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response())
}

/// Restore the whole quota of a limit for keys
///
/// Takes effect on this sidecar at once, and within the policy's `denial_ttl` where denials are cached.
#[utoipa::path(
    post,
    path = RESET_PATH,
    request_body = ref(of::<Resets<'_>>()),
    responses((
        status = 200,
        description = "An outcome for each entry.",
        body = ref(of::<Listed<WasReset>>()),
    )),
)]
async fn reset(State(admin): State<Admin>, body: Body) -> Result<Response, Refusal> {
    let body = whole(body, &LARGE_BODIES).await?;
    Ok(ok(&admin.service.reset(&read_resets(&body)?).await))
}

/// List all overrides
///
/// The overrides in the store and in the policy file, sorted by limit and key.
#[utoipa::path(
    get,
    path = OVERRIDES_PATH,
    operation_id = "listOverrides",
    responses((status = 200, description = "The overrides.", body = ref(of::<OverrideList>()))),
)]
async fn list_overrides(State(admin): State<Admin>) -> Result<Response, Refusal> {
    Ok(ok(&admin.service.list_overrides().await?))
}

/// Give a key another quota, lift its limit or block it
///
/// Replaces the store's override of the same limit and key. Name the keys by exactly one of `key`, `subject` and `all_keys`.
/// Set exactly one of `quota`, `windows`, `unlimited` and `blocked`. The change takes effect on all sidecars within a second.
#[utoipa::path(
    put,
    path = OVERRIDES_PATH,
    operation_id = "setOverride",
    request_body = ref(of::<SetOverride>()),
    responses((status = 200, description = "The override is set.", body = ref(of::<OverrideWasSet>()))),
)]
async fn set_override(State(admin): State<Admin>, body: Body) -> Result<Response, Refusal> {
    let asked = read_set_override(&whole(body, &LARGE_BODIES).await?)?;
    Ok(ok(&admin.service.set_override(asked).await?))
}

/// Remove an override from the store
///
/// The policy applies again. Removing an override that does not exist is not an error.
#[utoipa::path(
    delete,
    path = OVERRIDES_PATH,
    operation_id = "removeOverride",
    request_body = ref(of::<RemoveOverride>()),
    responses((
        status = 200,
        description = "The store has no override for this limit and key.",
        body = ref(of::<OverrideWasRemoved>()),
    )),
)]
async fn remove_override(State(admin): State<Admin>, body: Body) -> Result<Response, Refusal> {
    let asked = read_remove_override(&whole(body, &LARGE_BODIES).await?)?;
    Ok(ok(&admin.service.remove_override(asked).await?))
}

/// Show what is left for a subject
///
/// As `POST /v1/decide` on the other port, with the 20 hexadecimal digits with which the SHA-256 of a key begins in place of
/// each key, if a limit denied it or it was near a limit lately. Takes nothing.
#[utoipa::path(
    post,
    path = PEEK_PATH,
    request_body = ref(of::<Request<'_>>()),
    responses((status = 200, description = "A verdict for each decision.", body = ref(of::<Answer<'_>>()))),
)]
async fn peek(State(admin): State<Admin>, body: Body) -> Result<Response, Refusal> {
    let body = whole(body, &LARGE_BODIES).await?;
    Ok(ok(&admin.service.peek(read_decisions(&body)?).await))
}

/// Which filters have which rules
///
/// Those that have asked this sidecar for rules within the last minute: one for each worker of each Envoy, and one for its
/// main thread.
#[utoipa::path(
    get,
    path = FILTERS_PATH,
    responses((
        status = 200,
        description = "The digest of the policy's rules, and the filters.",
        body = ref(of::<FilterList>()),
    )),
)]
async fn filters(State(admin): State<Admin>) -> Response {
    ok(&admin.service.list_filters())
}

/// Which slots are in use
///
/// The slots of limits with `algorithm: concurrency` that this sidecar granted or renewed last, longest in use first. A slot that
/// was freed through another sidecar is listed for up to a third of `expire`.
#[utoipa::path(
    get,
    path = HOLDS_PATH,
    params(
        ("limit" = Option<String>, Query, description = "Only slots of this limit."),
        ("subject" = Option<String>, Query, description = "Only slots of this key, by its 20 digits, or of this consumer."),
    ),
    responses((status = 200, description = "Whose they are, since when.", body = ref(of::<HoldList>()))),
)]
async fn holds(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Result<Response, Refusal> {
    let (mut limit, mut subject) = (None, None);
    let parameters = query.as_deref().unwrap_or_default().split('&');
    for parameter in parameters.filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("limit", name)) => limit = Some(name),
            Some(("subject", of)) => subject = Some(of),
            _ => return Err(BAD_HOLDS),
        }
    }
    let list = admin.service.list_holds(limit, subject);
    let not_found = |problem| Refusal::from(problem).with_status(StatusCode::NOT_FOUND);
    Ok(ok(&list.map_err(not_found)?))
}

/// Most denied subjects, and subjects nearest to a limit
///
/// Subjects are hashes of keys; `sluicegate explain` prints the hash of a request's keys.
#[utoipa::path(
    get,
    path = TOP_PATH,
    responses((
        status = 200,
        description = "Every limit of the policy in force, by name.",
        body = ref(of::<Top>()),
    )),
)]
async fn top(State(admin): State<Admin>) -> Response {
    ok(&admin.service.metrics.top())
}

async fn snapshot(State(admin): State<Admin>, RawQuery(query): RawQuery) -> Response {
    // Whatever is asked for instead of a time is answered with all of them.
    let after_ms = query
        .as_deref()
        .and_then(|query| query.strip_prefix("after=")?.parse().ok());
    ok(&page::snapshot(&admin.service, after_ms.unwrap_or(0)))
}

async fn file(name: Result<Path<String>, PathRejection>) -> Result<Response, Refusal> {
    // No file has a name that is not UTF-8.
    let file = name.ok().and_then(|Path(name)| page::named(&name));
    file.ok_or(UNKNOWN_PATH)
}
