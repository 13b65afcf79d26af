//! A decision that nobody has decided yet.

use sluicegate_engine::{
    Batch, BatchBuilder, Bucket, Decision, MAX_REQUEST_WEIGHT, Outcome, Receipt, Take, bucket_key,
    receipt_key,
};
use sluicegate_protocol::{
    Code, DECISIONS, Decision as Asked, LimitStatus, Problem, Verdict, WithoutStore,
};

use super::peek;
use crate::decide::effective::{EffectiveCheck, EffectiveChecks};
use crate::decide::leases::{MARKER_QUOTA, Reservation};
use crate::decide::{receipts, status};
use crate::policy::Limit;
use crate::telemetry::verdict::{Decided, Source};

/// A decision that nobody has decided yet.
#[derive(Debug)]
pub(super) struct Open<'a> {
    /// Its index in the request.
    index: usize,
    pub asked: &'a Asked<'a>,
    /// What its checks want, without those that leases decide.
    pub all: EffectiveChecks<'a>,
    /// What was taken from leases, by the index of the check. Dropped, it is put back.
    pub leased: Vec<(usize, Reservation)>,
    /// Of checks that were denied before: which they are, the markers of their leases, and the decision of the batch that peeks
    /// at each.
    pub peeks: Vec<(usize, Bucket, usize)>,
    /// Its index in the batch.
    pub batch_index: usize,
    /// For each take of its decision in the batch: which of its checks.
    takes: Vec<usize>,
    /// The receipt secrets of the checks that were not merged into another, with their indexes.
    secrets: Vec<(usize, u128)>,
}

/// A decision that cannot be made.
pub(super) fn refused(problem: Problem) -> Decided {
    Decided::by(Source::Request, problem.into())
}

impl<'a> Open<'a> {
    pub fn new(index: usize, asked: &'a Asked<'a>) -> Self {
        Self {
            index,
            asked,
            all: EffectiveChecks::default(),
            leased: Vec::new(),
            peeks: Vec::new(),
            batch_index: usize::MAX,
            takes: Vec::new(),
            secrets: Vec::new(),
        }
    }

    /// The problem, with its place in the request.
    pub fn in_request(&self, problem: Problem) -> Problem {
        problem.of_entry(DECISIONS, self.index)
    }

    /// Adds it to the store's batch.
    ///
    /// # Errors
    /// With it, the request would be too large.
    pub fn add_to(&mut self, builder: &mut BatchBuilder) -> Result<(), Problem> {
        let checks = &self.all.checks;
        let visits: usize = checks.iter().map(|check| check.windows().len()).sum();
        let weight = builder.weight() + visits;
        if weight > MAX_REQUEST_WEIGHT {
            let problem = Problem::new(
                Code::RequestTooLarge,
                format_args!(
                    "`decisions`: with this one the request asks for {weight} buckets (its checks, each counted once for each window of its limit), and a request may ask for {MAX_REQUEST_WEIGHT}: send the decisions in several requests"
                ),
            );
            return Err(self.in_request(problem));
        }
        let mut takes = Vec::with_capacity(visits);
        for (number, check) in checks.iter().enumerate() {
            for spec in check.windows() {
                let bucket = builder.bucket(bucket_key(check.key, &check.limit.name, &spec), spec);
                takes.push(Take {
                    bucket,
                    cost: check.cost,
                });
                self.takes.push(number);
            }
        }
        let receipts = self.new_receipts();
        self.batch_index = builder.push(Decision {
            takes,
            peek: self.asked.peek,
            receipts,
        });
        Ok(())
    }

    /// Adds the peeks at the markers of its leases.
    pub fn add_peeks_to(&mut self, builder: &mut BatchBuilder) {
        for (_, marker, batch_index) in &mut self.peeks {
            *batch_index = peek(builder, marker);
        }
    }

    /// The receipts that the store is to keep, if they are wanted: one for all windows of a check.
    fn new_receipts(&mut self) -> Vec<Receipt> {
        let mut kept = Vec::new();
        if self.all.receipts.is_empty() {
            return kept;
        }
        for check in &self.all.checks {
            if let Some(secret) = receipts::secret() {
                let key = receipt_key(check.key, &check.limit.name, secret);
                kept.push(receipts::receipt(key, check.cost, check.windows()));
                self.secrets.push((check.index, secret));
            }
        }
        // Checks that an override made unlimited took nothing, so their receipts return nothing.
        for index in &self.all.receipts {
            if !self.secrets.iter().any(|(known, _)| known == index)
                && let Some(secret) = receipts::secret()
            {
                self.secrets.push((*index, secret));
            }
        }
        kept
    }

    /// The receipts for the caller.
    pub fn receipts(&self) -> Vec<String> {
        let secret = |check: &usize| {
            let (_, secret) = self.secrets.iter().find(|(of, _)| of == check)?;
            Some(receipts::to_text(*secret))
        };
        self.all.receipts.iter().filter_map(secret).collect()
    }

    /// The check that a take is for.
    fn check_of(&self, take: usize) -> Option<&EffectiveCheck<'a>> {
        self.all.checks.get(*self.takes.get(take)?)
    }

    /// The limits that it takes from.
    pub fn limits(&self) -> impl Iterator<Item = &Limit> + Clone {
        let checks = self
            .takes
            .iter()
            .filter_map(|number| self.all.checks.get(*number));
        checks.map(|check| check.limit.as_ref())
    }

    /// The checks that leases might have decided, with the store's outcome, and whether the check decided.
    pub fn for_leases<'p>(
        &'p self,
        outcome: &'p Outcome,
    ) -> impl Iterator<Item = (EffectiveCheck<'a>, &'p Outcome, bool)> {
        let decided_by = self.check_of(outcome.decided_by).map(|check| check.index);
        let leasable = self.all.checks.iter().filter(|check| check.leasable);
        leasable.map(move |check| (*check, outcome, decided_by == Some(check.index)))
    }

    /// Whether it is known that nobody has leased units of the check that decided.
    pub fn has_nothing_leased(&self, decided: &Outcome, all: &[Option<Outcome>]) -> bool {
        let Some(check) = self.check_of(decided.decided_by) else {
            return false;
        };
        let peek = self.peeks.iter().find(|(of, ..)| *of == check.index);
        let peek = peek.and_then(|(_, _, batch_index)| all.get(*batch_index)?.as_ref());
        // Sub-batches of one request may go in any order: a lease that was granted in between would not be seen.
        peek.is_some_and(|peek| peek.remaining == MARKER_QUOTA && peek.at_us >= decided.at_us)
    }

    /// How the check that decided stands.
    pub fn status(&self, batch: &Batch, outcome: &Outcome) -> Option<LimitStatus<'static>> {
        let check = self.check_of(outcome.decided_by)?;
        let take = batch
            .decisions
            .get(self.batch_index)?
            .takes
            .get(outcome.decided_by)?;
        let spec = batch.buckets.get(take.bucket)?.spec;
        Some(status::of_outcome(check.index, check.limit, &spec, outcome))
    }

    /// The verdict. If one of the leases that decided a part has ended while the store was asked, there is none: its units must not
    /// be spent any more.
    pub fn decided(
        &self,
        admitted: bool,
        status: LimitStatus<'static>,
        source: Source,
        now_us: u64,
    ) -> Decided {
        if !admitted {
            return Decided::by(source, Verdict::Denied(status));
        }
        if !self.spend_live(now_us) {
            return self.unavailable(None, source);
        }
        let status = match tightest(&self.leased) {
            Some(leased) if leased.remaining < status.remaining => LimitStatus {
                receipt: status.receipt,
                ..leased
            },
            _ => status,
        };
        Decided::by(source, Verdict::Admitted(status))
    }

    /// No verdict.
    pub fn unavailable(&self, then: Option<WithoutStore>, source: Source) -> Decided {
        let first = self.all.checks.first();
        Decided::unavailable(then, source, first.map_or("", |check| &check.limit.name))
    }

    /// What the caller is to do without the store's outcome. If it admits, it spends what leases decided: their limits need
    /// not be among those that allow everything.
    pub fn without_store(&self, then: Option<WithoutStore>, now_us: u64) -> Option<WithoutStore> {
        if then == Some(WithoutStore::Allow) && !self.spend_live(now_us) {
            return None;
        }
        then
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
pub(super) fn spend(leased: &[(usize, Reservation)]) {
    leased.iter().for_each(|(_, held)| held.spend());
}

/// The status of the check whose lease has the least left.
pub(super) fn tightest(leased: &[(usize, Reservation)]) -> Option<LimitStatus<'static>> {
    let tightest = leased.iter().min_by_key(|(_, held)| held.remaining);
    tightest.and_then(|(check, held)| held.status(*check))
}
