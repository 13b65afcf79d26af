//! Errors by which a node of a Cluster points to another node or to a later time. Pure.

use redis::ErrorKind;
use redis::ServerErrorKind::{Ask, ClusterDown, Moved, TryAgain};

use super::layout::endpoint_of;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

/// A redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Referral {
    /// Use this node from now on.
    Moved(Option<Endpoint>),
    /// Use this node for this call only.
    Ask(Option<Endpoint>),
    /// The slot is being migrated, and some of the call's keys are at the other node or do not exist.
    Apart,
    /// Try again later.
    Later,
}

impl Referral {
    /// What an error of the node at `asked` refers to, if it is a redirection.
    pub fn of(error: &StoreError, asked: &Endpoint) -> Option<Self> {
        let (StoreError::Refused(error) | StoreError::Connection(ConnectionError::Redis(error))) =
            error
        else {
            return None;
        };
        let to = || {
            let (place, _) = error.redirect_node()?;
            let (host, port) = place.rsplit_once(':')?;
            endpoint_of(host, port.parse().ok()?, asked)
        };
        match error.kind() {
            ErrorKind::Server(Moved) => Some(Self::Moved(to())),
            ErrorKind::Server(Ask) => Some(Self::Ask(to())),
            ErrorKind::Server(TryAgain) => Some(Self::Apart),
            ErrorKind::Server(ClusterDown) => Some(Self::Later),
            _ => None,
        }
    }
}
