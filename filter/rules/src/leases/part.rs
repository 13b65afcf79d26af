//! The parts of one limit and key.

use sluicegate_certificates::{CallTimes, Grant, Held, Ledger};
use sluicegate_protocol::{LeasePart, LimitStatus, PartReport, PolicyVersion};

use super::taken::TakenCheck;

/// Most time for which a part is spent, whatever an answer says: the largest `lease.longest` of a policy.
const LONGEST_US: u64 = 10_000_000;
/// Most units of a part that are spent, whatever an answer says: their sums stay numbers.
const MAX_UNITS: u64 = sluicegate_protocol::MAX_COST;
/// Most parts of one key at once; a sidecar lends a few.
const MAX_PARTS: usize = 32;
/// The filter asks for more units when 1/3 of the units that it held is left, if so many more will be asked for before they end: fewer
/// wait for the next question, which takes them along.
const RENEW_AT: u64 = 3;
const RENEW_FOR: u64 = 8;
/// How long is measured at least.
const MEASURED_US: u64 = 100_000;
/// A renewal for another key asks for this one, too, if no more than this many eighths are left: then all share callouts.
const RENEW_WITH: u64 = 7;
/// How long a key is remembered after its last renewal.
pub(super) const FORGET_AFTER_US: u64 = 1_000_000;
/// After a renewal that brought nothing, this time passes before the next one.
const RETRY_US: u64 = 25_000;

/// A part of a lease.
#[derive(Debug)]
pub(super) struct LivePart {
    /// What was spent of it.
    pub report: PartReport,
    /// The policy under which it was lent.
    pub version: PolicyVersion,
    quota: u64,
    window_ms: u64,
    /// When the whole quota is available again.
    whole_us: u64,
}

/// The parts of one limit and key, and how much it is asked for.
#[derive(Debug, Default)]
pub(super) struct KeyParts {
    parts: Ledger<LivePart>,
    /// Units that were left when the last part came.
    full: u64,
    /// Units that were asked for since `since_us`.
    seen: u64,
    since_us: u64,
    /// Units per second, before that.
    per_s: u64,
    renewing: bool,
    next_try_us: u64,
}

impl KeyParts {
    pub fn new(now_us: u64) -> Self {
        Self {
            since_us: now_us,
            ..Self::default()
        }
    }

    /// Adds a part; `false` if there are too many.
    pub fn add(&mut self, part: &LeasePart<'_>, version: PolicyVersion, times: CallTimes) -> bool {
        if self.parts.all().len() >= MAX_PARTS {
            return false;
        }
        let whole_us = part.reset_ms.saturating_mul(1_000);
        self.parts.add(Grant {
            units: part.units.min(MAX_UNITS),
            ends_us: times.sent_us.saturating_add(part.lasts_us.min(LONGEST_US)),
            remaining: part.remaining,
            tag: LivePart {
                report: PartReport {
                    id: part.id,
                    ..PartReport::default()
                },
                version,
                quota: part.quota,
                window_ms: part.window_ms,
                whole_us: times.answered_us.saturating_add(whole_us),
            },
        });
        self.full = self.parts.left(times.answered_us);
        if times.answered_us.saturating_sub(self.since_us) >= MEASURED_US {
            self.measure(times.answered_us);
        }
        true
    }

    /// Takes units for the check with this index, all from one part.
    pub fn take(&mut self, check: usize, cost: u64, now_us: u64) -> Option<TakenCheck> {
        self.seen = self.seen.saturating_add(cost);
        let taken = self.parts.take(cost, now_us, 0)?;
        let part = taken.tag;
        Some(TakenCheck {
            part: part.report.id,
            ends_us: taken.ends_us,
            status: LimitStatus {
                check,
                // Replies take it from the configuration.
                limit: "".into(),
                quota: part.quota,
                window_ms: part.window_ms,
                remaining: taken.remaining.min(part.quota),
                over: 0,
                reset_ms: part.whole_us.saturating_sub(now_us).div_ceil(1_000),
                retry_after_ms: 0,
                until_changed: false,
                at_once: false,
                calendar: None,
                hold_ms: 0,
                unknown: Vec::new(),
                receipt: Vec::new(),
            },
        })
    }

    /// The part with this number.
    pub fn part(&mut self, id: u64) -> Option<&mut Held<LivePart>> {
        self.parts.of(|part| part.report.id == id)
    }

    /// Whether it is time to ask for more units.
    pub fn wants_renewal(&self, now_us: u64) -> bool {
        let left = self.parts.left(now_us);
        // For every request: the rate only when it matters.
        if left > self.full / RENEW_AT || !self.may_renew(now_us) {
            return false;
        }
        let last = self.parts.all().last();
        let left_us = last.map_or(0, |part| part.grant.ends_us.saturating_sub(now_us));
        let expected = self.per_s(now_us).saturating_mul(left_us) / 1_000_000;
        expected >= left + RENEW_FOR
    }

    /// A renewal names a part; without one, the sidecar lends with the answer to a question.
    fn may_renew(&self, now_us: u64) -> bool {
        !self.renewing && now_us >= self.next_try_us && !self.parts.all().is_empty()
    }

    /// The reports on its parts with which more units are asked for. `None` if it asks for none, or if it has more than `room` parts.
    pub fn renew(&mut self, now_us: u64, room: usize) -> Option<Vec<PartReport>> {
        let is_used =
            self.parts.left(now_us).saturating_mul(8) <= self.full.saturating_mul(RENEW_WITH);
        if !self.may_renew(now_us) || !is_used || self.parts.all().len() > room {
            return None;
        }
        self.renewing = true;
        self.measure(now_us);
        let mut reports: Vec<_> = self.parts.all().iter().map(report).collect();
        if let Some(last) = reports.last_mut() {
            last.wants_per_s = self.per_s.max(1);
        }
        // The sidecar knows all of what has been spent now.
        self.parts
            .retain(|part| part.grant.tag.report.spent < part.grant.units);
        Some(reports)
    }

    /// The renewal is over. If it brought units, they are there already.
    pub fn renewed(&mut self, now_us: u64) {
        self.renewing = false;
        if self.parts.left(now_us) <= self.full / RENEW_AT {
            self.next_try_us = now_us.saturating_add(RETRY_US);
        }
    }

    /// Measures how many units a second are asked for: the mean of the previous rate and of the rate since the last measurement.
    fn measure(&mut self, now_us: u64) {
        self.per_s = self.per_s(now_us);
        (self.seen, self.since_us) = (0, now_us);
    }

    fn per_s(&self, now_us: u64) -> u64 {
        let elapsed_us = now_us.saturating_sub(self.since_us).max(1);
        let per_s = self.seen.saturating_mul(1_000_000) / elapsed_us;
        match self.per_s {
            0 => per_s,
            before => before.midpoint(per_s),
        }
    }

    /// Removes parts, and returns their reports, which are sent later.
    pub fn end(&mut self, ends: impl Fn(&Held<LivePart>) -> bool) -> Vec<PartReport> {
        let ended = self.parts.end(ends);
        let report = |part| PartReport {
            ended: true,
            ..report(&part)
        };
        ended.map(report).collect()
    }

    /// Whether it can be forgotten.
    pub fn is_idle(&self, now_us: u64) -> bool {
        let since_us = now_us.saturating_sub(FORGET_AFTER_US);
        self.parts.all().is_empty() && !self.renewing && self.since_us < since_us
    }
}

fn report(part: &Held<LivePart>) -> PartReport {
    let report = part.grant.tag.report;
    PartReport {
        ended: report.spent >= part.grant.units,
        ..report
    }
}
