//! Finds mistakes in a plugin configuration and a policy before they meet a request.
//!
//! | file | for |
//! |---|---|
//! | `documents.rs` | the documents of files: Envoy files, Kubernetes objects and what is in them |
//! | `envoy_yaml.rs` | plugin configurations in a document |
//! | `plugin.rs`, `rule_sets.rs`, `rules.rs`, `findings.rs` | runs all lints on a plugin, and on a policy's rules; the findings |
//! | `limits.rs` | limits that are unknown or too small for a cost, and windows that never decide |
//! | `matching.rs` | which requests rules match: more checks than a decision may have, and conditions, costs and rules that no request meets |
//! | `keys.rs` | keys that a client can choose or omit, headers that never come |
//! | `envoy.rs`, `neighbours.rs` | the settings around the filter in Envoy's file, and the other filters |
//! | `metadata.rs` | metadata that no filter writes in time, and usage that a client can tell |
//! | `messages.rs` | how protobuf reads fields |
//! | `surroundings.rs` | the sidecar's cluster and the failure policy, in Envoy's file or in objects of a mesh |

mod documents;
mod envoy;
mod envoy_yaml;
mod findings;
mod keys;
mod limits;
mod matching;
mod messages;
mod metadata;
mod neighbours;
mod plugin;
mod rule_sets;
mod rules;
mod surroundings;

pub use documents::{Found, FoundPolicy};
pub use envoy_yaml::{Plugin, Source};
pub use findings::{Finding, Severity};
pub(crate) use messages::{any, is_called, snake_case};
pub use plugin::lint;
pub use rule_sets::WrittenPolicy;
