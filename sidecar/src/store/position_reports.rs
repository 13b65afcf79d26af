//! Which share of the limits this sidecar enforces, given how many sidecars the store reports. Pure.
//!
//! - It enforces none before it has known the fleet for as long as reports take: by then the store has reported this sidecar to
//!   each one that has a share, and each of them to this one, so that shares add up to one quota however many start at a time.
//! - A larger number of sidecars counts at once.
//! - A smaller number counts only when no living sidecar can be missing from the store's list: when Redis returns empty after an outage,
//!   or evicts the list, the first sidecar to report to it is the only one that it knows.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sluicegate_engine::FleetPosition;

use super::commands::SIDECAR_TTL;

/// How long a smaller number must be reported until it counts: five reports after the first. The store itself counts a sidecar as
/// dead if it has not announced itself for this time, so each living one has done so by then. Reports are a little early or late.
const FEWER_AFTER: Duration = SIDECAR_TTL.saturating_sub(Duration::from_millis(500));

/// The store reports every 0.7 s: after a longer time than this, a report was missed. The store may have been away, and its
/// list may be a new one.
const MISSED_AFTER: Duration = Duration::from_millis(1_500);

/// How long reports, and the list that they are of, must have been there before any is in force: what is not missed comes in
/// this time.
const SETTLED_AFTER: Duration = Duration::from_secs(2);

/// The position of this sidecar, by what the store has reported.
#[derive(Debug, Default)]
pub struct PositionReports {
    /// The first is in force. Each of the others has fewer sidecars than the one before it.
    reports: VecDeque<Report>,
    first_at: Option<Instant>,
    last_at: Option<Instant>,
    /// Whether they are in force; from then on they stay so.
    settled: bool,
    /// Whether the list is a new one to which others may be about to report.
    lacks_others: bool,
}

#[derive(Debug)]
struct Report {
    position: FleetPosition,
    /// Since when no report has had more sidecars than this one.
    since: Instant,
}

impl PositionReports {
    /// The store has reported this position now, by a list of this age.
    pub fn report(&mut self, now: Instant, position: FleetPosition, list_age: Duration) {
        let last_at = self.last_at.replace(now);
        if last_at.is_some_and(|at| now.saturating_duration_since(at) > MISSED_AFTER) {
            self.reports.truncate(usize::from(self.settled));
            self.first_at = None;
        }
        let first_at = *self.first_at.get_or_insert(now);
        let known_for = list_age.min(now.saturating_duration_since(first_at));
        self.settled |= known_for >= SETTLED_AFTER;
        let fewer = |front: &Report| position.of < front.position.of;
        self.lacks_others = list_age < SIDECAR_TTL && self.reports.front().is_some_and(fewer);
        if self.lacks_others {
            // A living sidecar may not be on it yet.
            self.reports.truncate(1);
            return;
        }
        let mut since = now;
        while let Some(fewer) = self
            .reports
            .pop_back_if(|last| last.position.of <= position.of)
        {
            since = fewer.since;
        }
        self.reports.push_back(Report { position, since });
        while let Some(next) = self.reports.get(1)
            && now.saturating_duration_since(next.since) >= FEWER_AFTER
        {
            self.reports.pop_front();
        }
    }

    /// Whether this sidecar is back before others of a store that has lost its list, and with it perhaps all that was counted.
    pub const fn lacks_others(&self) -> bool {
        self.lacks_others
    }

    /// The position that is in force, if the fleet has been known for long enough.
    pub fn in_force(&self) -> Option<FleetPosition> {
        let first = self.reports.front().filter(|_| self.settled);
        first.map(|report| report.position)
    }
}

#[cfg(test)]
mod tests;
