//! The store that a fleet shares, in a Redis Cluster.
//!
//! All buckets of a subject are in one slot, and what is in one slot is decided atomically, by one call of the script.
//! A decision over several subjects is split into one sub-batch per slot. They run at the same time, and if one is denied
//! (or its node does not answer), what the others took is given back. That never exceeds a limit; but meanwhile another
//! decision may be denied for units that come back.
//!
//! A call is sent again only where a node's answer proves that it did nothing: MOVED, ASK, TRYAGAIN, CLUSTERDOWN.
//! After a connection broke, nobody knows whether the call ran, so it is not sent again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{Cmd, FromRedisValue};
use sluicegate_engine::script::{
    GiveBack, Reply, ReplyError, WriteBack, outcomes, returned, returned_units, written,
};
use sluicegate_engine::{Batch, Bucket, Outcome, Returns};
use tokio::time::sleep;

use super::map::{Primary, SlotCache};
use super::referral::Referral;
use super::slots::slot;
use super::sub_batch::{SubBatch, combine, split};
use crate::policy::{Endpoint, RedisStore};
use crate::store::call::{
    Announcement, Each, Listed, OVERRIDES_KEY, Request, SIDECARS_SLOT_KEY, Script,
};
use crate::store::error::{ConnectionError, StoreError};
use crate::store::health::Monitor;
use crate::store::redis::announce;
use crate::store::redis::connection::Deadline;
use crate::store::redis::node::{Common, Node};
use crate::store::reply::StoreReply;

/// Pause before a call is sent again after a redirection that could not be followed at once.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A Redis Cluster.
pub struct Cluster {
    slots: SlotCache,
    common: Arc<Common>,
    timeout: Duration,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the addresses and the credentials.
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Where a call goes.
struct Route {
    slot: u16,
    target: Arc<Primary>,
    /// The owner of the slot answered ASK: the target is for this call only.
    asking: bool,
    referrals: u32,
}

impl Cluster {
    /// Starts to connect, in the current runtime.
    pub fn open(
        store: &RedisStore,
        seeds: &[Endpoint],
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let common = Arc::new(Common::new(store, timeout, monitor));
        Self {
            slots: SlotCache::start(Arc::clone(&common), seeds.to_vec()),
            common,
            timeout,
        }
    }

    pub(in crate::store) async fn decide(&self, batch: &Batch) -> StoreReply {
        let sub_batches = split(batch);
        let deadline = Deadline::after(self.timeout);
        let answers = sub_batches
            .iter()
            .map(|sub_batch| self.decide_sub_batch(sub_batch, deadline));
        let mut errors = Vec::new();
        let answers: Vec<_> = join_all(answers)
            .await
            .into_iter()
            .map(|answer| answer.map_err(|error| errors.push(error)).ok())
            .collect();
        let broken = answers.iter().flatten().flatten();
        let broken = broken.filter_map(|result| result.err()).take(1);
        errors.extend(broken.map(StoreError::from));
        let combined = combine(batch, &sub_batches, &answers);
        if let Err(error) = self.give_back(&combined.to_give_back).await {
            errors.push(error);
        }
        StoreReply {
            decisions: combined.decisions,
            errors,
        }
    }

    async fn decide_sub_batch(
        &self,
        sub_batch: &SubBatch,
        deadline: Deadline,
    ) -> Result<Each<Outcome>, StoreError> {
        let request = Request::decide(sub_batch.batch());
        self.invoke(&request, deadline, |reply| {
            outcomes(sub_batch.batch(), reply)
        })
        .await
    }

    async fn give_back(&self, returns: &[GiveBack<'_>]) -> Result<Vec<u64>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let one = async |one: &[GiveBack<'_>]| {
            let request = Request::give_back(one);
            self.invoke(&request, deadline, |reply| returned(one, reply))
                .await
        };
        let units = join_all(returns.chunks(1).map(one)).await;
        let units = units.into_iter().collect::<Result<Vec<_>, _>>()?;
        let units = units.into_iter().flatten();
        units.map(|units| units.map_err(StoreError::from)).collect()
    }

    pub(in crate::store) async fn return_units(
        &self,
        returns: &Returns,
    ) -> Result<Vec<u64>, StoreError> {
        let request = Request::return_units(returns);
        let read = |reply: &[u8]| returned_units(returns, reply);
        let deadline = Deadline::after(self.timeout);
        let each = self.invoke(&request, deadline, read).await?;
        // A key that cannot be read holds no units to return.
        Ok(each.into_iter().map(Result::unwrap_or_default).collect())
    }

    /// How often a node's clock was found to have stepped.
    pub(in crate::store) fn clock_steps(&self) -> u64 {
        self.common.clock_steps.load(Ordering::Relaxed)
    }

    pub(in crate::store) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let one = async |key: &String| {
            let command = self.common.script.reset([key.as_str()]);
            let mut route = self.route(slot(key), deadline).await?;
            loop {
                let connection = route.target.node.connection(deadline).await?;
                let answer = connection
                    .query_asking(&command, route.asking, deadline)
                    .await;
                match &answer {
                    Err(error) if self.follow_referral(&mut route, error, deadline).await? => {}
                    _ => return answer,
                }
            }
        };
        join_all(keys.iter().map(one)).await.into_iter().collect()
    }

    pub(in crate::store) async fn write_back(
        &self,
        write: WriteBack<'_>,
        once: &Bucket,
    ) -> Result<(), StoreError> {
        let (deadline, writes) = (Deadline::after(self.timeout), [write]);
        let request = Request::write_back(&writes, once);
        self.invoke(&request, deadline, |reply| {
            written(&writes, Some(once), reply)
        })
        .await
        .map(drop)
    }

    pub(in crate::store) async fn announce(
        &self,
        call: &Announcement<'_>,
    ) -> Result<Listed, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let route = self.route(slot(SIDECARS_SLOT_KEY), deadline).await?;
        announce(&route.target.node, &self.common.script, call, deadline).await
    }

    /// Asks about overrides, all of which are in one slot.
    pub(in crate::store) async fn ask_of_overrides<T: FromRedisValue>(
        &self,
        command: impl FnOnce(&Script) -> Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let command = command(&self.common.script);
        let deadline = Deadline::after(within);
        let mut route = self.route(slot(OVERRIDES_KEY), deadline).await?;
        loop {
            let answer = if route.asking {
                let connection = route.target.node.connection(deadline).await?;
                connection.query_asking(&command, true, deadline).await
            } else {
                route.target.node.announce(&command, deadline).await
            };
            match &answer {
                Err(error) if self.follow_referral(&mut route, error, deadline).await? => {}
                _ => return answer,
            }
        }
    }

    /// Calls `of` with the node that owns a key; `None` where no owner is known.
    pub(in crate::store) fn with_owner<T>(&self, key: &str, of: impl Fn(&Node) -> T) -> Option<T> {
        let owner = self.slots.map().owner(slot(key)).ok()?;
        Some(of(&owner.node))
    }

    async fn invoke<T>(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
        read: impl Fn(&[u8]) -> Result<Reply<T>, ReplyError>,
    ) -> Result<Each<T>, StoreError> {
        let mut route = self.route(slot(request.first_key()), deadline).await?;
        loop {
            let node = &route.target.node;
            let answer = node.invoke(request, route.asking, deadline, &read).await;
            match &answer {
                Err(error) if self.follow_referral(&mut route, error, deadline).await? => {}
                _ => return answer,
            }
        }
    }

    async fn route(&self, slot: u16, deadline: Deadline) -> Result<Route, StoreError> {
        Ok(Route {
            slot,
            target: self.slots.wait_until_known(deadline).await.owner(slot)?,
            asking: false,
            referrals: 0,
        })
    }

    /// Whether an error is a redirection to another node or to a later time; changes the route accordingly. Fails when
    /// there is no time left to follow it: nothing was done.
    async fn follow_referral(
        &self,
        route: &mut Route,
        error: &StoreError,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let Some(referral) = Referral::of(error, &route.target.endpoint) else {
            return Ok(false);
        };
        route.referrals = route.referrals.saturating_add(1);
        route.asking = matches!(referral, Referral::Ask(_));
        let named = match &referral {
            Referral::Moved(to) => {
                self.slots.request_refresh();
                to.as_ref()
            }
            Referral::Ask(to) => to.as_ref(),
            Referral::Later => None,
        };
        let known = named.and_then(|named| self.slots.map().at(named));
        // Two nodes may redirect to each other for a while.
        if route.referrals > 1 || known.is_none() {
            let left = deadline.at().saturating_duration_since(Instant::now());
            if left <= AGAIN_AFTER {
                return Err(no_time_to_follow(error.clone()));
            }
            match referral {
                Referral::Later => sleep(AGAIN_AFTER).await,
                _ if known.is_some() => sleep(AGAIN_AFTER).await,
                _ => self.slots.refresh(left - AGAIN_AFTER).await,
            }
        }
        route.target = match known {
            Some(known) => known,
            None => {
                route.asking = false;
                self.slots.map().owner(route.slot)?
            }
        };
        Ok(true)
    }
}

/// The error when the deadline comes before the owner is found. Nothing was done.
fn no_time_to_follow(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused(error) => ConnectionError::Redis(error).into(),
        error => error,
    }
}
