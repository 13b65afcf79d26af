//! Decisions and give-backs over several slots of a Redis Cluster.
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

use std::iter;

use futures_util::future::{join, join_all};
use sluicegate_engine::script::{GiveBack, Redeem};
use sluicegate_engine::{Batch, Returns};

use super::Client;
use crate::store::cluster::routing::is_apart;
use crate::store::cluster::slots::tag;
use crate::store::cluster::sub_batch::{SubBatch, combine, split};
use crate::store::error::StoreError;
use crate::store::redis::connection::Deadline;
use crate::store::reply::StoreReply;

impl Client {
    pub(super) async fn decide_by_slot(&self, batch: &Batch) -> StoreReply {
        let deadline = self.deadline();
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
            let answer = self.invoke(part.batch(), deadline).await;
            StoreReply::whole(part.batch(), answer)
        };
        let replies = join_all(parts.iter().map(decide)).await;
        self.conclude(batch, &parts, replies, deadline).await
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
        let left = join_all(late.map(|receipt| self.invoke(receipt, deadline)));
        let (given_back, left) = join(self.give_back(&combined.to_give_back), left).await;
        errors.extend(given_back.err());
        errors.extend(left.into_iter().filter_map(Result::err));
        StoreReply {
            decisions: combined.decisions,
            errors,
        }
    }

    async fn give_back(&self, returns: &[GiveBack<'_>]) -> Result<Vec<u64>, StoreError> {
        let deadline = self.deadline();
        let units = returns.iter().map(|one| self.invoke(one, deadline));
        let units = join_all(units).await.into_iter();
        let units = units.collect::<Result<Vec<_>, _>>()?.into_iter().flatten();
        units.map(|units| units.map_err(StoreError::from)).collect()
    }

    /// Takes units off each receipt first, and then returns them to its buckets: if not all of that succeeds, less is returned.
    pub(super) async fn return_by_key(
        &self,
        returns: &Returns,
        deadline: Deadline,
    ) -> Result<Vec<u64>, StoreError> {
        let mut returned = Vec::with_capacity(returns.returns.len());
        for one in &returns.returns {
            let each = self.invoke(&Redeem(one), deadline).await?;
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
}
