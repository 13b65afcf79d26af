//! What was taken from one limit for one subject: sums of units by time, each found in O(log n).

use std::collections::BTreeMap;

use crate::record::{History, Kind, Span, Verdict, Window};

/// A limit's index and a subject.
pub(crate) type Bucket = (usize, u32);

/// Units that one decision took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use {
    pub when: Span,
    pub cost: u64,
}

/// Uses, with their running totals.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    pub each: Vec<Use>,
    /// By the earliest instant, with the total up to and including each.
    by_from: Vec<(u64, u64)>,
    /// Likewise by the latest.
    by_to: Vec<(u64, u64)>,
}

impl Uses {
    fn sum_up(&mut self) {
        let totals = |time: fn(&Use) -> u64, each: &[Use]| {
            let mut times: Vec<_> = each.iter().map(|one| (time(one), one.cost)).collect();
            times.sort_unstable();
            let mut total = 0;
            for (_, units) in &mut times {
                total += *units;
                *units = total;
            }
            times
        };
        self.by_from = totals(|one| one.when.from, &self.each);
        self.by_to = totals(|one| one.when.to, &self.each);
    }

    /// The most units that can be in a window at an instant of `at`, of what can have been taken until `until`.
    pub(crate) fn at_most(&self, window: &Window, at: Span, until: u64) -> u64 {
        // Taken before this: gone at the first instant of `at`.
        let gone = match window.kind {
            Kind::Aligned => at.from / window.per_us * window.per_us,
            Kind::Trailing | Kind::Steps(_) => (at.from + 1).saturating_sub(window.held_us()),
        };
        if gone <= until {
            // What is gone had begun.
            before(&self.by_from, until + 1) - before(&self.by_to, gone)
        } else {
            let counts = |one: &&Use| one.when.from <= until && one.when.to >= gone;
            self.each.iter().filter(counts).map(|one| one.cost).sum()
        }
    }

    /// The fewest units that can be in a window at an instant of `at`, of what was certainly taken after `since` and
    /// before `until`.
    pub(crate) fn at_least(&self, window: &Window, at: Span, since: u64, until: u64) -> u64 {
        let counts = |one: &&Use| {
            let inside = match window.kind {
                Kind::Aligned => {
                    let index = |time: u64| time / window.per_us;
                    index(one.when.from) == index(at.to)
                        && index(one.when.to) == index(at.from)
                        && index(at.from) == index(at.to)
                }
                Kind::Trailing | Kind::Steps(_) => one.when.from + window.per_us > at.to,
            };
            inside && one.when.from > since && one.when.to < until
        };
        self.each.iter().filter(counts).map(|one| one.cost).sum()
    }
}

/// The total of what is earlier than `time`.
fn before(totals: &[(u64, u64)], time: u64) -> u64 {
    let count = totals.partition_point(|(at, _)| *at < time);
    let last = totals.get(..count).and_then(<[_]>::last);
    last.map_or(0, |(_, total)| *total)
}

/// All uses of a history, by bucket.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Of admitted decisions.
    certain: BTreeMap<Bucket, Uses>,
    /// Of admitted decisions, and of those without a verdict.
    possible: BTreeMap<Bucket, Uses>,
    /// What denied decisions asked for: they must not have taken it.
    denied: BTreeMap<Bucket, Uses>,
    none: Uses,
}

impl Ledger {
    pub(crate) fn of(history: &History) -> Self {
        let mut ledger = Self::default();
        for record in &history.records {
            let (certain, possible, denied) = match record.verdict {
                Verdict::Admitted => (true, true, false),
                Verdict::Unknown => (false, true, false),
                Verdict::Denied(_) => (false, false, true),
                Verdict::Left(_) => continue,
            };
            for check in &record.checks {
                let bucket = (check.limit, check.subject);
                let one = Use {
                    when: record.when,
                    cost: check.cost,
                };
                for (counts, uses) in [
                    (certain, &mut ledger.certain),
                    (possible, &mut ledger.possible),
                    (denied, &mut ledger.denied),
                ] {
                    if counts {
                        uses.entry(bucket).or_default().each.push(one);
                    }
                }
            }
        }
        let (certain, possible) = (&mut ledger.certain, &mut ledger.possible);
        for all in [certain, possible, &mut ledger.denied] {
            all.values_mut().for_each(Uses::sum_up);
        }
        ledger
    }

    pub(crate) fn certain(&self, bucket: Bucket) -> &Uses {
        self.certain.get(&bucket).unwrap_or(&self.none)
    }

    pub(crate) fn possible(&self, bucket: Bucket) -> &Uses {
        self.possible.get(&bucket).unwrap_or(&self.none)
    }

    pub(crate) fn denied(&self, bucket: Bucket) -> &Uses {
        self.denied.get(&bucket).unwrap_or(&self.none)
    }

    /// Every bucket from which something was certainly taken.
    pub(crate) fn taken(&self) -> impl Iterator<Item = (Bucket, &Uses)> {
        self.certain.iter().map(|(bucket, uses)| (*bucket, uses))
    }
}
