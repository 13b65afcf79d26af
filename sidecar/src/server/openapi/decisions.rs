//! The operations of the decision port.

use sluicegate_protocol::{
    Answer as Decided, DECIDE_PATH, GIVE_BACK_PATH, GiveBacks, GivenBack, Listed, OPENAPI_PATH,
    Request,
};

use super::describe::{Answer, Caller, Content, Method, Operation, Parameter, of};
use crate::server::decisions::VerdictProblem;

pub(in crate::server) static DECIDE: Operation = Operation {
    method: Method::Post,
    path: DECIDE_PATH,
    id: "decide",
    tag: "decisions",
    summary: "Take units from limits",
    description: "Takes a list of decisions and answers with one verdict for each, in the same order. The checks of a \
        decision are admitted together or not at all. The status is 200 even if a verdict is a denial or an error: an invalid \
        decision does not affect the others. With `?denied=429`, the request has exactly one decision, and the status is its \
        verdict.",
    caller: Caller::Anyone,
    parameters: &[Parameter {
        name: "denied",
        within: "query",
        description: "The status for a denial. Only 429 is allowed. The request must then have exactly one decision.",
        values: &["429"],
        example: "429",
    }],
    body: Some(Content::json::<Request<'_>>(
        r#"{"decisions":[{"checks":[{"limit":"per-key","key":"worker-7","cost":3}]}]}"#,
    )),
    answers: &[
        Answer {
            status: 200,
            description: "A verdict for each decision. With `?denied=429`: the decision was admitted, or the store is down and \
                the policy says `allow`.",
            headers: &[],
            content: Content::json::<Decided<'_>>(
                r#"{"epoch":1,"instance":5629499534213120,"verdicts":[{"outcome":"admitted","check":0,"limit":"per-key","quota":5,"window_ms":2000,"remaining":2,"reset_ms":2000,"retry_after_ms":0}]}"#,
            ),
        },
        Answer {
            status: 429,
            description: "Only with `?denied=429`: the decision was denied.",
            headers: &[(
                "Retry-After",
                "Whole seconds until the same decision would be admitted, rounded up.",
                of::<u64>,
            )],
            content: Content::problem::<VerdictProblem<'_>>(
                r#"{"type":"about:blank","title":"Too Many Requests","status":429,"detail":"limit `per-key` allows 5 per 2000 ms and has 0 left; the same decision is admitted in 1991 ms","code":"denied","epoch":1,"instance":5629499534213120,"verdicts":[{"outcome":"denied","check":0,"limit":"per-key","quota":5,"window_ms":2000,"remaining":0,"reset_ms":1991,"retry_after_ms":1991,"hold_ms":1000}]}"#,
            ),
        },
        Answer {
            status: 503,
            description: "Only with `?denied=429`: the store did not answer, and the policy does not say `allow`.",
            headers: &[],
            content: Content::problem::<VerdictProblem<'_>>(
                r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"the store did not answer within its deadline","code":"unavailable","epoch":1,"instance":5629499534213120,"verdicts":[{"outcome":"unavailable"}]}"#,
            ),
        },
    ],
};

pub(in crate::server) static GIVE_BACK: Operation = Operation {
    method: Method::Post,
    path: GIVE_BACK_PATH,
    id: "giveBack",
    tag: "decisions",
    summary: "Return unused units",
    description: "Each entry names a receipt of an admitted decision. Sending an entry again is safe: a receipt's units are \
        returned once.",
    caller: Caller::Anyone,
    parameters: &[],
    body: Some(Content::json::<GiveBacks<'_>>(
        r#"{"give_backs":[{"limit":"per-key","key":"worker-7","receipt":"00112233445566778899aabbccddeeff"}]}"#,
    )),
    answers: &[Answer {
        status: 200,
        description: "An outcome for each entry.",
        headers: &[],
        content: Content::json::<Listed<GivenBack>>(
            r#"{"outcomes":[{"outcome":"given_back","units":3}]}"#,
        ),
    }],
};

pub(in crate::server) static OPENAPI: Operation = Operation {
    method: Method::Get,
    path: OPENAPI_PATH,
    id: "openapi",
    tag: "decisions",
    summary: "This document",
    description: "OpenAPI 3.1, for both ports.",
    caller: Caller::Anyone,
    parameters: &[],
    body: None,
    answers: &[super::DOCUMENT],
};
