//! Why a store gave no answer.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::telemetry::labels::FailureKind;

/// Why a store gave no answer. Says nothing of keys or of the store's address: both may be secrets.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the policy's `store_timeout`.
    #[error("no answer from the store within {0:?}")]
    Timeout(Duration),
    /// Redis cannot be reached, or the connection broke.
    #[error("cannot reach Redis: {0}")]
    Connection(#[source] ConnectionError),
    /// Redis did not accept the user and password.
    #[error("Redis refused the user and password: {}", without_arguments(.0))]
    Authentication(#[source] RedisError),
    /// Redis answered with an error.
    #[error("Redis refused the script: {}", without_arguments(.0))]
    Refused(#[source] RedisError),
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

/// Why there is no connection. Says nothing of where to.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    /// Nothing has been tried yet.
    #[error("not connected yet")]
    NotYet,
    /// The name has no address.
    #[error("its name cannot be resolved: {0}")]
    Resolve(#[source] Arc<io::Error>),
    /// No connection.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
    /// TLS was not agreed on.
    #[error("no TLS: {0}")]
    Tls(#[source] Arc<io::Error>),
    /// A file that connecting needs.
    #[error("the file of the policy's `store.{field}` cannot be used: {source}")]
    File {
        /// The option that names it.
        field: &'static str,
        /// What is wrong with it.
        source: Arc<io::Error>,
    },
    /// A new connection stayed silent.
    #[error("no answer on a new connection within {0:?}")]
    Silent(Duration),
    /// A connection in use stayed silent.
    #[error("the connection has become silent")]
    BecameSilent,
    /// The peer closed it.
    #[error("the connection was closed")]
    Closed,
    /// The primary is another one now.
    #[error("another Redis is primary now")]
    Moved,
    /// It is not the primary.
    #[error("it is a replica")]
    Replica,
    /// Redis says that it cannot serve now, or the connection failed in the library.
    #[error("{}", without_arguments(.0))]
    Redis(#[source] RedisError),
    /// No sentinel knows a primary.
    #[error("no sentinel knows a primary of this name")]
    NoPrimary,
    /// No node of the Cluster owns the slot of a key, as far as is known.
    #[error("no node of the Cluster serves this slot")]
    NoNode,
    /// No node of the Cluster has told its slots.
    #[error("no node of the Cluster tells its slots: {0}")]
    NoSlots(#[source] Arc<StoreError>),
}

/// Redis's error without the arguments that Redis repeats of a command it does not know: `HELLO` and `AUTH` have the
/// password among theirs.
fn without_arguments(error: &RedisError) -> String {
    let said = error.to_string();
    match said.split_once(", with args beginning with") {
        Some((before, _)) => before.to_owned(),
        None => said,
    }
}

impl From<ConnectionError> for StoreError {
    fn from(error: ConnectionError) -> Self {
        Self::Connection(error)
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Authentication(error),
            ErrorKind::Server(
                ServerErrorKind::BusyLoading
                | ServerErrorKind::MasterDown
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::TryAgain,
            ) => Self::Connection(ConnectionError::Redis(error)),
            ErrorKind::Extension if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                Self::Authentication(error)
            }
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
                Self::Refused(error)
            }
            _ => Self::Connection(ConnectionError::Redis(error)),
        }
    }
}

impl StoreError {
    /// The kind, as a metric's label.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Timeout(_) => FailureKind::Timeout,
            Self::Connection(_) => FailureKind::Connection,
            Self::Authentication(_) => FailureKind::Auth,
            Self::Refused(_) => FailureKind::Refused,
            Self::Reply(_) => FailureKind::Reply,
            Self::State(_) => FailureKind::State,
            Self::Late => FailureKind::Late,
            Self::Full(_) => FailureKind::Full,
        }
    }

    /// Whether the connection on which it was said is of no more use: it broke, or it leads to a Redis that will not
    /// run the script for us however often it is asked.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            Self::Timeout(_) | Self::Reply(_) | Self::State(_) | Self::Late | Self::Full(_) => {
                false
            }
            // The others of a Cluster may have to come to an agreement first.
            Self::Connection(ConnectionError::Redis(error)) => !matches!(
                error.kind(),
                ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown)
            ),
            Self::Connection(_) | Self::Authentication(_) => true,
            // Redis 6 wraps what a script was told in an error of its own.
            Self::Refused(error) => {
                matches!(
                    error.kind(),
                    ErrorKind::Server(ServerErrorKind::ReadOnly | ServerErrorKind::NoPerm)
                ) || error
                    .detail()
                    .is_some_and(|detail| detail.contains("-READONLY "))
            }
        }
    }
}
