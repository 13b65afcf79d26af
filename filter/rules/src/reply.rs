//! What a client is told. Names the limit, never the key.

use serde::Serialize;
use sluicegate_protocol::Standing;

/// An answer that the filter gives in the upstream's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status.
    pub status: u32,
    /// Headers, names in lower case.
    pub headers: Vec<(&'static str, String)>,
    /// Body.
    pub body: Vec<u8>,
}

/// A problem detail (RFC 9457). `about:blank` says that the status tells the kind of problem.
#[derive(Serialize)]
struct Problem<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u32,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    limit: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl Problem<'_> {
    fn reply(&self, mut headers: Vec<(&'static str, String)>) -> Reply {
        headers.push(("content-type", "application/problem+json".to_owned()));
        Reply {
            status: self.status,
            headers,
            body: serde_json::to_vec(self).unwrap_or_default(),
        }
    }
}

/// The request was denied by a limit.
pub fn too_many_requests(standing: &Standing<'_>) -> Reply {
    let limit = standing.limit.as_ref();
    Problem {
        r#type: "about:blank",
        title: "Too Many Requests",
        status: 429,
        detail: format!(
            "limit `{limit}` allows {} per {} ms and has {} left; the same request is admitted in {} ms",
            standing.quota, standing.window_ms, standing.remaining, standing.retry_after_ms
        ),
        limit: Some(limit),
        retry_after_ms: Some(standing.retry_after_ms),
    }
    .reply(vec![
        // Whole seconds, rounded up, or the retry would be early; the milliseconds travel beside it.
        ("retry-after", seconds(standing.retry_after_ms)),
        ("retry-after-ms", standing.retry_after_ms.to_string()),
        ("x-ratelimit-limit", standing.quota.to_string()),
        ("x-ratelimit-remaining", standing.remaining.to_string()),
        ("x-ratelimit-reset", seconds(standing.reset_ms)),
    ])
}

/// No verdict is to be had, and the rule says that the request may not pass without.
pub fn unavailable() -> Reply {
    Problem {
        r#type: "about:blank",
        title: "Service Unavailable",
        status: 503,
        detail: "the rate limiter did not answer, and this route is not served without it"
            .to_owned(),
        limit: None,
        retry_after_ms: None,
    }
    .reply(Vec::new())
}

/// The request lacks what a limit's key is made of, and the rule says that it may not pass without.
pub fn missing_part(limit: &str) -> Reply {
    Problem {
        r#type: "about:blank",
        title: "Forbidden",
        status: 403,
        detail: format!("the request does not say whom to count for limit `{limit}`"),
        limit: Some(limit),
        retry_after_ms: None,
    }
    .reply(Vec::new())
}

fn seconds(milliseconds: u64) -> String {
    milliseconds.div_ceil(1_000).to_string()
}
