//! The errors that operations share.

use serde_json::{Value, json};

use super::describe::{Caller, Operation};

/// Status, meaning, and the code and field of the example.
pub(super) type Error = (u16, String, &'static str, &'static str);

/// The shared errors of an operation; `admin`: it is on the admin port.
pub(super) fn of(operation: &Operation, admin: bool) -> Vec<Error> {
    let body = operation.body.is_some();
    let probe = admin && operation.caller == Caller::Anyone;
    let mut errors: Vec<Error> = Vec::new();
    let mut add = |status, meaning: &str, code, field| {
        errors.push((status, meaning.to_owned(), code, field));
    };
    if body {
        add(
            400,
            "The body as a whole is invalid, or the request has no Host header or more than one.",
            "malformed_json",
            "body",
        );
    } else {
        add(
            400,
            "The request has no Host header or more than one.",
            "bad_host",
            "header.host",
        );
    }
    if admin && !probe {
        add(
            401,
            "The sidecar requires the admin token, and the request has none or a wrong one.",
            "token_required",
            "header.authorization",
        );
    }
    if admin {
        let meaning = if probe {
            "On loopback: the Host is a name other than localhost and not allowed by `--allow-host`."
        } else {
            "On loopback: the Host is not localhost, not a loopback address and not allowed by `--allow-host`."
        };
        add(421, meaning, "wrong_host", "header.host");
    }
    if operation.caller == Caller::OperatorWithToken {
        add(
            403,
            "A web page of another origin sent the request, or the admin address is not loopback and the sidecar has no token.",
            "token_required",
            "header.authorization",
        );
    } else if admin {
        add(
            403,
            "A web page of another origin sent the request.",
            "from_web_page",
            "header.origin",
        );
    } else {
        add(
            403,
            "A web page sent the request: this port is for programs only.",
            "from_web_page",
            "header.origin",
        );
    }
    if body {
        add(
            408,
            "The body did not arrive within 10 s.",
            "body_timeout",
            "body",
        );
        add(
            413,
            "The body is larger than 1 MiB.",
            "body_too_large",
            "body",
        );
    }
    if body || !admin {
        let meaning = if admin {
            "The request's `content-type` is not `application/json`."
        } else {
            "The request's `content-type` is one that a web page can send without permission."
        };
        add(415, meaning, "not_json", "header.content-type");
    }
    errors.sort_by_key(|(status, ..)| *status);
    errors
}

/// A problem detail.
pub(super) fn example(status: u16, title: &str, meaning: &str, code: &str, field: &str) -> Value {
    json!({ "type": "about:blank", "title": title, "status": status, "detail": meaning, "code": code, "field": field })
}
