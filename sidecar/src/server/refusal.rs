//! Error answers: `application/problem+json` (RFC 9457) with a code and the field that is wrong.

use std::borrow::Cow;

use axum::Router;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sluicegate_protocol::{Code, PROBLEM_JSON, Problem, ProblemDetails, UNAVAILABLE_RETRY_S};
use utoipa_axum::router::OpenApiRouter;

/// The error of an unknown path.
pub(super) const UNKNOWN_PATH: Refusal = Refusal::new(
    Code::NotFound,
    "path",
    "unknown path: GET /v1/openapi.json lists the paths of both ports",
);
/// The router adds the `allow` header.
const WRONG_METHOD: Refusal = Refusal::new(
    Code::MethodNotAllowed,
    "method",
    "method not supported for this path: the `allow` header lists the supported methods",
);

/// An error answer.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    problem: Problem,
    /// An additional header of the answer. Boxed, because few have one and every `Result` with a refusal has its size.
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Refusal {
    /// An error in this field of the request.
    pub const fn new(code: Code, field: &'static str, detail: &'static str) -> Self {
        Self::of(Problem {
            code,
            message: Cow::Borrowed(detail),
            field: Some(Cow::Borrowed(field)),
        })
    }

    /// An error that is not the request's fault.
    pub const fn of_server(code: Code, detail: &'static str) -> Self {
        Self::of(Problem {
            code,
            message: Cow::Borrowed(detail),
            field: None,
        })
    }

    const fn of(problem: Problem) -> Self {
        Self {
            status: status_of(problem.code),
            problem,
            header: None,
        }
    }

    /// Replaces the status of its code.
    #[must_use]
    pub const fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    /// Adds a header.
    #[must_use]
    pub fn with_header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self {
            header: Some(Box::new((name, value))),
            ..self
        }
    }

    /// The body of the answer.
    pub fn details(&self) -> ProblemDetails<'_> {
        ProblemDetails {
            r#type: "about:blank".into(),
            title: self.status.canonical_reason().unwrap_or_default().into(),
            status: self.status.as_u16(),
            detail: self.problem.message.as_ref().into(),
            code: self.problem.code,
            field: self.problem.field.as_deref().map(Cow::Borrowed),
        }
    }
}

const fn status_of(code: Code) -> StatusCode {
    match code {
        Code::FromWebPage | Code::TokenRequired => StatusCode::FORBIDDEN,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
        Code::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
        Code::TooManyOverrides => StatusCode::CONFLICT,
        Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
        Code::WrongHost => StatusCode::MISDIRECTED_REQUEST,
        Code::Denied => StatusCode::TOO_MANY_REQUESTS,
        Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        Code::Unavailable | Code::NotReady | Code::StoreUnavailable => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => StatusCode::BAD_REQUEST,
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        Self::of(problem)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // Strings and numbers can always be encoded as JSON.
        let body = serde_json::to_vec(&self.details()).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, PROBLEM_JSON)];
        let mut response = (self.status, kind, body).into_response();
        if self.status == StatusCode::SERVICE_UNAVAILABLE {
            let seconds = HeaderValue::from(UNAVAILABLE_RETRY_S);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        if let Some(header) = self.header {
            let (name, value) = *header;
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// The router of these routes; it answers other paths and methods with problem details.
pub(super) fn with_fallbacks<S>(routes: OpenApiRouter<S>) -> Router<S>
where
    S: Clone + Send + Sync + 'static,
{
    Router::from(routes)
        .fallback(async || UNKNOWN_PATH)
        .method_not_allowed_fallback(async || WRONG_METHOD)
}
