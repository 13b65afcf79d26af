//! Finds the node for a call, and follows a Cluster's redirections.
//!
//! A call is sent again only where a node's answer proves that it did nothing: MOVED, ASK, TRYAGAIN, CLUSTERDOWN.
//! After a connection broke, nobody knows whether the call ran, so it is not sent again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use super::map::SlotCache;
use super::referral::Referral;
use crate::store::error::{ConnectionError, StoreError};
use crate::store::redis::connection::Deadline;
use crate::store::redis::node::Node;

/// Pause before a call is sent again after a redirection that could not be followed at once.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// Where a call goes.
struct Route {
    slot: u16,
    target: Arc<Node>,
    /// The owner of the slot answered ASK: the target is for this call only.
    asking: bool,
    referrals: u32,
    /// A node answered TRYAGAIN.
    was_apart: bool,
}

impl SlotCache {
    /// Calls the owner of a slot, and follows redirections until the deadline.
    pub async fn call<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        slot: u16,
        deadline: Deadline,
        call: impl Fn(Arc<Node>, bool) -> F,
    ) -> Result<T, StoreError> {
        let mut route = Route {
            slot,
            target: self.wait_until_known(deadline).await.owner(slot)?,
            asking: false,
            referrals: 0,
            was_apart: false,
        };
        loop {
            let answer = call(Arc::clone(&route.target), route.asking).await;
            match &answer {
                Err(error) if self.follow_referral(&mut route, error, deadline).await? => {}
                _ => return answer,
            }
        }
    }

    /// Whether an error is a redirection to another node or to a later time; changes the route accordingly. Fails when
    /// there is no time left to follow it, or if the keys were apart before: nothing was done.
    async fn follow_referral(
        &self,
        route: &mut Route,
        error: &StoreError,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let Some(referral) = self.referral(error, &route.target.pool.endpoint) else {
            return Ok(false);
        };
        route.referrals = route.referrals.saturating_add(1);
        route.asking = matches!(referral, Referral::Ask(_));
        let named = match &referral {
            Referral::Moved(to) => {
                self.request_refresh();
                to.as_ref()
            }
            Referral::Ask(to) => to.as_ref(),
            Referral::Apart if route.was_apart => return Err(ConnectionError::Apart.into()),
            Referral::Apart => {
                // From the beginning, at once: a lane of decisions waits.
                (route.was_apart, route.referrals) = (true, 0);
                route.target = self.map().owner(route.slot)?;
                return Ok(true);
            }
            Referral::Later => None,
        };
        let known = named.and_then(|named| self.node_at(named, route.slot));
        // Two nodes may redirect to each other for a while.
        if route.referrals > 1 || known.is_none() {
            let left = deadline.at.saturating_duration_since(Instant::now());
            if left <= AGAIN_AFTER {
                // Nothing was done.
                return Err(match error {
                    StoreError::Refused(_) => ConnectionError::Redirected.into(),
                    error => error.clone(),
                });
            }
            match referral {
                Referral::Later => sleep(AGAIN_AFTER).await,
                _ if known.is_some() => sleep(AGAIN_AFTER).await,
                _ => self.refresh(left - AGAIN_AFTER).await,
            }
        }
        route.asking &= known.is_some();
        route.target = known.map_or_else(|| self.map().owner(route.slot), Ok)?;
        Ok(true)
    }
}

/// Whether a call did nothing because its keys are not at one node.
pub const fn is_apart<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Connection(ConnectionError::Apart)))
}
