//! The wire contract of Sluicegate, used by the filter, the sidecar and anyone with curl.
//!
//! `POST /v1/decide` takes a list of decisions and answers a list of verdicts in the same order.
//! A request is read strictly (a misspelt `cost` must not become a cost of 1); an answer is read leniently,
//! so that a newer sidecar may add fields and an older filter still understands it.
//!
//! | file | for |
//! |---|---|
//! | `request.rs` | decisions and checks, and reading them one by one |
//! | `answer.rs` | verdicts |
//! | `problem.rs` | what can be wrong, each with a code of its own |

mod answer;
mod problem;
mod request;

pub use answer::{Answer, Standing, Verdict};
pub use problem::{Code, Problem};
pub use request::{Check, Decision, Request, read_request};

/// Where decisions are posted.
pub const DECIDE_PATH: &str = "/v1/decide";

/// Most bytes of a request's body.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Most decisions in one request.
pub const MAX_DECISIONS: usize = 1024;
/// Most checks in one decision.
pub const MAX_CHECKS: usize = 32;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Largest cost that any limit could admit; larger numbers would not survive arithmetic in Redis.
pub const MAX_COST: u64 = 1 << 31;
