//! What a look finds: no more is left than what was not certainly taken, and, unless some of it may lie idle, no less.

use crate::bounds::{CLOCK, Counted, Judge, MS, Subject, Time};
use crate::record::{Algorithm, Check, Said, What};
use crate::report::{Report, Wrong};
use crate::uses::Use;

/// After the last request: until what was leased has come back.
const CALM: u64 = 7_000 * MS;
/// By how much longer than its window a unit may count that was leased.
const RETURNS: u64 = 2_000 * MS;

impl<'a> Judge<'a> {
    /// Nothing happened to the store, its clock or a sidecar.
    pub(crate) fn is_steady(&self) -> bool {
        let mut changes = self.changes.iter();
        self.clocks.is_empty() && !changes.any(|one| matches!(one.what, What::Lost | What::Down))
    }

    /// The buckets of checks with their costs; none if something about them has changed.
    pub(crate) fn constant(&self, checks: &[Check]) -> Option<Vec<(&Counted, u64)>> {
        let mut found = Vec::new();
        for check in checks {
            let subject: &Subject = &self.subjects[&(check.limit, check.key)];
            let each = subject.counted.iter().filter(|_| subject.constant);
            let before = found.len();
            let (_, cost) = subject.needs((0, u64::MAX), check);
            found.extend(each.map(|counted| (counted, cost)));
            (found.len() > before).then_some(())?;
        }
        Some(found)
    }

    pub(crate) fn looks(&self, report: &mut Report) {
        if !self.is_steady() {
            return;
        }
        let asked = self.history.log.iter();
        let last = asked.filter(|one| one.from < self.history.healed);
        let calm = last.map(|one| one.to).max().unwrap_or(0) + CALM;
        for entry in &self.history.log {
            if let Some(request) = entry.request()
                && let (true, Said::Admitted, Some(left)) =
                    (request.peek, request.said, request.remaining)
                && !self.cut(entry.when())
                && let Some(each) = self.constant(&request.checks)
            {
                self.look(entry.when(), &each, left, calm, report);
            }
        }
    }

    /// A look is told by the window with the least room: no window has less than it says, and one has no more.
    fn look(
        &self,
        when: Time,
        each: &[(&Counted, u64)],
        left: u64,
        calm: u64,
        report: &mut Report,
    ) {
        let since = self.forgotten_until(when.1);
        let mut fullest: Option<(u64, &Counted, u64)> = None;
        let mut may_be_idle = !self.outages.is_empty();
        for (counted, _) in each {
            let bucket = counted.bucket;
            let quota = counted.claims[0].quota;
            let taken = quota.saturating_sub(left);
            let at_least = self.at_least(counted, when, since, when.0);
            // A share may have admitted more than the quota: nothing is left then.
            if taken < at_least.min(quota) {
                let what = Wrong::MoreLeft { taken, at_least };
                report.add((bucket.limit, bucket.key), when, what);
            }
            let leased = self.longest_lease(bucket.limit) > 0;
            // What a VM held when it ended is lost for one window (docs/leases.md).
            may_be_idle |= leased && (self.loses_leases(counted) || when.0 <= calm);
            let longer = self.held_longer(counted) + if leased { RETURNS } else { 0 };
            let gone = self.gone_before(counted, when, longer);
            let at_most = counted.uses.at_most(gone, when.1, when.0);
            let room = quota.saturating_sub(at_most);
            if fullest.is_none_or(|(least, ..)| room < least) {
                fullest = Some((room, counted, at_most));
            }
        }
        // The window that can have the least room: if even that has more, none was emptied so far.
        if let Some((_, counted, at_most)) = fullest.filter(|_| !may_be_idle) {
            let taken = counted.claims[0].quota.saturating_sub(left);
            if taken > at_most {
                let of = (counted.bucket.limit, counted.bucket.key);
                report.add(of, when, Wrong::LessLeft { taken, at_most });
            }
        }
    }

    /// The fewest units that can be in a window at an instant of `at`, of what was certainly taken after `since` and before
    /// `until`, and not returned.
    pub(crate) fn at_least(&self, counted: &Counted, at: Time, since: u64, until: u64) -> u64 {
        let bucket = counted.bucket;
        let window_of = |at| self.window_of(bucket, self.clock(at));
        let has_edges = matches!(bucket.algorithm, Algorithm::Fixed | Algorithm::Day(_));
        let since = if has_edges {
            since
        } else {
            since.max(at.1.saturating_sub(bucket.per_us))
        };
        let is_held = |one: &&Use| {
            // A share follows the store's clock as it was known.
            let early = if one.by_share { CLOCK } else { 0 };
            let times = [one.from.saturating_sub(early), one.to, at.0];
            !has_edges || times.iter().all(|time| window_of(*time) == window_of(at.1))
        };
        let each = counted.uses.certain(since, until).filter(is_held);
        let kept = each.map(|one| {
            let returned = self.returned_of(one, bucket);
            one.least.saturating_sub(returned.map(|back| back.1).sum())
        });
        kept.sum()
    }
}
