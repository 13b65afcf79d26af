//! The sidecar from outside: its commands, its two ports, and what stands in the repository beside it.
//!
//! | module | for |
//! |---|---|
//! | `support`, `table`, `running` | the program, the repository's files; a running sidecar and all that it outputs |
//! | `commands`, `lint` | the commands as a shell sees them; `check-config` and `explain` |
//! | `broken` | rules that are refused, and their messages |
//! | `consumers` | `sluicegate consumers`: its file, and keys as the filter hashes them |
//! | `trial` | `sluicegate test`, its example and its page; consumers of a tier |
//! | `http` | both ports over raw HTTP, with the sidecar in this process |
//! | `log`, `notify`, `secrets` | the running program: its log, its message to systemd, and that nothing has a password |
//! | `exact_denials`, `request_bound`, `requested_quota` | verdicts on the embedded store |
//! | `schema`, `openapi` | generated documents; `SLUICEGATE_WRITE=1 cargo test -p sluicegate --test sidecar -- schema` writes them |
//! | `documents`, `version`, `workflows` | the repository's documents, versions and workflows |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::string_slice,
    reason = "a test is meant to panic when it fails"
)]

mod broken;
mod commands;
mod consumers;
mod documents;
mod exact_denials;
mod http;
mod lint;
mod log;
mod notify;
mod openapi;
mod request_bound;
mod requested_quota;
mod running;
mod schema;
mod secrets;
mod support;
mod table;
mod trial;
mod version;
mod workflows;
