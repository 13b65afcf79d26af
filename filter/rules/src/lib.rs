//! The filter's decisions, independent of Envoy, so that native tests and the command line use them too.
//!
//! | file | for |
//! |---|---|
//! | `config.rs`, `config/` | the plugin's configuration: schema and validation |
//! | `settings.rs` | what a configuration says of Envoy's own side |
//! | `rule.rs` | rules, ready to be matched |
//! | `evaluate.rs`, `question.rs` | which rules match a request, and which checks it asks the sidecar for |
//! | `matching_readings.rs` | the readings of the target in which a rule applies |
//! | `request.rs` | what this crate needs to know about a request |
//! | `path.rs`, `path/readings.rs`, `query.rs` | every possible reading of the target |
//! | `request_view.rs` | a request as the rules see it, parsed once |
//! | `matcher.rs`, `match_result.rs`, `template.rs` | which requests a rule applies to |
//! | `key_component.rs`, `lookup.rs`, `header.rs`, `cookies.rs`, `claims.rs`, `address.rs` | where the components of a key come from |
//! | `edges.rs` | white space and names as the coarsest reader takes them |
//! | `key.rs` | builds keys from components |
//! | `cost.rs`, `amount.rs` | the cost of a request, and numbers of units that it or its response tells |
//! | `settle.rs`, `settle/ended.rs`, `settle/hold.rs` | units that a request has reserved, and what it has used of them; slots |
//! | `facts.rs` | what the sidecar must learn of streams that have ended |
//! | `denials.rs`, `denials/unreported.rs` | the cache of denials, and reports of them to the sidecar |
//! | `leases.rs`, `leases/part.rs`, `leases/taken.rs` | units that the sidecar has lent, from which requests are admitted without a callout |
//! | `queue.rs` | which requests wait for a verdict, and when to send the next callout |
//! | `tick_clock.rs` | the time by which requests wait: without that in which Envoy's worker was busy |
//! | `updates.rs` | when to fetch the rules that the sidecar pushes, and which of them to put in force |
//! | `trace.rs` | the trace context of a request |
//! | `wire.rs` | the question to the sidecar and its answer, as JSON |
//! | `conclude.rs`, `verdict_error.rs` | what a verdict, or its absence, means for the request |
//! | `outage_log.rs` | limits the rate of log lines about missing verdicts |
//! | `reply.rs`, `reply/problem.rs` | replies to clients, and their bodies |
//! | `reply/header_fields.rs`, `reply/header_style.rs` | header fields, and which of them report a limit's status |
//! | `reply/limit_texts.rs` | the constant text of replies about one limit |
//! | `reply/details.rs` | text for Envoy's access log |
//! | `stats.rs` | the counters |

mod address;
mod amount;
mod claims;
mod conclude;
pub mod config;
mod cookies;
mod cost;
mod denials;
mod edges;
mod evaluate;
mod facts;
mod header;
mod key;
mod key_component;
mod leases;
mod lookup;
mod match_result;
mod matcher;
mod matching_readings;
mod outage_log;
mod path;
mod query;
mod question;
mod queue;
mod reply;
mod request;
mod request_view;
mod rule;
mod settings;
mod settle;
mod stats;
mod template;
mod tick_clock;
mod trace;
mod updates;
mod verdict_error;
mod wire;

pub use claims::{JWT_AUTHN, metadata, metadata_of};
pub use conclude::Conclusion;
pub use config::ConfigError;
pub use config::document::Document;
pub use config::terms::WhenUnavailable;
pub use denials::DenialCache;
pub use evaluate::{Evaluation, ExplainedReading};
pub use facts::{Fact, Facts};
pub use key::{Hasher, MISSING, SHADOW, subject};
pub use leases::{LeaseReport, Leases, Taken};
pub use outage_log::OutageLog;
pub use question::{Question, ResolvedCheck, Shadow};
pub use queue::{Batch, BatchLimits, CalloutId, CalloutQueue, Load};
pub use reply::{DETAILS_PREFIX, HeaderFields, Reply, is_sluicegate_reply, write_denial};
pub use request::{Headers, Request};
pub use rule::RuleSet;
pub use settings::{Pushed, Settings};
pub use settle::{Property, Reserved, Reserves};
pub use stats::{
    CONFIGURATION_REFUSED, CONFIGURATION_UNBUILT, Counters, ERROR_UNKNOWN_CLUSTER,
    FIXED as FIXED_COUNTERS, NO_RULES_ALLOWED, NO_RULES_DENIED, OF_RULE as COUNTERS_OF_RULE,
    OF_SETTLE as COUNTERS_OF_SETTLE, OF_UPDATES, PREFIX as COUNTERS_PREFIX, RULES_REFUSED,
    RULES_UPDATED, name_of_limit as counter_of_limit, name_of_rule as counter_of_rule,
};
pub use tick_clock::TickClock;
pub use updates::Updates;
pub use verdict_error::{VerdictError, callout_outcome};
pub use wire::{question_body, read_answer};
