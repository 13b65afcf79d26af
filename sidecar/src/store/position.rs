//! Which share of the limits this sidecar enforces, given how many sidecars the store reports. More of them count at once.
//! Fewer count only when no living sidecar can be missing from the store's list: when Redis returns empty after an outage,
//! the first sidecar to report to it is the only one that it knows. Pure.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sluicegate_engine::FleetPosition;

/// How long fewer sidecars must be reported until they count: five reports after the first. The store itself counts a sidecar as
/// dead if it has not announced itself for so long, so each living one has done so by then. Reports are a little early or late.
const FEWER_AFTER: Duration = super::kinds::SIDECAR_TTL.saturating_sub(Duration::from_millis(500));

/// The store reports every second: after a longer time than this, a report was missed. The store may have been away, and its
/// list may be a new one.
const MISSED_AFTER: Duration = Duration::from_millis(1_500);

/// The position of this sidecar, by what the store has reported.
#[derive(Debug, Default)]
pub struct Position {
    /// The first is in force. Each of the others has fewer sidecars than the one before it.
    reports: VecDeque<Report>,
    last_at: Option<Instant>,
}

#[derive(Debug)]
struct Report {
    position: FleetPosition,
    /// Since when no report has had more sidecars than this one.
    since: Instant,
}

impl Position {
    /// The store has reported this position now.
    pub fn report(&mut self, now: Instant, position: FleetPosition) {
        let last_at = self.last_at.replace(now);
        if last_at.is_some_and(|at| now.saturating_duration_since(at) > MISSED_AFTER) {
            self.reports.truncate(1);
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

    /// The position that is in force, if the store has reported any.
    pub fn in_force(&self) -> Option<FleetPosition> {
        self.reports.front().map(|report| report.position)
    }
}

#[cfg(test)]
mod tests;
