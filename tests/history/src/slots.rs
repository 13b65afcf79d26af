//! Slots: those of streams that live are never more than there are, except as `docs/at-once.md` says; whoever lives renews them, and
//! when a stream has ended they are free.

use crate::bounds::{Claim, Judge, MS, SOON, Subject, Time, meets};
use crate::record::{Algorithm, Check, Entry, Grant, Limit, Said, Sign, What};
use crate::report::{Report, Wrong};

/// Longer than a request waits for its verdict, asked twice.
const VERDICT: u64 = 1_500 * MS;
/// For how long a denial may be given although slots are free: it is cached for 20 ms, and counts from its question.
const DENIED_STILL: u64 = 400 * MS;
/// How often a filter looks whose slots it has to renew, and how long the call takes.
const LOOKS: u64 = 1_300 * MS;
/// A filter whose callouts fail tries again after so long at most: one that is on its way takes two seconds to fail.
const RETRIES: u64 = 2_500 * MS;

/// The slots of a request's checks of one limit and key.
#[derive(Debug)]
pub(crate) struct Slot {
    entry: usize,
    sidecar: usize,
    units: u64,
    taken: Time,
    /// It certainly has them.
    is_certain: bool,
    /// When its stream has ended, at the earliest: if a filter has said so, or who has asked directly frees them.
    ends: Option<u64>,
    /// A filter has said so.
    is_stream: bool,
    /// Nobody was told of them.
    is_untold: bool,
    /// Since when they are free, and of how many that was said.
    freed: Option<u64>,
    freed_units: u64,
    /// Since when who has freed them knows it.
    told: Option<u64>,
    /// When they were taken and when somebody renewed them, or tried to.
    attempts: Vec<Time>,
    /// When, by which sidecar they were taken or renewed, and whether that is certain.
    signs: Vec<(Time, usize, bool)>,
    /// How long they last after a sign, at least and at most.
    lasts: (u64, u64),
}

impl Slot {
    fn new(number: usize, entry: &Entry, units: u64, lasts: (u64, u64)) -> Self {
        Self {
            entry: number,
            sidecar: entry.sidecar,
            units,
            taken: entry.when(),
            is_certain: false,
            ends: None,
            is_stream: false,
            is_untold: false,
            freed: None,
            freed_units: 0,
            told: None,
            attempts: vec![entry.when()],
            signs: Vec::new(),
            lasts,
        }
    }
}

impl Judge<'_> {
    /// How long slots of a limit last in its policies: at least and at most.
    fn expire(&self, limit: usize) -> (u64, u64) {
        let of = self.limits(limit).filter(|(_, of)| has_slots(of));
        let each = of.map(|(_, of)| of.windows[0].per_ms * MS);
        each.fold((u64::MAX, 0), |(least, most), one| {
            (least.min(one), most.max(one))
        })
    }

    /// What was taken of a key's slots, and how many there may be.
    pub(crate) fn slots_of(
        &self,
        (limit, key): (usize, usize),
        subject: &Subject,
        overrides: &[(Time, Grant)],
    ) -> (Vec<Slot>, Vec<Claim>) {
        let (mut claims, lasts) = (Vec::new(), self.expire(limit));
        if lasts.1 == 0 {
            return (Vec::new(), claims);
        }
        let deciding = self.deciding(limit);
        let counts = |version: usize| self.history.policies[version][limit].as_ref();
        for (from, to, version) in deciding.concat() {
            let Some(of) = counts(version).filter(|of| has_slots(of)) else {
                continue;
            };
            let mut add = |when: Time, quota| {
                let claim = Claim {
                    when,
                    quota,
                    burst: 0,
                };
                claims.extend((when.0 <= when.1).then_some(claim));
            };
            add((from, to), of.windows[0].quota);
            for ((since, until), grant) in overrides {
                let when = (from.max(*since), to.min(*until));
                match grant {
                    Grant::Quota(quota, _) => add(when, *quota),
                    Grant::Unlimited => add(when, u64::MAX),
                    Grant::Blocked => {}
                }
            }
        }
        let mut slots: Vec<Slot> = Vec::new();
        for (number, check) in &subject.asked {
            let entry = &self.history.log[*number];
            let request = entry.request().filter(|one| one.may_take());
            let spans = deciding[entry.sidecar].iter();
            let spans = spans.filter(|span| meets((span.0, span.1), entry.when()));
            let mut counted = spans.map(|span| counts(span.2).is_some_and(has_slots));
            let all = counted.clone().all(|counts| counts);
            let Some(request) = request.filter(|_| check.cost > 0 && counted.any(|one| one)) else {
                continue;
            };
            if let Some(before) = slots.last_mut().filter(|slot| slot.entry == *number) {
                before.units += check.cost;
                continue;
            }
            let unlimited = claims
                .iter()
                .any(|claim: &Claim| claim.quota == u64::MAX && meets(claim.when, entry.when()));
            let mut slot = Slot::new(*number, entry, check.cost, lasts);
            slot.is_certain = all && request.is_admitted() && !unlimited;
            slot.is_untold = !request.is_admitted();
            slot.signs
                .push((entry.when(), entry.sidecar, request.is_admitted()));
            self.lives(&mut slot, limit, key);
            slots.push(slot);
        }
        // Those of a consumer that had another tier are renewed here.
        for ((number, _), steps) in self.held.iter().filter(|((_, of), _)| *of == key) {
            let is_guest = !slots.iter().any(|slot| slot.entry == *number)
                && steps.iter().any(|(_, held)| held.limit == limit);
            let entry = &self.history.log[*number];
            let Some(request) = entry.request().filter(|_| is_guest) else {
                continue;
            };
            let checks = request.checks.iter().filter(|check| check.key == key);
            let mut slot = Slot::new(*number, entry, checks.map(|check| check.cost).sum(), lasts);
            self.lives(&mut slot, limit, key);
            slot.is_stream = false;
            slots.push(slot);
        }
        (slots, claims)
    }

    /// What became of slots.
    fn lives(&self, slot: &mut Slot, limit: usize, key: usize) {
        let of = self.held.get(&(slot.entry, key));
        slot.is_untold &= of.is_none();
        for (number, held) in of.into_iter().flatten() {
            let entry = &self.history.log[*number];
            let is_sure = match held.sign {
                Sign::Renewed => Some(true),
                Sign::RenewalLost => Some(false),
                Sign::Ended | Sign::Freed(_) | Sign::FreeLost => None,
            };
            let first = |before: Option<u64>, at: u64| Some(before.map_or(at, |one| one.min(at)));
            if let Some(is_sure) = is_sure {
                slot.attempts.push(entry.when());
                let sign = (entry.when(), entry.sidecar, is_sure);
                slot.signs.extend((held.limit == limit).then_some(sign));
            } else {
                slot.ends = first(slot.ends, entry.from);
            }
            slot.is_stream |= held.sign == Sign::Ended;
            if let Sign::Freed(units) = held.sign {
                slot.told = first(slot.told, entry.to);
                if held.limit == limit {
                    slot.freed = first(slot.freed, entry.to);
                    slot.freed_units += units;
                }
            }
        }
        slot.signs.sort_unstable();
        // What a VM knows dies with it.
        let ended = self.changes.iter().find(|one| {
            let is_its = self.history.fleet || one.sidecar == slot.sidecar;
            matches!(one.what, What::VmEnded) && is_its && one.to >= slot.taken.0
        });
        if let Some(ended) = ended {
            slot.ends = Some(slot.ends.map_or(ended.from, |ends| ends.min(ended.from)));
        }
    }

    /// When so much time has passed for the store, at the earliest.
    fn after(&self, from: u64, lasts: u64) -> u64 {
        let mut ends = from + lasts;
        for (at, by) in self.clocks.iter().filter(|(at, by)| *at >= from && *by > 0) {
            if *at < ends {
                ends = ends.saturating_sub(by.unsigned_abs()).max(*at);
            }
        }
        ends
    }

    /// When a key's slots were certainly in use: as the store knows, or, of one outage of a sidecar, as its share does.
    fn in_use(&self, slot: &Slot, subject: &Subject, share: Option<(usize, Time)>) -> Vec<Time> {
        let mut spans: Vec<Time> = Vec::new();
        // A share knows of a sign that the store does not confirm.
        let known = slot.signs.iter().enumerate();
        let known = known.filter(|(number, one)| one.2 || share.is_some() && *number > 0);
        for (number, (when, sidecar, _)) in known {
            let mut until = self.after(when.0, slot.lasts.0);
            let mut deaths = self.changes.iter().filter(|one| {
                matches!(one.what, What::Down) && one.sidecar == *sidecar && one.from >= when.0
            });
            let death = deaths.next().map_or(u64::MAX, |one| one.from);
            let known = match share {
                Some((of, outage)) if *sidecar != of || when.0 < outage.0 + SOON => continue,
                Some(_) => {
                    until = until.min(death);
                    when.1
                }
                // The store is told when it is back.
                None => {
                    let outages = self.outages_of[*sidecar].iter();
                    let outages = outages.filter(|outage| meets(**outage, *when));
                    let back = outages.map(|outage| outage.1).max().unwrap_or(0);
                    if death <= back {
                        continue;
                    }
                    when.1.max(back)
                }
            };
            // The taking itself came before all that is counted from its answer on.
            let is_taking = number == 0 && known == when.1;
            let since = known + if is_taking { 0 } else { VERDICT };
            let forgotten = subject.forgotten.iter().filter(|one| one.1 >= when.0);
            until = forgotten.map(|one| one.0).fold(until, u64::min);
            until = until.min(slot.ends.unwrap_or(u64::MAX));
            match spans.last_mut() {
                // It was renewed before it had ended.
                Some(last) if known < last.1 => last.1 = last.1.max(until),
                _ => spans.extend((since < until).then_some((since, until))),
            }
        }
        spans
    }

    /// Until when slots may be in use.
    fn possible_until(&self, slot: &Slot) -> u64 {
        let lasts = slot.lasts.1;
        let back: u64 = self
            .clocks
            .iter()
            .filter(|(at, by)| *by < 0 && *at >= slot.taken.0)
            .map(|(_, by)| by.unsigned_abs())
            .sum();
        let last = slot.signs.iter().map(|sign| sign.0.1).max();
        let mut until = last.unwrap_or(0) + lasts + back;
        let freed_by = slot.taken.1 + VERDICT;
        if slot.is_untold && !self.may_have_failed((slot.taken.0, freed_by), true) {
            until = until.min(freed_by);
        }
        let mut outages = self.outages.iter().filter(|one| one.1 >= slot.taken.0);
        let first = outages.clone().map(|one| one.0).min();
        let is_freed = slot
            .freed
            .filter(|freed| first.is_none_or(|from| from > *freed));
        if let Some(freed) = is_freed {
            return freed.min(until);
        }
        // Shares tell the store of what they know when it is back.
        for one in outages.by_ref() {
            if one.0 <= until {
                until = until.max(one.1 + lasts);
            }
        }
        until
    }

    /// Whether callouts, sidecars or their store may have failed. `changes`: a change of policy counts as well.
    fn may_have_failed(&self, span: Time, changes: bool) -> bool {
        let wide = (span.0.saturating_sub(RETRIES), span.1);
        let mut others = self.changes.iter().filter(|one| match one.what {
            What::Envoy | What::VmEnded | What::Down | What::Up => true,
            What::Policy(_) => changes,
            _ => false,
        });
        self.cut(wide)
            || others.any(|one| one.from > 0 && meets((one.from, one.to + RETRIES), wide))
    }

    /// The largest number of slots that may be in force; none if it is not bounded.
    fn allowed(subject: &Subject, span: Time) -> Option<u64> {
        let claims = subject.slot_claims.iter();
        let quotas = claims
            .filter(|claim| meets(claim.when, span))
            .map(|claim| claim.quota);
        quotas.max().filter(|quota| *quota < u64::MAX)
    }

    pub(crate) fn slots(&self, report: &mut Report) {
        for (of, subject) in &self.subjects {
            if subject.slots.is_empty() {
                continue;
            }
            self.over_at_once(*of, subject, None, report);
            for (sidecar, outages) in self.away_of.iter().enumerate() {
                for outage in outages {
                    self.over_at_once(*of, subject, Some((sidecar, *outage)), report);
                }
            }
            for slot in &subject.slots {
                self.lived_and_freed(*of, slot, report);
            }
        }
        self.looks_at_slots(report);
    }

    /// Streams that live at one time have no more slots than there are.
    fn over_at_once(
        &self,
        of: (usize, usize),
        subject: &Subject,
        share: Option<(usize, Time)>,
        report: &mut Report,
    ) {
        let certain = subject.slots.iter().filter(|slot| slot.is_certain);
        let spans = certain.map(|slot| (slot, self.in_use(slot, subject, share)));
        let spans: Vec<_> = spans.filter(|(_, spans)| !spans.is_empty()).collect();
        for (slot, _) in &spans {
            let (from, at) = slot.taken;
            let decided_there = match share {
                Some((sidecar, outage)) => {
                    sidecar == slot.sidecar && outage.0 + SOON <= from && at < outage.1
                }
                None => {
                    let mut outages = self.outages_of[slot.sidecar].iter();
                    !outages.any(|one| meets(*one, slot.taken))
                }
            };
            let lately = (from.saturating_sub(VERDICT), at);
            let Some(allowed) = Self::allowed(subject, lately).filter(|_| decided_there) else {
                continue;
            };
            let at_once = spans.iter().filter(|(_, spans)| {
                let mut spans = spans.iter();
                spans.any(|span| span.0 <= at && at < span.1)
            });
            let units = at_once.map(|(one, _)| one.units).sum();
            if units > allowed {
                report.add(of, slot.taken, Wrong::Over { units, allowed });
                return;
            }
        }
    }

    /// The limits that a request has asked for this key.
    fn limits_asked(&self, entry: usize, key: usize) -> impl Iterator<Item = usize> {
        let request = self.history.log[entry].request();
        let checks = request.into_iter().flat_map(|request| &request.checks);
        let checks = checks.filter(move |check| check.key == key);
        checks.map(|check| check.limit)
    }

    /// The limits that may count a key if it is a consumer's.
    fn tiers(&self, key: usize) -> impl Iterator<Item = usize> {
        self.history.tiers.get(&key).into_iter().flatten().copied()
    }

    /// A stream renews its slots while it lives, and frees them when it has ended.
    fn lived_and_freed(&self, of: (usize, usize), slot: &Slot, report: &mut Report) {
        if slot.freed_units > slot.units && self.outages.is_empty() {
            report.add(of, slot.taken, Wrong::FreedTwice);
        }
        let Some(ends) = slot.ends.filter(|_| slot.is_stream) else {
            return;
        };
        // Of all checks of this key: what is held says which limit it is of only by the policy of that moment. A filter knows the
        // `longest` of a consumer by the rules that it had, whichever sidecar's policy counted its slots, and renews them by the
        // `expire` that it was told last.
        let asked = self.limits_asked(slot.entry, of.1);
        let limits = asked.chain([of.0]).chain(self.tiers(of.1));
        let longest = limits
            .flat_map(|limit| self.limits(limit))
            .filter_map(|(_, limit)| match limit.algorithm {
                Algorithm::Slots(longest_ms) => Some(longest_ms * MS),
                _ => None,
            });
        let renewed_until = slot.taken.0 + longest.min().unwrap_or(0);
        let expire = self.tiers(of.1).map(|limit| self.expire(limit).1);
        let every = expire.fold(slot.lasts.1, u64::max) / 3 + LOOKS;
        let mut attempts = slot.attempts.clone();
        let until = ends.min(renewed_until);
        attempts.retain(|one| one.0 < until);
        attempts.push((until, until));
        attempts.sort_unstable();
        for pair in attempts.windows(2) {
            let gap = (pair[0].1, pair[1].0);
            if gap.1 > gap.0 + every && !self.may_have_failed(gap, false) {
                report.add(of, gap, Wrong::NotRenewed);
            }
        }
        // What a VM knows dies with it, and with the run.
        let span = (ends, ends + SOON);
        let is_late = slot.told.is_none_or(|told| told > span.1);
        if is_late && span.1 <= self.history.healed && !self.may_have_failed(span, false) {
            report.add(of, span, Wrong::NotFreed);
        }
    }

    /// Whether all slots of a check may be in use at a denial.
    pub(crate) fn may_be_in_use(
        &self,
        entry: &Entry,
        check: &Check,
        subject: &Subject,
        parts: u64,
    ) -> bool {
        let lately = (entry.from.saturating_sub(DENIED_STILL), entry.to);
        let claims = subject.slot_claims.iter();
        let quotas = claims
            .filter(|claim| meets(claim.when, lately))
            .map(|claim| claim.quota);
        let Some(quota) = quotas.min() else {
            return false;
        };
        self.most_in_use(subject, lately) + check.cost > quota / parts
    }

    fn most_in_use(&self, subject: &Subject, when: Time) -> u64 {
        let may_be = |slot: &&Slot| slot.taken.0 <= when.1 && self.possible_until(slot) >= when.0;
        let slots = subject.slots.iter().filter(may_be);
        slots.map(|slot| slot.units).sum()
    }

    /// A look finds those in use.
    fn looks_at_slots(&self, report: &mut Report) {
        for entry in &self.history.log {
            let Some(request) = entry
                .request()
                .filter(|one| one.peek && one.said == Said::Admitted)
            else {
                continue;
            };
            let ([check], Some(left)) = (&request.checks[..], request.remaining) else {
                continue;
            };
            let (of, when) = ((check.limit, check.key), entry.when());
            let subject = &self.subjects[&of];
            let [first, ..] = &subject.slot_claims[..] else {
                continue;
            };
            if !subject.same || self.cut(when) {
                continue;
            }
            let taken = first.quota.saturating_sub(left);
            let certain = subject.slots.iter().filter(|slot| slot.is_certain);
            let certain = certain.filter(|slot| {
                let spans = self.in_use(slot, subject, None);
                spans.iter().any(|span| span.0 < when.0 && when.1 < span.1)
            });
            let at_least: u64 = certain.map(|slot| slot.units).sum();
            if taken < at_least.min(first.quota) {
                report.add(of, when, Wrong::MoreLeft { taken, at_least });
            }
            let at_most = self.most_in_use(subject, when);
            if taken > at_most {
                report.add(of, when, Wrong::LessLeft { taken, at_most });
            }
        }
    }
}

/// Whether a limit counts slots.
pub(crate) fn has_slots(limit: &Limit) -> bool {
    matches!(limit.algorithm, Algorithm::Slots(_))
}
