//! The operations of the admin port.

use sluicegate_protocol::{
    Listed, OPENAPI_PATH, OVERRIDES_PATH, OverrideList, OverrideWasRemoved, OverrideWasSet,
    ProblemDetails, RESET_PATH, RemoveOverride, Resets, SetOverride, TOP_PATH, Top, WasReset, Whom,
};

use super::describe::{Answer, Caller, Content, Method, Operation, Parameter};
use crate::server::paths::{HEALTHZ_PATH, METRICS_PATH, READYZ_PATH};

const TEXT: &str = "text/plain";

/// The common case: a `GET` without parameters, for operators.
const GET: Operation = Operation {
    method: Method::Get,
    path: "",
    id: "",
    tag: "admin",
    summary: "",
    description: "",
    caller: Caller::Operator,
    parameters: &[],
    body: None,
    answers: &[],
};

pub(in crate::server) static HEALTHZ: Operation = Operation {
    path: HEALTHZ_PATH,
    id: "healthz",
    tag: "probes",
    summary: "Liveness",
    description: "Answers 200 while the process serves requests.",
    caller: Caller::Anyone,
    answers: &[Answer {
        status: 200,
        description: "The process serves requests.",
        headers: &[],
        content: Content::text(TEXT, "alive\n"),
    }],
    ..GET
};

pub(in crate::server) static READYZ: Operation = Operation {
    path: READYZ_PATH,
    id: "readyz",
    tag: "probes",
    summary: "Readiness",
    description: "Whether clients should send requests to this sidecar, with the state of the store and of the policy file. Answers \
        from the known state without waiting for the store.",
    caller: Caller::Anyone,
    answers: &[
        Answer {
            status: 200,
            description: "The sidecar is ready.",
            headers: &[],
            content: Content::text(TEXT, "ready: policy epoch 1, the store answers\n"),
        },
        Answer {
            status: 503,
            description: "The sidecar is not ready: it is shutting down, or its store does not answer and it was started with \
                `--ready-needs-store`.",
            headers: &[],
            content: Content::problem::<ProblemDetails<'_>>(
                r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"not ready: policy epoch 1, the store answers\ndraining: this sidecar is shutting down","code":"not_ready"}"#,
            ),
        },
    ],
    ..GET
};

pub(in crate::server) static METRICS: Operation = Operation {
    path: METRICS_PATH,
    id: "metrics",
    summary: "Metrics for Prometheus",
    description: "Prometheus's text format; `docs/metrics.md` lists every metric. Requires no token if the sidecar was \
        started with `--open-metrics`.",
    answers: &[
        Answer {
            status: 200,
            description: "The metrics.",
            headers: &[],
            content: Content::text(
                TEXT,
                "# HELP sluicegate_store_up Whether the store answers.\n# TYPE sluicegate_store_up gauge\nsluicegate_store_up 1\n",
            ),
        },
        Answer {
            status: 500,
            description: "The metrics cannot be encoded.",
            headers: &[],
            content: Content::problem::<ProblemDetails<'_>>(
                r#"{"type":"about:blank","title":"Internal Server Error","status":500,"detail":"the metrics cannot be encoded: see the sidecar's log for the cause","code":"internal"}"#,
            ),
        },
    ],
    ..GET
};

pub(in crate::server) static RESET: Operation = Operation {
    method: Method::Post,
    path: RESET_PATH,
    id: "reset",
    summary: "Restore the whole quota of a limit for keys",
    description: "Takes effect on this sidecar at once, and within the policy's `denial_ttl` where denials are cached.",
    caller: Caller::OperatorWithToken,
    body: Some(Content::json::<Resets<'_>>(
        r#"{"resets":[{"limit":"per-key","key":"worker-7"}]}"#,
    )),
    answers: &[Answer {
        status: 200,
        description: "An outcome for each entry.",
        headers: &[],
        content: Content::json::<Listed<WasReset>>(
            r#"{"outcomes":[{"outcome":"reset","held":true}]}"#,
        ),
    }],
    ..GET
};

/// The error of changes of overrides, in addition to those of all requests.
const OF_STORE: Answer = Answer {
    status: 503,
    description: "The store did not confirm the change. It may have made it; repeating the request is safe.",
    headers: &[],
    content: Content::problem::<ProblemDetails<'_>>(
        r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"the store did not confirm the change","code":"store_unavailable"}"#,
    ),
};

pub(in crate::server) static OVERRIDES: Operation = Operation {
    path: OVERRIDES_PATH,
    id: "listOverrides",
    summary: "List all overrides",
    description: "The overrides in the store and in the policy file, sorted by limit and key.",
    caller: Caller::OperatorWithToken,
    answers: &[Answer {
        status: 200,
        description: "The overrides.",
        headers: &[],
        content: Content::json::<OverrideList>(
            r#"{"overrides":[{"limit":"per-tenant","key":"acme","subject":"822b33ad87c148a0a20a","quota":5000,"until":"2026-11-22T03:00:00Z","reason":"INC-7","by":"ops@bastion","source":"store","state":"in_force"}]}"#,
        ),
    }],
    ..GET
};

pub(in crate::server) static SET_OVERRIDE: Operation = Operation {
    method: Method::Put,
    path: OVERRIDES_PATH,
    id: "setOverride",
    summary: "Give a key another quota, lift its limit or block it",
    description: "Replaces the store's override of the same limit and key. Name the keys by exactly one of `key`, `subject` and \
        `all_keys`. Set exactly one of `quota`, `windows`, `unlimited` and `blocked`. The change takes effect on all sidecars within a second.",
    caller: Caller::OperatorWithToken,
    body: Some(Content::json::<SetOverride>(
        r#"{"limit":"per-tenant","key":"acme","quota":5000,"until":"2026-11-22T03:00:00Z","reason":"INC-7","by":"ops@bastion"}"#,
    )),
    answers: &[
        Answer {
            status: 200,
            description: "The override is set.",
            headers: &[],
            content: Content::json::<OverrideWasSet>(
                r#"{"override":{"limit":"per-tenant","key":"acme","subject":"822b33ad87c148a0a20a","quota":5000,"until":"2026-11-22T03:00:00Z","reason":"INC-7","by":"ops@bastion","source":"store","state":"in_force"},"replaced":false}"#,
            ),
        },
        Answer {
            status: 409,
            description: "The store holds the maximum number or size of overrides.",
            headers: &[],
            content: Content::problem::<ProblemDetails<'_>>(
                r#"{"type":"about:blank","title":"Conflict","status":409,"detail":"the store holds the maximum number or size of overrides: remove some, or give groups of keys limits of their own","code":"too_many_overrides"}"#,
            ),
        },
        OF_STORE,
    ],
    ..GET
};

pub(in crate::server) static REMOVE_OVERRIDE: Operation = Operation {
    method: Method::Delete,
    path: OVERRIDES_PATH,
    id: "removeOverride",
    summary: "Remove an override from the store",
    description: "The policy applies again. Removing an override that does not exist is not an error.",
    caller: Caller::OperatorWithToken,
    body: Some(Content::json::<RemoveOverride>(
        r#"{"limit":"per-tenant","key":"acme","reason":"INC-7 is over","by":"ops@bastion"}"#,
    )),
    answers: &[
        Answer {
            status: 200,
            description: "The store has no override for this limit and key.",
            headers: &[],
            content: Content::json::<OverrideWasRemoved>(r#"{"removed":true}"#),
        },
        OF_STORE,
    ],
    ..GET
};

pub(in crate::server) static SUBJECT: Operation = Operation {
    path: "/v1/subjects/{subject}",
    id: "subject",
    summary: "Find the key of a subject",
    description: "The key whose SHA-256 begins with these digits, if a limit denied it or it was near a limit lately.",
    caller: Caller::OperatorWithToken,
    parameters: &[Parameter {
        name: "subject",
        within: "path",
        description: "The 20 hexadecimal digits.",
        values: &[],
        example: "8aca0dd300d2436b96f9",
    }],
    answers: &[
        Answer {
            status: 200,
            description: "The key.",
            headers: &[],
            content: Content::json::<Whom>(r#"{"key":"worker-7"}"#),
        },
        Answer {
            status: 404,
            description: "No such key is known to this sidecar.",
            headers: &[],
            content: Content::problem::<ProblemDetails<'_>>(
                r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"no key with these digits was denied, or near a limit, on this sidecar lately","code":"not_found","field":"path"}"#,
            ),
        },
    ],
    ..GET
};

pub(in crate::server) static TOP: Operation = Operation {
    path: TOP_PATH,
    id: "top",
    summary: "Most denied subjects, and subjects nearest to a limit",
    description: "Subjects are hashes of keys; `sluicegate explain` prints the hash of a request's keys.",
    answers: &[Answer {
        status: 200,
        description: "Every limit of the policy in force, by name.",
        headers: &[],
        content: Content::json::<Top>(
            r#"{"limits":[{"limit":"per-key","denied_total":120,"since_seconds":61,"most_denied":[{"subject":"0123456789abcdef0123","count":90,"error":3}],"nearest":[{"subject":"0123456789abcdef0123","used_ratio":0.96}]}]}"#,
        ),
    }],
    ..GET
};

pub(in crate::server) static OPENAPI: Operation = Operation {
    path: OPENAPI_PATH,
    id: "openapiAdmin",
    summary: "This document",
    description: "OpenAPI 3.1, for both ports.",
    answers: &[super::DOCUMENT],
    ..GET
};

pub(in crate::server) static PAGE: Operation = Operation {
    path: "/",
    id: "page",
    tag: "page",
    summary: "The live page",
    description: "For browsers: which subjects are limited, by which limit and since when.",
    answers: &[Answer {
        status: 200,
        description: "The page.",
        headers: &[],
        content: Content::text("text/html", "<!doctype html>"),
    }],
    ..GET
};

pub(in crate::server) static PAGE_SNAPSHOT: Operation = Operation {
    path: "/page/snapshot",
    id: "pageSnapshot",
    tag: "page",
    summary: "What the live page shows",
    description: "Internal to the page; may change with it.",
    parameters: &[Parameter {
        name: "after",
        within: "query",
        description: "The time of the newest sample that the page has, in milliseconds since 1970.",
        values: &[],
        example: "0",
    }],
    answers: &[Answer {
        status: 200,
        description: "The state at this moment, and the samples of the last minutes that are newer.",
        headers: &[],
        content: Content::json::<serde_json::Value>(r#"{"samples":[]}"#),
    }],
    ..GET
};

pub(in crate::server) static PAGE_FILE: Operation = Operation {
    path: "/page/{name}",
    id: "pageFile",
    tag: "page",
    summary: "A file of the live page",
    description: "The page's style sheet, scripts and icon.",
    parameters: &[Parameter {
        name: "name",
        within: "path",
        description: "The file's name.",
        values: &[],
        example: "page.js",
    }],
    answers: &[
        Answer {
            status: 200,
            description: "The file.",
            headers: &[],
            content: Content::text("text/javascript", "export {};\n"),
        },
        Answer {
            status: 404,
            description: "There is no such file.",
            headers: &[],
            content: Content::problem::<ProblemDetails<'_>>(
                r#"{"type":"about:blank","title":"Not Found","status":404,"detail":"unknown path: GET /v1/openapi.json lists the paths of both ports","code":"not_found","field":"path"}"#,
            ),
        },
    ],
    ..GET
};
