//! The two HTTP faces: `decisions` for filters and workers, `admin` for Prometheus, probes and operators.
//!
//! | on | path | answers |
//! |---|---|---|
//! | decisions | `POST /v1/decide` | a verdict for each decision |
//! | decisions | `POST /v1/give-back` | how many units were returned, for each |
//! | admin | `POST /v1/reset` | whether the limit had been drawn on, for each |
//! | admin | `GET /v1/top` | who is denied and who is near a limit |
//! | admin | `GET /` | the live page: `page.rs` |
//! | admin | `GET /metrics` | Prometheus's text format |
//! | admin | `GET /healthz` | 200 while the process serves |
//! | admin | `GET /readyz` | 200 when a policy is loaded and the store answers, else 503 and why |
//!
//! Neither answers a request without a Host, or with several (RFC 9112, 3.2: 400). A line that ends with a bare LF is read:
//! RFC 9112, 2.2 lets a server do so, and hyper's parser cannot be told not to.

use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Version, header};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http_body_util::LengthLimitError;
use sluicegate_protocol::{
    Code, DECIDE_PATH, GIVE_BACK_PATH, MAX_BODY_BYTES, Problem, RESET_PATH, TOP_PATH,
};

use crate::decide::Service;
use crate::page::{self, Feed};

const JSON: &str = "application/json";
const NO_ACCESS: &str = "off loopback this needs `authorization: Bearer TOKEN`, and a sidecar started with that token\n";
const PROMETHEUS_TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What filters and workers may call.
pub fn decisions(service: Arc<Service>) -> Router {
    let decide = async |State(service): State<Arc<Service>>, request: Request| {
        let (head, body) = request.into_parts();
        let header = |name: &str| head.headers.get(name)?.to_str().ok();
        answer(async { service.decide(&whole(body).await?, header).await }).await
    };
    let give_back = async |State(service): State<Arc<Service>>, body: Body| {
        answer(async { service.give_back(&whole(body).await?).await }).await
    };
    Router::new()
        .route(DECIDE_PATH, post(decide))
        .route(GIVE_BACK_PATH, post(give_back))
        .layer(from_fn(with_one_host))
        .with_state(service)
}

/// Who may change something on the admin port.
#[derive(Clone)]
pub enum Access {
    /// Whoever reaches it: it listens on loopback only.
    Anyone,
    /// Whoever shows this token: `authorization: Bearer TOKEN`.
    Token(String),
    /// Nobody: it is reachable from elsewhere, and no token was given.
    Nobody,
}

impl Access {
    fn allows(&self, headers: &HeaderMap) -> bool {
        match self {
            Self::Anyone => true,
            Self::Nobody => false,
            Self::Token(token) => {
                let shown = headers
                    .get(header::AUTHORIZATION)
                    .and_then(|value| value.to_str().ok());
                let shown = shown
                    .and_then(|value| value.strip_prefix("Bearer "))
                    .unwrap_or_default();
                // Every byte is looked at, so that the time taken does not tell how many were right.
                let different = shown
                    .bytes()
                    .zip(token.bytes())
                    .fold(0, |sum, (a, b)| sum | (a ^ b));
                shown.len() == token.len() && different == 0
            }
        }
    }
}

/// What Prometheus, probes and operators may call.
pub fn admin(service: Arc<Service>, feed: Arc<Feed>, access: Access) -> Router {
    let reset = async move |State(service): State<Arc<Service>>, headers: HeaderMap, body: Body| {
        if !access.allows(&headers) {
            return (StatusCode::FORBIDDEN, NO_ACCESS).into_response();
        }
        answer(async { service.reset(&whole(body).await?).await }).await
    };
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(readyz))
        .route(RESET_PATH, post(reset))
        .route(TOP_PATH, get(top))
        .with_state(service)
        .merge(page::routes(feed))
        .layer(from_fn(with_one_host))
}

/// hyper leaves it to its users to refuse what RFC 9112, 3.2 wants refused.
async fn with_one_host(request: Request, next: Next) -> Response {
    let hosts = request.headers().get_all(header::HOST).iter().count();
    // Before HTTP/1.1 there need not be one.
    let needed = request.version() >= Version::HTTP_11;
    if hosts > 1 || (hosts == 0 && needed) {
        let why = "a request has one Host header: see RFC 9112, 3.2\n";
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    next.run(request).await
}

async fn whole(body: Body) -> Result<Bytes, Problem> {
    to_bytes(body, MAX_BODY_BYTES).await.map_err(|error| {
        let cause = std::error::Error::source(&error);
        if cause.is_some_and(|cause| cause.is::<LengthLimitError>()) {
            let why = format_args!(
                "the body may have {MAX_BODY_BYTES} bytes: send fewer entries at a time"
            );
            return Problem::new(Code::BodyTooLarge, why);
        }
        Problem::new(
            Code::BrokenBody,
            "the body broke off, or its chunks are not framed as HTTP wants it",
        )
    })
}

async fn answer(made: impl Future<Output = Result<Vec<u8>, Problem>>) -> Response {
    match made.await {
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
    match service.metrics_text() {
        Ok(text) => ([(header::CONTENT_TYPE, PROMETHEUS_TEXT)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn top(State(service): State<Arc<Service>>) -> Response {
    answer(async { Ok(service.top()) }).await
}

async fn readyz(State(service): State<Arc<Service>>) -> Response {
    let epoch = service.live.current().number;
    // A broken file does not make a sidecar unready: it decides by the policy before.
    let refusal = service
        .live
        .source
        .refusal()
        .map_or_else(String::new, |why| {
            format!("the policy file is refused: {why}\n")
        });
    match service.store_answers().await {
        Ok(()) => {
            format!("ready: policy epoch {epoch}, the store answers\n{refusal}").into_response()
        }
        Err(error) => {
            let text = format!("not ready: policy epoch {epoch}, {error}\n{refusal}");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}
