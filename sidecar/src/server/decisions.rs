//! The decision port: endpoints for filters and jobs.

use std::borrow::Cow;
use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use sluicegate_protocol::{
    Answer, Code, DECISIONS, FILTER_HEADER, FilterInfo, LimitStatus, PROBLEM_JSON, Problem,
    ProblemDetails, Verdict, WithoutStore, read_decisions, read_give_backs,
};

use super::body::{JSON, answer, json, whole};
use super::openapi::{self, decisions as operations};
use super::refusal::Refusal;
use super::routes::Routes;
use super::web_pages::not_from_a_page;
use crate::decide::Service;

/// In the query of `/v1/decide`: answer with the verdict as the HTTP status.
const AS_STATUS: &str = "denied=";

const BAD_STATUS: Refusal = Refusal::new(
    StatusCode::BAD_REQUEST,
    Code::BadQuery,
    "query.denied",
    "`denied` is the status for a denial: only 429 is allowed",
);

/// The body when the verdict is the status: a problem detail together with the usual answer.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct VerdictProblem<'a> {
    #[serde(flatten)]
    problem: ProblemDetails<'a>,
    #[serde(flatten)]
    answer: Answer<'a>,
}

/// The routes.
pub(super) fn routes() -> Routes<Arc<Service>> {
    Routes::new()
        .with(&operations::DECIDE, decide)
        .with(&operations::GIVE_BACK, give_back)
        .with(&operations::OPENAPI, openapi::serve)
}

/// The router of the port.
pub(super) fn router(service: Arc<Service>) -> Router {
    routes()
        .into_router()
        .layer(from_fn(not_from_a_page))
        .with_state(service)
}

async fn give_back(State(service): State<Arc<Service>>, body: Body) -> Response {
    answer(async {
        let body = whole(body).await?;
        Ok(service.give_back(&read_give_backs(&body)?).await)
    })
    .await
}

async fn decide(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    if let Some(info) = named(&headers)(FILTER_HEADER).and_then(FilterInfo::read) {
        service.metrics.filter_seen(info);
    }
    let parts = query.as_deref().unwrap_or_default().split('&');
    let Some(denied) = parts.filter_map(|part| part.strip_prefix(AS_STATUS)).next() else {
        return answer(async {
            let body = whole(body).await?;
            Ok(service
                .decide(&read_decisions(&body)?, named(&headers))
                .await)
        })
        .await;
    };
    if denied != "429" {
        return BAD_STATUS.into_response();
    }
    decide_one(&service, &headers, body)
        .await
        .unwrap_or_else(IntoResponse::into_response)
}

/// Looks up a header's text by name.
fn named<'a>(headers: &'a HeaderMap) -> impl Fn(&str) -> Option<&'a str> {
    |name| headers.get(name)?.to_str().ok()
}

/// For shells and other clients that use only the status.
async fn decide_one(
    service: &Service,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let body = whole(body).await?;
    let asked = read_decisions(&body)?;
    // Checked before any units are taken.
    if asked.decisions.len() != 1 {
        let why = "with `?denied=429`, a request must have exactly one decision: the answer has one status";
        return Err(Problem::new(Code::TooManyEntries, why).at(DECISIONS).into());
    }
    let answer = service.decide(&asked, named(headers)).await;
    let (refusal, retry_after_s) = match answer.verdicts.first() {
        Some(
            Verdict::Admitted(_)
            | Verdict::Unavailable {
                then: Some(WithoutStore::Allow),
            },
        ) => return Ok(json(StatusCode::OK, JSON, &answer)),
        Some(Verdict::Denied(status)) => {
            let seconds = status.retry_after_ms.div_ceil(1_000).max(1);
            (denied(status), Some(seconds))
        }
        Some(Verdict::Unavailable { .. }) | None => (unavailable(), None),
        Some(Verdict::Error {
            code,
            message,
            field,
        }) => {
            let problem = Problem {
                code: *code,
                message: message.clone().into_owned(),
                field: field.clone().map(Cow::into_owned),
            };
            (problem.into(), None)
        }
    };
    let problem = VerdictProblem {
        problem: refusal.details(),
        answer,
    };
    let mut response = json(refusal.status, PROBLEM_JSON, &problem);
    if let Some(seconds) = retry_after_s {
        let seconds = HeaderValue::from(seconds);
        response.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    Ok(response)
}

fn denied(status: &LimitStatus<'_>) -> Refusal {
    let detail = format!(
        "limit `{}` allows {} per {} ms and has {} left; the same decision is admitted in {} ms",
        status.limit, status.quota, status.window_ms, status.remaining, status.retry_after_ms
    );
    Refusal::of_server(StatusCode::TOO_MANY_REQUESTS, Code::Denied, detail)
}

fn unavailable() -> Refusal {
    let detail = "the store did not answer within its deadline";
    Refusal::of_server(StatusCode::SERVICE_UNAVAILABLE, Code::Unavailable, detail)
}
