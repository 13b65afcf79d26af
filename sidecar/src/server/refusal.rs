//! Error answers: `application/problem+json` (RFC 9457) with a code and the field that is wrong.

use std::borrow::Cow;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use sluicegate_protocol::{Code, PROBLEM_JSON, Problem, ProblemDetails};

/// An error answer.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub status: StatusCode,
    code: Code,
    field: Option<Cow<'static, str>>,
    detail: Cow<'static, str>,
    /// An additional header of the answer. Boxed, because few have one and every `Result` with a refusal has its size.
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Refusal {
    /// An error in this field of the request.
    pub const fn new(
        status: StatusCode,
        code: Code,
        field: &'static str,
        detail: &'static str,
    ) -> Self {
        Self {
            status,
            code,
            field: Some(Cow::Borrowed(field)),
            detail: Cow::Borrowed(detail),
            header: None,
        }
    }

    /// An error that is not the request's fault.
    pub fn of_server(status: StatusCode, code: Code, detail: impl Into<Cow<'static, str>>) -> Self {
        Self {
            status,
            code,
            field: None,
            detail: detail.into(),
            header: None,
        }
    }

    /// The same with an additional header.
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
            detail: self.detail.as_ref().into(),
            code: self.code,
            field: self.field.as_deref().map(Cow::Borrowed),
        }
    }
}

impl From<Problem> for Refusal {
    fn from(problem: Problem) -> Self {
        let status = match problem.code {
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::BodyTimeout => StatusCode::REQUEST_TIMEOUT,
            Code::TooManyOverrides => StatusCode::CONFLICT,
            Code::StoreUnavailable => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::BAD_REQUEST,
        };
        Self {
            status,
            code: problem.code,
            field: problem.field.map(Cow::Owned),
            detail: problem.message.into(),
            header: None,
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // Strings and numbers can always be encoded as JSON.
        let body = serde_json::to_vec(&self.details()).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, PROBLEM_JSON)];
        let mut response = (self.status, kind, body).into_response();
        if let Some(header) = self.header {
            let (name, value) = *header;
            response.headers_mut().insert(name, value);
        }
        response
    }
}

/// Answers unknown paths.
pub(super) async fn not_found() -> Refusal {
    Refusal::new(
        StatusCode::NOT_FOUND,
        Code::NotFound,
        "path",
        "unknown path: GET /v1/openapi.json lists the paths of both ports",
    )
}

/// Answers methods that a path does not support; the router adds the `allow` header.
pub(super) async fn method_not_allowed() -> Refusal {
    Refusal::new(
        StatusCode::METHOD_NOT_ALLOWED,
        Code::MethodNotAllowed,
        "method",
        "method not supported for this path: the `allow` header lists the supported methods",
    )
}
