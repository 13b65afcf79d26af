//! The part of decisions that leases decide: their verdicts, and what their limits' leases learn from the store. Pure.

use std::sync::Arc;

use sluicegate_engine::Outcome;
use sluicegate_protocol::{Decision as Asked, LimitStatus, Problem, Verdict, WithoutStore};

use super::{Entry, Plan, Planned};
use crate::decide::leases::{Held, Leased, Wanted};
use crate::policy::Limit;

impl Planned {
    /// The verdict of a decision of which leases decided a part. If one of them has ended while the store was asked, there is
    /// none: its units must not be spent any more.
    pub(super) fn with_leases<'a>(
        &'a self,
        verdict: (&'a str, Verdict<'a>),
        now_us: u64,
    ) -> Option<(&'a str, Verdict<'a>)> {
        let (_, Verdict::Admitted(status)) = &verdict else {
            return Some(verdict);
        };
        if !self.spend_live(now_us) {
            return None;
        }
        match tightest(&self.leased) {
            Some((limit, leased)) if leased.remaining < status.remaining => {
                let receipt = status.receipt.clone();
                let status = LimitStatus { receipt, ..leased };
                Some((limit, Verdict::Admitted(status)))
            }
            _ => Some(verdict),
        }
    }

    /// What the caller is to do without the store's outcome. If it admits, it spends what leases decided: their limits need
    /// not be among those that allow everything.
    pub(super) fn without_store(
        &self,
        say: Option<WithoutStore>,
        now_us: u64,
    ) -> Option<WithoutStore> {
        if say == Some(WithoutStore::Allow) && !self.spend_live(now_us) {
            return None;
        }
        say
    }

    /// Spends what leases decided; `false` if one of them has ended while the store was asked.
    fn spend_live(&self, now_us: u64) -> bool {
        let are_live = self.leased.iter().all(|(_, held)| held.is_live(now_us));
        if are_live {
            spend(&self.leased);
        }
        are_live
    }
}

/// Spends the units of an admitted decision.
pub(super) fn spend(leased: &[(usize, Held)]) {
    leased.iter().for_each(|(_, held)| held.spend());
}

/// The limit and the status of the check of which a lease has the least left.
pub(super) fn tightest(leased: &[(usize, Held)]) -> Option<(&str, LimitStatus<'_>)> {
    let (check, held) = leased
        .iter()
        .min_by_key(|(_, held)| held.leased.remaining)?;
    let status = leased_status(*check, held.limit(), held.leased);
    Some((held.limit().name.as_str(), status))
}

/// The status of a check that a lease decides.
pub fn leased_status(check: usize, limit: &Limit, leased: Leased) -> LimitStatus<'_> {
    LimitStatus {
        check,
        limit: limit.name.as_str().into(),
        quota: leased.quota,
        window_ms: leased.window_ms,
        remaining: leased.remaining,
        reset_ms: leased.reset_ms,
        retry_after_ms: 0,
        hold_ms: 0,
        receipt: Vec::new(),
    }
}

impl Plan {
    /// The checks that leases might have decided and the store did, with its outcomes, and whether the check decided. `asked` as
    /// above.
    pub fn for_leases<'a>(
        &'a self,
        asked: &'a [Result<Asked<'_>, Problem>],
        outcomes: &'a [Option<Outcome>],
    ) -> impl Iterator<Item = (Wanted<'a>, &'a Outcome, bool)> {
        let planned = self.decisions.iter().zip(asked);
        let planned = planned.filter_map(|(entry, asked)| match (entry, asked) {
            (Entry::Planned(planned), Ok(asked)) => Some((planned, asked)),
            _ => None,
        });
        let answered = planned.zip(&self.batch.decisions).zip(outcomes);
        answered.flat_map(|(((planned, asked), decision), outcome)| {
            let leasable = planned.leasable.iter();
            leasable.filter_map(move |index| {
                let sources = planned.sources.iter().zip(&decision.takes);
                let of_check = |((check, _), _): &(&(usize, Arc<Limit>), _)| check == index;
                let ((_, limit), take) = sources.into_iter().find(of_check)?;
                let wanted = Wanted {
                    limit,
                    key: &asked.checks.get(*index)?.key,
                    cost: take.cost,
                };
                let outcome = outcome.as_ref()?;
                let decided_by = planned.sources.get(outcome.decided_by);
                let decided = decided_by.is_some_and(|(check, _)| check == index);
                Some((wanted, outcome, decided))
            })
        })
    }
}
