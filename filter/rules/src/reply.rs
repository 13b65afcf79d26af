//! What a client is told. Names the limit, never the key.

mod details;
mod fields;
mod text;
mod texts;

pub(crate) use details::details;
pub use details::{DETAILS_PREFIX, is_reply_of_ours};
pub(crate) use fields::HeaderStyle;
pub use fields::OURS;
pub use text::Fields;
pub(crate) use texts::LimitTexts;

use std::sync::Arc;

use serde::Serialize;
use sluicegate_protocol::Standing;

use crate::matcher::TooLong;

/// The gRPC statuses that stand for ours; Envoy uses them where the request is gRPC.
mod grpc {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const UNAVAILABLE: i32 = 14;
}

/// The media type of a problem detail (RFC 9457).
const PROBLEM: &str = "application/problem+json";

/// An answer that the filter gives in the upstream's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status; to a gRPC request Envoy says 200 and `grpc_status`.
    pub status: u32,
    /// gRPC status.
    pub grpc_status: i32,
    /// Headers.
    pub headers: Fields,
    /// Body; to a gRPC request Envoy says it as `grpc-message`.
    pub body: Vec<u8>,
    /// Response code details, for Envoy's access log: who was refused and why.
    pub details: Arc<str>,
}

/// How a rule tells clients about its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyStyle {
    pub headers: HeaderStyle,
    /// Admitted requests are told too.
    pub on_admitted: bool,
    /// Instead of a problem detail: a content type and a body.
    pub body: Option<(String, String)>,
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
}

impl<'a> Problem<'a> {
    const fn new(status: u32, title: &'static str, detail: String, limit: Option<&'a str>) -> Self {
        Self {
            r#type: "about:blank",
            title,
            status,
            detail,
            limit,
        }
    }

    fn reply(self, grpc_status: i32, grpc: bool, mut headers: Fields, details: Arc<str>) -> Reply {
        let body = if grpc {
            // It becomes `grpc-message`, and Envoy gives the answer gRPC's own content type.
            self.detail.into_bytes()
        } else {
            headers.add("content-type", |text| text.push_str(PROBLEM));
            let mut body = Vec::with_capacity(self.detail.len() + 192);
            // Texts and numbers always can be written as JSON, and memory takes whatever it is given.
            let _ = serde_json::to_writer(&mut body, &self);
            body
        };
        Reply {
            status: self.status,
            grpc_status,
            headers,
            body,
            details,
        }
    }
}

impl Reply {
    /// The request was denied by a limit.
    pub(crate) fn too_many_requests(
        texts: &LimitTexts,
        standing: &Standing<'_>,
        style: &ReplyStyle,
        grpc: bool,
    ) -> Self {
        let retry_after_ms = standing.retry_after_ms;
        let mut headers = Fields::roomy();
        // Whole seconds, rounded up, or the retry would be early; the milliseconds travel beside it.
        headers.add_number("retry-after", fields::seconds(retry_after_ms));
        headers.add_number("retry-after-ms", retry_after_ms);
        if grpc {
            // What gRPC clients with a retry policy obey (gRFC A6); a denial is the one answer of ours to be retried.
            headers.add_number("grpc-retry-pushback-ms", retry_after_ms);
        }
        let policy = &texts.policy;
        (style.headers).write(policy, standing, retry_after_ms, &mut headers);
        let body = match &style.body {
            Some((content_type, body)) if !grpc => {
                headers.add("content-type", |text| text.push_str(content_type));
                body.clone()
            }
            _ => {
                if !grpc {
                    headers.add("content-type", |text| text.push_str(PROBLEM));
                }
                texts.problem(standing, grpc)
            }
        };
        Self {
            status: 429,
            grpc_status: grpc::RESOURCE_EXHAUSTED,
            headers,
            body: body.into_bytes(),
            details: Arc::clone(&texts.details),
        }
    }

    /// The request costs more than a limit ever holds: it would be denied whenever it came, so it is not told to wait.
    pub(crate) fn cost_over_limit(rule: Option<&str>, limit: Option<&str>, grpc: bool) -> Self {
        let labels = [("rule", rule), ("limit", limit)];
        let detail = "the request costs more than its limit ever holds: waiting cannot help, ask for less at a time";
        Problem::new(422, "Unprocessable Content", detail.to_owned(), None).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            Fields::default(),
            details("cost_over_limit", &labels).into(),
        )
    }

    /// No verdict is to be had, and the rule says that the request may not pass without.
    pub(crate) fn unavailable(rule: Option<&str>, reason: &str, grpc: bool) -> Self {
        let labels = [("rule", rule), ("reason", Some(reason))];
        let detail = "the rate limiter did not answer, and this route is not served without it";
        Problem::new(503, "Service Unavailable", detail.to_owned(), None).reply(
            grpc::UNAVAILABLE,
            grpc,
            Fields::default(),
            details("unavailable", &labels).into(),
        )
    }

    /// The request lacks what a limit's key is made of, and the rule says that it may not pass without.
    pub(crate) fn missing_part(rule: &str, limit: &str, grpc: bool) -> Self {
        let labels = [("rule", Some(rule)), ("limit", Some(limit))];
        let detail = format!("the request does not say whom to count for limit `{limit}`");
        Problem::new(403, "Forbidden", detail, Some(limit)).reply(
            grpc::PERMISSION_DENIED,
            grpc,
            Fields::default(),
            details("missing_part", &labels).into(),
        )
    }

    /// The request says in several ways whom it is to be counted for. The upstream might believe another than the
    /// filter, so whichever were counted, the other would have been let through uncounted.
    pub(crate) fn ambiguous_part(rule: &str, limit: &str, grpc: bool) -> Self {
        let detail =
            format!("the request says in several different ways whom to count for limit `{limit}`");
        Self::bad_request("ambiguous_part", rule, limit, detail, grpc)
    }

    /// The request says whom it is to be counted for, in a way that cannot be read. It is not treated as one that does
    /// not say it: that might be let through.
    pub(crate) fn unreadable_part(rule: &str, limit: &str, grpc: bool) -> Self {
        let detail =
            format!("what the request says of whom to count for limit `{limit}` cannot be read");
        Self::bad_request("unreadable_part", rule, limit, detail, grpc)
    }

    fn bad_request(kind: &str, rule: &str, limit: &str, detail: String, grpc: bool) -> Self {
        let labels = [("rule", Some(rule)), ("limit", Some(limit))];
        Problem::new(400, "Bad Request", detail, Some(limit)).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            Fields::default(),
            details(kind, &labels).into(),
        )
    }
}

impl Reply {
    /// A rule needs to look at more of the request than the bounds on work allow. Whether the rule is for the request is
    /// then unknown, so the request may neither pass it nor be counted by it.
    pub(crate) fn too_long(rule: &str, what: TooLong, grpc: bool) -> Self {
        let (status, title, detail) = match what {
            TooLong::Target => (
                414,
                "URI Too Long",
                "the path or query is too long, or can be read in too many ways, for the rules that have to look at it",
            ),
            TooLong::Header => (
                431,
                "Request Header Fields Too Large",
                "a header is too long for the rules that have to look at it",
            ),
        };
        Problem::new(status, title, detail.to_owned(), None).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            Fields::default(),
            details("too_long", &[("rule", Some(rule))]).into(),
        )
    }
}

/// What an admitted client is told.
pub(crate) fn admitted(texts: &LimitTexts, standing: &Standing<'_>, style: HeaderStyle) -> Fields {
    let mut headers = Fields::default();
    style.write(&texts.policy, standing, standing.reset_ms, &mut headers);
    headers
}
