//! The sidecar's HTTP as its OpenAPI document describes it, and clients that obey a 429.
//!
//! | file | for |
//! |---|---|
//! | `described.rs`, `hooks.py`, `schemathesis.toml` | schemathesis against both ports of a real sidecar |
//! | `clients.rs` | the clients of `docs/clients`, through a real Envoy and filter |

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod clients;
mod described;
