//! Decisions and settlements, also those over several slots of a Redis Cluster.
//!
//! All buckets of a subject are in one slot, and what is in one slot is decided atomically, by one call of the script.
//! A decision over several subjects is split into one sub-batch per slot. They run at the same time, and if one is denied
//! (or its node does not answer), what the others took is given back, by the holds that they left. That never exceeds a limit;
//! but meanwhile another decision may be denied for units that come back.
//!
//! While a slot is being migrated, Redis answers TRYAGAIN to a call of several keys if some of them are at the other node or do
//! not exist yet, for as long as the slot is open. After the second such answer a decision is split once more, into one
//! sub-batch per key; its holds are left last, when all keys have admitted it. A settlement takes units off its hold first.
//! So a failure in between holds units for too long and never returns what was not taken. Write-backs and announcements fail
//! and are made again later.

use futures_util::future::{join, join_all};
use sluicegate_engine::script::Settled;
use sluicegate_engine::{Batch, Done, Guard, Settlements};

use super::Client;
use crate::clock::micros;
use crate::random;
use crate::store::cluster::routing::is_apart;
use crate::store::cluster::sub_batch::{SubBatch, combine, split};
use crate::store::error::{ConnectionError, StoreError};
use crate::store::redis::connection::Deadline;
use crate::store::reply::StoreReply;
use crate::store::settlements::{apart, calls, settle};
use crate::store::slots::Atomic;

impl Client {
    pub async fn decide(&self, batch: &Batch) -> StoreReply {
        let (deadline, atomic) = (self.deadline(), self.common.atomic);
        let mut groups = batch.buckets.iter().map(|one| atomic.group(&one.key));
        let first = groups.next();
        if groups.all(|group| Some(group) == first) {
            return self.decide_in_slot(batch, deadline).await;
        }
        // So long, what it gives back may be repeated.
        let lasts_us = micros(self.common.dialer.store_timeout).saturating_mul(2);
        let parts = split(batch, atomic, lasts_us, random::secret);
        let replies = parts
            .iter()
            .map(|part| self.decide_in_slot(&part.batch, deadline));
        let replies = join_all(replies).await;
        self.conclude(batch, &parts, replies, deadline).await
    }

    async fn decide_in_slot(&self, batch: &Batch, deadline: Deadline) -> StoreReply {
        let whole = self.decide_whole(batch, deadline).await;
        if !is_apart(&whole) {
            return StoreReply::whole(batch, whole);
        }
        let parts = split(batch, Atomic::Key, 0, || None);
        let decide = async |part: &SubBatch| {
            let answer = self.invoke(&part.batch, deadline).await;
            StoreReply::whole(&part.batch, answer)
        };
        let replies = join_all(parts.iter().map(decide)).await;
        self.conclude(batch, &parts, replies, deadline).await
    }

    /// Combines the answers of a batch's parts, gives back what they took for denied decisions, and leaves holds that they could
    /// not leave. A hold that is late is lost: its units cannot be given back.
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
        let left = join_all(late.map(|hold| self.invoke(hold, deadline)));
        let (calls, until) = (
            calls(&combined.to_settle, self.common.atomic),
            self.deadline(),
        );
        let settled = calls
            .iter()
            .map(|call| settle(call, move || self.settle_by(call, until)));
        let (settled, left) = join(join_all(settled), left).await;
        errors.extend(settled.into_iter().filter_map(Result::err));
        errors.extend(left.into_iter().filter_map(Result::err));
        StoreReply {
            decisions: combined.decisions,
            errors,
        }
    }

    /// Takes units off each hold first, and then returns them to its buckets: if not all of that succeeds, less is returned.
    pub(super) async fn settle_by_key(
        &self,
        settlements: &Settlements,
        deadline: Deadline,
    ) -> Result<Vec<Done>, StoreError> {
        let mut done = Vec::with_capacity(settlements.each.len());
        for one in &settlements.each {
            let spent = match &one.guard {
                Guard::None => Settled::default(),
                Guard::Spend { .. } | Guard::Settle { .. } => {
                    let spend = Settlements::one(one.guard.clone(), Vec::new(), Vec::new());
                    let each = self.invoke(&spend, deadline).await?;
                    each.into_iter().flatten().next().unwrap_or_default()
                }
                // Its bucket alone has all of it.
                Guard::Free(_) | Guard::Renew(_) => {
                    let mut alone = Settlements::default();
                    let buckets = one.entries.iter();
                    let buckets = buckets.filter_map(|entry| settlements.buckets.get(entry.bucket));
                    alone.return_to(one.guard.clone(), buckets.cloned());
                    let each = self.invoke(&alone, deadline).await?;
                    let settled = each.into_iter().flatten().next();
                    done.push(settled.unwrap_or_default().done);
                    continue;
                }
                Guard::Once { .. } => return Err(ConnectionError::Apart.into()),
            };
            if one.guard != Guard::None && spent.done == Done::Nothing {
                done.push(Done::Nothing);
                continue;
            }
            let apart = apart(settlements, one, &spent);
            let settled = apart.iter().map(|entry| self.invoke(entry, deadline));
            let settled: Result<Vec<_>, _> = join_all(settled).await.into_iter().collect();
            let settled = settled?.into_iter().flatten().flatten();
            let units = settled.map(|settled| settled.done.units()).max();
            done.push(match spent.done {
                Done::Added(_) => Done::Added(units.unwrap_or(0)),
                Done::Nothing | Done::Returned(_) => Done::Returned(units.unwrap_or(0)),
            });
        }
        Ok(done)
    }
}
