//! The decision port: endpoints for filters and jobs.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{RawQuery, State};
use axum::http::{HeaderMap, HeaderValue, header};
use axum::middleware::from_fn;
use axum::response::{IntoResponse, Response};
use axum::routing::MethodRouter;
use schemars::JsonSchema;
use serde::Serialize;
use sluicegate_protocol::{
    Answer, Code, DECIDE_PATH, DECISIONS, FILTER_HEADER, FilterInfo, LimitStatus, Listed,
    OPENAPI_PATH, PROBLEM_JSON, Problem, ProblemDetails, RULES_HEADER, RULES_PATH, Read, Request,
    RulesReport, SETTLE_PATH, Settled, Settles, UNAVAILABLE_RETRY_S, VM_HEADER, Verdict,
    WithoutStore, read_decisions, read_settles,
};
use sluicegate_rules::write_denial;
use tokio::sync::Semaphore;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::body::{json, ok, turns, whole};
use super::describe::{Describe, of};
use super::refusal::{Refusal, with_fallbacks};
use super::web_pages::{BAD_HOST, NOT_JSON, ORIGIN_FIELD, from_a_page, not_from_a_page};
use crate::clock;
use crate::decide::{Service, read_vm};

/// In the query of `/v1/decide`: answer with the verdict as the HTTP status.
const AS_STATUS: &str = "denied=";

const LINES_OF_JSON: &str = "application/x-ndjson";

static LARGE_BODIES: Semaphore = turns();

const BAD_STATUS: Refusal = Refusal::new(
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

/// The routes that the document describes.
pub(super) fn routes() -> OpenApiRouter<Arc<Service>> {
    OpenApiRouter::new()
        .routes(routes!(decide).refusing(&[BAD_STATUS]))
        .routes(routes!(settle))
        .with_body()
        .routes(routes!(rules))
        .tagged("decisions")
        .refusing(&[BAD_HOST, from_a_page(ORIGIN_FIELD), NOT_JSON])
}

/// The router of the port.
#[expect(
    clippy::disallowed_methods,
    reason = "the document does not describe itself"
)]
pub(super) fn router(service: Arc<Service>, document: MethodRouter<Arc<Service>>) -> Router {
    with_fallbacks(routes().route(OPENAPI_PATH, document))
        .layer(from_fn(not_from_a_page))
        .with_state(service)
}

/// Settle what was used
///
/// Each entry names a receipt of an admitted decision and the units that were used in fact: what was not used comes back, what was
/// used beyond it is taken now. Sending an entry again is safe: a receipt is settled once.
#[utoipa::path(
    post,
    path = SETTLE_PATH,
    operation_id = "settle",
    request_body = ref(of::<Settles<'_>>()),
    responses((status = 200, description = "An outcome for each entry.", body = ref(of::<Listed<Settled>>()))),
)]
async fn settle(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    let vm = named(&headers)(VM_HEADER).and_then(read_vm);
    let body = whole(body, &LARGE_BODIES).await?;
    Ok(ok(&service.settle(&read_settles(&body)?, vm).await))
}

/// Take units from limits
///
/// Takes a list of decisions and answers with one verdict for each, in the same order. The checks of a decision are admitted
/// together or not at all. The status is 200 even if a verdict is a denial or an error: an invalid decision does not affect
/// the others. With `?denied=429`, the request has exactly one decision, and the status is its verdict.
#[utoipa::path(
    post,
    path = DECIDE_PATH,
    params((
        "denied" = Option<String>,
        Query,
        description = "The status for a denial. Only 429 is allowed. The request must then have exactly one decision.",
        pattern = "^429$",
        max_length = 3,
        example = "429",
    )),
    request_body = ref(of::<Request<'_>>()),
    responses(
        (
            status = 200,
            description = "A verdict for each decision. With `?denied=429`: the decision was admitted, or the store is down and the policy says `allow`.",
            body = ref(of::<Answer<'_>>()),
        ),
        (
            status = 429,
            description = "Only with `?denied=429`: the decision was denied.",
            headers(("Retry-After" = u64, description = "Whole seconds until the same decision would be admitted, rounded up.")),
            content_type = PROBLEM_JSON,
            body = ref(of::<VerdictProblem<'_>>()),
        ),
        (
            status = 503,
            description = "Only with `?denied=429`: the store did not answer, and the policy does not say `allow`.",
            headers(("Retry-After" = u64, description = "Whole seconds until it is worth asking again.")),
            content_type = PROBLEM_JSON,
            body = ref(of::<VerdictProblem<'_>>()),
        ),
    ),
)]
async fn decide(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Refusal> {
    if let Some(info) = named(&headers)(FILTER_HEADER).and_then(FilterInfo::read) {
        service.metrics.filter_seen(info);
        if let Some(report) = named(&headers)(RULES_HEADER).and_then(RulesReport::read) {
            service
                .filters
                .hears(&report, info.version, clock::now_us(), 0);
        }
    }
    let mut parts = query.as_deref().unwrap_or_default().split('&');
    let as_status = parts.find_map(|part| part.strip_prefix(AS_STATUS));
    if as_status.is_some_and(|denied| denied != "429") {
        return Err(BAD_STATUS);
    }
    let body = whole(body, &LARGE_BODIES).await?;
    let asked = read_decisions(&body)?;
    // Checked before any units are taken.
    if as_status.is_some() && asked.decisions.len() != 1 {
        let why = "with `?denied=429`, a request must have exactly one decision: the answer has one status";
        return Err(Problem::new(Code::TooManyEntries, why).at(DECISIONS).into());
    }
    let answer = service.decide(&asked, named(&headers)).await;
    Ok(match as_status {
        Some(_) => status_answer(answer, &asked),
        None => ok(&answer),
    })
}

/// The rules for filters
///
/// For Sluicegate's filter, whose format it is in: a line of JSON for each rule. A filter says which rules it has, and is
/// answered when there are others, or after 20 seconds.
#[utoipa::path(
    get,
    path = RULES_PATH,
    responses((
        status = 200,
        description = "The rules, or if the filter has them, just their digest.",
        content_type = LINES_OF_JSON,
        body = String,
    )),
)]
async fn rules(State(service): State<Arc<Service>>, headers: HeaderMap) -> Response {
    let named = named(&headers);
    let info = named(FILTER_HEADER).and_then(FilterInfo::read);
    if let Some(info) = info {
        service.metrics.filter_seen(info);
    }
    let report = named(RULES_HEADER).and_then(RulesReport::read);
    let filter = report.zip(info.map(|info| info.version));
    let document = service.rules_for(filter).await;
    ([(header::CONTENT_TYPE, LINES_OF_JSON)], document).into_response()
}

/// Looks up a header's text by name.
fn named<'a>(headers: &'a HeaderMap) -> impl Fn(&str) -> Option<&'a str> {
    |name| headers.get(name)?.to_str().ok()
}

/// For shells and other clients that use only the status: that of the only verdict.
fn status_answer(answer: Answer<'_>, asked: &Read<'_>) -> Response {
    let (refusal, retry_after_s) = match answer.verdicts.first() {
        Some(
            Verdict::Admitted(_)
            | Verdict::Unavailable {
                then: Some(WithoutStore::Allow),
            },
        ) => return ok(&answer),
        Some(Verdict::Denied(status)) => {
            let seconds = status.retry_after_ms.div_ceil(1_000).max(1);
            let seconds = (!status.allows_nothing()).then_some(seconds);
            (denied(status, asked), seconds)
        }
        Some(Verdict::Unavailable { .. }) | None => (unavailable(), Some(UNAVAILABLE_RETRY_S)),
        Some(Verdict::Error(problem)) => (problem.clone().into(), None),
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
    response
}

fn denied(status: &LimitStatus<'_>, asked: &Read<'_>) -> Refusal {
    let checks = asked.decisions.iter().flatten().flat_map(|one| &one.checks);
    let decided = checks.clone().nth(status.check);
    let same = checks.filter(|one| {
        decided.is_some_and(|decided| one.limit == decided.limit && one.key == decided.key)
    });
    let (mut detail, cost) = (String::new(), same.map(|one| one.cost).sum());
    write_denial(&mut detail, &status.limit, status, cost);
    Problem::new(Code::Denied, detail).into()
}

fn unavailable() -> Refusal {
    Refusal::of_server(
        Code::Unavailable,
        "the store did not answer within its deadline: docs/runbook.md#sluicegatestorefailing",
    )
}
