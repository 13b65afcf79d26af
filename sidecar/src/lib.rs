//! The sidecar of Sluicegate. It stands beside an Envoy, holds the policy and decides.
//!
//! Each layer uses those below it and none above.
//!
//! | layer | for |
//! |---|---|
//! | `main.rs`, `cli/` | the commands: arguments, ports, signals, exit codes |
//! | `import/`, `compare.rs` | what envoyproxy/ratelimit is configured with, and its verdicts beside ours |
//! | `trial/` | made-up requests, for `explain` and `test` |
//! | `server/` | listeners, HTTP, shutdown |
//! | `page/` | the live page: its files, and what it shows |
//! | `decide/` | a request's way to its verdicts: service, plan, denial certificates, the policy in force |
//! | `store/` | where the state is, and who shares a call to it |
//! | `telemetry/` | metrics, who is denied, what was decided, what happened |
//! | `policy/` | limits by name: their file, its checks, its reload |
//! | `clock.rs`, `json.rs`, `lock.rs`, `mask.rs`, `yaml.rs` | the clocks; merged JSON; locks; messages without passwords; YAML with the line of each field |
//!
//! `lint/` (`check-config`) stands on `policy/` alone.

pub mod clock;
pub mod compare;
pub mod decide;
pub mod import;
mod json;
pub mod lint;
mod lock;
pub mod mask;
pub mod page;
pub mod policy;
mod random;
pub mod server;
pub mod store;
pub mod telemetry;
pub mod trial;
mod yaml;

#[cfg(test)]
#[path = "../tests/table.rs"]
mod test_table;
