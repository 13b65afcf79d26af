//! What can be seen to be wrong with a plugin configuration and a policy before they meet a request.
//!
//! | file | for |
//! |---|---|
//! | `document.rs` | plugin configurations in YAML files |
//! | `review.rs`, `findings.rs` | all that can be found, and how it is told |
//! | `limits.rs` | limits that are unknown, too small for a cost, or never reached because another is tighter |
//! | `matching.rs` | which rules cover which others, and those that are never reached |
//! | `keys.rs` | keys that a client can choose or leave out |
//! | `envoy.rs` | what stands around the filter in Envoy's file |

mod document;
mod envoy;
mod findings;
mod keys;
mod limits;
mod matching;
mod review;

pub use document::{Plugin, plugins};
pub use findings::{Finding, Severity};
pub use review::review;
