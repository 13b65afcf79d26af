//! Problem details (RFC 9457), the bodies of replies.

use serde::Serialize;

/// A problem detail. The type `about:blank` means that the status identifies the problem.
#[derive(Serialize)]
pub(super) struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    pub status: u32,
    pub detail: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
}

impl<'a> Problem<'a> {
    pub fn new(status: u32, detail: &'a str, limit: Option<&'a str>) -> Self {
        Self {
            r#type: "about:blank",
            title: kind_of(status).0,
            status,
            detail,
            limit,
        }
    }

    pub fn to_json(&self) -> String {
        // Serializing texts and numbers into memory cannot fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}

/// The name of a status, and the gRPC status code that Envoy uses for gRPC requests.
pub(super) const fn kind_of(status: u32) -> (&'static str, i32) {
    const INVALID_ARGUMENT: i32 = 3;
    const PERMISSION_DENIED: i32 = 7;
    const RESOURCE_EXHAUSTED: i32 = 8;
    const UNAVAILABLE: i32 = 14;
    match status {
        400 => ("Bad Request", INVALID_ARGUMENT),
        403 => ("Forbidden", PERMISSION_DENIED),
        414 => ("URI Too Long", INVALID_ARGUMENT),
        422 => ("Unprocessable Content", INVALID_ARGUMENT),
        429 => ("Too Many Requests", RESOURCE_EXHAUSTED),
        431 => ("Request Header Fields Too Large", INVALID_ARGUMENT),
        _ => ("Service Unavailable", UNAVAILABLE),
    }
}
