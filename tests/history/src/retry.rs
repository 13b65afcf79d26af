//! The fourth promise: if nobody else uses the key, the same request is admitted at the promised time, and denied just
//! before it.

use crate::bounds::{Counted, Judge, MS};
use crate::origin::Origins;
use crate::record::{Entry, Said};
use crate::report::{Report, Wrong};

impl Judge<'_> {
    /// Whatever may lie idle elsewhere, or come back, makes it uncertain.
    pub(crate) fn retries(&self, report: &mut Report) {
        if !self.is_steady() || !self.outages.is_empty() {
            return;
        }
        let origins = Origins::of(self.history);
        for entry in &self.history.log {
            if let Some(request) = entry.request()
                && let Said::Denied {
                    retry_ms: Some(told),
                } = request.said
                && self.disturbing(entry.when(), |one| one.denials) == 0
                && !(request.checks.iter()).any(|check| self.longest_lease(check.limit) > 0)
                && let Some(each) = self.constant(&request.checks)
            {
                self.retry(entry, &each, &origins, told * MS, report);
            }
        }
    }

    fn retry(
        &self,
        entry: &Entry,
        each: &[(&Counted, u64)],
        origins: &Origins<'_>,
        told: u64,
        report: &mut Report,
    ) {
        let bucket = each[0].0.bucket;
        let (of, when) = ((bucket.limit, bucket.key), (entry.from, entry.to));
        let after = |wait: u64| (when.0 + wait, when.1 + wait);
        // Only what was certainly taken before the denial was first made counts: later takings are somebody else's traffic.
        let since = self.forgotten_until(when.1);
        let origin = origins.of_denial(entry);
        let is_full = |wait: u64| {
            each.iter().any(|(counted, cost)| {
                let used = self.at_least(counted, after(wait), since, origin.made_us);
                used + cost > counted.claims[0].quota
            })
        };
        if is_full(told) {
            let longest = each.iter().map(|(counted, _)| 2 * counted.bucket.per_us);
            let latest = told + longest.max().unwrap_or(0);
            let by_us = first(told, latest, |wait| !is_full(wait)) - told;
            report.add(of, when, Wrong::TooEarly { by_us });
        }
        let may_be_full = |wait: u64| {
            each.iter().any(|(counted, cost)| {
                let gone = self.gone_before(counted, after(wait), 0);
                let back = when.0.saturating_sub(counted.uses.denied_still);
                let used = counted.uses.at_most(gone, when.1, back);
                used + self.history.idle + cost > counted.claims[0].quota
            })
        };
        // Just before the promised time, whatever it was rounded up by, and however long its answers travelled.
        let before = told.saturating_sub(self.history.retry_late_us + origin.late_us);
        if !may_be_full(before) {
            let by_us = told - first(0, before, |wait| !may_be_full(wait));
            report.add(of, when, Wrong::TooLate { by_us });
        }
    }
}

/// The first wait from `low` to `high` with which this holds; it holds from there on, since units only end.
fn first(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
