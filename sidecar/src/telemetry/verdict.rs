//! A verdict, and what is counted of it.

use sluicegate_protocol::Verdict;

pub use super::labels::Source;

/// A verdict, and what is counted of it.
#[derive(Debug)]
pub struct Told<'a> {
    /// The limit that it is counted under; empty where none could be known.
    pub limit: &'a str,
    /// Where it came from.
    pub source: Source,
    /// For the caller.
    pub verdict: Verdict<'a>,
}
