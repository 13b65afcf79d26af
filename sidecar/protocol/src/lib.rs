//! The wire contract of Sluicegate, used by the filter, the sidecar and anyone with curl.
//!
//! `POST /v1/decide` takes a list of decisions and answers a list of verdicts in the same order;
//! `POST /v1/give-back` and `POST /v1/reset` are of the same form.
//! A request is read strictly (a misspelt `cost` must not become a cost of 1); an answer is read leniently,
//! so that a newer sidecar may add fields and an older filter still understands it.
//!
//! | file | for |
//! |---|---|
//! | `request.rs` | decisions and checks, and reading them one by one |
//! | `entries.rs` | lists of bounded length |
//! | `answer.rs` | verdicts |
//! | `fault.rs` | which field of a request is wrong, and why |
//! | `problem.rs` | what can be wrong, each with a code of its own |
//! | `top.rs` | who is being denied |

mod answer;
mod entries;
mod fault;
mod problem;
mod request;
mod top;

pub use answer::{
    Answer, GivenBack, Listed, PolicyVersion, Standing, Verdict, WasReset, WithoutStore,
};
pub use problem::{Code, Problem};
pub use request::{
    Check, Decision, DeniedHere, GiveBack, Read, Request, Reset, read_decisions, read_give_backs,
    read_resets,
};
pub use top::{Top, TopDenied, TopLimit, TopNearest};

/// Where decisions are posted.
pub const DECIDE_PATH: &str = "/v1/decide";

/// Where units are given back.
pub const GIVE_BACK_PATH: &str = "/v1/give-back";
/// Where limits are made whole for a key; on the admin port.
pub const RESET_PATH: &str = "/v1/reset";
/// Who is being denied; on the admin port.
pub const TOP_PATH: &str = "/v1/top";

/// Most bytes of a request's body.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Most decisions, give-backs or resets in one request.
pub const MAX_ENTRIES: usize = 1024;
/// Most checks in one decision.
pub const MAX_CHECKS: usize = 32;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Most denials in one entry of [`Request::denied`], some hours of them without a report. An entry of more is passed over:
/// it would make the counters worthless.
pub const MAX_DENIED_COUNT: u64 = 1_000_000_000;
/// Longest that a denial may be held, in milliseconds: the largest `denial_ttl` of a policy. One held for longer would
/// outlive what an operator expects of a reset.
pub const MAX_HOLD_MS: u64 = 60_000;
/// Largest cost that any limit could admit; larger numbers would not survive arithmetic in Redis.
pub const MAX_COST: u64 = 1 << 31;
