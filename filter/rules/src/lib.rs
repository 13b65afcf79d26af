//! What the filter decides by itself, without a trace of Envoy: native tests and the CLI use it too.
//!
//! | file | for |
//! |---|---|
//! | `config.rs`, `config/` | the plugin's configuration as it is written, and its checks |
//! | `rule.rs` | rules, ready to be matched; what a request has to ask |
//! | `applies.rs` | in which readings of the target a rule applies |
//! | `request.rs` | what this crate wants to know of a request |
//! | `path.rs`, `path/readings.rs`, `query.rs` | the target in every reading that the upstream might give it |
//! | `seen.rs` | a request as all rules see it, read once |
//! | `matcher.rs`, `template.rs` | which requests a rule is for |
//! | `part.rs`, `found.rs`, `header.rs`, `cookies.rs`, `claims.rs`, `address.rs` | where the parts of a key come from |
//! | `key.rs` | from parts to a key that no other parts can give |
//! | `cost.rs` | what a request costs |
//! | `denials.rs`, `denials/unreported.rs` | cached denials, and those that the sidecar is told of later |
//! | `queue.rs` | who waits for a verdict, and when the next callout leaves |
//! | `trace.rs` | the trace that a request belongs to |
//! | `wire.rs` | the question to the sidecar and its answer |
//! | `outage_log.rs` | how often the log says that verdicts are missing |
//! | `reply.rs`, `reply/fields.rs` | what a client is told |
//! | `reply/details.rs` | what Envoy's access log is told |
//! | `stats.rs` | what is counted |

mod address;
mod applies;
mod claims;
pub mod config;
mod cookies;
mod cost;
mod denials;
mod found;
mod header;
mod key;
mod matcher;
mod outage_log;
mod part;
mod path;
mod query;
mod queue;
mod reply;
mod request;
mod rule;
mod seen;
mod stats;
mod template;
mod trace;
mod wire;

pub use claims::metadata;
pub use config::{ConfigError, Sidecar, parse};
pub use denials::Denials;
pub use outage_log::OutageLog;
pub use queue::{Batch, BatchLimits, CalloutId, CalloutQueue, Load, Submitted};
pub use reply::{DETAILS_PREFIX, Fields, OURS, Reply, is_reply_of_ours};
pub use request::{Headers, Request};
pub use rule::{Check, Evaluation, Question, Reading, Rules, Shadow, WhenUnavailable};
pub use stats::{Counters, FIXED as FIXED_COUNTERS, OF_RULE as COUNTERS_OF_RULE};
pub use wire::{Conclusion, Unusable, callout_outcome, read_answer};

impl Rules {
    /// What is counted, by name.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}
