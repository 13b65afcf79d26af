//! Parts for tests and benches that need more than `sluicegate-tests`.
//!
//! | file | for |
//! |---|---|
//! | `chart.rs` | the Helm chart, rendered |
//! | `collector.rs` | a receiver of OpenTelemetry's spans |
//! | `identity.rs` | client certificates |
//! | `prometheus.rs` | a Prometheus |
//! | `ratelimit.rs` | envoyproxy/ratelimit |
//! | `report.rs` | a bench's table, goals and file |
//! | `translated.rs` | what control planes make of the chart |

pub mod chart;
pub mod collector;
pub mod identity;
pub mod prometheus;
pub mod ratelimit;
pub mod report;
pub mod translated;

pub use sluicegate_tests::documents;
