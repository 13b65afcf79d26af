//! Store errors.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::redis::ServerErrorKind::{
    Ask, BusyLoading, ClusterDown, CrossSlot, MasterDown, Moved, NoPerm, NoScript, ReadOnly,
    TryAgain,
};
use ::redis::{ErrorKind, RedisError};
use tokio_rustls::rustls::{self, CertificateError};

use crate::lock::lock;
use crate::mask::masked;
use crate::telemetry::labels::{ConnectionCause, FailureKind};

/// Why a store gave no answer. The text contains neither keys nor the store's address: both may be secrets.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StoreError {
    /// No answer within the policy's `store_timeout`.
    #[error("no answer from the store within {0:?}")]
    Timeout(Duration),
    /// The connection broke during a call.
    #[error("the connection to Redis broke during the call: {}", redis_said(.0))]
    Cut(#[source] RedisError),
    /// Redis cannot be reached, or the connection broke before.
    #[error("cannot reach Redis: {0}")]
    Connection(#[from] ConnectionError),
    /// Redis did not accept the user and password.
    #[error("Redis refused the user and password: {}", redis_said(.0))]
    Authentication(#[source] RedisError),
    /// Redis answered with an error.
    #[error("Redis refused the script: {}", redis_said(.0))]
    Refused(#[source] RedisError),
    /// The script's answer is not a valid reply to this call.
    #[error("the script's reply cannot be read: {0}")]
    Reply(#[source] sluicegate_engine::script::ReplyError),
    /// The script's answer to a probe is not a valid reply to it, so no call is sent.
    #[error("the script's reply cannot be read: {0}")]
    ProbeReply(#[source] sluicegate_engine::script::ReplyError),
    /// Redis holds more overrides than a sidecar writes.
    #[error("Redis holds {0} overrides, and at most {max} are read", max = crate::policy::MAX_OVERRIDES)]
    TooManyOverrides(usize),
    /// A key of the decision holds a value that the script did not write. The call itself succeeded.
    #[error(transparent)]
    State(#[from] sluicegate_engine::script::BrokenState),
    /// The script ran after its deadline, and did nothing.
    #[error("the call reached Redis too late, and took nothing")]
    Late,
    /// The embedded store has reached its memory limit.
    #[error("{0}: `memory_limit` is reached: new keys are refused until others expire")]
    Full(#[from] sluicegate_engine::Full),
}

/// Why there is no connection. The text does not contain the address.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ConnectionError {
    /// No attempt has completed yet.
    #[error("not connected yet")]
    NotYet,
    /// The name has no address.
    #[error("its host name cannot be resolved: {0}")]
    Resolve(#[source] Arc<io::Error>),
    /// The connection failed.
    #[error("{0}")]
    Io(#[source] Arc<io::Error>),
    /// TLS failed.
    #[error("TLS failed: {}", without_names(.0))]
    Tls(#[source] Arc<io::Error>),
    /// A file that is needed to connect.
    #[error("the file of the policy's `store.{field}` cannot be used: {source}")]
    File {
        /// The option that names it.
        field: &'static str,
        /// What is wrong with it.
        source: Arc<io::Error>,
    },
    /// A new connection did not answer.
    #[error("no answer on a new connection within {0:?}")]
    Silent(Duration),
    /// It closed a new connection, after it had said this and nothing else.
    #[error("it closed a new connection and said: {0}")]
    Dropped(String),
    /// It closed a new connection when it got a command.
    #[error(
        "it closed a new connection and did not say why: a load balancer without a Redis behind it does so, and some proxies, \
         such as twemproxy, at commands that they do not know"
    )]
    ClosedAtOnce,
    /// A connection in use stopped answering.
    #[error("the connection stopped answering")]
    BecameSilent,
    /// It answers, but later than decisions wait: how long it took, and the policy's `store_timeout`.
    #[error(
        "Redis answers in {0:.1?}, and decisions wait for {1:?}: set `store_timeout` to at least {least:.0?}",
        least = *.0 * 2
    )]
    Slow(Duration, Duration),
    /// The peer closed it.
    #[error("the connection was closed")]
    Closed,
    /// The primary is another one now.
    #[error("another Redis is primary now")]
    Moved,
    /// A proxy in front of it is no single Redis.
    #[error(
        "a proxy spreads its keys over several Redis, and each would count by itself: use a proxy with one upstream, or \
         `redis+cluster://`"
    )]
    Sharded,
    /// It is not the primary.
    #[error("it is a replica")]
    Replica,
    /// Redis reports that it cannot serve now, or the connection failed in the library.
    #[error("{}", redis_said(.0))]
    Redis(#[source] RedisError),
    /// No sentinel knows a primary.
    #[error("no sentinel knows a primary of this name")]
    NoPrimary,
    /// The slot of a call is being migrated, and some of its keys are at the other node or do not exist.
    #[error("its slot is being migrated, and not all keys of the call are at one node")]
    Apart,
    /// Nodes of a Cluster pointed to each other for as long as there was time.
    #[error("the nodes of the Cluster redirected the call until its deadline")]
    Redirected,
    /// No known node of the Cluster owns the slot of a key.
    #[error("no node of the Cluster serves this slot")]
    NoNode,
    /// No known node of the Cluster owns this many slots.
    #[error("no node of the Cluster serves {0} of its slots")]
    Unserved(usize),
    /// No node of the Cluster reported its slots.
    #[error("no node of the Cluster reported its slots: {0}")]
    NoSlots(#[source] Arc<StoreError>),
}

/// Whether no attempt to connect has completed yet.
pub const fn is_not_yet(error: &StoreError) -> bool {
    matches!(error, StoreError::Connection(ConnectionError::NotYet))
}

/// The first bytes that came on a connection.
pub type Heard = Arc<Mutex<Vec<u8>>>;

/// How many of them are kept: one line.
pub const MAX_HEARD: usize = 1_024;

/// Why a server does not serve a connection, if that is the only thing that it has said: an error, since after answers to commands
/// there would be others, or an alert of TLS.
fn last_words(heard: &[u8]) -> Option<&str> {
    if heard.first() == Some(&0x15) {
        return Some("a TLS alert, so use `rediss://`");
    }
    let line = std::str::from_utf8(heard).ok()?.strip_prefix('-')?;
    let line = line.trim_end();
    (!line.contains('\n')).then_some(line)
}

/// Redis's error in one line, without a password and without the address to which a node of a Cluster points.
fn redis_said(error: &RedisError) -> String {
    if let ErrorKind::Server(Moved | Ask | CrossSlot) = error.kind() {
        return "it is a node of a Cluster, which serves only some keys: use `redis+cluster://`"
            .to_owned();
    }
    masked(&error.to_string().lines().collect::<Vec<_>>().join(" "))
}

/// An error of TLS without the store's host and the names in its certificate.
fn without_names(error: &io::Error) -> String {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    match inner {
        Some(rustls::Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        )) => "the certificate is for another name than that of the store's host: set `tls.server_name`".to_owned(),
        _ => error.to_string(),
    }
}

impl From<RedisError> for StoreError {
    fn from(error: RedisError) -> Self {
        match error.kind() {
            ErrorKind::AuthenticationFailed => Self::Authentication(error),
            ErrorKind::Server(BusyLoading | MasterDown | ClusterDown | TryAgain) => {
                Self::Connection(ConnectionError::Redis(error))
            }
            ErrorKind::Extension if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")) => {
                Self::Authentication(error)
            }
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::UnexpectedReturnType => {
                Self::Refused(error)
            }
            _ => Self::Cut(error),
        }
    }
}

impl StoreError {
    /// The kind, as a metric's label.
    pub const fn kind(&self) -> FailureKind {
        match self {
            Self::Timeout(_) => FailureKind::Timeout,
            Self::Cut(_) | Self::Connection(_) => FailureKind::Connection,
            Self::Authentication(_) => FailureKind::Auth,
            Self::Refused(_) => FailureKind::Refused,
            Self::Reply(_) | Self::ProbeReply(_) | Self::TooManyOverrides(_) => FailureKind::Reply,
            Self::State(_) => FailureKind::State,
            Self::Late => FailureKind::Late,
            Self::Full(_) => FailureKind::Full,
        }
    }

    /// Why the connection is replaced that this ended.
    pub(super) const fn cause(&self) -> ConnectionCause {
        match self {
            Self::Connection(
                ConnectionError::Silent(_)
                | ConnectionError::BecameSilent
                | ConnectionError::Slow(..),
            ) => ConnectionCause::Silent,
            Self::Connection(ConnectionError::Moved | ConnectionError::Replica) => {
                ConnectionCause::Moved
            }
            Self::Authentication(_) | Self::Refused(_) => ConnectionCause::Refused,
            _ => ConnectionCause::Closed,
        }
    }

    /// This error, of the first calls on a new connection, on which these bytes came first.
    pub(super) fn on_new_connection(self, heard: &Heard) -> Self {
        match self {
            Self::Timeout(within) => ConnectionError::Silent(within).into(),
            Self::Cut(error) => match last_words(&lock(heard)) {
                Some(why) => ConnectionError::Dropped(masked(why)),
                None if error.is_connection_dropped() => ConnectionError::ClosedAtOnce,
                None => ConnectionError::Redis(error),
            }
            .into(),
            other => other,
        }
    }

    /// The error of a call that is not sent because an earlier one failed with this error.
    pub(super) fn before_call(self) -> Self {
        match self {
            Self::Timeout(_) => ConnectionError::BecameSilent.into(),
            Self::Cut(error) => ConnectionError::Redis(error).into(),
            Self::Reply(error) => Self::ProbeReply(error),
            other => other,
        }
    }

    /// Whether Redis is there and has answered that it will not do this.
    pub(crate) const fn is_answer(&self) -> bool {
        matches!(
            self,
            Self::Refused(_)
                | Self::Connection(ConnectionError::Apart | ConnectionError::Redirected)
        )
    }

    /// Whether Redis may have carried out the call.
    pub(super) const fn is_in_doubt(&self) -> bool {
        matches!(self, Self::Timeout(_) | Self::Cut(_) | Self::Reply(_))
    }

    /// Whether Redis refuses to run the script for now, for example because it is out of memory. Excludes redirections to
    /// another node, and a missing script.
    pub(super) fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused(error)
            if !matches!(error.kind(), ErrorKind::Server(NoScript | Moved | Ask)))
    }

    /// Whether Redis may have refused a call for its keys, before it ran the script: as a node of a Cluster, by its ACL, or as a
    /// proxy. What the script itself finds of a key is that key's alone, and a client may have chosen the key.
    pub(super) fn may_be_for_keys(&self) -> bool {
        matches!(self, Self::Refused(error) if error.kind() != ErrorKind::Server(NoScript)
            && !error.to_string().contains("user_script"))
    }

    /// Whether a node of a Cluster answers that the slot has moved or is on its way.
    pub(super) fn is_elsewhere(&self) -> bool {
        matches!(self, Self::Refused(error) | Self::Connection(ConnectionError::Redis(error))
            if matches!(error.kind(), ErrorKind::Server(Moved | Ask | TryAgain)))
    }

    /// Whether its connection is useless from now on: it broke, or its Redis will never run the script for us.
    pub(super) fn ends_connection(&self) -> bool {
        match self {
            // The nodes of a Cluster may first have to agree on a new primary.
            Self::Connection(ConnectionError::Redis(error)) => {
                !matches!(error.kind(), ErrorKind::Server(TryAgain | ClusterDown))
            }
            Self::Cut(_) | Self::Connection(_) | Self::Authentication(_) => true,
            // Redis 6 wraps an error inside a script in another one.
            Self::Refused(error) => {
                matches!(error.kind(), ErrorKind::Server(ReadOnly | NoPerm))
                    || (error.detail()).is_some_and(|detail| detail.contains("-READONLY "))
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluicegate_engine::Full;
    use sluicegate_engine::script::{BrokenState, ReplyError};

    /// TLS tells of a missing client certificate with the first answer, as an error of the stream.
    #[test]
    fn what_ends_a_new_connection_is_told_unless_it_was_only_closed() {
        let of = |kind, why, said: &[u8]| {
            let error = RedisError::from(io::Error::new(kind, why));
            let heard = Heard::default();
            lock(&heard).extend(said);
            StoreError::from(error)
                .on_new_connection(&heard)
                .to_string()
        };
        let alert = of(
            io::ErrorKind::InvalidData,
            "alert: CertificateRequired",
            b"",
        );
        assert!(alert.contains("CertificateRequired"), "{alert}");
        let closed = of(io::ErrorKind::BrokenPipe, "broken pipe", b"");
        assert!(closed.contains("such as twemproxy"), "{closed}");
        let cut = |said| of(io::ErrorKind::ConnectionReset, "reset", said);
        let full = cut(b"-ERR max number of clients reached\r\n");
        assert!(
            full.ends_with("and said: ERR max number of clients reached"),
            "{full}"
        );
        let tls = cut(b"\x15\x03\x03\0\x02\x02\x46");
        assert!(tls.contains("use `rediss://`"), "{tls}");
        // Answers to commands, before a proxy closed at the next one.
        let answered = cut(b"-ERR unknown subcommand\r\n-ERR unknown subcommand\r\n");
        assert!(answered.contains("such as twemproxy"), "{answered}");
    }

    /// A share does not decide while the store may have carried out the call: of a call that was never sent, it has not.
    #[test]
    fn a_call_that_was_not_sent_is_not_in_doubt() {
        let redis = || RedisError::from((ErrorKind::Io, "broken pipe"));
        let reply = ReplyError("sent 1 byte".to_owned());
        let errors = [
            StoreError::Timeout(Duration::ZERO),
            StoreError::Cut(redis()),
            StoreError::Connection(ConnectionError::NotYet),
            StoreError::Authentication(redis()),
            StoreError::Refused(redis()),
            StoreError::Reply(reply.clone()),
            StoreError::ProbeReply(reply),
            StoreError::State(BrokenState),
            StoreError::Late,
            StoreError::Full(Full),
        ];
        for error in errors {
            let before = error.clone().before_call();
            assert!(!before.is_in_doubt(), "{error:?}");
            if !matches!(error, StoreError::Timeout(_)) {
                assert_eq!(before.kind(), error.kind());
            }
            if let StoreError::Reply(_) = error {
                assert_eq!(before.to_string(), error.to_string(), "/readyz shows it");
            }
        }
    }
}
