//! Bodies of requests, and of their answers.

use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use sluicegate_protocol::{Code, MAX_BODY_BYTES, Problem};
use tokio::time::timeout;

/// The media type of all requests and of most answers.
pub(super) const JSON: &str = "application/json";

/// How long a client may take to send a body. Our filter's are there with the head.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// Why there is no whole body.
#[derive(Debug)]
pub(super) enum Unread {
    /// It is of no use.
    Problem(Problem),
    /// It did not come in time.
    Late,
}

/// A body, as a whole.
pub(super) async fn whole(body: Body) -> Result<Bytes, Unread> {
    let read = timeout(BODY_WITHIN, to_bytes(body, MAX_BODY_BYTES)).await;
    read.map_err(|_| Unread::Late)?.map_err(|error| {
        let cause = std::error::Error::source(&error);
        if cause.is_some_and(|cause| cause.is::<LengthLimitError>()) {
            let why = format_args!(
                "the body may have {MAX_BODY_BYTES} bytes: send fewer entries at a time"
            );
            return Problem::new(Code::BodyTooLarge, why).into();
        }
        let why = "the body broke off, or its chunks are not framed as HTTP wants it";
        Problem::new(Code::BrokenBody, why).into()
    })
}

/// An answer in JSON.
pub(super) fn json(status: StatusCode, body: Vec<u8>) -> Response {
    (status, [(header::CONTENT_TYPE, JSON)], body).into_response()
}

/// What was made of a body.
pub(super) async fn answer(made: impl Future<Output = Result<Vec<u8>, Unread>>) -> Response {
    match made.await {
        Ok(answer) => json(StatusCode::OK, answer),
        Err(unread) => unread.into_response(),
    }
}

impl From<Problem> for Unread {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl IntoResponse for Unread {
    fn into_response(self) -> Response {
        match self {
            Self::Problem(problem) => {
                let status = match problem.code {
                    Code::BodyTooLarge => StatusCode::PAYLOAD_TOO_LARGE,
                    _ => StatusCode::BAD_REQUEST,
                };
                json(status, serde_json::to_vec(&problem).unwrap_or_default())
            }
            Self::Late => {
                // What is left of it may still come, and is not the next request.
                let close = [(header::CONNECTION, "close")];
                let why = format!("the body did not come within {} s\n", BODY_WITHIN.as_secs());
                (StatusCode::REQUEST_TIMEOUT, close, why).into_response()
            }
        }
    }
}
