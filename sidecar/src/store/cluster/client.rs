//! The store that a fleet shares, in a Redis Cluster.
//!
//! All buckets of a subject are in one slot, and what is in one slot is decided atomically, by one call of the script.
//! A decision over several subjects becomes a part in each of their slots. The parts are taken at the same time, and
//! if one is denied (or its node does not answer), what the others took is given back: never over, but while the parts
//! of such a decision are under way another may be denied for units that come back.
//!
//! A call is sent again only where a node's answer proves that it did nothing: MOVED, ASK, TRYAGAIN, CLUSTERDOWN.
//! After a connection broke nobody knows, and nothing is sent again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::{ErrorKind, RedisError, ServerErrorKind};
use sluicegate_engine::script::{
    GiveBack, Reply, ReplyError, WriteBack, outcomes, returned, returned_units, written,
};
use sluicegate_engine::{Batch, Bucket, Outcome, Returns};
use tokio::time::sleep;

use super::map::{Atlas, Primary, named};
use super::parts::{Part, combine, split};
use super::slots::slot;
use crate::policy::{Endpoint, RedisStore};
use crate::store::call::{Each, Request, SIDECARS_KEYS};
use crate::store::error::{ConnectionError, StoreError};
use crate::store::health::Monitor;
use crate::store::redis::live::Deadline;
use crate::store::redis::node::{Common, Node};
use crate::store::settled::Settlement;

/// Pause before a call is sent to a node that may now have what it needs.
const AGAIN_AFTER: Duration = Duration::from_millis(5);

/// A Redis Cluster.
pub struct Cluster {
    atlas: Atlas,
    common: Arc<Common>,
    timeout: Duration,
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not where it is, and not who asks.
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

/// Where a call goes.
struct Way {
    slot: u16,
    target: Arc<Primary>,
    /// The target was named by the owner of the slot, for this time only.
    asking: bool,
    referrals: u32,
}

/// What a node's refusal says to do.
enum Referral {
    /// Ask this one, from now on.
    Moved(Option<Endpoint>),
    /// Ask this one, this time only.
    Ask(Option<Endpoint>),
    /// Ask again later.
    Later,
}

impl Cluster {
    /// Begins to connect, in the current runtime.
    pub fn open(
        store: &RedisStore,
        seeds: &[Endpoint],
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let common = Arc::new(Common::new(store, timeout, monitor));
        Self {
            atlas: Atlas::start(Arc::clone(&common), seeds.to_vec()),
            common,
            timeout,
        }
    }

    pub(in crate::store) async fn decide(&self, batch: &Batch) -> Settlement {
        let parts = split(batch);
        let deadline = Deadline::after(self.timeout);
        let answers = parts.iter().map(|part| self.decide_part(part, deadline));
        let mut errors = Vec::new();
        let answers: Vec<_> = join_all(answers)
            .await
            .into_iter()
            .map(|answer| answer.map_err(|error| errors.push(error)).ok())
            .collect();
        let broken = answers.iter().flatten().flatten();
        let broken = broken.filter_map(|said| said.err()).take(1);
        errors.extend(broken.map(StoreError::from));
        let combined = combine(batch, &parts, &answers);
        if let Err(error) = self.give_back(&combined.to_give_back).await {
            errors.push(error);
        }
        Settlement {
            decisions: combined.decisions,
            errors,
        }
    }

    async fn decide_part(
        &self,
        part: &Part,
        deadline: Deadline,
    ) -> Result<Each<Outcome>, StoreError> {
        let request = Request::decide(part.batch());
        self.invoke(&request, deadline, |reply| outcomes(part.batch(), reply))
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
        // What cannot be read holds nothing that could come back.
        Ok(each.into_iter().map(Result::unwrap_or_default).collect())
    }

    /// How often a node's clock was found to be set back.
    pub(in crate::store) fn clock_steps(&self) -> u64 {
        self.common.steps.load(Ordering::Relaxed)
    }

    pub(in crate::store) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        let deadline = Deadline::after(self.timeout);
        let one = async |key: &String| {
            let command = self.common.script.reset([key.as_str()]);
            let mut way = self.way(slot(key), deadline).await?;
            loop {
                let live = way.target.node.live(deadline).await?;
                let answer = live.query_asking(&command, way.asking, deadline).await;
                match &answer {
                    Err(error) if self.referred(&mut way, error, deadline).await? => {}
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
        name: &str,
        lasts: Duration,
        leaves: bool,
    ) -> Result<(u64, u64, u64), StoreError> {
        let command = self.common.script.sidecars(name, lasts, leaves);
        let deadline = Deadline::after(self.timeout);
        let way = self.way(slot(SIDECARS_KEYS[0]), deadline).await?;
        way.target.node.ask(&command, deadline).await
    }

    /// Something of the node that owns a key; nothing where none is known.
    pub(in crate::store) fn of_owner<T>(&self, key: &str, of: impl Fn(&Node) -> T) -> Option<T> {
        let owner = self.atlas.map().owner(slot(key)).ok()?;
        Some(of(&owner.node))
    }

    /// Waits for the first attempts to connect to come to something.
    pub(in crate::store) async fn tried(&self) -> Result<(), StoreError> {
        self.atlas
            .known(Deadline::after(self.timeout))
            .await
            .owner(0)
            .map(|_| ())
    }

    async fn invoke<T>(
        &self,
        request: &Request<'_>,
        deadline: Deadline,
        read: impl Fn(&[u8]) -> Result<Reply<T>, ReplyError>,
    ) -> Result<Each<T>, StoreError> {
        let mut way = self.way(slot(request.first_key()), deadline).await?;
        loop {
            let node = &way.target.node;
            let answer = node.invoke(request, way.asking, deadline, &read).await;
            match &answer {
                Err(error) if self.referred(&mut way, error, deadline).await? => {}
                _ => return answer,
            }
        }
    }

    async fn way(&self, slot: u16, deadline: Deadline) -> Result<Way, StoreError> {
        Ok(Way {
            slot,
            target: self.atlas.known(deadline).await.owner(slot)?,
            asking: false,
            referrals: 0,
        })
    }

    /// Whether a node has refused because another one, or it at another time, is to be asked; the way is changed then.
    /// Fails when there is no time left for that: nothing was done.
    async fn referred(
        &self,
        way: &mut Way,
        error: &StoreError,
        deadline: Deadline,
    ) -> Result<bool, StoreError> {
        let Some(referral) = Referral::of(error, &way.target.endpoint) else {
            return Ok(false);
        };
        way.referrals = way.referrals.saturating_add(1);
        way.asking = matches!(referral, Referral::Ask(_));
        let named = match &referral {
            Referral::Moved(to) => {
                self.atlas.doubt();
                to.as_ref()
            }
            Referral::Ask(to) => to.as_ref(),
            Referral::Later => None,
        };
        let known = named.and_then(|named| self.atlas.map().at(named));
        // Two nodes may refer to each other for a while.
        if way.referrals > 1 || known.is_none() {
            let left = deadline.at().saturating_duration_since(Instant::now());
            if left <= AGAIN_AFTER {
                return Err(unfollowed(error.clone()));
            }
            match referral {
                Referral::Later => sleep(AGAIN_AFTER).await,
                _ if known.is_some() => sleep(AGAIN_AFTER).await,
                _ => self.atlas.ask_again(left - AGAIN_AFTER).await,
            }
        }
        way.target = match known {
            Some(known) => known,
            None => {
                way.asking = false;
                self.atlas.map().owner(way.slot)?
            }
        };
        Ok(true)
    }
}

impl Referral {
    fn of(error: &StoreError, asked: &Endpoint) -> Option<Self> {
        let to = |error: &RedisError| {
            let (host, port) = error
                .redirect_node()
                .map(|(place, _)| place)?
                .rsplit_once(':')?;
            named(host, port.parse().ok()?, asked)
        };
        match error {
            StoreError::Refused(error) => match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => Some(Self::Moved(to(error))),
                ErrorKind::Server(ServerErrorKind::Ask) => Some(Self::Ask(to(error))),
                _ => None,
            },
            StoreError::Connection(ConnectionError::Redis(error)) => match error.kind() {
                ErrorKind::Server(ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown) => {
                    Some(Self::Later)
                }
                _ => None,
            },
            _ => None,
        }
    }
}

/// The deadline came before the owner was found. Nothing was done.
fn unfollowed(error: StoreError) -> StoreError {
    match error {
        StoreError::Refused(error) => ConnectionError::Redis(error).into(),
        error => error,
    }
}
