//! Why a request has no verdict.

use sluicegate_protocol::MAX_CHECKS;

use crate::stats::Counters;

/// Why a request has no verdict. For the log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictError {
    /// The sidecar did not answer in time.
    #[error("the sidecar did not answer in time")]
    Timeout,
    /// Envoy could not send the question to a sidecar.
    #[error("Envoy cannot reach the sidecar: no healthy endpoint or connection refused")]
    Unreachable,
    /// Envoy has no cluster of this name, the configuration's `sidecar.cluster`.
    #[error(
        "Envoy has no cluster `{0}`: `sidecar.cluster` must name the cluster that contains the sidecar"
    )]
    UnknownCluster(String),
    /// The queue of waiting requests is full.
    #[error("too many requests are waiting for the sidecar")]
    Full,
    /// Too many requests with the same limit and key are waiting: whatever `when_unavailable` says, this one is refused.
    #[error("too many requests of one limit and key are waiting for the sidecar")]
    SubjectFull,
    /// The sidecar answered with a status other than 200.
    #[error("the sidecar answered with status {0}")]
    Status(String),
    /// The answer's body cannot be read, or does not match the question.
    #[error("the sidecar's answer cannot be used: {0}")]
    Body(String),
    /// The sidecar's store did not answer.
    #[error("the sidecar's store did not answer in time")]
    StoreUnavailable,
    /// The sidecar cannot make this decision: its policy and this configuration do not match.
    #[error("the sidecar refused the decision: {0}")]
    Refused(String),
    /// The sidecar was not asked: the rules together have more checks than a decision allows.
    #[error(
        "one request has {checks} checks, of the rules `{rules}`, and a decision may have {MAX_CHECKS}"
    )]
    TooManyChecks {
        /// How many.
        checks: usize,
        /// Names, joined by "`, `".
        rules: String,
    },
}

impl VerdictError {
    /// Its counter, and one word from a fixed set for the access log: never text from an answer.
    pub(crate) const fn kind(&self) -> (usize, &'static str) {
        match self {
            Self::Timeout => (Counters::ERROR_NO_ANSWER, "timeout"),
            Self::Unreachable => (Counters::ERROR_UNREACHABLE, "unreachable"),
            Self::UnknownCluster(_) => (Counters::ERROR_UNKNOWN_CLUSTER, "unknown_cluster"),
            Self::Full => (Counters::ERROR_FULL, "full"),
            Self::SubjectFull => (Counters::ERROR_FULL, "full_for_key"),
            Self::Status(_) => (Counters::ERROR_STATUS, "status"),
            Self::Body(_) => (Counters::ERROR_BODY, "body"),
            Self::StoreUnavailable => (Counters::ERROR_STORE, "store"),
            Self::Refused(_) | Self::TooManyChecks { .. } => (Counters::ERROR_DECISION, "decision"),
        }
    }
}

/// Interprets the status of a callout's response. Envoy itself responds with 504 when the callout times out, and with
/// 503 when the cluster has no healthy endpoint or the connection fails; the sidecar sends neither on this port.
/// Without a status (`None`), the response ended before it was complete.
///
/// # Errors
/// Why there is no body to read.
pub fn callout_outcome(status: Option<&[u8]>) -> Result<(), VerdictError> {
    match status {
        Some(b"200") => Ok(()),
        None | Some(b"504") => Err(VerdictError::Timeout),
        Some(b"503") => Err(VerdictError::Unreachable),
        Some(other) => Err(VerdictError::Status(
            String::from_utf8_lossy(other).into_owned(),
        )),
    }
}
