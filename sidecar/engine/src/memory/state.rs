//! What one bucket of the embedded store holds, whichever its algorithm.
//!
//! An empty state and none at all mean the same, so when a state is dropped never changes an answer.
//! Looks and takes want a healed state: one without times later than now.

use super::{fixed::Fixed, log::Log, token::Token};
use crate::batch::{Algorithm, BucketSpec, Record};
use crate::verdict::Look;

#[derive(Clone, Debug)]
pub(super) enum State {
    Log(Log),
    Fixed(Fixed),
    Token(Token),
}

/// Calls the method of whichever algorithm the state is of.
macro_rules! of_each {
    ($self:ident, $state:ident => $call:expr) => {
        match $self {
            State::Log($state) => $call,
            State::Fixed($state) => $call,
            State::Token($state) => $call,
        }
    };
}

impl State {
    pub(super) fn empty(spec: &BucketSpec) -> Self {
        match spec.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => State::Log(Log::empty()),
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => State::Fixed(Fixed::empty()),
            Algorithm::TokenBucket { .. } => State::Token(Token::empty()),
        }
    }

    /// Repairs what is of later than now; whether anything was.
    pub(super) fn heal(&mut self, spec: &BucketSpec, now_us: u64) -> bool {
        match self {
            State::Log(state) => state.heal(spec, now_us),
            State::Fixed(state) => state.heal(spec, now_us),
            State::Token(state) => state.heal(now_us),
        }
    }

    pub(super) fn look(&self, spec: &BucketSpec, now_us: u64, cost: u64) -> Look {
        of_each!(self, state => state.look(spec, now_us, cost))
    }

    pub(super) fn take(&mut self, spec: &BucketSpec, now_us: u64, cost: u64) {
        of_each!(self, state => state.take(spec, now_us, cost));
    }

    pub(super) fn give_back(
        &mut self,
        spec: &BucketSpec,
        now_us: u64,
        cost: u64,
        left: u64,
        at_us: u64,
    ) -> u64 {
        match self {
            State::Log(state) => state.give_back(spec, now_us, cost, at_us),
            State::Fixed(state) => state.give_back(spec, now_us, cost, at_us),
            State::Token(state) => state.give_back(now_us, cost, left, at_us),
        }
    }

    /// Bytes that to take at `now_us` would add.
    pub(super) fn growth(&self, spec: &BucketSpec, now_us: u64) -> usize {
        match self {
            State::Log(log) => log.growth(spec, now_us),
            State::Fixed(_) | State::Token(_) => 0,
        }
    }

    /// Bytes that it has allocated.
    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            State::Log(log) => log.heap_bytes(),
            State::Fixed(_) => 0,
            State::Token(token) => token.heap_bytes(),
        }
    }

    pub(super) fn write_back(&mut self, spec: &BucketSpec, now_us: u64, records: &[Record]) -> u64 {
        of_each!(self, state => state.write_back(spec, now_us, records))
    }

    /// What it holds: units, and when they were taken, oldest first.
    pub(super) fn records(&self, spec: &BucketSpec, now_us: u64) -> Vec<Record> {
        match self {
            State::Log(state) => state.records(spec, now_us),
            State::Fixed(state) => state.records(spec, now_us),
            State::Token(state) => state.records(now_us),
        }
    }

    /// When the last unit will have come back if nobody asks; 0 if it holds none.
    pub(super) fn empty_at_us(&self, spec: &BucketSpec) -> u64 {
        of_each!(self, state => state.empty_at_us(spec))
    }
}
