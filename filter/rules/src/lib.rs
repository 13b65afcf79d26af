//! What the filter decides by itself, without a trace of Envoy: native tests and the CLI use it too.
//!
//! | file | for |
//! |---|---|
//! | `config.rs` | the plugin's configuration as it is written, and its checks |
//! | `rule.rs` | rules, ready to be matched; what a request has to ask |
//! | `request.rs` | what this crate wants to know of a request |
//! | `key.rs` | from parts to a key that no other parts can give |
//! | `address.rs` | the client's address, and its mask |
//! | `wire.rs` | the question to the sidecar and its answer |
//! | `reply.rs` | what a client is told |

mod address;
mod config;
mod key;
mod reply;
mod request;
mod rule;
mod wire;

pub use config::{ConfigError, Sidecar, parse};
pub use reply::{Reply, missing_part, too_many_requests, unavailable};
pub use request::Request;
pub use rule::{Check, Evaluation, Question, Rules, WhenUnavailable};
pub use wire::{Conclusion, Unusable, conclude, question_body};
