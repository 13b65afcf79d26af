//! A verdict with the labels that it is counted under.

use sluicegate_protocol::Verdict;

pub use super::labels::Source;

/// A verdict with the labels that it is counted under.
#[derive(Debug)]
pub struct Decided<'a> {
    /// The limit that it is counted under; empty if the decision names none of the policy.
    pub limit: &'a str,
    /// Where it came from.
    pub source: Source,
    /// The verdict for the caller.
    pub verdict: Verdict<'a>,
}
