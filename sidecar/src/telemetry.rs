//! What is counted and told: to Prometheus, to the live page, to whoever is called at night.
//!
//! | file | for |
//! |---|---|
//! | `metrics.rs`, `metrics/` | what Prometheus is told |
//! | `top.rs`, `subject.rs` | who is denied most and who is near a limit; how subjects are shown; pure |
//! | `history.rs` | what was decided in the last minutes; pure |
//! | `events.rs` | what has happened to this sidecar; pure |
//! | `log.rs` | the log's format, filter and writer |
//! | `failures.rs`, `repeats.rs` | store calls that failed, as few lines with a count |
//! | `labels.rs` | what labels and the log call things, an enum each |
//! | `traces.rs`, `traces/` | spans of decisions, calls and waits, for whoever collects traces |
//! | `verdict.rs` | a verdict, and what is counted of it |

pub mod events;
pub mod failures;
pub mod history;
pub mod labels;
pub mod log;
pub mod metrics;
pub mod repeats;
pub mod subject;
pub mod top;
pub mod traces;
pub mod verdict;
