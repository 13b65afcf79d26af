//! Targets of the fuzzer: each takes arbitrary bytes and panics if they break a promise.
//!
//! `make fuzz` runs them in libFuzzer, which keeps the inputs that reach new code; `make corpus` runs what it kept, without
//! libFuzzer. A few inputs are kept because they once failed: `corpus/` says above each of them what happened.
//!
//! | file | for |
//! |---|---|
//! | `input.rs` | reads numbers, texts and choices from bytes |
//! | `corpus.rs` | the files in `corpus/` |
//! | `command.rs` | the program `fuzz` |
//! | `configuration.rs` | the filter's configuration |
//! | `rules_document.rs` | the rules that a sidecar pushes |
//! | `policy.rs` | the sidecar's policy |
//! | `keys.rs` | keys and paths: requests through a parsed rule set |
//! | `question.rs` | the wire: what the filter writes and the sidecar reads |
//! | `answer.rs` | the wire: what the sidecar writes and the filter reads, and what becomes of it |
//! | `certificates.rs`, `denials.rs` | cached denials: the table, and the filter's cache with several sidecars |
//! | `queue.rs` | the queue of callouts, with events in any order |
//! | `leases.rs` | leases in the filter |
//! | `engine.rs` | the engine: model and Rust, and with `script` also Lua |
//! | `everything.rs` | rules with every matcher, source and cost |
//! | `arguments.rs` | the script's arguments, without a codec |
//! | `replies.rs` | what Redis answers: framing, CLUSTER SLOTS, redirections, sentinels, overrides, the script |

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::OnceLock;

use sluicegate_certificates::CallTimes;
use sluicegate_engine::{Batch, Bucket, BucketSpec, Decision, Take};
use sluicegate_protocol::LimitStatus;
use sluicegate_rules::{Question, ResolvedCheck, RuleSet, Shadow, WhenUnavailable};

use input::Input;

mod answer;
mod arguments;
mod certificates;
pub mod command;
mod configuration;
pub mod corpus;
mod denials;
mod engine;
mod everything;
mod input;
mod keys;
mod leases;
mod policy;
mod question;
mod queue;
mod replies;
mod rules_document;

// What tests of other packages have already: the model of the engine, and made-up requests. By path, because those tests
// are no library, and one for all of them would compile everything that any of them needs.
#[path = "../../engine/events.rs"]
mod events;
#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../../engine/lua.rs"]
mod lua;
#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../../engine/model.rs"]
mod model;
#[path = "../../engine/model_calendar.rs"]
mod model_calendar;
#[path = "../../engine/model_returns.rs"]
mod model_returns;
#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../../engine/replay.rs"]
mod replay;
#[path = "../../engine/settled.rs"]
mod settled;
#[path = "../../../filter/rules/tests/support/mod.rs"]
mod support;

/// Something to fuzz: its name, which is that of its corpus too, and what panics if these bytes break a promise.
pub type Target = (&'static str, fn(&[u8]));

/// All targets. `tests/fuzz/run` names them too.
pub const TARGETS: [Target; 14] = [
    ("configuration", configuration::run),
    ("rules_document", rules_document::run),
    ("policy", policy::run),
    ("keys", keys::run),
    ("question", question::run),
    ("answer", answer::run),
    ("certificates", certificates::run),
    ("denials", denials::run),
    ("queue", queue::run),
    ("leases", leases::run),
    ("engine", engine::without_lua),
    ("script", engine::with_lua),
    ("arguments", arguments::run),
    ("replies", replies::run),
];

/// Rules of which each has a name, these checks and more fields.
fn rules_of<const N: usize>(checks: &str, rules: [(&str, &str); N]) -> Rc<RuleSet> {
    let rule = |(name, more)| format!(r#"{{"name":"{name}","checks":[{checks}]{more}}}"#);
    support::rules(&rules.map(rule).join(",")).set
}

/// A question that is refused without a verdict.
fn question_of(rules: Rc<RuleSet>, checks: Vec<ResolvedCheck>, shadows: Vec<Shadow>) -> Question {
    Question {
        rules,
        checks,
        shadows,
        when_unavailable: WhenUnavailable::Deny,
        grpc: false,
        traceparent: None,
    }
}

/// Any status: of this check, with texts of up to `longest` characters.
fn status_of(check: usize, longest: usize, input: &mut Input<'_>) -> LimitStatus<'static> {
    LimitStatus {
        check,
        limit: input.text(longest).into(),
        quota: input.number(),
        window_ms: input.number(),
        remaining: input.number(),
        over: 0,
        reset_ms: input.number(),
        retry_after_ms: input.number(),
        until_changed: false,
        at_once: false,
        calendar: None,
        hold_ms: input.number(),
        unknown: input.list(2, |input| usize::from(input.byte())),
        receipt: input.list(3, |input| input.text(longest)),
    }
}

const fn times(sent_us: u64, answered_us: u64) -> CallTimes {
    CallTimes {
        sent_us,
        answered_us,
    }
}

/// A batch of the same decision, so many times: it takes so many units of each bucket.
fn batch(buckets: Vec<Bucket>, cost: impl Fn(&BucketSpec) -> u64, decisions: usize) -> Batch {
    let takes = buckets.iter().enumerate();
    let takes = takes.map(|(bucket, of)| Take {
        bucket,
        cost: cost(&of.spec),
    });
    let decision = Decision {
        takes: takes.collect(),
        peek: false,
        asks: false,
        holds: Vec::new(),
        slots: Vec::new(),
    };
    Batch {
        buckets,
        decisions: vec![decision; decisions],
    }
}

thread_local! {
    /// A rule with one check, and one that is a shadow.
    static REAL_AND_TRIAL: Rc<RuleSet> = {
        let rules = [
            ("real", r#","when_unavailable":"deny""#),
            ("trial", r#","shadow":true"#),
        ];
        rules_of(r#"{"limit":"l","key":[{"constant":"c"}]}"#, rules)
    };
}

static REDIS: OnceLock<String> = OnceLock::new();

/// Names the Redis of the targets that need one. They delete its keys.
pub fn use_redis(url: String) {
    // The first one stays.
    let _ = REDIS.set(url);
}

/// Calls with the script on that Redis.
fn with_script<T>(call: impl FnOnce(&mut lua::Lua) -> T) -> T {
    thread_local! {
        static LUA: RefCell<Option<lua::Lua>> = const { RefCell::new(None) };
    }
    LUA.with_borrow_mut(|lua| {
        let lua = lua.get_or_insert_with(|| {
            let url = REDIS.get().expect("this target needs a Redis: use_redis");
            lua::Lua::at(url.clone(), ())
        });
        call(lua)
    })
}
