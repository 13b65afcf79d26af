//! The sidecar of Sluicegate. It stands beside an Envoy, holds the policy and decides.
//!
//! | file | for |
//! |---|---|
//! | `policy.rs`, `policy/file.rs` | limits by name; their YAML and its checks |
//! | `live.rs` | the policy in force, and its replacement while requests are served |
//! | `plan.rs` | from checks to buckets, from outcomes to verdicts; pure |
//! | `denials.rs` | denial certificates: denied again without asking, while that is exact |
//! | `flight.rs`, `batcher.rs` | one store call for all that wait; the pure part and the flying |
//! | `lanes.rs` | on a Cluster, who waits with whom; pure |
//! | `store.rs`, `store/` | where the state is: in this process, in Redis, in a Redis Cluster |
//! | `split.rs` | a batch for a Cluster: into parts and together again; pure |
//! | `service.rs` | decides: reads, asks the store within its deadline, counts, answers |
//! | `http.rs` | routes: decisions and admin |
//! | `incidents.rs`, `history.rs` | what has happened, and what was decided in the last minutes; pure |
//! | `page.rs`, `page/` | the live page: its files, and what its viewers are told |
//! | `document.rs`, `review.rs`, `review/` | plugin configurations in YAML files, and what is wrong with them |
//! | `metrics.rs`, `metrics/` | what Prometheus is told |
//! | `top.rs`, `subject.rs` | who is denied most and who is near a limit; how subjects are shown; pure |
//! | `listen.rs` | addresses and Unix sockets |
//! | `server.rs` | runs it all on listeners that the caller owns |
//!
//! `main.rs` owns arguments, ports, signals and the exit code; nothing in here does.

pub mod batcher;
pub mod denials;
pub mod document;
pub mod flight;
pub mod history;
pub mod http;
pub mod incidents;
pub mod lanes;
pub mod listen;
pub mod live;
pub mod metrics;
pub mod page;
pub mod plan;
pub mod policy;
pub mod review;
pub mod server;
pub mod service;
pub mod split;
pub mod store;
pub mod subject;
#[cfg(test)]
mod test_batches;
pub mod top;
