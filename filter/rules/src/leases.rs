//! Units that the sidecar has lent to this VM: parts of its leases, from which requests are admitted without a callout. Pure.
//!
//! | file | for |
//! |---|---|
//! | `leases/part.rs` | the parts of one limit and key |
//! | `leases/taken.rs` | units taken for one request, and the verdicts that follow |
//!
//! Only the decision of the enforced rules is made from them; shadow rules are always asked for. An empty pool never denies:
//! it says nothing, and the sidecar is asked. Times are microseconds of a clock that does not step; a part is timed from before
//! its callout was sent, and its end is looked at for every request.

mod part;
mod taken;

use sluicegate_certificates::{CallTimes, Held};
use sluicegate_protocol::{LeasePart, MAX_PARTS, PartReport, PolicyVersion};

use crate::config::MAX_NAME_BYTES;
use crate::key::MAX_BYTES as MAX_KEY_BYTES;
use crate::question::{Question, ResolvedCheck};
use part::{FORGET_AFTER_US, KeyParts, LivePart};
pub use taken::Taken;

/// Most keys with parts; further keys ask the sidecar.
const MAX_KEYS: usize = 1_024;
/// Most ended parts that wait to be reported; further ones are not reported, so the sidecar counts them as spent.
const MAX_ENDED: usize = 4_096;
/// How long an ended part waits for a callout that would report it anyway, before it gets a callout of its own.
const TELL_WITHIN_US: u64 = 20_000;

/// The parts of leases of one VM and configuration.
#[derive(Debug, Default)]
pub struct Leases {
    /// By limit and key, in order: a map would make the VM's code larger.
    keys: Vec<(String, String, KeyParts)>,
    /// The version of the last answer.
    version: PolicyVersion,
    /// Parts that have ended and when, until the sidecar was told.
    ended: Vec<(u64, PartReport)>,
    wants_renewal: bool,
    /// When keys that no request asks for any more were last removed.
    swept_us: u64,
}

/// The report on leases that a callout carries to the sidecar.
#[derive(Debug, Default)]
pub struct LeaseReport {
    /// The value of the header.
    pub parts: Vec<PartReport>,
    /// Limits and keys for which more units are asked for.
    renewed: Vec<(String, String)>,
}

impl LeaseReport {
    /// Whether more units are asked for.
    pub fn asks(&self) -> bool {
        !self.renewed.is_empty()
    }
}

impl Leases {
    /// Takes the cost of the enforced checks of a question from parts that have enough units. If the sidecar has to be asked about
    /// other checks, it takes only from parts that last for another `stay_us`: they must not end before the answer.
    pub fn take(&mut self, question: &Question, now_us: u64, stay_us: u64) -> Taken {
        let mut taken = Taken::default();
        if self.keys.is_empty() {
            return taken;
        }
        for (index, check) in question.checks.iter().enumerate() {
            // A cost of 0 takes nothing, and a requested quota makes it another limit.
            if check.cost == 0 || check.quota.is_some() {
                continue;
            }
            if let Some(parts) = self.parts_of(question, check) {
                taken.checks.extend(parts.take(index, check.cost, now_us));
                let wants_renewal = parts.wants_renewal(now_us);
                self.wants_renewal |= wants_renewal;
            }
        }
        if !taken.covers_enforced(question) {
            let until_us = now_us.saturating_add(stay_us);
            let too_short = taken.checks.extract_if(.., |one| one.ends_us <= until_us);
            let checks = too_short.collect();
            self.put_back(question, &Taken { checks });
        }
        taken
    }

    /// Whether what was taken may still be spent.
    pub fn is_live(&mut self, question: &Question, taken: &Taken, now_us: u64) -> bool {
        taken.checks.iter().all(|one| {
            let check = question.checks.get(one.status.check);
            let parts = check.and_then(|check| self.parts_of(question, check));
            // A part that another policy ended was told as unspent.
            one.ends_us > now_us && parts.is_some_and(|parts| parts.part(one.part).is_some())
        })
    }

    /// Spends what was taken, if it is live.
    pub fn spend(&mut self, question: &Question, taken: &Taken) {
        // The sidecar counts the decisions that it is asked for.
        let counted = taken.tightest().filter(|_| taken.covers_enforced(question));
        let counted = counted.map(|status| status.check);
        self.change(question, taken, |part, check, cost| {
            let report = &mut part.grant.tag.report;
            report.spent += cost;
            report.decisions += u64::from(counted == Some(check));
        });
    }

    /// Puts back what was taken and not spent.
    pub fn put_back(&mut self, question: &Question, taken: &Taken) {
        self.change(question, taken, |part, _, cost| part.left += cost);
    }

    /// Changes the parts from which something was taken, as far as they are still held: gets each with the index of its check
    /// and what was taken.
    fn change(
        &mut self,
        question: &Question,
        taken: &Taken,
        change: impl Fn(&mut Held<LivePart>, usize, u64),
    ) {
        for one in &taken.checks {
            if let Some(check) = question.checks.get(one.status.check)
                && let Some(parts) = self.parts_of(question, check)
                && let Some(part) = parts.part(one.part)
            {
                change(part, one.status.check, check.cost);
            }
        }
    }

    /// Whether a part is so far spent that the sidecar should be asked for more, with a callout for this only.
    pub fn wants_renewal(&self) -> bool {
        self.wants_renewal
    }

    /// Whether no part is held, and no end of one is to be told.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty() && self.ended.is_empty()
    }

    /// Whether parts have ended and no callout has told the sidecar in time.
    pub fn has_report(&mut self, now_us: u64) -> bool {
        self.expire(now_us);
        let due_us = now_us.saturating_sub(TELL_WITHIN_US);
        self.ended.iter().any(|(at_us, _)| *at_us <= due_us)
    }

    /// The report for the next callout. With `renew`, it also asks for more units of every key that was used.
    pub fn report(&mut self, now_us: u64, renew: bool) -> LeaseReport {
        self.expire(now_us);
        let told = self.ended.len().min(MAX_PARTS);
        let parts = self.ended.drain(..told).map(|(_, part)| part);
        let mut report = LeaseReport {
            parts: parts.collect(),
            renewed: Vec::new(),
        };
        if renew {
            self.wants_renewal = false;
            for (limit, key, parts) in &mut self.keys {
                let room = MAX_PARTS.saturating_sub(report.parts.len());
                if let Some(parts) = parts.renew(now_us, room) {
                    report.parts.extend(parts);
                    report.renewed.push((limit.clone(), key.clone()));
                }
            }
        }
        report
    }

    /// A callout with this report was answered.
    pub fn answered(
        &mut self,
        report: LeaseReport,
        version: PolicyVersion,
        lent: &[LeasePart<'_>],
        times: CallTimes,
    ) {
        let late = version.instance == self.version.instance && version.epoch < self.version.epoch;
        if !late && version != self.version {
            self.version = version;
            // Ends the parts that the same sidecar lent under an earlier policy.
            self.end(times.answered_us, |part| {
                let lent = part.grant.tag.version;
                lent.instance == version.instance && lent.epoch < version.epoch
            });
        }
        for part in lent {
            self.add(part, version, late, times);
        }
        self.renewed(report.renewed, times.answered_us);
    }

    /// A callout with this report failed: the sidecar may have read it or not, so the next report repeats it.
    pub fn failed(&mut self, report: LeaseReport, now_us: u64) {
        for part in report.parts.into_iter().filter(|part| part.ended) {
            self.tell(now_us, part);
        }
        self.renewed(report.renewed, now_us);
    }

    fn renewed(&mut self, keys: Vec<(String, String)>, now_us: u64) {
        for (limit, key) in keys {
            if let Some(parts) = self.find(&limit, &key) {
                parts.renewed(now_us);
            }
        }
    }

    fn add(&mut self, part: &LeasePart<'_>, version: PolicyVersion, late: bool, times: CallTimes) {
        // Without a clock nothing may be spent, for nothing would ever end.
        let usable = part.units > 0 && !late && times.sent_us > 0;
        if !usable || !self.keep(part, version, times) {
            let ended = PartReport {
                id: part.id,
                ended: true,
                ..PartReport::default()
            };
            self.tell(times.answered_us, ended);
        }
    }

    /// `false` if there is no room, or if it is for a limit or key that no question can have: the number of keys alone does not
    /// bound the memory that they take.
    fn keep(&mut self, part: &LeasePart<'_>, version: PolicyVersion, times: CallTimes) -> bool {
        let possible = part.limit.len() <= MAX_NAME_BYTES && part.key.len() <= MAX_KEY_BYTES;
        let index = match self.index(&part.limit, &part.key) {
            Ok(index) => index,
            Err(index) if possible && self.keys.len() < MAX_KEYS => {
                let (limit, key) = (part.limit.as_ref().to_owned(), part.key.as_ref().to_owned());
                self.keys
                    .insert(index, (limit, key, KeyParts::new(times.answered_us)));
                index
            }
            Err(_) => return false,
        };
        let parts = self.keys.get_mut(index);
        parts.is_some_and(|(_, _, parts)| parts.add(part, version, times))
    }

    /// Removes the parts that have ended, and the keys that are not asked for any more.
    fn expire(&mut self, now_us: u64) {
        let ended = self.end(now_us, |part| part.grant.ends_us <= now_us);
        // A key may outlive its parts by a while, and parts that a renewal tells as spent end without this.
        if !ended && now_us < self.swept_us.saturating_add(FORGET_AFTER_US) {
            return;
        }
        self.swept_us = now_us;
        self.keys.retain(|(_, _, parts)| !parts.is_idle(now_us));
    }

    /// Ends these parts; whether there were any.
    fn end(&mut self, now_us: u64, which: impl Fn(&Held<LivePart>) -> bool + Copy) -> bool {
        let keys = self.keys.iter_mut();
        let ended: Vec<_> = keys.flat_map(|(_, _, parts)| parts.end(which)).collect();
        let any = !ended.is_empty();
        ended.into_iter().for_each(|part| self.tell(now_us, part));
        any
    }

    fn tell(&mut self, now_us: u64, part: PartReport) {
        if self.ended.len() < MAX_ENDED {
            self.ended.push((now_us, part));
        }
    }

    fn parts_of(&mut self, question: &Question, check: &ResolvedCheck) -> Option<&mut KeyParts> {
        self.find(question.limit_name(check), &check.key)
    }

    fn find(&mut self, limit: &str, key: &str) -> Option<&mut KeyParts> {
        let index = self.index(limit, key).ok()?;
        self.keys.get_mut(index).map(|(_, _, parts)| parts)
    }

    fn index(&self, limit: &str, key: &str) -> Result<usize, usize> {
        self.keys.binary_search_by(|(of_limit, of_key, _)| {
            (of_limit.as_str(), of_key.as_str()).cmp(&(limit, key))
        })
    }
}

#[cfg(test)]
mod tests;
