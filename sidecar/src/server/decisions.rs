//! What filters and workers may call.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use sluicegate_protocol::{
    Answer, Code, DECIDE_PATH, GIVE_BACK_PATH, Problem, Verdict, WithoutStore, read_decisions,
};

use super::body::{Unread, answer, json, whole};
use super::web_pages::not_from_a_page;
use crate::decide::Service;

/// In the query of `/v1/decide`: the verdict of the one decision is to be the answer's status.
const AS_STATUS: &str = "denied=";

/// The routes.
pub(super) fn routes(service: Arc<Service>) -> Router {
    let give_back = async |State(service): State<Arc<Service>>, body: Body| {
        answer(async { Ok(service.give_back(&whole(body).await?).await?) }).await
    };
    Router::new()
        .route(DECIDE_PATH, post(decide))
        .route(GIVE_BACK_PATH, post(give_back))
        .layer(from_fn(not_from_a_page))
        .with_state(service)
}

async fn decide(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Response {
    let parts = query.as_deref().unwrap_or_default().split('&');
    let Some(denied) = parts.filter_map(|part| part.strip_prefix(AS_STATUS)).next() else {
        let decided = async { Ok(service.decide(&whole(body).await?, named(&headers)).await?) };
        return answer(decided).await;
    };
    if denied != "429" {
        let why = "`denied` in the query is the status that a denial is to have, which is 429\n";
        return (StatusCode::BAD_REQUEST, why).into_response();
    }
    match decide_one(&service, &headers, body).await {
        Ok(answer) => answer,
        Err(unread) => unread.into_response(),
    }
}

/// A header's text by its name.
fn named<'a>(headers: &'a HeaderMap) -> impl Fn(&str) -> Option<&'a str> {
    |name| headers.get(name)?.to_str().ok()
}

/// For shells and others that look at the status only.
async fn decide_one(
    service: &Service,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Unread> {
    let body = whole(body).await?;
    // Before anything is taken.
    if read_decisions(&body)?.decisions.len() != 1 {
        let why = "with `?denied=429` a request has one decision: an answer has one status";
        return Err(Problem::new(Code::TooManyEntries, why).into());
    }
    let decided = service.decide(&body, named(headers)).await?;
    let verdict = serde_json::from_slice::<Answer>(&decided).map(|answer| answer.verdicts);
    let verdict = verdict.ok().and_then(|mut verdicts| verdicts.pop());
    let (status, retry_after_s) = verdict
        .as_ref()
        .map_or((StatusCode::INTERNAL_SERVER_ERROR, None), status_of);
    let mut answer = json(status, decided);
    if let Some(seconds) = retry_after_s {
        let seconds = HeaderValue::from(seconds);
        answer.headers_mut().insert(header::RETRY_AFTER, seconds);
    }
    Ok(answer)
}

/// As the filter answers by default: 429 only for a denial.
fn status_of(verdict: &Verdict) -> (StatusCode, Option<u64>) {
    match verdict {
        Verdict::Admitted(_)
        | Verdict::Unavailable {
            then: Some(WithoutStore::Allow),
        } => (StatusCode::OK, None),
        Verdict::Denied(standing) => {
            let seconds = standing.retry_after_ms.div_ceil(1_000).max(1);
            (StatusCode::TOO_MANY_REQUESTS, Some(seconds))
        }
        Verdict::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, None),
        Verdict::Error { .. } => (StatusCode::BAD_REQUEST, None),
    }
}
