//! Bodies of requests and answers.

use std::ops::Deref;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use serde::Serialize;
use sluicegate_protocol::{BODY, Code, MAX_BODY_BYTES, Problem};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::timeout;

use super::refusal::Refusal;

/// The media type of all requests and of most answers.
pub(super) const JSON: &str = "application/json";

/// How long a client may take to send a body, with the wait for its turn if it is large. The filter sends body and head
/// together.
const BODY_WITHIN: Duration = Duration::from_secs(10);

const BROKEN: Refusal = Refusal::new(
    Code::BrokenBody,
    BODY,
    "the body is incomplete, or its chunks are malformed",
);
/// The service's answer says which part is malformed.
const MALFORMED: Refusal = Refusal::new(
    Code::MalformedJson,
    BODY,
    "the body is not JSON, or not an object with the expected fields",
);

/// Bodies that are larger, or may be, take turns.
const LARGE_BODY_BYTES: u64 = 64 << 10;
/// Large bodies that a port holds at the same time: thousands of connections must not hold a megabyte each.
const MAX_LARGE_BODIES: usize = 32;

/// A whole body. A large one has its turn until it is dropped.
pub(super) struct Whole {
    bytes: Bytes,
    _turn: Option<SemaphorePermit<'static>>,
}

impl Deref for Whole {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Turns for the large bodies of a port.
pub(super) const fn turns() -> Semaphore {
    Semaphore::const_new(MAX_LARGE_BODIES)
}

/// Reads a whole body. `turns`: for the port's large bodies.
///
/// # Errors
/// The body is too large, broken or late.
pub(super) async fn whole(body: Body, turns: &'static Semaphore) -> Result<Whole, Refusal> {
    let most = body.size_hint().upper();
    let read = async {
        let turn = match most {
            Some(..=LARGE_BODY_BYTES) => None,
            // The error would mean that the semaphore is closed, and no code closes it.
            _ => turns.acquire().await.ok(),
        };
        let bytes = to_bytes(body, MAX_BODY_BYTES).await?;
        Ok(Whole { bytes, _turn: turn })
    };
    let read = timeout(BODY_WITHIN, read).await;
    read.map_err(|_| late())?.map_err(|error: axum::Error| {
        let cause = std::error::Error::source(&error);
        if cause.is_some_and(|cause| cause.is::<LengthLimitError>()) {
            too_large()
        } else {
            BROKEN
        }
    })
}

/// The errors of a body as a whole.
pub(super) fn errors() -> [Refusal; 4] {
    [MALFORMED, BROKEN, late(), too_large()]
}

/// A JSON answer. Strings and integers can always be encoded; clients would treat an empty body as no answer.
pub(super) fn json(status: StatusCode, kind: &'static str, answer: &impl Serialize) -> Response {
    let body = serde_json::to_vec(answer).unwrap_or_default();
    (status, [(header::CONTENT_TYPE, kind)], body).into_response()
}

/// The usual answer to a request.
pub(super) fn ok(answer: &impl Serialize) -> Response {
    json(StatusCode::OK, JSON, answer)
}

fn too_large() -> Refusal {
    let why =
        format!("the body is larger than {MAX_BODY_BYTES} bytes: send fewer entries at a time");
    Problem::new(Code::BodyTooLarge, why).at(BODY).into()
}

fn late() -> Refusal {
    let why = format_args!("the body did not arrive within {} s", BODY_WITHIN.as_secs());
    // The rest of the body may still arrive and must not be read as the next request.
    let close = HeaderValue::from_static("close");
    Refusal::from(Problem::new(Code::BodyTimeout, why).at(BODY))
        .with_header(header::CONNECTION, close)
}
