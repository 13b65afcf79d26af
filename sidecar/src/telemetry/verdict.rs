//! A verdict, and what is counted of it.

use sluicegate_protocol::Verdict;

/// Where a verdict came from; a metric's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The store, or its failing to answer.
    Store,
    /// This sidecar's share of the limit, while the store is down.
    Share,
    /// A denial certificate of this sidecar.
    Certificate,
    /// The request itself: it cannot be decided.
    Request,
}

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
