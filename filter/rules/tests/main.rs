//! The filter's decisions from outside: a configuration, a request and the sidecar's answer go in; a question or a reply
//! comes out.
//!
//! | module | for |
//! |---|---|
//! | `support` | made-up requests and answers |
//! | `broken` | invalid configurations |
//! | `matching`, `paths` | which requests a rule applies to, and attacks through a request's target |
//! | `keys`, `evaluate` | keys, limits and costs; the checks of a question |
//! | `answers`, `access_log` | what clients and the access log get of an answer |
//! | `listed_windows` | what clients are told of all windows of a limit |
//! | `pushed` | requests before the first rules, and the set of a request |
//! | `rule_sets` | several rule sets at once |
//! | `settle` | reserves, and what the end of a stream tells |
//! | `slots` | how many at once |
//! | `upstreams`, `upstream_queries`, `readers` | rules beside models of servers |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test is meant to panic when it fails"
)]

mod access_log;
mod answers;
mod broken;
mod evaluate;
mod keys;
mod listed_windows;
mod matching;
mod paths;
mod pushed;
mod readers;
mod rule_sets;
mod settle;
mod slots;
mod support;
mod upstream_queries;
mod upstreams;
