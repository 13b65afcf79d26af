//! Metrics, logs, traces and events: what Prometheus, the live page and the engineer on call see.
//!
//! | file | for |
//! |---|---|
//! | `metrics.rs`, `metrics/` | the Prometheus metrics |
//! | `top.rs`, `subject.rs` | the most denied subjects and those nearest to a limit; how subjects are shown; pure |
//! | `history.rs` | decisions of the last minutes, and since when limits deny; pure |
//! | `events.rs` | the newest events of this sidecar; pure |
//! | `recent.rs` | what callers named in the last minute: filters, unknown limits; pure |
//! | `log.rs` | the log's format, filter and writer |
//! | `failures.rs`, `throttle.rs` | failed store calls, logged as few lines with a count |
//! | `labels.rs` | the values of labels, an enum each |
//! | `traces.rs`, `traces/` | OpenTelemetry spans of decisions, store calls and waits |
//! | `verdict.rs` | a verdict with the labels that it is counted under |

pub mod audit;
pub mod events;
pub mod failures;
pub mod history;
pub mod labels;
pub mod log;
pub mod metrics;
pub mod recent;
pub mod subject;
pub mod throttle;
pub mod top;
#[cfg_attr(not(feature = "otlp"), path = "telemetry/traces/off.rs")]
pub mod traces;
pub mod verdict;
