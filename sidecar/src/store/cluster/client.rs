//! The store that a fleet shares, in a Redis Cluster.
//!
//! All buckets of a subject are in one slot, and what is in one slot is decided atomically, by one call of the script.
//! A decision over several subjects is split into one sub-batch per slot. They run at the same time, and if one is denied
//! (or its node does not answer), what the others took is given back. That never exceeds a limit; but meanwhile another
//! decision may be denied for units that come back.
//!
//! While a slot is being migrated, Redis answers TRYAGAIN to a call of several keys if some of them are at the other node or do
//! not exist yet, for as long as the slot is open. After the second such answer a decision is split once more, into one
//! sub-batch per key; its receipts are left last, when all keys have admitted it. A give-back takes units off its receipt first.
//! So a failure in between holds units for too long and never returns what was not taken. Write-backs and announcements fail
//! and are made again later.
//!
//! A call is sent again only where a node's answer proves that it did nothing: MOVED, ASK, TRYAGAIN, CLUSTERDOWN.
//! After a connection broke, nobody knows whether the call ran, so it is not sent again.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::{join, join_all};
use redis::{Cmd, FromRedisValue};
use sluicegate_engine::script::{
    GiveBack, Reply, ReplyError, WriteBack, outcomes, redeemed, returned, returned_units, written,
};
use sluicegate_engine::{Batch, Bucket, Outcome, Return, Returns};
use tokio::time::sleep;

use super::map::{Primary, SlotCache};
use super::referral::Referral;
use super::slots::{slot, tag};
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
    /// A node answered TRYAGAIN.
    was_apart: bool,
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
        let deadline = Deadline::after(self.timeout);
        let parts = split(batch, tag);
        let replies = parts
            .iter()
            .map(|part| self.decide_in_slot(part.batch(), deadline));
        let replies = join_all(replies).await;
        self.conclude(batch, &parts, replies, deadline).await
    }

    async fn decide_in_slot(&self, batch: &Batch, deadline: Deadline) -> StoreReply {
        let whole = self.decide_whole(batch, deadline).await;
        if !is_apart(&whole) {
            return StoreReply::whole(batch, whole);
        }
        let parts = split(batch, |key| key);
        let decide = async |part: &SubBatch| {
            let answer = self.decide_whole(part.batch(), deadline).await;
            StoreReply::whole(part.batch(), answer)
        };
        let replies = join_all(parts.iter().map(decide)).await;
        self.conclude(batch, &parts, replies, deadline).await
    }

    async fn decide_whole(
        &self,
        batch: &Batch,
        deadline: Deadline,
    ) -> Result<Each<Outcome>, StoreError> {
        let request = Request::decide(batch);
        self.invoke(&request, deadline, |reply| outcomes(batch, reply))
            .await
    }

    /// Combines the answers of a batch's parts, gives back what they took for denied decisions, and leaves receipts that they
    /// could not leave. A receipt that is late is lost: its units cannot be given back.
    async fn conclude(
        &self,
        batch: &Batch,
        parts: &[SubBatch],
        replies: Vec<StoreReply>,
        deadline: Deadline,
    ) -> StoreReply {
        let replies = replies.into_iter().map(|one| (one.decisions, one.errors));
        let (answers, errors): (Vec<_>, Vec<_>) = replies.unzip();
        let mut errors = errors.concat();
        let combined = combine(batch, parts, &answers);
        let late = combined.to_leave.iter();
        let left = join_all(late.map(|receipt| self.decide_whole(receipt, deadline)));
        let (given_back, left) = join(self.give_back(&combined.to_give_back), left).await;
        errors.extend(given_back.err());
        errors.extend(left.into_iter().filter_map(Result::err));
        StoreReply {
            decisions: combined.decisions,
            errors,
        }
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
        let whole = self.invoke(&request, deadline, read).await;
        if is_apart(&whole) {
            return self.return_by_key(returns, deadline).await;
        }
        // A key that cannot be read holds no units to return.
        let each = whole?.into_iter();
        Ok(each.map(Result::unwrap_or_default).collect())
    }

    /// Takes units off each receipt first, and then returns them to its buckets: if not all of that succeeds, less is returned.
    async fn return_by_key(
        &self,
        returns: &Returns,
        deadline: Deadline,
    ) -> Result<Vec<u64>, StoreError> {
        let mut returned = Vec::with_capacity(returns.returns.len());
        for one in &returns.returns {
            let redeem = Returns {
                buckets: Vec::new(),
                returns: vec![Return {
                    // The receipt itself.
                    buckets: vec![0],
                    ..one.clone()
                }],
            };
            let request = Request::return_units(&redeem);
            let each = self.invoke(&request, deadline, redeemed).await?;
            let (cost, times) = each.into_iter().flatten().next().unwrap_or_default();
            let last = times.last().copied().unwrap_or_default();
            let buckets = one.buckets.iter().filter(|_| cost > 0);
            let buckets = buckets.filter_map(|bucket| returns.buckets.get(*bucket));
            let times = times.into_iter().chain(iter::repeat(last));
            let to = buckets.zip(times).map(|(bucket, at_us)| GiveBack {
                bucket,
                cost,
                at_us,
            });
            let units = self.give_back(&to.collect::<Vec<_>>()).await?;
            returned.push(units.into_iter().max().unwrap_or_default());
        }
        Ok(returned)
    }

    /// How often a node's clock was found to have stepped.
    pub(in crate::store) fn clock_steps(&self) -> u64 {
        self.common.clock_steps.load(Ordering::Relaxed)
    }

    pub(in crate::store) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let one = async |key: &String| {
            let command = self.common.script.reset([key.as_str()]);
            let command = &command;
            let query = |to: Arc<Primary>, asking| async move {
                let connection = to.node.connection(deadline).await?;
                connection.query_asking(command, asking, deadline).await
            };
            self.call(slot(key), deadline, query).await
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
        let script = &self.common.script;
        let announce = |to: Arc<Primary>, asking| async move {
            announce(&to.node, script, call, asking, deadline).await
        };
        self.call(slot(SIDECARS_SLOT_KEY), deadline, announce).await
    }

    /// Asks about overrides, all of which are in one slot.
    pub(in crate::store) async fn ask_of_overrides<T: FromRedisValue>(
        &self,
        command: impl FnOnce(&Script) -> Cmd,
        within: Duration,
    ) -> Result<T, StoreError> {
        let command = &command(&self.common.script);
        let deadline = Deadline::after(within);
        let query = |to: Arc<Primary>, asking| async move {
            to.node.announce(command, asking, deadline).await
        };
        self.call(slot(OVERRIDES_KEY), deadline, query).await
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
        let read = &read;
        let invoke = |to: Arc<Primary>, asking| async move {
            let answer = to.node.invoke(request, asking, deadline, read);
            answer.await
        };
        self.call(slot(request.first_key()), deadline, invoke).await
    }

    /// Calls the owner of a slot, and follows redirections until the deadline.
    async fn call<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        slot: u16,
        deadline: Deadline,
        call: impl Fn(Arc<Primary>, bool) -> F,
    ) -> Result<T, StoreError> {
        let mut route = Route {
            slot,
            target: self.slots.wait_until_known(deadline).await.owner(slot)?,
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
            Referral::Apart if route.was_apart => return Err(ConnectionError::Apart.into()),
            Referral::Apart => {
                // From the beginning, at once: a lane of decisions waits.
                (route.was_apart, route.referrals) = (true, 0);
                route.target = self.slots.map().owner(route.slot)?;
                return Ok(true);
            }
            Referral::Later => None,
        };
        let known = named.and_then(|named| self.slots.node_at(named, route.slot));
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
        StoreError::Refused(_) => ConnectionError::Redirected.into(),
        error => error,
    }
}

/// Whether a call did nothing because its keys are not at one node.
const fn is_apart<T>(answer: &Result<T, StoreError>) -> bool {
    matches!(answer, Err(StoreError::Connection(ConnectionError::Apart)))
}
