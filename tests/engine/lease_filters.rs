//! The filters of a world of sidecars with leases: they have the real leases of the filter (`sluicegate_rules::Leases`), and
//! spend parts of their sidecar's. Their callouts take time, and their answers are lost; they crash.

use std::collections::BTreeMap;

use sluicegate_certificates::CallTimes;
use sluicegate_protocol::{LeasePart, PolicyVersion};
use sluicegate_rules::{
    LeaseReport, Leases, Question, ResolvedCheck, Rules, Taken, WhenUnavailable, parse,
};

use super::lease_world::{MS, Run, SECOND};

/// Filters of each sidecar.
pub const FILTERS: usize = 2;
/// A filter's clock is behind its sidecar's by this.
const BEHIND_US: u64 = 300 * MS;
/// How long a filter waits for an answer.
const TIMEOUT_US: u64 = 200 * MS;
/// How long a sidecar waits for a filter's account of an ended part.
const ACCOUNT_WITHIN_US: u64 = 3 * SECOND;

#[derive(Debug)]
pub struct Filter {
    leases: Leases,
    rules: Rules,
    /// Callouts under way, by number.
    callouts: BTreeMap<u64, (u64, LeaseReport)>,
    /// Decisions with two checks, by number: of one the units are taken.
    waiting: BTreeMap<u64, (Question, Taken)>,
    /// Units that it has spent and its sidecar does not know.
    untold: u64,
}

/// A part that a sidecar has lent.
#[derive(Debug)]
pub struct Lent {
    filter: usize,
    /// Whether the filter knows it: it has not crashed, and got the answer.
    known: bool,
    secret: u128,
    ends_us: u64,
    units: u64,
    spent: u64,
    /// When the filter last told it.
    told_us: u64,
}

impl Filter {
    pub fn new() -> Self {
        let text = r#"{"version":1,"sidecar":{"cluster":"s"},"rules":[{"name":"r","when_unavailable":"deny","checks":[
            {"limit":"l","key":[{"constant":"c"}]},{"limit":"m","key":[{"constant":"c"}]}]}]}"#;
        Self {
            leases: Leases::default(),
            rules: parse(text.as_bytes()).expect("a valid configuration"),
            callouts: BTreeMap::new(),
            waiting: BTreeMap::new(),
            untold: 0,
        }
    }
}

fn question(cost: u64, mixed: bool) -> Question {
    let check = |limit| ResolvedCheck {
        rule: 0,
        limit,
        key: "hot".to_owned(),
        cost,
        quota: None,
    };
    Question {
        checks: (0..=usize::from(mixed)).map(check).collect(),
        shadows: Vec::new(),
        when_unavailable: WhenUnavailable::Deny,
        grpc: false,
        traceparent: None,
    }
}

impl Run<'_> {
    fn filter(&mut self, sidecar: usize, filter: usize) -> &mut Filter {
        &mut self.sidecars[sidecar].filters[filter]
    }

    fn filter_clock(&self, sidecar: usize) -> u64 {
        self.clock(sidecar) - BEHIND_US
    }

    /// A request at a filter.
    pub fn filter_request(&mut self, sidecar: usize, filter: usize, cost: u64, mixed: bool) {
        let now_us = self.filter_clock(sidecar);
        let asked = question(cost, mixed);
        let one = self.filter(sidecar, filter);
        let taken = one.leases.take(&one.rules, &asked, now_us, TIMEOUT_US);
        let renews = one.leases.wants_renewal();
        if taken.decides(&asked) {
            one.leases.spend(&one.rules, &asked, &taken);
            one.untold += cost;
            self.seen.by_filters += cost;
            self.admit(cost);
        } else if taken.is_empty() {
            self.callout(sidecar, filter, Some(cost));
        } else {
            let number = self.next_number();
            self.filter(sidecar, filter)
                .waiting
                .insert(number, (asked, taken));
            let (in_us, admitted) = (self.random(TIMEOUT_US + 100 * MS), self.random(4) > 0);
            self.later(in_us, move |run| {
                run.settle(sidecar, filter, number, admitted);
            });
        }
        if renews {
            self.callout(sidecar, filter, None);
        }
    }

    fn next_number(&mut self) -> u64 {
        self.number += 1;
        self.number
    }

    /// Sends a question of this cost, or asks for more units.
    fn callout(&mut self, sidecar: usize, filter: usize, cost: Option<u64>) {
        let now_us = self.filter_clock(sidecar);
        let number = self.next_number();
        let one = self.filter(sidecar, filter);
        let report = one.leases.report(now_us, cost.is_none());
        one.callouts.insert(number, (now_us, report));
        let in_us = self.random(5 * MS);
        let cost = cost.unwrap_or(0);
        self.later(in_us, move |run| run.arrive(sidecar, filter, number, cost));
        self.later(TIMEOUT_US, move |run| run.timeout(sidecar, filter, number));
    }

    /// A filter's callout arrives at its sidecar.
    pub fn arrive(&mut self, sidecar: usize, filter: usize, number: u64, cost: u64) {
        let Some((_, report)) = self.filter(sidecar, filter).callouts.get(&number) else {
            return;
        };
        let reports = report.parts.clone();
        let mut wants = Vec::new();
        let mut held = 0;
        for report in reports {
            let now_us = self.clock(sidecar);
            let one = &mut self.sidecars[sidecar];
            let Some(part) = one.parts.get_mut(&report.id) else {
                continue;
            };
            let spent = report.spent - part.spent;
            part.spent += spent;
            one.spent += spent;
            let since_us = std::mem::replace(&mut part.told_us, now_us);
            let untold = &mut one.filters[filter].untold;
            *untold = untold.saturating_sub(spent);
            let (secret, unspent) = (part.secret, part.units - part.spent);
            let not_spent = if report.ended { unspent } else { 0 };
            one.pool.spent_by_filter(since_us, now_us, spent, not_spent);
            if report.ended {
                one.parts.remove(&report.id);
                self.put_back(sidecar, unspent, secret);
            } else {
                held += unspent;
            }
            wants.extend((report.wants_per_s > 0).then_some(report.wants_per_s));
        }
        if cost > 0 {
            self.request(sidecar, cost, false);
        }
        // A renewal waits for the lease that it needs.
        let wait_us = if wants.is_empty() { 0 } else { 40 * MS };
        if !wants.is_empty() {
            let now_us = self.clock(sidecar);
            let pool = &mut self.sidecars[sidecar].pool;
            if pool.may_ask(now_us) && !pool.can_lend(now_us, wants[0], held) {
                pool.asked();
                self.unless_crashed(sidecar, 2 * MS, move |run| run.plan(sidecar));
            }
        }
        let per_s = wants.first().copied();
        self.unless_crashed(sidecar, wait_us, move |run| {
            run.lend(sidecar, filter, number, per_s, held);
        });
    }

    /// The sidecar lends, and answers.
    pub fn lend(
        &mut self,
        sidecar: usize,
        filter: usize,
        number: u64,
        per_s: Option<u64>,
        held: u64,
    ) {
        let now_us = self.clock(sidecar);
        let id = self.next_number();
        let one = &mut self.sidecars[sidecar];
        let mut parts = Vec::new();
        if let Some(taken) = one.pool.lend(now_us, per_s, held) {
            let (units, lasts_us) = (taken.units, taken.ends_us - now_us);
            let lent = Lent {
                filter,
                known: true,
                secret: *taken.tag,
                ends_us: taken.ends_us,
                units,
                spent: 0,
                told_us: now_us,
            };
            one.parts.insert(id, lent);
            parts.push(LeasePart {
                id,
                limit: "l".into(),
                key: "hot".into(),
                units,
                lasts_us,
                quota: 1,
                window_ms: 1,
                remaining: 1,
                reset_ms: 1,
            });
        }
        if self.random(30) == 0 {
            // The answer is lost. The filter learns that by its timeout.
            self.lose(sidecar, id);
            return;
        }
        let in_us = self.random(5 * MS);
        self.answers.insert(number, parts);
        self.unless_crashed(sidecar, in_us, move |run| {
            run.answer(sidecar, filter, number)
        });
    }

    /// The answer arrives.
    pub fn answer(&mut self, sidecar: usize, filter: usize, number: u64) {
        let parts = self.answers.remove(&number).unwrap_or_default();
        let answered_us = self.filter_clock(sidecar);
        // Another instance after each crash.
        let version = PolicyVersion {
            instance: self.sidecars[sidecar].life.into(),
            epoch: 1 + self.sidecars[sidecar].steps,
        };
        let one = self.filter(sidecar, filter);
        if let Some((sent_us, report)) = one.callouts.remove(&number) {
            let times = CallTimes {
                sent_us,
                answered_us,
            };
            one.leases.answered(report, version, &parts, times);
        } else {
            // The filter has crashed, or waits no longer.
            parts.iter().for_each(|part| self.lose(sidecar, part.id));
        }
    }

    /// A part did not reach its filter.
    fn lose(&mut self, sidecar: usize, id: u64) {
        let lost = self.sidecars[sidecar].parts.get_mut(&id);
        lost.into_iter().for_each(|part| part.known = false);
    }

    /// A filter has waited long enough.
    pub fn timeout(&mut self, sidecar: usize, filter: usize, number: u64) {
        let now_us = self.filter_clock(sidecar);
        let one = self.filter(sidecar, filter);
        if let Some((_, report)) = one.callouts.remove(&number) {
            one.leases.failed(report, now_us);
        }
    }

    /// The rest of a decision was answered.
    pub fn settle(&mut self, sidecar: usize, filter: usize, number: u64, admitted: bool) {
        let now_us = self.filter_clock(sidecar);
        let one = self.filter(sidecar, filter);
        let Some((asked, taken)) = one.waiting.remove(&number) else {
            return;
        };
        if admitted && one.leases.is_live(&one.rules, &asked, &taken, now_us) {
            one.leases.spend(&one.rules, &asked, &taken);
            let units = asked.checks[0].cost;
            one.untold += units;
            self.seen.by_filters += units;
            self.admit(units);
        } else {
            one.leases.put_back(&one.rules, &asked, &taken);
        }
    }

    /// Filters tell of what has ended, if no other callout does; the sidecar forgets what was not told in time.
    pub fn tell(&mut self, sidecar: usize) {
        self.forget_parts(sidecar);
        for filter in 0..FILTERS {
            let now_us = self.filter_clock(sidecar);
            if self.filter(sidecar, filter).leases.has_report(now_us) {
                let number = self.next_number();
                let one = self.filter(sidecar, filter);
                let report = one.leases.report(now_us, false);
                one.callouts.insert(number, (now_us, report));
                self.arrive(sidecar, filter, number, 0);
                self.timeout(sidecar, filter, number);
            }
        }
    }

    /// Counts parts as spent that no filter has accounted for in time.
    pub fn forget_parts(&mut self, sidecar: usize) {
        let now_us = self.clock(sidecar);
        let one = &mut self.sidecars[sidecar];
        let silent = one
            .parts
            .extract_if(.., |_, part| part.ends_us + ACCOUNT_WITHIN_US < now_us);
        for (_, part) in silent {
            let unspent = part.units - part.spent;
            one.spent += unspent;
            one.pool.spent_by_filter(now_us, now_us, 0, unspent);
        }
    }

    /// A filter's VM is reloaded.
    pub fn filter_crash(&mut self, sidecar: usize, filter: usize) {
        let one = &mut self.sidecars[sidecar];
        one.filters[filter] = Filter::new();
        let parts = one.parts.values_mut().filter(|part| part.filter == filter);
        parts.for_each(|part| part.known = false);
    }

    /// Units that a sidecar has lent and does not know to be spent.
    pub fn lent(&self, sidecar: usize) -> u64 {
        let parts = self.sidecars[sidecar].parts.values();
        parts.map(|part| part.units - part.spent).sum()
    }

    /// Units that filters hold.
    pub fn held_by_filters(&self, sidecar: usize) -> u64 {
        let one = &self.sidecars[sidecar];
        let known = one.parts.values().filter(|part| part.known);
        let lent: u64 = known.map(|part| part.units - part.spent).sum();
        let untold: u64 = one.filters.iter().map(|filter| filter.untold).sum();
        lent.saturating_sub(untold)
    }
}
