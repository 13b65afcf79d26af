//! `concurrency`: slots that are in use at once. Those that were taken together have an id, by which they are renewed and freed.

use std::collections::HashMap;
use std::fmt::Write;

use super::records::{Back, Record};
use super::{BucketSpec, Rules, Stored};
use crate::slot_id::SlotId;
use crate::verdict::{Look, left};

#[derive(Debug, Default)]
pub(crate) struct Slots {
    /// When those of each id end.
    ends_us: HashMap<SlotId, u64>,
    /// How many there are, those included that have ended since the last change.
    count: u64,
    /// None ends before the first of these times, or after the second.
    first_end_us: u64,
    last_end_us: u64,
}

pub(super) static RULES: Rules = Rules {
    name: |_| "concurrency",
    tag: |_, key| key.write_str("slot1"),
    operands: |spec, _| (7, [spec.window_us, 0], None),
    empty: |_| Stored::Slots(Slots::default()),
    check_own: |_| Ok(()),
    most_at_once: |spec| spec.quota,
    held_for_us: |spec, _| spec.window_us,
    window_at: |_, _| None,
    has_slots: |_| true,
    // Nothing is recorded: slots are renewed instead.
    part: |_, at_us, _| Some(at_us),
    touches: |_, _| None,
    leased: |_, _| {
        let why = "`algorithm: concurrency` knows who has each slot, so none can be taken in advance: remove `lease`";
        Err(why.to_owned())
    },
    spend_by_us: |_, _| None,
};

impl Slots {
    /// How many have not ended.
    fn used(&self, now_us: u64) -> u64 {
        if now_us < self.first_end_us {
            return self.count;
        }
        let live = self
            .ends_us
            .iter()
            .filter(|(_, ends_us)| **ends_us > now_us);
        live.map(|(id, _)| id.units()).sum()
    }

    /// Drops those that have ended; how many.
    fn drop_ended(&mut self, now_us: u64) -> u64 {
        if now_us < self.first_end_us {
            return 0;
        }
        self.ends_us.retain(|_, ends_us| *ends_us > now_us);
        let before = self.count;
        self.count = self.ends_us.keys().map(|id| id.units()).sum();
        self.first_end_us = self.ends_us.values().copied().min().unwrap_or(u64::MAX);
        before - self.count
    }

    /// Whether those of an id have not ended.
    fn live(&self, now_us: u64, id: SlotId) -> bool {
        let ends_us = self.ends_us.get(&id);
        ends_us.is_some_and(|ends_us| *ends_us > now_us)
    }

    /// Stores those of an id that were taken; how many others had ended by themselves.
    pub fn store(&mut self, spec: &BucketSpec, now_us: u64, id: SlotId) -> u64 {
        let ended = self.drop_ended(now_us);
        self.renew(spec, now_us, id);
        ended
    }

    /// Renews those of an id; how many had ended.
    pub fn renew(&mut self, spec: &BucketSpec, now_us: u64, id: SlotId) -> u64 {
        let ended = if self.live(now_us, id) { 0 } else { id.units() };
        let ends_us = now_us.saturating_add(spec.window_us);
        if self.ends_us.insert(id, ends_us).is_none() {
            self.count += id.units();
        }
        self.first_end_us = self.first_end_us.min(ends_us);
        self.last_end_us = self.last_end_us.max(ends_us);
        ended
    }

    /// Frees those of an id; how many. Those that have ended go, too: a step of the clock back would put them in use again.
    pub fn free(&mut self, now_us: u64, id: SlotId) -> u64 {
        let live = self.live(now_us, id);
        if self.ends_us.remove(&id).is_some() {
            self.count -= id.units();
        }
        if live { id.units() } else { 0 }
    }

    /// The ids of those that have not ended.
    pub fn ids(&self, now_us: u64) -> impl Iterator<Item = SlotId> {
        let live = self.ends_us.iter();
        live.filter(move |(_, ends_us)| **ends_us > now_us)
            .map(|(id, _)| *id)
    }

    /// If the clock stepped back, what ends later than any slot could is renewed now.
    pub fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        let latest_us = now_us.saturating_add(spec.window_us);
        if self.last_end_us <= latest_us {
            return false;
        }
        let mut is_later = false;
        for ends_us in self.ends_us.values_mut() {
            is_later |= *ends_us > latest_us;
            *ends_us = (*ends_us).min(latest_us);
        }
        self.first_end_us = self.first_end_us.min(latest_us);
        self.last_end_us = latest_us;
        is_later
    }

    pub fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        let used = self.used(now_us);
        Look {
            // When one will be free is not known. So a limit that has a time decides a denial.
            retry_us: u64::from(cost > 0 && used + cost > spec.quota),
            remaining: left(spec.quota, used),
            reset_us: u64::from(used > 0),
            quota: spec.quota,
        }
    }

    /// What is taken is stored by its id.
    pub const fn take(&mut self, _: &BucketSpec, _: u64, _: u64) {}

    pub const fn adopt(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn adopt_faster(&mut self, _: &BucketSpec, _: u64) {}

    pub const fn leave(&mut self, _: u64, _: u64) {}

    pub const fn restore(&mut self, _: &BucketSpec, _: u64, _: Back) -> u64 {
        0
    }

    pub const fn record(&mut self, _: &BucketSpec, _: u64, _: &[Record]) -> u64 {
        0
    }

    pub const fn records(&self, _: &BucketSpec, _: u64) -> Vec<Record> {
        Vec::new()
    }

    /// Longer than the last slot, so that the next taking can tell that nobody has freed it.
    pub fn ends_us(&self, spec: &BucketSpec) -> u64 {
        match self.ends_us.is_empty() {
            true => 0,
            false => self.last_end_us.saturating_add(spec.window_us),
        }
    }

    pub fn heap_bytes(&self) -> usize {
        self.ends_us.capacity() * (size_of::<(SlotId, u64)>() + 1)
    }

    pub fn growth(&self, _: &BucketSpec, _: u64) -> usize {
        if self.ends_us.len() < self.ends_us.capacity() {
            return 0;
        }
        self.heap_bytes()
    }
}
