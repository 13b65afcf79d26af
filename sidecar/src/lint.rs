//! Finds mistakes in a plugin configuration and a policy before they meet a request.
//!
//! | file | for |
//! |---|---|
//! | `envoy_yaml.rs` | plugin configurations in YAML files |
//! | `plugin.rs`, `findings.rs` | runs all lints; the findings |
//! | `limits.rs` | limits that are unknown, too small for a cost, or redundant because another is tighter |
//! | `matching.rs` | which rules cover which others; rules that are never reached |
//! | `keys.rs` | keys that a client can choose or omit |
//! | `envoy.rs` | the settings around the filter in Envoy's file |

mod envoy;
mod envoy_yaml;
mod findings;
mod keys;
mod limits;
mod matching;
mod plugin;

pub use envoy_yaml::{Plugin, plugins};
pub use findings::{Finding, Severity};
pub use plugin::lint;
