//! `sliding_log` and `sliding_window`: the admissions still in the window, oldest first.
//!
//! An entry is stamped with its time rounded up to the precision (a log's is one microsecond) and counts
//! while `now < stamp + window`; admissions of one stamp share an entry. Entries carry running totals,
//! so what has expired, and when enough will have, are binary searches.

use std::collections::VecDeque;
use std::fmt::Write;

use super::records::{Back, MAX_RECORDS, Record, in_order};
use super::{Algorithm, BucketSpec, Rules, Stored, span};
use crate::check::{MAX_HELD, refuse};
use crate::verdict::{Look, left};

/// Logs with room for fewer entries are not worth shrinking.
const SMALL: usize = 64;

/// Why a log cannot be leased: it would free the units before they are spent.
const EXACT: &str = "`algorithm: sliding_log` is exact to the microsecond, so units cannot be taken in advance: use `sliding_window`, or remove `lease`";

#[derive(Clone, Copy, Debug)]
struct Entry {
    stamp_us: u64,
    /// Total units taken, up to and including this entry.
    total: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
    /// Total before the first entry.
    base: u64,
    /// When the log was last empty; nothing taken earlier can be given back.
    born_us: u64,
}

/// The width of a step, and how much later than the end of its step a unit may be stamped: both 0 for a log. Units of a lease may
/// still be spent until the end of the step in which they were taken: if the clock stepped back, that is up to one step later
/// than the end of the step that it is in now.
const fn step_us(spec: &BucketSpec) -> (u64, u64) {
    let Algorithm::SlidingWindow {
        precision_us,
        leased,
    } = spec.algorithm
    else {
        return (0, 0);
    };
    (precision_us, if leased { precision_us } else { 0 })
}

/// The stamp of what is admitted at `now_us`.
fn stamp(spec: &BucketSpec, now_us: u64) -> u64 {
    now_us.next_multiple_of(step_us(spec).0.max(1))
}

pub(super) static RULES: Rules = Rules {
    name: |spec| match step_us(spec).0 {
        0 => "sliding_log",
        _ => "sliding_window",
    },
    tag: |spec, key| match (span(spec.window_us), step_us(spec).0) {
        (window, 0) => write!(key, "log1:{window}"),
        (window, precision_us) => write!(key, "win1:{window}:{}", span(precision_us)),
    },
    operands: |spec, _| {
        let (precision_us, later_us) = step_us(spec);
        let kind = if later_us > 0 { 6 } else { 1 };
        (kind, [spec.window_us, precision_us.max(1)], None)
    },
    empty: |_| Stored::Log(Log::default()),
    check_own: |spec| {
        let precision_us = step_us(spec).0;
        if spec.algorithm == Algorithm::SlidingLog || (1..=spec.window_us).contains(&precision_us) {
            return Ok(());
        }
        let remedy = "use 1ms to the window; a hundredth of it is a good start";
        refuse("precision", precision_us, remedy.to_owned())
    },
    most_at_once: |spec| spec.quota,
    held_for_us: |spec, _| {
        let (precision_us, later_us) = step_us(spec);
        spec.window_us
            .saturating_add(precision_us.saturating_add(later_us))
    },
    window_at: |_, _| None,
    has_slots: |_| false,
    part: |spec, at_us, long_us| Some(stamp(spec, at_us) / long_us.max(step_us(spec).0)),
    touches: |spec, length_us| match step_us(spec).0 {
        0 => Some(spec.window_us.div_ceil(length_us)),
        _ => (spec.window_us < length_us).then_some(1),
    },
    leased: |spec, _| match step_us(spec).0 {
        0 => Err(EXACT.to_owned()),
        precision_us => Ok(Algorithm::SlidingWindow {
            precision_us,
            leased: true,
        }),
    },
    // Without the mark, units would be restamped too early after a clock step.
    spend_by_us: |spec, at_us| (step_us(spec).1 > 0).then(|| stamp(spec, at_us)),
};

impl Log {
    fn append(&mut self, stamp_us: u64, total: u64) {
        match self.entries.back_mut() {
            Some(last) if last.stamp_us == stamp_us => last.total = total,
            _ => self.entries.push_back(Entry { stamp_us, total }),
        }
    }

    fn last_total(&self) -> u64 {
        self.entries.back().map_or(self.base, |e| e.total)
    }

    /// Total before the entry at `index`.
    fn total_before(&self, index: usize) -> u64 {
        let before = index.checked_sub(1).and_then(|i| self.entries.get(i));
        before.map_or(self.base, |e| e.total)
    }

    /// Index of the oldest entry that still counts.
    fn head(&self, spec: &BucketSpec, now_us: u64) -> usize {
        self.entries
            .partition_point(|e| e.stamp_us + spec.window_us <= now_us)
    }

    /// A write drops expired entries for good, even if the clock steps back later.
    fn drop_expired(&mut self, spec: &BucketSpec, now_us: u64) {
        let head = self.head(spec, now_us);
        self.base = self.total_before(head);
        self.entries.drain(..head);
        // Shrink, so that few entries do not keep the memory of many.
        if self.entries.capacity() > SMALL && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
    }

    /// If the clock stepped back, entries with later stamps are restamped to now (of a leased limit: one step later): they
    /// can lock the bucket for at most one window and these steps, and none expires early.
    pub fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        let stamp_us = stamp(spec, now_us) + step_us(spec).1;
        let newest_us = self.entries.back().map_or(0, |e| e.stamp_us);
        if newest_us <= stamp_us {
            return false;
        }
        let total = self.last_total();
        let keep = self.entries.partition_point(|e| e.stamp_us <= stamp_us);
        self.entries.truncate(keep);
        self.append(stamp_us, total);
        self.drop_expired(spec, now_us);
        // Until the clock passes the old time again, units cannot be attributed to a taking, so nothing is returned.
        self.born_us = newest_us + 1;
        true
    }

    pub fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let expired = self.total_before(self.head(spec, now_us));
        let used = self.last_total() - expired;
        let until = |total: u64| {
            let index = self.entries.partition_point(|e| e.total < total);
            let entry = self.entries.get(index);
            entry.map_or(0, |e| e.stamp_us + spec.window_us - now_us)
        };
        let room = cost == 0 || used + cost <= spec.quota;
        Look {
            // Not when the oldest expires, but when enough have to make room for this cost.
            retry_us: if room {
                0
            } else {
                until(expired + used + cost - spec.quota)
            },
            remaining: left(spec.quota, used),
            reset_us: if used == 0 { 0 } else { until(expired + used) },
            quota: spec.quota,
        }
    }

    /// A full queue doubles.
    pub fn growth(&self, spec: &BucketSpec, now_us: u64) -> usize {
        let grows = self.entries.len() == self.entries.capacity()
            && self.head(spec, now_us) == 0
            && self.entries.back().map(|e| e.stamp_us) < Some(stamp(spec, now_us));
        if grows { self.heap_bytes().max(1) } else { 0 }
    }

    pub fn heap_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    pub fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        self.drop_expired(spec, now_us);
        let total = self.last_total();
        if total == self.base {
            self.entries.clear();
            self.born_us = now_us;
        }
        // Stamps only grow: after a clock step, those of a leased limit may be later than now.
        let newest_us = self.entries.back().map_or(0, |e| e.stamp_us);
        self.append(newest_us.max(stamp(spec, now_us)), total + cost);
    }

    pub const fn adopt(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn adopt_faster(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn leave(&mut self, _: u64, _: u64) {}

    /// Only the entry of that time loses units: to take them from another would free them too late or too soon.
    pub fn restore(&mut self, spec: &BucketSpec, now_us: u64, back: Back) -> u64 {
        let at_us = back.at_us;
        if at_us < self.born_us || at_us > now_us {
            return 0;
        }
        let stamp_us = stamp(spec, at_us);
        if stamp_us + spec.window_us <= now_us {
            return 0;
        }
        let index = self.entries.partition_point(|e| e.stamp_us < stamp_us);
        let Some(entry) = self.entries.get(index).filter(|e| e.stamp_us == stamp_us) else {
            return 0;
        };
        let returned = back.units.min(entry.total - self.total_before(index));
        if returned > 0 {
            for later in self.entries.range_mut(index..) {
                later.total -= returned;
            }
            self.drop_expired(spec, now_us);
            // So that the last entry always has units.
            let total = self.last_total();
            let keep = self.entries.partition_point(|e| e.total < total) + 1;
            self.entries.truncate(keep);
        }
        returned
    }

    /// Puts the records at their stamps among the entries. (The script puts it later
    /// than that where it would have to move too many entries.)
    pub fn record(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        let stamp_of = |record: &Record| stamp(spec, record.at_us.min(now_us));
        let held = in_order(records, stamp_of).filter(|new| new.at_us + spec.window_us > now_us);
        let mut new = held.peekable();
        let used = self.last_total() - self.total_before(self.head(spec, now_us));
        if new.peek().is_none() || used >= MAX_HELD {
            return 0;
        }
        self.drop_expired(spec, now_us);
        let mut total = self.last_total();
        if total == self.base {
            self.entries.clear();
            self.born_us = now_us;
        }
        let mut recorded = 0;
        for Record { at_us, units } in new {
            let units = units.min(MAX_HELD - (total - self.base));
            if units == 0 {
                continue;
            }
            let index = self.entries.partition_point(|e| e.stamp_us < at_us);
            if self.entries.get(index).is_none_or(|e| e.stamp_us != at_us) {
                let entry = Entry {
                    stamp_us: at_us,
                    total: self.total_before(index),
                };
                self.entries.insert(index, entry);
            }
            for later in self.entries.range_mut(index..) {
                later.total += units;
            }
            total += units;
            recorded += units;
        }
        recorded
    }

    /// Where there are more than [`MAX_RECORDS`] entries, neighbours as of the later.
    pub fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        let head = self.head(spec, now_us);
        let together = (self.entries.len() - head).div_ceil(MAX_RECORDS).max(1);
        let mut records = Vec::new();
        let mut before = self.total_before(head);
        let mut index = head;
        while index < self.entries.len() {
            index = (index + together).min(self.entries.len());
            let Some(last) = self.entries.get(index - 1) else {
                break;
            };
            if last.total > before {
                records.push(Record {
                    at_us: last.stamp_us,
                    units: last.total - before,
                });
            }
            before = last.total;
        }
        records
    }

    pub fn ends_us(&self, spec: &BucketSpec) -> u64 {
        if self.last_total() == self.base {
            return 0;
        }
        self.entries
            .back()
            .map_or(0, |e| e.stamp_us + spec.window_us)
    }
}
