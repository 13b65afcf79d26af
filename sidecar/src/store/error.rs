//! Why a store gave no answer, and the one place where its deadline is kept.

use std::time::Duration;

use crate::telemetry::labels::FailureKind;

/// Why a store gave no answer. Says nothing of keys or of the store's address: both may be secrets.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the policy's `store_timeout`.
    #[error("no answer from the store within {0:?}")]
    Timeout(Duration),
    /// The URL in the policy is not one of Redis.
    #[error("`store` is not a Redis URL: {}", without_detail(.0))]
    Address(#[source] ::redis::RedisError),
    /// Redis could not be reached, or the connection broke.
    #[error("cannot reach Redis: {}", without_arguments(.0))]
    Connection(#[source] ::redis::RedisError),
    /// Redis answered with an error.
    #[error("Redis refused the script: {}", without_arguments(.0))]
    Refused(#[source] ::redis::RedisError),
    /// The script answered something that is not a reply to this batch.
    #[error("the script's reply cannot be read: {0}")]
    Reply(#[source] sluicegate_engine::script::ReplyError),
    /// A key of the decision holds what the script did not write. The call itself succeeded.
    #[error(transparent)]
    State(#[from] sluicegate_engine::script::BrokenState),
    /// The script ran after the time that it was given, and did nothing.
    #[error("the call reached Redis too late, and took nothing")]
    Late,
    /// The embedded store holds as much as it may.
    #[error("{0}: `memory_limit` is reached, and what is new has no room until something expires")]
    Full(#[from] sluicegate_engine::Full),
}

/// Why a URL cannot be used; the detail is a piece of the URL.
fn without_detail(error: &::redis::RedisError) -> String {
    let said = error.to_string();
    let detail = error.detail().unwrap_or_default();
    said.strip_suffix(detail)
        .unwrap_or("it cannot be read")
        .trim_end_matches([':', ' '])
        .to_owned()
}

/// Redis's error without the arguments that Redis repeats of a command it does not know: `HELLO` and `AUTH` have the
/// password among theirs.
fn without_arguments(error: &::redis::RedisError) -> String {
    let said = error.to_string();
    match said.split_once(", with args beginning with") {
        Some((before, _)) => before.to_owned(),
        None => said,
    }
}

impl StoreError {
    /// The kind, as a metric's label.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Timeout(_) => FailureKind::Timeout,
            Self::Address(_) => FailureKind::Address,
            Self::Connection(_) => FailureKind::Connection,
            Self::Refused(_) => FailureKind::Refused,
            Self::Reply(_) => FailureKind::Reply,
            Self::State(_) => FailureKind::State,
            Self::Late => FailureKind::Late,
            Self::Full(_) => FailureKind::Full,
        }
    }
}

/// The one place where a store's deadline is kept. A call that is given up may still take in Redis what it asked for:
/// units may be lost that way until their window has passed, never gained.
pub async fn within<T>(
    deadline: Duration,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    tokio::time::timeout(deadline, call)
        .await
        .unwrap_or(Err(StoreError::Timeout(deadline)))
}
