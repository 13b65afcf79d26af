//! Units that a request has reserved, and what it has used of them, which is known when its stream ends; and slots, which it holds
//! until then.

mod ended;
mod hold;

use std::cell::{Cell, LazyCell, OnceCell, RefCell};
use std::rc::Rc;

use sluicegate_protocol::{Verdict, part_of};

use crate::amount::{self, Amount, Found, Source};
use crate::facts::{Fact, What};
use crate::leases::Taken;
use crate::question::{Question, ResolvedCheck};
use crate::rule::RuleSet;
use crate::stats::OfSettle;
use ended::{End, Ended};
pub(crate) use hold::{Hold, Slots};

/// How a check is settled.
#[derive(Debug)]
pub(crate) struct SettleRule {
    /// What tells the usage.
    pub from: Amount,
    /// Most units that one request can have used.
    pub max: u64,
    /// A whole response without usage.
    pub unknown: Otherwise,
    /// The upstream failed, or refused with 429.
    pub failed: Otherwise,
    /// The stream ended before any byte of a body was sent to the client.
    pub cut_before_first_byte: Otherwise,
    /// It ended in the middle of the body.
    pub cut: Otherwise,
    /// For how long the hold lives without a sign of the stream.
    pub within_ms: u64,
    /// The largest part of the quota that one request reserves, in percent.
    pub most: u64,
    /// The response's headers that tell usage.
    pub headers: Vec<String>,
    /// How many values in metadata tell usage.
    pub metadata: usize,
}

/// What a request without usage costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Otherwise {
    /// What it has reserved.
    Keep,
    Units(u64),
}

/// A check that is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Its index among the checks of its rule.
    pub(crate) check: usize,
    /// The numbers that were in the metadata before the response, as bits: unchanged, they are no usage.
    pub(crate) before: Vec<Option<u64>>,
}

/// An attribute of the current stream.
pub type Property<'p> = &'p dyn Fn(&[&str]) -> Option<Vec<u8>>;

/// What an admitted request has reserved, until its stream ends.
#[derive(Debug)]
pub struct Reserves {
    pub(crate) rules: Rc<RuleSet>,
    /// Those of one limit and key are one hold.
    holds: Vec<Hold>,
    /// Headers of the response that tell usage.
    headers: RefCell<Vec<(String, Found)>>,
    began_us: u64,
    /// When the holds are renewed next.
    renew_us: Cell<u64>,
    /// The stream has ended.
    is_over: Cell<bool>,
}

impl SettleRule {
    /// What the metadata tells before there is a response.
    pub fn before(&self, property: Property<'_>) -> Vec<Option<u64>> {
        let mut before = vec![None; self.metadata];
        if self.metadata > 0
            && let Some(metadata) = property(&["metadata"])
        {
            self.from.visit(&mut |source| {
                if let Source::Metadata(claim, number) = source
                    && let Some(slot) = before.get_mut(*number)
                    && let Found::Number(found) = claim.number(&metadata)
                {
                    *slot = Some(found.to_bits());
                }
            });
        }
        before
    }
}

impl RuleSet {
    /// What a check has reserved: what it asked for, or the part of the quota that it may have at most, as far as the quota is known
    /// here. The sidecar may have cut it further.
    fn most_reserved(&self, check: &ResolvedCheck) -> u64 {
        let rule = self.rules.get(check.rule);
        let texts = rule.and_then(|rule| rule.limits.get(check.limit));
        let quotas = texts
            .into_iter()
            .flat_map(|texts| &texts.windows)
            .map(|(quota, _)| *quota);
        match (self.settle_rule(check), quotas.max()) {
            (Some(settle), Some(quota)) => check.cost.min(part_of(quota, settle.most)),
            _ => check.cost,
        }
    }

    /// How a check is settled.
    pub(crate) fn settle_rule(&self, check: &ResolvedCheck) -> Option<&SettleRule> {
        let rule = self.rules.get(check.rule)?;
        let check = rule.checks.get(check.reserved.as_ref()?.check)?;
        check.settle.as_deref()
    }
}

impl Question {
    /// How the slots of a check's limit live, if it has any.
    pub(crate) fn slots(&self, check: &ResolvedCheck) -> Option<Slots> {
        let rule = self.rules.rules.get(check.rule)?;
        rule.limits.get(check.limit)?.slots
    }

    /// What the sidecar's verdicts on it have reserved.
    pub fn reserves(
        &self,
        verdicts: &[Verdict<'_>],
        taken: &Taken,
        now_us: u64,
    ) -> Option<Rc<Reserves>> {
        let mut verdicts = verdicts.iter();
        let mut holds: Vec<Hold> = Vec::new();
        let mut add = |verdict: Option<&Verdict<'_>>,
                       checks: &mut dyn Iterator<Item = &ResolvedCheck>| {
            let Some(Verdict::Admitted(status)) = verdict else {
                return;
            };
            for (check, receipt) in checks.zip(&status.receipt) {
                match holds.iter_mut().find(|hold| hold.receipt == *receipt) {
                    _ if receipt.is_empty() => {}
                    Some(hold) => hold.checks.push(check.clone()),
                    None => holds.push(Hold::new(receipt, check)),
                }
            }
        };
        let enforced = self.checks.iter().enumerate();
        let mut enforced = enforced
            .filter(|(index, _)| !taken.has(*index))
            .map(|(_, check)| check)
            .peekable();
        if enforced.peek().is_some() {
            add(verdicts.next(), &mut enforced);
        }
        for shadow in &self.shadows {
            add(verdicts.next(), &mut shadow.checks.iter());
        }
        for hold in &mut holds {
            let slots = hold.checks.iter().find_map(|check| self.slots(check));
            // A receipt that no check asks for is one of slots.
            let is_asked = hold.checks.iter().any(|check| check.reserved.is_some());
            hold.slots = slots.or_else(|| (!is_asked).then(|| Slots::untold(&hold.receipt)));
        }
        (!holds.is_empty()).then(|| {
            let reserves = Reserves {
                rules: Rc::clone(&self.rules),
                holds,
                headers: RefCell::default(),
                began_us: now_us,
                renew_us: Cell::new(0),
                is_over: Cell::new(false),
            };
            reserves.live_at(now_us);
            Rc::new(reserves)
        })
    }
}

impl Reserves {
    fn settle_rules(&self) -> impl Iterator<Item = &SettleRule> {
        let checks = self.holds.iter().flat_map(|hold| &hold.checks);
        checks.filter_map(|check| self.rules.settle_rule(check))
    }

    /// Reads the headers of the response, which are gone when the stream ends.
    pub fn read_headers(&self, property: Property<'_>) {
        let names = self.settle_rules().flat_map(|rule| &rule.headers);
        let told = names.map(|name| {
            let value = property(&["response", "headers", name]);
            (name.clone(), number_of(value.as_deref().into_iter()))
        });
        self.headers.replace(told.collect());
    }

    /// Whether its stream has not ended.
    pub fn lives(&self) -> bool {
        !self.is_over.get()
    }

    /// The limits and keys of its slots.
    pub fn slots(&self) -> impl Iterator<Item = (&str, &str)> {
        let holds = self.holds.iter().filter(|hold| hold.slots.is_some());
        let checks = holds.filter_map(Hold::check);
        checks.map(|check| {
            let limit = self.rules.limit_name(check.rule, check.limit);
            (limit, check.key.as_str())
        })
    }

    pub(crate) fn hold(&self, hold: usize) -> Option<&Hold> {
        self.holds.get(hold)
    }

    /// The request has not reached the upstream: all comes back.
    pub fn unused(self: &Rc<Self>) -> Vec<Fact> {
        self.facts(&|_, _| Otherwise::Units(0))
    }

    /// Its stream has ended.
    pub fn ended(self: &Rc<Self>, property: Property<'_>) -> Vec<Fact> {
        let end = LazyCell::new(|| End::of(property));
        let headers = self.headers.borrow();
        let metadata = OnceCell::new();
        self.facts(&|check, rule| {
            let told = Ended {
                property,
                is_reached: *end != End::NotReached,
                headers: &headers,
                metadata: &metadata,
                before: check
                    .reserved
                    .as_ref()
                    .map_or(&[], |reserved| &reserved.before),
                is_odd: Cell::new(false),
            };
            let count = |counter| self.rules.counters.count_settle(check.rule, counter, 1);
            let usage = rule.from.of(&told);
            #[expect(clippy::cast_precision_loss, reason = "below 2^32")]
            let most = rule.max as f64;
            if told.is_odd.get() || usage.is_some_and(|usage| usage > most) {
                count(OfSettle::Odd);
            }
            let (counter, otherwise) = match (usage, *end) {
                (Some(usage), _) => {
                    let units = amount::whole(usage, rule.max);
                    (OfSettle::Known, Otherwise::Units(units))
                }
                (None, End::NotReached) => (OfSettle::NotReached, Otherwise::Units(0)),
                (None, End::Failed) => (OfSettle::Failed, rule.failed),
                (None, End::CutBeforeFirstByte) => (OfSettle::Cut, rule.cut_before_first_byte),
                (None, End::Cut) => (OfSettle::Cut, rule.cut),
                (None, End::Whole) => (OfSettle::Unknown, rule.unknown),
            };
            count(counter);
            otherwise
        })
    }

    /// What the sidecar is told of each hold.
    fn facts(
        self: &Rc<Self>,
        used: &dyn Fn(&ResolvedCheck, &SettleRule) -> Otherwise,
    ) -> Vec<Fact> {
        self.is_over.set(true);
        let mut facts = Vec::new();
        for (index, hold) in self.holds.iter().enumerate() {
            if hold.slots.is_some() {
                facts.push(self.fact(index, What::Free));
                continue;
            }
            let (mut units, mut reserved, mut is_kept) = (0_u64, 0_u64, true);
            for check in &hold.checks {
                let cost = self.rules.most_reserved(check);
                reserved = reserved.saturating_add(cost);
                let used = match self.rules.settle_rule(check) {
                    None => Otherwise::Units(check.cost),
                    Some(rule) => {
                        let used = used(check, rule);
                        is_kept &= used == Otherwise::Keep;
                        used
                    }
                };
                units = units.saturating_add(match used {
                    Otherwise::Keep => cost,
                    Otherwise::Units(units) => units,
                });
            }
            let what = if is_kept {
                if let Some(check) = hold.check() {
                    let counters = &self.rules.counters;
                    counters.count_settle(check.rule, OfSettle::UnitsKept, reserved);
                }
                What::Keep
            } else {
                What::Settle { units, reserved }
            };
            facts.push(self.fact(index, what));
        }
        facts
    }

    fn fact(self: &Rc<Self>, hold: usize, what: What) -> Fact {
        Fact {
            of: Rc::clone(self),
            hold,
            what,
            in_doubt: false,
            unknown_to: 0,
        }
    }

    /// For how long a hold lives without a sign of its stream.
    fn within_ms(&self, hold: &Hold) -> Option<u64> {
        let rules = hold.checks.iter();
        let rules = rules.filter_map(|check| self.rules.settle_rule(check));
        let settled = rules.map(|rule| rule.within_ms).max();
        hold.slots.map(|slots| slots.expire_ms).or(settled)
    }

    /// The next sign of the living stream is due after a third of the time that its holds live without one.
    fn live_at(&self, now_us: u64) {
        let within_ms = self.holds.iter().filter_map(|hold| self.within_ms(hold));
        let third_us = within_ms.min().unwrap_or(0).saturating_mul(1_000) / 3;
        self.renew_us.set(now_us.saturating_add(third_us));
    }

    /// The sidecar may not have had the last sign.
    pub fn renew_soon(&self) {
        self.renew_us.set(0);
    }

    /// The next look for signs comes at this time at the earliest: what is due by then is due now.
    pub fn renew_before(&self, next_look_us: u64) {
        if self.renew_us.get() <= next_look_us {
            self.renew_soon();
        }
    }

    /// Signs of the living stream, if they are due.
    pub fn renewals(self: &Rc<Self>, now_us: u64) -> Vec<Fact> {
        if self.renew_us.get() > now_us {
            return Vec::new();
        }
        self.live_at(now_us);
        let lived_ms = now_us.saturating_sub(self.began_us) / 1_000;
        let renew = |(index, hold): (usize, &Hold)| {
            if hold.is_outlived_at(lived_ms, &self.rules.counters) {
                return None;
            }
            let within_ms = self.within_ms(hold)?;
            Some(self.fact(index, What::Live { within_ms }))
        };
        self.holds.iter().enumerate().filter_map(renew).collect()
    }
}

/// The number in a header, the largest of several.
pub(crate) fn number_of<'a>(values: impl Iterator<Item = &'a [u8]>) -> Found {
    let numbers = values.map(number_in);
    let largest = numbers.reduce(|one, other| Some(one?.max(other?)));
    match largest {
        None => Found::Nothing,
        Some(None) => Found::NoNumber,
        Some(Some(number)) => Found::Number(number),
    }
}

/// The number that a text is; as JSON has it, because its reader is in the VM anyway.
pub(crate) fn number_in(text: &[u8]) -> Option<f64> {
    serde_json::from_slice(text).ok()
}
