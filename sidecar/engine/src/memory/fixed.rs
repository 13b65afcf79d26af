//! `fixed_window`: one counter for each window, aligned to the store's clock or to a calendar.

use super::records::in_order;
use crate::batch::{BucketSpec, Record};
use crate::check::{MAX_HELD, MAX_UNITS};
use crate::verdict::Look;

#[derive(Clone, Debug, Default)]
pub(super) struct Fixed {
    /// When the window began that the count is of.
    start_us: u64,
    count: u64,
    /// When what is counted began to be taken; nothing taken earlier can be given back.
    born_us: u64,
}

impl Fixed {
    /// If the clock stepped back over an edge, what was taken in this window before is forgotten:
    /// so it counts as full for any quota, until it ends. Over one edge, the count of the
    /// window that follows is kept beside that, or the clock could pass the edge once more and find it empty.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        let (start_us, end_us) = spec.window_at(now_us);
        let is_later = self.count > 0 && self.start_us > end_us;
        if is_later {
            self.start_us = start_us;
            self.count = self.count.max(MAX_UNITS);
            self.born_us = now_us + 1;
        }
        is_later
    }

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

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let (start_us, end_us) = spec.window_at(now_us);
        let to_edge = end_us - now_us;
        if self.is_of_following(end_us) {
            let room_after_edge = self.count + cost <= spec.quota;
            let after_that = spec.window_at(end_us).1 - now_us;
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
            remaining: spec.quota.saturating_sub(used),
            reset_us: if used == 0 { 0 } else { to_edge },
            quota: spec.quota,
        }
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        let (start_us, _) = spec.window_at(now_us);
        let used = self.used(start_us);
        if used == 0 {
            self.start_us = start_us;
            self.born_us = now_us;
        }
        self.count = used + cost;
    }

    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        at_us: u64,
    ) -> u64 {
        if at_us < self.born_us || at_us > now_us || at_us < self.start_us {
            return 0;
        }
        let returned = self.used(spec.window_at(now_us).0).min(cost);
        self.count -= returned;
        returned
    }

    /// Adds what was taken elsewhere in the window that is counted; how many units.
    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let current = spec.window_at(now_us);
        let following = self.is_of_following(current.1);
        let ((start_us, end_us), held) = if following {
            (spec.window_at(current.1), self.count)
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

    /// What it holds. In the middle of its window, so that a clock that differs a little finds the same window.
    pub(super) fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        let (start_us, end_us) = spec.window_at(now_us);
        let units = if self.is_of_following(end_us) {
            self.count
        } else {
            self.used(start_us)
        };
        let at_us = self.start_us.midpoint(spec.window_at(self.start_us).1);
        let record = Record { at_us, units };
        Vec::from_iter((units > 0).then_some(record))
    }

    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        if self.count == 0 {
            0
        } else {
            spec.window_at(self.start_us).1
        }
    }
}
