//! A verdict with the labels that it is counted under.

use sluicegate_protocol::{LimitStatus, Verdict, WithoutStore};

pub use super::labels::Source;

/// A verdict with the labels that it is counted under.
#[derive(Clone, Debug)]
pub struct Decided {
    /// Where it came from.
    pub source: Source,
    /// The verdict for the caller.
    pub verdict: Verdict<'static>,
    /// The first limit of a decision without a verdict.
    first_limit: String,
}

impl Decided {
    /// A verdict from this source.
    pub const fn by(source: Source, verdict: Verdict<'static>) -> Self {
        Self {
            source,
            verdict,
            first_limit: String::new(),
        }
    }

    /// No verdict: what the policy tells the caller to do, and the first limit that was asked for.
    pub fn unavailable(then: Option<WithoutStore>, source: Source, first_limit: &str) -> Self {
        Self {
            source,
            verdict: Verdict::Unavailable { then },
            first_limit: first_limit.to_owned(),
        }
    }

    /// The limit that it is counted under; empty if the decision names none of the policy.
    pub fn limit(&self) -> &str {
        match &self.verdict {
            Verdict::Admitted(LimitStatus { limit, .. })
            | Verdict::Denied(LimitStatus { limit, .. }) => limit,
            Verdict::Unavailable { .. } | Verdict::Error { .. } => &self.first_limit,
        }
    }
}
