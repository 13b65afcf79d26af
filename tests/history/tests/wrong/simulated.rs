//! Traffic through a limiter that scans all that it admitted, with a bug in one place of the history.

use super::{DENIED, denied};
use sluicegate_history::{Algorithm, Check, Entry, History, Limit, Said, Span, Window};

pub const SECOND: u64 = 1_000_000;
/// Retry-after is told in milliseconds.
const UNIT: u64 = 1_000;
const DECISIONS: usize = 400;
/// The first decision that may be wrong, so that the windows are full.
const FROM: usize = 150;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    None,
    /// Admits what has no room.
    Admits,
    /// Denies what has room.
    Denies,
    /// A denied decision takes from the limits that have room.
    DenialTakes,
    RetriesEarly,
    RetriesLate,
    /// An admitted decision takes its units twice.
    TakesTwice,
    /// An admitted decision is forgotten.
    Forgets,
}

#[derive(Clone, Copy, Debug)]
pub struct Simulation {
    pub seed: u64,
    pub bug: Bug,
    /// A record's span is wider than its instant by up to this, on both sides.
    pub doubt_us: u64,
}

/// xorshift: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// Units that the limiter holds: since when.
type Held = (u64, Check);

fn limits() -> Vec<Limit> {
    let mut two = Limit::new(Algorithm::Log, 8, 1_000);
    let (quota, per_ms) = (20, 4_000);
    two.windows.push(Window { quota, per_ms });
    let stepped = Limit::new(Algorithm::Sliding(250), 30, 2_000);
    let aligned = Limit::new(Algorithm::Fixed, 12, 2_000);
    // What is never used up, and is peeked at in the end.
    let count = Limit::new(Algorithm::Log, 1_000_000, 3_600_000);
    vec![two, stepped, aligned, count]
}

/// When units that were taken at `at` leave a window.
fn end(limit: &Limit, window: &Window, at: u64) -> u64 {
    let per_us = window.per_ms * 1_000;
    match limit.algorithm {
        Algorithm::Fixed => (at / per_us + 1) * per_us,
        Algorithm::Sliding(precision_ms) => at.next_multiple_of(precision_ms * 1_000) + per_us,
        _ => at + per_us,
    }
}

fn has_room(limits: &[Limit], held: &[Held], checks: &[Check], now: u64) -> bool {
    checks.iter().all(|check| {
        let limit = &limits[check.limit];
        limit.windows.iter().all(|window| {
            let of = held.iter().filter(|(at, one)| {
                (one.limit, one.key) == (check.limit, check.key) && end(limit, window, *at) > now
            });
            of.map(|(_, one)| one.cost).sum::<u64>() + check.cost <= window.quota
        })
    })
}

/// The first instant at which there is room: some instant at which a unit ends, of some window.
fn next_room(limits: &[Limit], held: &[Held], checks: &[Check], now: u64) -> u64 {
    let windows = limits.iter();
    let windows = windows.flat_map(|limit| limit.windows.iter().map(move |window| (limit, window)));
    let ends = windows.flat_map(|(limit, window)| {
        let ends = held.iter().map(|(at, _)| end(limit, window, *at));
        ends.filter(|at| *at > now)
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let mut ends = ends.into_iter();
    // Every cost fits into every quota; if not, the judge finds a retry-after of zero.
    ends.find(|at| has_room(limits, held, checks, *at))
        .unwrap_or(now)
}

/// Runs the traffic; the bug strikes at the first decision after the windows have filled that allows it.
pub fn run(simulation: &Simulation) -> History {
    let bug = simulation.bug;
    let mut random = Random(simulation.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let limits = limits();
    let (mut held, mut records): (Vec<Held>, Vec<Entry>) = (Vec::new(), Vec::new());
    let (mut now, mut has_struck) = (1_000 * SECOND, false);
    for index in 0..DECISIONS {
        // Never two at one instant: their order would not be known.
        now += 1 + random.below(100_000);
        let cost = 1 + random.below(3);
        let key = random.below(2) as usize;
        let limited = (0..3).filter(|_| random.below(2) == 0);
        let limited = limited.map(|limit| Check::new(limit, key, cost));
        let checks: Vec<_> = [Check::new(3, 0, cost)]
            .into_iter()
            .chain(limited)
            .collect();
        let room = has_room(&limits, &held, &checks, now);
        let next = if room {
            now
        } else {
            next_room(&limits, &held, &checks, now)
        };
        let told = (next - now).div_ceil(UNIT) * UNIT;
        let strikes = |when: bool| when && index >= FROM && !has_struck;
        let mut struck = true;
        let said = match bug {
            Bug::Admits if strikes(!room) => Said::Admitted,
            Bug::Denies if strikes(room) => DENIED,
            Bug::RetriesEarly if strikes(!room && told > UNIT) => denied(told - UNIT),
            Bug::RetriesLate if strikes(!room) => denied(told + UNIT),
            _ => {
                struck = false;
                match room {
                    true => Said::Admitted,
                    false => denied(told),
                }
            }
        };
        let (mut times, mut takes) = (usize::from(said == Said::Admitted), checks.clone());
        let wrong = match bug {
            Bug::TakesTwice if strikes(times == 1) => Some(2),
            Bug::Forgets if strikes(times == 1) => Some(0),
            Bug::DenialTakes if strikes(times == 0) => {
                takes.retain(|one| has_room(&limits, &held, &[*one], now));
                Some(1)
            }
            _ => None,
        };
        if let Some(wrong) = wrong {
            (times, struck) = (wrong, true);
        }
        has_struck |= struck;
        for _ in 0..times {
            held.extend(takes.iter().map(|check| (now, *check)));
        }
        let when = Span {
            from: now - random.below(simulation.doubt_us + 1),
            to: now + random.below(simulation.doubt_us + 1),
        };
        records.push(Entry::asked(when, checks, said));
    }
    let of_count = held.iter().filter(|(_, one)| one.limit == 3);
    let taken: u64 = of_count.map(|(_, one)| one.cost).sum();
    let end = Span::exact(now + 1 + simulation.doubt_us);
    let count = vec![Check::new(3, 0, 0)];
    records.push(Entry::looked(end, count, 1_000_000 - taken));
    History {
        retry_late_us: UNIT,
        ..History::new(limits, records)
    }
}
