//! What the embedded store's tables hold: a bucket's state, or what is left of a receipt, and when it ends.

use super::state::State;
use super::table::Ends;
use crate::batch::Receipt;
use crate::batch::{BucketSpec, Record};
use crate::verdict::Look;

/// So much longer than its window a count is kept, as `lua/decide.lua` has it: a clock that has just passed an edge and steps
/// back over it finds what the window holds.
const MARGIN_US: u64 = 1_000_000;

#[derive(Debug)]
pub(super) struct Held {
    state: State,
    /// As last named with the bucket.
    spec: BucketSpec,
}

impl Held {
    pub(super) fn new(spec: &BucketSpec) -> Self {
        Self {
            state: State::empty(spec),
            spec: *spec,
        }
    }

    /// Repairs it if the clock has stepped back; whether it had to.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        self.state.heal(spec, now_us)
    }

    pub(super) fn look(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        self.spec = *spec;
        self.state.look(spec, now_us, cost)
    }

    /// Takes, and says how it stands then.
    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        self.state.take(spec, now_us, cost);
        self.state.look(spec, now_us, 0)
    }

    /// Bytes that to take at `now_us` would add.
    pub(super) fn growth(&self, spec: &BucketSpec, now_us: u64) -> usize {
        self.state.growth(spec, now_us)
    }

    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        left: u64,
        at_us: u64,
    ) -> u64 {
        self.state.give_back(spec, now_us, cost, left, at_us)
    }

    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        self.spec = *spec;
        self.state.write_back(spec, now_us, records)
    }

    pub(super) fn records(&self, now_us: u64) -> Vec<Record> {
        self.state.records(&self.spec, now_us)
    }

    /// Makes it whole; whether it held anything.
    pub(super) fn reset(&mut self) -> bool {
        let held_units = self.state.empty_at_us(&self.spec) > 0;
        self.state = State::empty(&self.spec);
        held_units
    }
}

impl Ends for Held {
    fn ends_us(&self) -> u64 {
        let empty_us = self.state.empty_at_us(&self.spec);
        match self.state {
            State::Fixed(_) if empty_us > 0 => empty_us.saturating_add(MARGIN_US),
            _ => empty_us,
        }
    }

    fn heap_bytes(&self) -> usize {
        self.state.heap_bytes()
    }
}

/// What is left of a receipt.
#[derive(Debug)]
pub(super) struct Left {
    units: u64,
    taken_at_us: u64,
    ends_us: u64,
}

impl Left {
    pub(super) fn new(receipt: &Receipt, now_us: u64) -> Self {
        Self {
            units: receipt.units,
            taken_at_us: now_us,
            ends_us: now_us.saturating_add(receipt.lifetime_us),
        }
    }

    /// Takes off up to so many units; how many, how many there were, and when they were taken. None if the clock stepped
    /// back behind the taking: nothing can be returned yet.
    pub(super) fn take_off(&mut self, now_us: u64, units: u64) -> (u64, u64, u64) {
        if self.taken_at_us > now_us {
            return (0, self.units, self.taken_at_us);
        }
        let left = self.units;
        let units = units.min(self.units);
        self.units -= units;
        if self.units == 0 {
            self.ends_us = 0;
        }
        (units, left, self.taken_at_us)
    }
}

impl Ends for Left {
    fn ends_us(&self) -> u64 {
        self.ends_us
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
