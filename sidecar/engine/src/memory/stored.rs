//! What the embedded store keeps of a bucket, whichever its algorithm, and of a receipt.
//!
//! An empty bucket and none at all mean the same, so dropping one never changes an answer. Decisions expect a bucket without
//! times later than now: [`StoredBucket::heal`] comes first.

use super::table::Ends;
use super::{fixed::Fixed, log::Log, token::Token};
use crate::batch::{Algorithm, BucketSpec, Receipt, Record};
use crate::verdict::Look;

/// So much longer than its window a count is kept, as `lua/decide.lua` has it: a clock that has just passed an edge and steps
/// back over it finds what the window holds.
const MARGIN_US: u64 = 1_000_000;

/// A bucket. The methods take the spec of the call: another one than before, where the policy has changed.
#[derive(Debug)]
pub(super) struct StoredBucket {
    state: State,
    /// As last named with the bucket.
    spec: BucketSpec,
}

#[derive(Debug)]
enum State {
    Log(Log),
    Fixed(Fixed),
    Token(Token),
}

/// Calls the method of whichever algorithm the state is of.
macro_rules! of_each {
    ($state:expr, $one:ident => $call:expr) => {
        match $state {
            State::Log($one) => $call,
            State::Fixed($one) => $call,
            State::Token($one) => $call,
        }
    };
}

impl StoredBucket {
    pub(super) fn empty(spec: &BucketSpec) -> Self {
        let state = match spec.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => State::Log(Log::default()),
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => State::Fixed(Fixed::default()),
            Algorithm::TokenBucket { .. } => State::Token(Token::empty()),
        };
        Self { state, spec: *spec }
    }

    /// Repairs what is of later than now, because the clock has stepped back; whether anything was.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        of_each!(&mut self.state, state => state.heal(spec, now_us))
    }

    pub(super) fn look(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        self.spec = *spec;
        of_each!(&self.state, state => state.look(spec, now_us, cost))
    }

    /// Takes units, and returns the bucket's status afterwards.
    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        of_each!(&mut self.state, state => {
            state.take(spec, now_us, cost);
            state.look(spec, now_us, 0)
        })
    }

    /// Bytes that a take at `now_us` would allocate.
    pub(super) fn growth(&self, spec: &BucketSpec, now_us: u64) -> usize {
        match &self.state {
            State::Log(log) => log.growth(spec, now_us),
            State::Fixed(_) | State::Token(_) => 0,
        }
    }

    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        left: u64,
        at_us: u64,
    ) -> u64 {
        match &mut self.state {
            State::Log(state) => state.give_back(spec, now_us, cost, at_us),
            State::Fixed(state) => state.give_back(spec, now_us, cost, at_us),
            State::Token(state) => state.give_back(now_us, cost, left, at_us),
        }
    }

    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        self.spec = *spec;
        of_each!(&mut self.state, state => state.write_back(spec, now_us, records))
    }

    /// What it holds: units, and when they were taken, oldest first.
    pub(super) fn records(&self, now_us: u64) -> Vec<Record> {
        of_each!(&self.state, state => state.records(&self.spec, now_us))
    }

    /// Whether it holds anything, even if only expired entries.
    pub(super) fn holds_units(&self) -> bool {
        self.empty_at_us() > 0
    }

    /// Empties it; whether it held anything.
    pub(super) fn reset(&mut self) -> bool {
        let held_units = self.holds_units();
        *self = Self::empty(&self.spec);
        held_units
    }

    /// When the last unit will have come back if nobody asks; 0 if it holds none.
    fn empty_at_us(&self) -> u64 {
        of_each!(&self.state, state => state.empty_at_us(&self.spec))
    }
}

impl Ends for StoredBucket {
    fn ends_us(&self) -> u64 {
        let empty_us = self.empty_at_us();
        match self.state {
            State::Fixed(_) if empty_us > 0 => empty_us.saturating_add(MARGIN_US),
            _ => empty_us,
        }
    }

    fn heap_bytes(&self) -> usize {
        match &self.state {
            State::Log(log) => log.heap_bytes(),
            State::Fixed(_) => 0,
            State::Token(token) => token.heap_bytes(),
        }
    }
}

/// A receipt.
#[derive(Debug)]
pub(super) struct StoredReceipt {
    /// Units that it can still return.
    units: u64,
    taken_at_us: u64,
    ends_us: u64,
}

impl StoredReceipt {
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

impl Ends for StoredReceipt {
    fn ends_us(&self) -> u64 {
        self.ends_us
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
