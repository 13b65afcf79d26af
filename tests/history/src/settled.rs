//! What was reserved, what was used of it, and what a settle is told: units that were not used come back once, what was used beyond
//! them is charged, and nothing that a stream tells is lost.

use std::collections::BTreeMap;

use crate::bounds::{Bucket, Counted, Judge, SOON, Steps, Subject, Taking, Time, meets};
use crate::record::{Algorithm, Check, Grant, Settled, Told, What};
use crate::report::{Report, Wrong};
use crate::uses::{Use, Uses};

/// For how long a denial may be given although units of a limit that rules settle have come back: it is cached for 250 ms, and counts
/// from its question.
const DENIED_STILL: u64 = 500_000;

impl Subject {
    /// The fewest and the most units that a request at a time takes by a check.
    pub(crate) fn taken(&self, when: Time, check: &Check) -> (u64, u64) {
        let Some(percent) = check.most.filter(|_| check.cost > 0) else {
            return (check.cost, check.cost);
        };
        let part = |units: u64| check.cost.min((units.saturating_mul(percent) / 100).max(1));
        let each = self.at_once.iter().filter(|(of, _)| meets(*of, when));
        // A quota of its own may count, or not.
        let parts = each.map(|(_, units)| part(*units));
        let parts = parts.chain(check.quota.map(part));
        let (least, most) = parts.fold((check.cost, 0), |(least, most), units| {
            (least.min(units), most.max(units))
        });
        (least, most)
    }

    /// For how many units there must be room: who reserves nothing is denied when nothing is left.
    pub(crate) fn needs(&self, when: Time, check: &Check) -> (u64, u64) {
        let (least, most) = self.taken(when, check);
        let one = u64::from(check.most.is_some());
        (least.max(one), most.max(one))
    }
}

impl Judge<'_> {
    /// The most that a key may hold by each policy and override; of several windows, by the smallest.
    pub(crate) fn at_once(&self, limit: usize, overrides: &[(Time, Grant)]) -> Vec<(Time, u64)> {
        let mut found = Vec::new();
        let deciding = self.deciding(limit).concat();
        for (version, of) in self.limits(limit) {
            let quota = of.windows.iter().map(|window| window.quota).min();
            let quota = quota.unwrap_or(0);
            let of_grant = |grant: &Grant| match (grant, of.algorithm) {
                (Grant::Quota(other, own), Algorithm::Token(burst)) => {
                    Some(own.unwrap_or((burst * other).div_ceil(quota)))
                }
                (Grant::Quota(quota, _), _) => Some(*quota),
                _ => None,
            };
            for (from, to, _) in deciding.iter().filter(|span| span.2 == version) {
                let units = match of.algorithm {
                    Algorithm::Token(burst) => burst,
                    _ => quota,
                };
                found.push(((*from, *to), units));
                found.extend(overrides.iter().filter_map(|((since, until), grant)| {
                    let when = (*from.max(since), *to.min(until));
                    Some((when, of_grant(grant).filter(|_| when.0 <= when.1)?))
                }));
            }
        }
        found
    }

    /// What was returned, as far as it may have been: told, or, where nothing was told, all that may have come back.
    pub(crate) fn returned_units(&self) -> BTreeMap<Taking, Vec<(u64, u64)>> {
        let of = |(of, steps): (&Taking, &Steps)| {
            let known = steps.iter().filter_map(|(number, one)| match one.told {
                Told::Returned(units) => Some((self.history.log[*number].from, units)),
                _ => None,
            });
            let known: Vec<_> = known.collect();
            let is_known = match known.is_empty() {
                true => effect(steps).is_some(),
                false => !self.may_be_cut(of.1, of.2),
            };
            if is_known {
                return (*of, known);
            }
            let checks = self.history.log[of.0].request();
            let checks = checks.into_iter().flat_map(|request| &request.checks);
            let cost: u64 = checks
                .filter(|check| check.is_of(of.1, of.2))
                .map(|check| check.cost)
                .sum();
            let first = steps
                .iter()
                .map(|(number, _)| self.history.log[*number].from);
            let used = steps.iter().filter_map(|(_, one)| one.used).min();
            let units = used.map_or(0, |used| cost.saturating_sub(used));
            (*of, vec![(first.min().unwrap_or(0), units)])
        };
        self.settled.iter().map(of).collect()
    }

    /// Whether a change of its quota may have cut a token bucket: what comes back is told of what is left, and comes back to what was
    /// cut, too, which counts again when the quota is the earlier one again.
    fn may_be_cut(&self, limit: usize, key: usize) -> bool {
        let quotas = self
            .limits(limit)
            .map(|(_, of)| (of.algorithm, &of.windows));
        let mut quotas: Vec<_> = quotas.collect();
        let any_token = quotas
            .iter()
            .any(|one| matches!(one.0, Algorithm::Token(_)));
        quotas.dedup();
        any_token && (quotas.len() > 1 || !self.overrides(limit, key).is_empty())
    }

    /// Of what a use has taken, when and how much of it was returned.
    pub(crate) fn returned_of(
        &self,
        one: &Use,
        bucket: Bucket,
    ) -> impl Iterator<Item = &(u64, u64)> + use<'_> {
        let of = (one.entry, bucket.limit, bucket.key);
        self.returned.get(&of).into_iter().flatten()
    }

    /// What was taken from a bucket by requests, what settles have charged, and what has certainly come back.
    pub(crate) fn uses_with_settled(&self, bucket: Bucket, subject: &Subject) -> Uses {
        let taken = self.uses(bucket, subject);
        let deciding = self.deciding(bucket.limit);
        let (mut all, mut returned) = (taken.clone(), Vec::new());
        for one in &taken {
            let of = (one.entry, bucket.limit, bucket.key);
            let Some(steps) = self.settled.get(&of) else {
                continue;
            };
            let known = effect(steps);
            for (number, step) in steps {
                let entry = &self.history.log[*number];
                let (units, certain) = match (step.told, step.used) {
                    (Told::Returned(units), _) => {
                        let is_certain = self.is_calm() && subject.same && one.certain;
                        returned.extend(is_certain.then_some((entry.to, one.to, units)));
                        continue;
                    }
                    (Told::Charged(units), _) => (units, one.certain),
                    (Told::Nothing, Some(used)) if known.is_none() => {
                        (used.saturating_sub(one.least), false)
                    }
                    _ => continue,
                };
                let mut spans = deciding[entry.sidecar].iter();
                let counts = spans.all(|span| {
                    !meets((span.0, span.1), entry.when()) || self.counts(span.2, bucket)
                });
                all.extend((units > 0).then_some(Use {
                    entry: *number,
                    from: entry.from,
                    to: entry.to,
                    units,
                    least: units,
                    certain: certain && counts,
                    charged: true,
                    by_share: false,
                    quota: None,
                }));
            }
        }
        let mut uses = Uses::of(all, returned);
        // Where programs alone settle, a denial is cached as elsewhere, and only the sidecar that settles ends it.
        let mut asked = subject.asked.iter();
        uses.denied_still = match asked.any(|(_, check)| check.cost > 0 && check.most.is_some()) {
            true => DENIED_STILL,
            false => DENIED_STILL.max(self.history.cached_us),
        };
        uses
    }

    /// What may have been charged when a request was admitted already: what those that were under way at that moment used beyond
    /// their reserves. A share does not know what was charged, nor does a window that the clock runs through again.
    pub(crate) fn charged_beside(&self, uses: &[Use], number: usize, span: Time) -> u64 {
        let one = &uses[number];
        let when = (one.from, one.to);
        let back = |(at, by): &(u64, i64)| *by < 0 && meets((*at, *at), span);
        let stepped = self.clocks.iter().any(back);
        let unknown = stepped
            || self.once_more(when, span.0) > 0
            || self.disturbing(span, |one| one.once_more) > 0;
        let since = if unknown { span.0 } else { one.from };
        let before = uses[..number].iter().rev();
        let charged = before.take_while(|other| other.to >= since);
        // Who reserves nothing may have been admitted before all of these.
        let charged = charged.filter(|other| other.charged || one.units == 0);
        let charged = charged.filter(|other| other.certain);
        charged.map(|other| other.units).sum()
    }

    /// Nothing happened to the store, its clock, a sidecar or its link.
    fn is_calm(&self) -> bool {
        self.is_steady() && self.outages.is_empty()
    }

    /// Each settle is told the truth, and what a stream tells is not lost.
    pub(crate) fn settles(&self, report: &mut Report) {
        for ((entry, limit, key), steps) in &self.settled {
            let (when, of) = (self.history.log[*entry].when(), (*limit, *key));
            let Some(subject) = self.subjects.get(&of) else {
                continue;
            };
            let reserved = self.reserved(*entry, of);
            let is_sure = self.history.log[*entry]
                .request()
                .is_some_and(|one| one.is_admitted());
            let exact =
                self.is_calm() && is_sure && subject.same && self.history.policies.len() == 1;
            let (mut is_settled, mut is_lost, mut is_answered) = (false, false, false);
            let mut ended = None;
            for (number, step) in steps {
                let at = self.history.log[*number].when();
                let told = match step.told {
                    Told::Ended => {
                        ended = ended.or(Some(at));
                        continue;
                    }
                    Told::Nothing => {
                        is_lost = true;
                        continue;
                    }
                    Told::Unknown => {
                        if exact && !is_answered && !is_lost {
                            report.add(of, at, Wrong::Unsettled);
                        }
                        is_answered = true;
                        continue;
                    }
                    Told::Returned(units) => [units, 0],
                    Told::Charged(units) => [0, units],
                };
                let [back, more] = step.used.map_or([(0, 0); 2], |used| due(reserved, used));
                let mut counted = subject.counted.iter();
                let holds = subject.constant && counted.all(|one| self.holds(one, when, at));
                // Of what has left its window nothing comes back; and all is settled once.
                for (units, (least, most), is_certain) in
                    [(told[0], back, holds), (told[1], more, true)]
                {
                    let least = if exact && is_certain && !is_settled {
                        least
                    } else {
                        0
                    };
                    let most = if is_settled { 0 } else { most };
                    if units < least || units > most && !self.settles_another(step, at) {
                        report.add(of, at, Wrong::Settled { units, least, most });
                    }
                }
                (is_settled, is_answered) = (true, true);
            }
            // What a VM knows dies with it, and with the run.
            let ends = |at: Time| {
                let mut changes = self.changes.iter();
                changes.any(|one| matches!(one.what, What::VmEnded) && one.to >= at.0)
            };
            let known = |at: Time| at.0 <= self.history.healed.saturating_sub(SOON) && !ends(at);
            if let Some(at) = ended.filter(|at| !is_answered && known(*at)) {
                report.add(of, at, Wrong::Unsettled);
            }
        }
    }

    /// The fewest and the most units that a request has reserved of a limit and key.
    fn reserved(&self, entry: usize, of: (usize, usize)) -> (u64, u64) {
        let when = self.history.log[entry].when();
        let subject = self.subjects.get(&of);
        let parts = subject.into_iter().flat_map(|subject| {
            let of_entry = subject.asked.iter().filter(|(number, _)| *number == entry);
            of_entry.map(|(_, check)| subject.taken(when, check))
        });
        parts.fold((0, 0), |sum, part| (sum.0 + part.0, sum.1 + part.1))
    }

    /// Whether this step may be another limit's: where a consumer's tier has changed meanwhile, it is noted of each that it may
    /// be of.
    fn settles_another(&self, step: &Settled, at: Time) -> bool {
        let mut others = self.settled.iter().filter(|((_, limit, key), steps)| {
            let same = |(number, one): &(usize, Settled)| {
                self.history.log[*number].when() == at && one.told == step.told
            };
            *key == step.key && *limit != step.limit && steps.iter().any(same)
        });
        others.any(|((entry, limit, key), _)| {
            let reserved = self.reserved(*entry, (*limit, *key));
            let [back, more] = step.used.map_or([(0, 0); 2], |used| due(reserved, used));
            match step.told {
                Told::Returned(units) => units <= back.1,
                Told::Charged(units) => units <= more.1,
                Told::Ended | Told::Nothing | Told::Unknown => false,
            }
        })
    }

    /// Whether what was taken at a time is certainly held at another.
    fn holds(&self, counted: &Counted, taken: Time, at: Time) -> bool {
        let bucket = counted.bucket;
        let window = |at| self.window_of(bucket, self.clock(at));
        match bucket.algorithm {
            Algorithm::Fixed | Algorithm::Day(_) => window(taken.0) == window(at.1),
            _ => taken.0 + bucket.per_us > at.1,
        }
    }
}

/// The fewest and the most units that come back, and that are charged, of so many that were reserved at least and at most.
fn due((least, most): (u64, u64), used: u64) -> [(u64, u64); 2] {
    let back = |reserved: u64| reserved.saturating_sub(used);
    let more = |reserved: u64| used.saturating_sub(reserved);
    [(back(least), back(most)), (more(most), more(least))]
}

/// The step that settled.
fn effect(steps: &[(usize, Settled)]) -> Option<Told> {
    let mut told = steps.iter().map(|(_, one)| one.told);
    told.find(|told| matches!(told, Told::Returned(_) | Told::Charged(_)))
}
