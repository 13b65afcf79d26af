//! Replies to clients. They name the limit, never the key.

mod details;
mod fields;
mod text;
mod texts;

pub(crate) use details::details;
pub use details::{DETAILS_PREFIX, is_sluicegate_reply};
pub(crate) use fields::HeaderStyle;
pub use text::HeaderFields;
pub(crate) use texts::LimitTexts;

use std::sync::Arc;

use serde::Serialize;
use sluicegate_protocol::LimitStatus;

use crate::match_result::TooLong;

/// The gRPC status codes that correspond to our HTTP statuses; Envoy uses them for gRPC requests.
mod grpc {
    pub const INVALID_ARGUMENT: i32 = 3;
    pub const PERMISSION_DENIED: i32 = 7;
    pub const RESOURCE_EXHAUSTED: i32 = 8;
    pub const UNAVAILABLE: i32 = 14;
}

/// The media type of a problem detail (RFC 9457).
const PROBLEM: &str = "application/problem+json";

/// A local reply, sent instead of forwarding the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// HTTP status; for a gRPC request Envoy sends 200 and `grpc_status`.
    pub status: u32,
    /// gRPC status.
    pub grpc_status: i32,
    /// Headers.
    pub headers: HeaderFields,
    /// Body; for a gRPC request Envoy sends it as `grpc-message`.
    pub body: Vec<u8>,
    /// Response code details, for Envoy's access log: which rule or limit refused the request, and why.
    pub details: Arc<str>,
    /// Whose quota is used up, for Envoy's filter state and thus its access log: `sluicegate_denied{subject=935bcf14b3e6...}`.
    pub subject: Option<Arc<str>>,
}

/// What a rule's responses tell clients about its limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReplyStyle {
    pub headers: HeaderStyle,
    /// Whether admitted responses have the header fields too.
    pub on_admitted: bool,
    /// Content type and body to use in place of a problem detail.
    pub body: Option<(String, String)>,
}

/// A problem detail (RFC 9457). The type `about:blank` means that the status identifies the problem.
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

    fn reply(
        self,
        grpc_status: i32,
        grpc: bool,
        mut headers: HeaderFields,
        details: Arc<str>,
    ) -> Reply {
        let body = if grpc {
            // It becomes `grpc-message`, and Envoy sets gRPC's content type.
            self.detail.into_bytes()
        } else {
            headers.add("content-type", |text| text.push_str(PROBLEM));
            let mut body = Vec::with_capacity(self.detail.len() + 192);
            // Serializing texts and numbers into memory cannot fail.
            let _ = serde_json::to_writer(&mut body, &self);
            body
        };
        Reply {
            status: self.status,
            grpc_status,
            headers,
            body,
            details,
            subject: None,
        }
    }
}

impl Reply {
    /// A limit denied the request.
    pub(crate) fn too_many_requests(
        texts: &LimitTexts,
        limit_status: &LimitStatus<'_>,
        style: &ReplyStyle,
        grpc: bool,
    ) -> Self {
        let retry_after_ms = limit_status.retry_after_ms;
        let mut headers = HeaderFields::for_denial();
        // Whole seconds, rounded up, or the retry would be early; milliseconds in a header of their own.
        headers.add_number("retry-after", fields::seconds(retry_after_ms));
        headers.add_number("retry-after-ms", retry_after_ms);
        if grpc {
            // gRPC clients with a retry policy obey it (gRFC A6); a denial is our only reply that may be retried.
            headers.add_number("grpc-retry-pushback-ms", retry_after_ms);
        }
        let policy = &texts.policy;
        (style.headers).write(policy, limit_status, retry_after_ms, &mut headers);
        let body = match &style.body {
            Some((content_type, body)) if !grpc => {
                headers.add("content-type", |text| text.push_str(content_type));
                body.clone()
            }
            _ => {
                if !grpc {
                    headers.add("content-type", |text| text.push_str(PROBLEM));
                }
                texts.problem(limit_status, grpc)
            }
        };
        Self {
            status: 429,
            grpc_status: grpc::RESOURCE_EXHAUSTED,
            headers,
            body: body.into_bytes(),
            details: Arc::clone(&texts.details),
            subject: None,
        }
    }

    /// The request costs more than a limit ever allows: it would always be denied, so the reply has no `Retry-After`.
    pub(crate) fn cost_over_limit(rule: Option<&str>, limit: Option<&str>, grpc: bool) -> Self {
        let labels = [("rule", rule), ("limit", limit)];
        let detail = "the request costs more than its limit ever allows: waiting does not help, ask for less at a time";
        Problem::new(422, "Unprocessable Content", detail.to_owned(), None).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            HeaderFields::default(),
            details("cost_over_limit", &labels).into(),
        )
    }

    /// There is no verdict, and the rule does not let requests through without one.
    pub(crate) fn unavailable(rule: Option<&str>, reason: &str, grpc: bool) -> Self {
        let labels = [("rule", rule), ("reason", Some(reason))];
        let detail = match reason {
            "decision" => {
                "the rate limiter is misconfigured: its rules ask for what its policy does not have or allow, and this route is \
                 not served without it"
            }
            _ => "the rate limiter did not answer, and this route is not served without it",
        };
        Problem::new(503, "Service Unavailable", detail.to_owned(), None).reply(
            grpc::UNAVAILABLE,
            grpc,
            HeaderFields::default(),
            details("unavailable", &labels).into(),
        )
    }

    /// The request lacks a component of a limit's key, and the rule does not let it through without.
    pub(crate) fn missing_component(rule: &str, limit: &str, grpc: bool) -> Self {
        let labels = [("rule", Some(rule)), ("limit", Some(limit))];
        let detail = format!("the request lacks a value for the key of limit `{limit}`");
        Problem::new(403, "Forbidden", detail, Some(limit)).reply(
            grpc::PERMISSION_DENIED,
            grpc,
            HeaderFields::default(),
            details("missing_part", &labels).into(),
        )
    }

    /// The request has several different values for a key component. The upstream might use another one than the
    /// filter, so whichever were counted, the other would pass uncounted.
    pub(crate) fn ambiguous_component(rule: &str, limit: &str, grpc: bool) -> Self {
        let detail =
            format!("the request has several different values for the key of limit `{limit}`");
        Self::bad_request("ambiguous_part", rule, limit, detail, grpc)
    }

    /// The request has a value for a key component that cannot be read. It does not count as missing, because a request
    /// without the component might be let through.
    pub(crate) fn unreadable_component(rule: &str, limit: &str, grpc: bool) -> Self {
        let detail = format!("the request's value for the key of limit `{limit}` cannot be read");
        Self::bad_request("unreadable_part", rule, limit, detail, grpc)
    }

    fn bad_request(kind: &str, rule: &str, limit: &str, detail: String, grpc: bool) -> Self {
        let labels = [("rule", Some(rule)), ("limit", Some(limit))];
        Problem::new(400, "Bad Request", detail, Some(limit)).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            HeaderFields::default(),
            details(kind, &labels).into(),
        )
    }
}

impl Reply {
    /// A rule would have to evaluate more of the request than the bounds on work allow. Whether it applies is then
    /// unknown, so the request may neither skip it nor be counted by it.
    pub(crate) fn too_long(rule: &str, what: TooLong, grpc: bool) -> Self {
        let (status, title, detail) = match what {
            TooLong::Target => (
                414,
                "URI Too Long",
                "the path or query is too long, or has too many possible readings, for the rules that match on it",
            ),
            TooLong::Header => (
                431,
                "Request Header Fields Too Large",
                "a header is too long for the rules that match on it",
            ),
        };
        Problem::new(status, title, detail.to_owned(), None).reply(
            grpc::INVALID_ARGUMENT,
            grpc,
            HeaderFields::default(),
            details("too_long", &[("rule", Some(rule))]).into(),
        )
    }
}

/// The header fields of an admitted response.
pub(crate) fn admitted(
    texts: &LimitTexts,
    limit_status: &LimitStatus<'_>,
    style: HeaderStyle,
) -> HeaderFields {
    let mut headers = HeaderFields::default();
    style.write(
        &texts.policy,
        limit_status,
        limit_status.reset_ms,
        &mut headers,
    );
    headers
}
