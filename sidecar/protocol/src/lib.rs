//! The wire contract of Sluicegate, used by the filter, the sidecar and other HTTP clients.
//!
//! `POST /v1/decide` takes a list of decisions and answers with a list of verdicts in the same order;
//! `POST /v1/settle` and `POST /v1/reset` have the same form.
//! Requests are parsed strictly (a misspelt `cost` must not become a cost of 1); answers leniently, so that a newer
//! sidecar may add fields and an older filter still understands them.
//!
//! | file | for |
//! |---|---|
//! | `request.rs` | decisions and checks, and parsing them one by one |
//! | `entries.rs` | lists of bounded length |
//! | `answer.rs` | verdicts |
//! | `integer.rs` | integers that may be written as `2.0` |
//! | `field_error.rs` | which field of a request is wrong, and why |
//! | `problem.rs` | problems and their codes |
//! | `filter_info.rs` | what a filter tells of itself |
//! | `holds.rs` | the slots that are in use |
//! | `leases.rs` | units that a filter may spend without asking, and what became of them |
//! | `rules.rs` | how filters get the rules that a policy has |
//! | `overrides.rs` | overrides of a limit for single keys |
//! | `top.rs` | the most denied subjects |

mod answer;
mod entries;
mod field_error;
mod filter_info;
mod holds;
mod integer;
mod leases;
mod overrides;
mod problem;
mod request;
mod rules;
mod top;

pub use answer::{
    Answer, CalendarUnit, LimitStatus, Listed, PolicyVersion, Settled, Verdict, WasReset,
    WithoutStore,
};
pub use filter_info::{DIGEST_DIGITS, FILTER_HEADER, FilterInfo, VM_HEADER, is_digits};
pub use holds::{HOLDS_PATH, HoldList, ListedHold, MAX_LISTED_HOLDS, slots_last_ms};
pub use leases::{LEASES_HEADER, LeasePart, MAX_PARTS, PartReport};
pub use overrides::{
    Author, ListedOverride, MAX_BY_BYTES, MAX_REASON_BYTES, OverrideList, OverrideSource,
    OverrideState, OverrideTerms, OverrideWasRemoved, OverrideWasSet, OverrideWindow,
    RemoveOverride, SUBJECT_BYTES, SetOverride, Whom, check_key, read_remove_override,
    read_set_override,
};
pub use problem::{Code, PROBLEM_JSON, Problem, ProblemDetails, UNAVAILABLE_RETRY_S};
pub use request::{
    BODY, CachedDenials, Check, DECISIONS, Decision, RESETS, Read, Request, Reset, Resets, SETTLES,
    Settle, Settles, UNKNOWN_HEADER, part_of, read_decisions, read_resets, read_settles,
};
pub use rules::{
    FILTERS_PATH, FilterList, FilterState, MAX_EARLIER, RULES_HEADER, RULES_PATH, RULES_WAIT_S,
    RulesReport, RulesState, list_of, lists,
};
pub use top::{Top, TopDenied, TopLimit, TopNearest, TopReserves};

/// The OpenAPI document; on both ports.
pub const OPENAPI_PATH: &str = "/v1/openapi.json";
/// Takes decisions.
pub const DECIDE_PATH: &str = "/v1/decide";

/// Takes what units that were taken have cost in fact.
pub const SETTLE_PATH: &str = "/v1/settle";
/// Restores the whole quota of a limit for a key; on the admin port.
pub const RESET_PATH: &str = "/v1/reset";
/// Shows the remaining units of keys, which are named by their digits; on the admin port.
pub const PEEK_PATH: &str = "/v1/peek";
/// The most denied subjects; on the admin port.
pub const TOP_PATH: &str = "/v1/top";

/// Overrides of limits for single keys; on the admin port.
pub const OVERRIDES_PATH: &str = "/v1/overrides";

/// Most bytes of a request's body.
pub const MAX_BODY_BYTES: usize = 1 << 20;
/// Most decisions, settles or resets in one request.
pub const MAX_ENTRIES: usize = 1024;
/// Longest time for which a decision waits for a slot, in milliseconds.
pub const MAX_WAIT_MS: u64 = 1_000;
/// Most checks in one decision.
pub const MAX_CHECKS: usize = 32;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Most denials in one entry of [`Request::denied`]: hours of denials without a report. Entries with more are ignored,
/// because they would make the counters useless.
pub const MAX_DENIED_COUNT: u64 = 1_000_000_000;
/// Longest time for which a denial may be cached, in milliseconds: the largest `denial_ttl` of a policy. A longer one would
/// delay the effect of a reset by more than operators expect.
pub const MAX_HOLD_MS: u64 = 60_000;
/// Largest cost that any limit could admit; arithmetic with larger numbers in Redis would not be exact.
pub const MAX_COST: u64 = 1 << 31;
/// Longest time for which a receipt can be settled, in milliseconds: 31 days.
pub const MAX_WITHIN_MS: u64 = 31 * 86_400_000;
