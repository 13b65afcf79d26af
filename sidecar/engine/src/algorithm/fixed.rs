//! `fixed_window`: one counter for each window, aligned to the store's clock or to a calendar.

use std::fmt::Write;

use super::records::{Back, Record, in_order};
use super::{Algorithm, BucketSpec, Rules, Stored, span};
use crate::calendar::Calendar;
use crate::check::MAX_HELD;
use crate::verdict::{Look, left};

/// So much longer than its window a count is kept, as `lua/decide.lua` has it: a clock that has just passed an edge and steps
/// back over it finds what the window holds.
const MARGIN_US: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(crate) struct Fixed {
    /// When the window began that the count is of.
    start_us: u64,
    count: u64,
    /// When what is counted began to be taken; nothing taken earlier can be given back.
    born_us: u64,
}

impl Algorithm {
    /// Of a calendar window: of which, and in which time zone.
    #[must_use]
    pub const fn calendar(self) -> Option<Calendar> {
        let Self::CalendarWindow(calendar) = self else {
            return None;
        };
        Some(calendar)
    }
}

pub(super) static RULES: Rules = Rules {
    name: |_| "fixed_window",
    tag: |spec, key| match spec.algorithm.calendar() {
        // Another zone's windows are others, so they count apart.
        Some(calendar) => {
            let (unit, zone) = (calendar.unit().name(), calendar.time_zone());
            write!(key, "cal1:{unit}:{zone}")
        }
        None => write!(key, "fix1:{}", span(spec.window_us)),
    },
    operands: |spec, not_after_us| match spec.algorithm.calendar() {
        // The script runs at this time at the latest, so in this window or in the one before.
        Some(calendar) => {
            let [before, start, end, after] = calendar.edges(not_after_us);
            (5, [before, start], Some([end, after]))
        }
        None => (2, [spec.window_us, 0], None),
    },
    empty: |_| Stored::Fixed(Fixed::default()),
    check_own: |_| Ok(()),
    most_at_once: |spec| spec.quota,
    held_for_us: |spec, _| spec.window_us,
    window_at: |spec, at_us| Some(window_at(spec, at_us)),
    has_slots: |_| false,
    part: |spec, at_us, _| Some(window_at(spec, at_us).0),
    touches: |spec, length_us| match spec.algorithm.calendar() {
        None if spec.window_us.is_multiple_of(length_us) => Some(spec.window_us / length_us),
        _ => (spec.window_us < length_us).then_some(1),
    },
    leased: |spec, _| Ok(spec.algorithm),
    spend_by_us: |spec, at_us| Some(window_at(spec, at_us).1),
};

fn window_at(spec: &BucketSpec, at_us: u64) -> (u64, u64) {
    if let Some(calendar) = spec.algorithm.calendar() {
        return calendar.window_at(at_us);
    }
    let start_us = at_us - at_us % spec.window_us;
    (start_us, start_us.saturating_add(spec.window_us))
}

impl Fixed {
    /// The clock stepped back over one edge: the count is of the window that follows.
    fn is_of_following(&self, end_us: u64) -> bool {
        self.count > 0 && self.start_us == end_us
    }

    fn used(&self, start_us: u64) -> u64 {
        if self.start_us == start_us {
            self.count
        } else {
            0
        }
    }

    /// If the clock stepped back over an edge, what was taken in this window before is forgotten:
    /// so it counts as full for any quota, until it ends. Over one edge, the count of the
    /// window that follows is kept beside that, or the clock could pass the edge once more and find it empty.
    pub fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        let (start_us, end_us) = window_at(spec, now_us);
        let is_later = self.count > 0 && self.start_us > end_us;
        if is_later {
            self.start_us = start_us;
            self.count = MAX_HELD;
            self.born_us = now_us + 1;
        }
        is_later
    }

    pub fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let (start_us, end_us) = window_at(spec, now_us);
        let to_edge = end_us - now_us;
        if self.is_of_following(end_us) {
            let room_after_edge = self.count + cost <= spec.quota;
            let after_that = window_at(spec, end_us).1 - now_us;
            return Look {
                retry_us: match (cost, room_after_edge) {
                    (0, _) => 0,
                    (_, true) => to_edge,
                    (_, false) => after_that,
                },
                remaining: 0,
                reset_us: after_that,
                quota: spec.quota,
            };
        }
        let used = self.used(start_us);
        let room = cost == 0 || used + cost <= spec.quota;
        Look {
            retry_us: if room { 0 } else { to_edge },
            remaining: left(spec.quota, used),
            reset_us: if used == 0 { 0 } else { to_edge },
            quota: spec.quota,
        }
    }

    pub fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let (start_us, _) = window_at(spec, now_us);
        let used = self.used(start_us);
        if used == 0 {
            self.start_us = start_us;
            self.born_us = now_us;
        }
        self.count = used + cost;
    }

    pub const fn adopt(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn adopt_faster(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn leave(&mut self, _: u64, _: u64) {}

    pub fn restore(&mut self, spec: &BucketSpec, now_us: u64, back: Back) -> u64 {
        let at_us = back.at_us;
        if at_us < self.born_us || at_us > now_us || at_us < self.start_us {
            return 0;
        }
        let returned = self.used(window_at(spec, now_us).0).min(back.units);
        self.count -= returned;
        returned
    }

    /// Adds what was taken in the window that is counted.
    pub fn record(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let current = window_at(spec, now_us);
        let following = self.is_of_following(current.1);
        let ((start_us, end_us), held) = if following {
            (window_at(spec, current.1), self.count)
        } else {
            (current, self.used(current.0))
        };
        let at_us = |record: &Record| match following {
            true => record.at_us,
            false => record.at_us.min(now_us),
        };
        let mut recorded = 0;
        for record in in_order(records, at_us) {
            if (start_us..end_us).contains(&record.at_us) {
                recorded += record.units.min(MAX_HELD - held - recorded);
            }
        }
        if recorded > 0 && following {
            self.count += recorded;
        } else if recorded > 0 {
            self.take(spec, now_us, recorded);
        }
        recorded
    }

    /// In the middle of its window, so that a clock that differs a little finds the same window.
    pub fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        let (start_us, end_us) = window_at(spec, now_us);
        let units = if self.is_of_following(end_us) {
            self.count
        } else {
            self.used(start_us)
        };
        let at_us = self.start_us.midpoint(window_at(spec, self.start_us).1);
        let record = Record { at_us, units };
        Vec::from_iter((units > 0).then_some(record))
    }

    pub fn ends_us(&self, spec: &BucketSpec) -> u64 {
        match self.count {
            0 => 0,
            _ => window_at(spec, self.start_us).1.saturating_add(MARGIN_US),
        }
    }

    pub const fn growth(&self, _: &BucketSpec, _: u64) -> usize {
        0
    }

    pub const fn heap_bytes(&self) -> usize {
        0
    }
}
