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
use std::sync::{LazyLock, OnceLock};

use sluicegate_rules::Rules;

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
#[allow(dead_code, reason = "the tests of the engine use the rest")]
#[path = "../../engine/replay.rs"]
mod replay;
#[path = "../../../filter/rules/tests/support/mod.rs"]
mod support;

/// Something to fuzz.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its corpus, too.
    pub name: &'static str,
    /// Panics if these bytes break a promise.
    pub run: fn(&[u8]),
}

const fn target(name: &'static str, run: fn(&[u8])) -> Target {
    Target { name, run }
}

/// All targets. `tests/fuzz/run` names them too.
pub const TARGETS: [Target; 13] = [
    target("configuration", configuration::run),
    target("policy", policy::run),
    target("keys", keys::run),
    target("question", question::run),
    target("answer", answer::run),
    target("certificates", certificates::run),
    target("denials", denials::run),
    target("queue", queue::run),
    target("leases", leases::run),
    target("engine", engine::without_lua),
    target("script", engine::with_lua),
    target("arguments", arguments::run),
    target("replies", replies::run),
];

/// A rule with one check, and one that is a shadow.
static REAL_AND_TRIAL: LazyLock<Rules> = LazyLock::new(|| {
    let rule = |name: &str, more: &str| {
        format!(
            r#"{{"name":"{name}","checks":[{{"limit":"l","key":[{{"constant":"c"}}]}}]{more}}}"#
        )
    };
    let real = rule("real", r#","when_unavailable":"deny""#);
    support::rules(&[real, rule("trial", r#","shadow":true"#)].join(","))
});

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
