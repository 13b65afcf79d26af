//! The sidecar's HTTP as its OpenAPI document describes it, and clients that obey a 429.
//!
//! | file | for |
//! |---|---|
//! | `described.rs`, `hooks.py`, `schemathesis.toml` | schemathesis against both ports of a real sidecar |
//! | `clients.rs` | the clients of `docs/clients`, through a real Envoy and filter |

mod clients;
mod described;
