//! Replies to clients. They name the limit, never the key.

mod denial_text;
mod details;
mod families;
mod header_fields;
mod header_style;
mod limit_texts;
mod problem;

pub use denial_text::write_denial;
pub(crate) use details::details;
pub use details::{DETAILS_PREFIX, is_sluicegate_reply};
pub use header_fields::HeaderFields;
pub(crate) use limit_texts::LimitTexts;

use std::sync::Arc;

use sluicegate_protocol::{LimitStatus, PROBLEM_JSON, UNAVAILABLE_RETRY_S};

use crate::config::terms::Reply as ReplyStyle;
use crate::match_result::TooLong;
use problem::{Problem, kind_of};

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
    /// The subject whose quota is used up, and verdicts of shadow rules, for Envoy's filter state and thus its access log:
    /// `sluicegate_denied{subject=935bcf14b3e6...}`.
    pub subject: Option<Arc<str>>,
}

/// Why a request has no value for the key of a limit, and is refused.
#[derive(Clone, Copy, Debug)]
pub(crate) enum NoValue {
    /// The rule does not let it through without.
    Missing,
    /// It has several different values. The upstream might use another one than the filter, so whichever were counted, the
    /// other would pass uncounted.
    Ambiguous,
    /// The value cannot be read. It does not count as missing, because a request without it might be let through.
    Unreadable,
}

impl Reply {
    /// A limit denied the request; `listed` are all limits of the request.
    pub(crate) fn too_many_requests<'a>(
        texts: &LimitTexts,
        listed: impl Iterator<Item = &'a LimitTexts>,
        limit_status: &LimitStatus<'_>,
        cost: u64,
        style: &ReplyStyle,
        grpc: bool,
        system_s: &dyn Fn() -> u64,
    ) -> Self {
        let retry_after_ms = limit_status.retry_after_ms;
        let mut headers = HeaderFields::for_denial();
        // Whole seconds, rounded up, or the retry would be early; milliseconds in a header of their own.
        if !limit_status.allows_nothing() {
            headers.add_number("retry-after", header_style::seconds(retry_after_ms));
        }
        // As Envoy's own filter: by default a client's Envoy does not retry it, and `retry_on: envoy-ratelimited` does.
        headers.add("x-envoy-ratelimited", |text| text.push_str("true"));
        // gRPC clients with a retry policy obey it (gRFC A6); a denial is our only reply that may be retried.
        let pushback = "grpc-retry-pushback-ms";
        if !limit_status.until_changed {
            headers.add_number("retry-after-ms", retry_after_ms);
            if grpc {
                headers.add_number(pushback, retry_after_ms);
            }
        } else if grpc {
            // Do not retry.
            headers.add(pushback, |text| text.push_str("-1"));
        }
        style.write(
            texts,
            listed,
            limit_status,
            retry_after_ms,
            system_s,
            &mut headers,
        );
        let (content_type, body) = match &style.body {
            Some(body) if !grpc => {
                let content_type = style.content_type.as_deref();
                let seconds = header_style::seconds(retry_after_ms).to_string();
                let body = body.replace("{retry_after}", &seconds);
                (content_type.unwrap_or("text/plain"), body)
            }
            None if !grpc && style.headers.is_of_models() => {
                let unit = style.unit_of(&texts.name);
                let body = families::body(style.headers, unit, &texts.name, limit_status, cost);
                ("application/json", body)
            }
            _ => (PROBLEM_JSON, texts.problem(limit_status, cost, grpc)),
        };
        if !grpc {
            headers.add("content-type", |text| text.push_str(content_type));
        }
        Self::new(429, headers, body, Arc::clone(&texts.details))
    }

    /// The request costs more than a limit ever allows: it would always be denied, so the reply has no `Retry-After`.
    pub(crate) fn cost_over_limit(rule: Option<&str>, limit: Option<&str>, grpc: bool) -> Self {
        let details = details("cost_over_limit", &[("rule", rule), ("limit", limit)]);
        let detail = "the request costs more than its limit ever allows: waiting does not help, ask for less at a time";
        Self::problem(&Problem::new(422, detail, None), grpc, details)
    }

    /// There is no verdict, and the rule does not let requests through without one.
    pub(crate) fn unavailable(rule: Option<&str>, reason: &str, grpc: bool) -> Self {
        let details = details("unavailable", &[("rule", rule), ("reason", Some(reason))]);
        let detail = match reason {
            "decision" => {
                "the rate limiter is misconfigured: its rules ask for what its policy does not have or allow, and this route is \
                 not served without it"
            }
            _ => "the rate limiter did not answer, and this route is not served without it",
        };
        Self::problem(&Problem::new(503, detail, None), grpc, details)
    }

    /// Envoy runs a configuration that the filter could not build.
    pub fn not_configured() -> Self {
        let details = details("unavailable", &[("reason", Some("configuration"))]);
        let detail = "the rate limiter could not be configured, and nothing is served without it";
        Self::problem(&Problem::new(503, detail, None), false, details)
    }

    /// The sidecar has not sent any rules yet.
    pub(crate) fn no_rules(grpc: bool) -> Self {
        let details = details("unavailable", &[("reason", Some("no_rules"))]);
        let detail = "the rate limiter has no rules yet, and nothing is served without them";
        Self::problem(&Problem::new(503, detail, None), grpc, details)
    }

    pub(crate) fn no_value(why: NoValue, rule: &str, limit: &str, grpc: bool) -> Self {
        let (status, kind, before, after) = match why {
            NoValue::Missing => (403, "missing_part", " lacks a value", ""),
            NoValue::Ambiguous => (400, "ambiguous_part", " has several different values", ""),
            NoValue::Unreadable => (400, "unreadable_part", "'s value", " cannot be read"),
        };
        let detail = format!("the request{before} for the key of limit `{limit}`{after}");
        let details = details(kind, &[("rule", Some(rule)), ("limit", Some(limit))]);
        Self::problem(&Problem::new(status, &detail, Some(limit)), grpc, details)
    }

    /// A rule would have to evaluate more of the request than the bounds on work allow. Whether it applies is then
    /// unknown, so the request may neither skip it nor be counted by it.
    pub(crate) fn too_long(rule: &str, what: TooLong, grpc: bool) -> Self {
        let (status, detail) = match what {
            TooLong::Target => (
                414,
                "the path or query is too long, or has too many possible readings, for the rules that match on it",
            ),
            TooLong::Header => (431, "a header is too long for the rules that match on it"),
        };
        let details = details("too_long", &[("rule", Some(rule))]);
        Self::problem(&Problem::new(status, detail, None), grpc, details)
    }

    fn problem(problem: &Problem<'_>, grpc: bool, details: String) -> Self {
        let mut headers = HeaderFields::default();
        let body = if grpc {
            // It becomes `grpc-message`, and Envoy sets gRPC's content type.
            problem.detail.to_owned()
        } else {
            if problem.status == 503 {
                headers.add_number("retry-after", UNAVAILABLE_RETRY_S);
            }
            headers.add("content-type", |text| text.push_str(PROBLEM_JSON));
            problem.to_json()
        };
        Self::new(problem.status, headers, body, details.into())
    }

    fn new(status: u32, headers: HeaderFields, body: String, details: Arc<str>) -> Self {
        Self {
            status,
            grpc_status: kind_of(status).1,
            headers,
            body: body.into_bytes(),
            details,
            subject: None,
        }
    }
}
