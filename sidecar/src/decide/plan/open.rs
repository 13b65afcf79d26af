//! A decision that is still open.

use sluicegate_engine::{
    BatchBuilder, BucketSpec, Decision, Held, Hold, MAX_REQUEST_WEIGHT, Outcome, SlotId, Take,
    TakenSlots, bucket_key, hold_key,
};
use sluicegate_protocol::{
    Code, DECISIONS, Decision as Asked, LimitStatus, Problem, Verdict, WithoutStore,
};

use crate::decide::effective::{EffectiveCheck, EffectiveChecks};
use crate::decide::leases::{Along, Reservation};
use crate::decide::receipts::Receipt;
use crate::decide::status;
use crate::random;
use crate::telemetry::verdict::{Decided, Source};

/// For how long a receipt can be settled at least, unless the decision says so.
const SETTLED_WITHIN_US: u64 = 600_000_000;

/// By whom slots are taken, and when.
#[derive(Clone, Copy, Debug, Default)]
pub struct Drawn {
    /// The time, in microseconds.
    pub at_us: u64,
    /// The sidecar's number, as far as it fits.
    pub by: u32,
}

/// A decision that is still open.
#[derive(Debug)]
pub(super) struct Open<'a> {
    /// Its index in the request.
    pub index: usize,
    pub asked: &'a Asked<'a>,
    /// Its checks, without those that leases decide.
    pub all: EffectiveChecks<'a>,
    /// The units that were taken from leases, with the index of the check. They are put back when this is dropped.
    pub leased: Vec<(usize, Reservation)>,
    /// Leases that the call takes along for checks that the store decides.
    pub along: Vec<Along>,
    /// Its index in the batch.
    pub batch_index: usize,
    /// A receipt for each check that wants one.
    receipts: Vec<Option<Receipt>>,
}

/// A decision that cannot be made.
pub(super) fn refused(problem: Problem) -> Decided {
    Decided::by(Source::Request, Verdict::Error(problem))
}

impl<'a> Open<'a> {
    pub fn new(index: usize, asked: &'a Asked<'a>) -> Self {
        Self {
            index,
            asked,
            all: EffectiveChecks::default(),
            leased: Vec::new(),
            along: Vec::new(),
            batch_index: usize::MAX,
            receipts: Vec::new(),
        }
    }

    /// The answer to this decision if it cannot be made.
    pub fn refused(&self, problem: Problem) -> Decided {
        refused(problem.of_entry(DECISIONS, self.index))
    }

    /// Adds it to the store's batch, unless it is decided by that: with it, the request would be too large.
    pub fn add_to(&mut self, builder: &mut BatchBuilder) -> Option<Decided> {
        let weight = builder.weight() + self.by_take().count();
        if weight > MAX_REQUEST_WEIGHT {
            return Some(self.refused(Problem::new(
                Code::RequestTooLarge,
                format_args!(
                    "`decisions`: with this one the request asks for {weight} buckets (its checks, each counted once for each window of its limit), and a request may ask for {MAX_REQUEST_WEIGHT}: send the decisions in several requests"
                ),
            )));
        }
        let mut takes = Vec::with_capacity(weight - builder.weight());
        let (mut holds, mut slots) = (Vec::new(), Vec::new());
        for check in &self.all.checks {
            let first = takes.len();
            for spec in check.windows() {
                let bucket = builder.bucket(bucket_key(check.key, &check.limit.name, &spec), spec);
                takes.push(Take {
                    bucket,
                    cost: check.cost,
                });
            }
            // One for all windows of a check.
            match self.receipt(check.index) {
                None => {}
                Some(Receipt::Slots(id)) => {
                    let buckets = takes.iter().skip(first);
                    slots.extend(buckets.map(|take: &Take| TakenSlots {
                        bucket: take.bucket,
                        id,
                    }));
                }
                Some(Receipt::Hold(secret)) => {
                    let held_for = check.windows().map(|spec| spec.held_for_us(check.cost));
                    let buckets = takes.iter().skip(first);
                    let buckets =
                        buckets.filter_map(|take: &Take| builder.batch().buckets.get(take.bucket));
                    holds.push(Hold {
                        key: hold_key(check.key, &check.limit.name, secret),
                        units: check.cost,
                        lasts_us: check
                            .within_us
                            .unwrap_or_else(|| held_for.max().unwrap_or(0).max(SETTLED_WITHIN_US)),
                        of: buckets.map(Held::of).collect(),
                        is_receipt: true,
                    });
                }
            }
        }
        self.batch_index = builder.push(Decision {
            takes,
            peek: self.asked.peek,
            asks: self
                .all
                .checks
                .iter()
                .any(|check| check.cost == 0 && self.is_settled(check.index)),
            holds,
            slots,
        });
        None
    }

    /// Draws the receipts that are wanted. Checks that an override made unlimited take nothing, so they have none.
    pub fn draw_receipts(&mut self, drawn: Drawn) {
        // Most decisions have none.
        let mut checks = self.all.checks.iter();
        let any = checks.any(|check| {
            check.limit.expire_us().is_some() || check.within_us.is_some() || self.asked.receipt
        });
        if self.asked.peek || !any {
            return;
        }
        let checks = 0..self.asked.checks.len();
        let draw = |index| {
            let check = self.all.checks.iter().find(|check| check.index == index)?;
            match check.limit.expire_us() {
                None if self.is_settled(index) => random::secret().map(Receipt::Hold),
                Some(lasts_us) if check.cost > 0 => {
                    let Drawn { at_us, by } = drawn;
                    let secret = random::secret()?;
                    let id = SlotId::new(check.cost, at_us, by, lasts_us, secret);
                    Some(Receipt::Slots(id))
                }
                _ => None,
            }
        };
        self.receipts = checks.map(draw).collect();
    }

    /// Whether a check that is decided is one whose units will be settled.
    fn is_settled(&self, check: usize) -> bool {
        let mut of = self.all.checks.iter().filter(|of| of.index == check);
        of.any(|of| {
            let is_of_slots = of.limit.expire_us().is_some();
            !is_of_slots && (self.asked.receipt || of.within_us.is_some())
        })
    }

    /// The receipt of a check.
    pub fn receipt(&self, check: usize) -> Option<Receipt> {
        self.receipts.get(check).copied()?
    }

    /// The receipts for the caller: a text for each check, empty for those that have none; nothing if none was wanted.
    pub fn receipts(&self) -> Vec<String> {
        let mut checks = self.asked.checks.iter();
        let is_wanted = checks.any(|check| self.asked.settles(check));
        if self.asked.peek || !(is_wanted || self.receipts.iter().any(Option::is_some)) {
            return Vec::new();
        }
        let merged = self.all.merged.iter();
        let receipts = merged.map(|check| self.receipt(*check));
        receipts
            .map(|receipt| receipt.map_or_else(String::new, Receipt::to_text))
            .collect()
    }

    /// Those of slots alone.
    pub fn receipts_of_slots(&mut self) -> Vec<String> {
        let is_hold = |receipt: &mut Option<Receipt>| matches!(receipt, Some(Receipt::Hold(_)));
        self.receipts
            .iter_mut()
            .filter_map(|receipt| is_hold(receipt).then_some(receipt))
            .for_each(|receipt| *receipt = None);
        match self.receipts.iter().any(Option::is_some) {
            true => self.receipts(),
            false => Vec::new(),
        }
    }

    /// The check and the window of each take of its decision in the batch.
    pub fn by_take(&self) -> impl Iterator<Item = (&EffectiveCheck<'a>, BucketSpec)> + Clone {
        let checks = self.all.checks.iter();
        checks.flat_map(|check| check.windows().map(move |spec| (check, spec)))
    }

    /// How the check that decided stands.
    pub fn status(&self, outcome: &Outcome) -> Option<LimitStatus<'static>> {
        let (check, spec) = self.by_take().nth(outcome.decided_by)?;
        Some(status::of_outcome(check.index, check.limit, &spec, outcome))
    }

    /// The verdict. There is none if one of its leases has ended while the store was asked: that lease's units must not be spent any
    /// more.
    pub fn decided(
        &mut self,
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

    /// Adds the indices of checks that took no part.
    pub fn naming_unknown(&mut self, mut decided: Decided) -> Decided {
        if let Verdict::Admitted(status) | Verdict::Denied(status) = &mut decided.verdict {
            status.unknown = std::mem::take(&mut self.all.unknown);
        }
        decided
    }

    /// No verdict.
    pub fn unavailable(&self, then: Option<WithoutStore>, source: Source) -> Decided {
        let first = self.all.checks.first();
        Decided::unavailable(then, source, first.map_or("", |check| &check.limit.name))
    }

    /// Spends the units that leases have for this decision; `false` if one of them has ended while the store was asked.
    pub fn spend_live(&mut self, now_us: u64) -> bool {
        let is_live = |(_, units): &(usize, Reservation)| units.is_live(now_us);
        let are_live = self.leased.iter().all(is_live);
        if are_live {
            self.spend();
        }
        are_live
    }

    /// Spends the units that leases have for this decision.
    pub fn spend(&mut self) {
        self.leased.iter_mut().for_each(|(_, units)| units.spend());
    }
}

/// The status of the check whose lease has the least left.
pub(super) fn tightest(leased: &[(usize, Reservation)]) -> Option<LimitStatus<'static>> {
    let tightest = leased.iter().min_by_key(|(_, held)| held.remaining);
    tightest.and_then(|(check, held)| held.status(*check))
}
