//! Traffic through a limiter that scans all that it admitted, with a bug in one place of the history.

use sluicegate_history::{Check, History, Kind, Limit, Record, Span, Verdict, Window};

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

/// Units that the limiter holds.
#[derive(Clone, Copy)]
struct Held {
    limit: usize,
    subject: u32,
    at: u64,
    cost: u64,
}

pub const fn check_of(limit: usize, subject: u32, cost: u64) -> Check {
    Check {
        limit,
        subject,
        cost,
    }
}

pub fn window(kind: Kind, quota: u64, seconds: u64) -> Window {
    Window {
        kind,
        quota,
        per_us: seconds * SECOND,
    }
}

fn limits() -> Vec<Limit> {
    let two = vec![window(Kind::Trailing, 8, 1), window(Kind::Trailing, 20, 4)];
    let windows = [
        ("trailing", two),
        ("steps", vec![window(Kind::Steps(250_000), 30, 2)]),
        ("aligned", vec![window(Kind::Aligned, 12, 2)]),
        // What is never used up, and is peeked at in the end.
        ("count", vec![window(Kind::Trailing, 1_000_000, 3_600)]),
    ];
    let limit = |(name, windows): (&str, Vec<Window>)| Limit {
        name: name.to_owned(),
        windows,
        idle: 0,
    };
    windows.into_iter().map(limit).collect()
}

/// Whether units that were taken at `at` are in a window at `now`.
fn counts(window: &Window, at: u64, now: u64) -> bool {
    match window.kind {
        Kind::Aligned => at / window.per_us == now / window.per_us,
        Kind::Trailing => at + window.per_us > now,
        Kind::Steps(precision) => at.div_ceil(precision) * precision + window.per_us > now,
    }
}

/// When units that were taken at `at` leave a window.
fn end(window: &Window, at: u64) -> u64 {
    match window.kind {
        Kind::Aligned => (at / window.per_us + 1) * window.per_us,
        Kind::Trailing => at + window.per_us,
        Kind::Steps(precision) => at.div_ceil(precision) * precision + window.per_us,
    }
}

fn has_room(limits: &[Limit], held: &[Held], checks: &[Check], now: u64) -> bool {
    checks.iter().all(|check| {
        let limit = limits.get(check.limit);
        limit.is_some_and(|limit| {
            limit.windows.iter().all(|window| {
                let of = held.iter().filter(|one| {
                    (one.limit, one.subject) == (check.limit, check.subject)
                        && counts(window, one.at, now)
                });
                of.map(|one| one.cost).sum::<u64>() + check.cost <= window.quota
            })
        })
    })
}

/// The first instant at which there is room: some instant at which a unit ends, of some window.
fn next_room(limits: &[Limit], held: &[Held], checks: &[Check], now: u64) -> u64 {
    let windows = limits.iter().flat_map(|limit| &limit.windows);
    let ends = windows.flat_map(|window| {
        let live = held.iter().filter(|one| counts(window, one.at, now));
        live.map(|one| end(window, one.at))
    });
    let mut ends: Vec<_> = ends.collect();
    ends.sort_unstable();
    let room = ends
        .into_iter()
        .find(|at| has_room(limits, held, checks, *at));
    // Every cost fits into every quota; if not, the checker finds a retry-after of zero.
    room.unwrap_or(now)
}

/// Runs the traffic; the bug strikes at the first decision after the windows have filled that allows it.
pub fn run(simulation: &Simulation) -> History {
    let bug = simulation.bug;
    let mut random = Random(simulation.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let limits = limits();
    let (mut held, mut records): (Vec<Held>, Vec<Record>) = (Vec::new(), Vec::new());
    let (mut now, mut has_struck) = (1_000 * SECOND, false);
    for index in 0..DECISIONS {
        // Never two at one instant: their order would not be known.
        now += 1 + random.below(100_000);
        let cost = 1 + random.below(3);
        let subject = random.below(2) as u32;
        let limited = (0..3).filter(|_| random.below(2) == 0);
        let limited = limited.map(|limit| check_of(limit, subject, cost));
        let checks: Vec<_> = [check_of(3, 0, cost)].into_iter().chain(limited).collect();
        let room = has_room(&limits, &held, &checks, now);
        let next = if room {
            now
        } else {
            next_room(&limits, &held, &checks, now)
        };
        let told = (next - now).div_ceil(UNIT) * UNIT;
        let strikes = |when: bool| when && index >= FROM && !has_struck;
        let mut struck = true;
        let verdict = match bug {
            Bug::Admits if strikes(!room) => Verdict::Admitted,
            Bug::Denies if strikes(room) => Verdict::Denied(None),
            Bug::RetriesEarly if strikes(!room && told > UNIT) => {
                Verdict::Denied(Some(told - UNIT))
            }
            Bug::RetriesLate if strikes(!room) => Verdict::Denied(Some(told + UNIT)),
            _ => {
                struck = false;
                match room {
                    true => Verdict::Admitted,
                    false => Verdict::Denied(Some(told)),
                }
            }
        };
        let (mut times, mut takes) = (usize::from(verdict == Verdict::Admitted), checks.clone());
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
            held.extend(takes.iter().map(|check| Held {
                limit: check.limit,
                subject: check.subject,
                at: now,
                cost: check.cost,
            }));
        }
        let when = Span {
            from: now - random.below(simulation.doubt_us + 1),
            to: now + random.below(simulation.doubt_us + 1),
        };
        records.push(Record {
            when,
            checks,
            verdict,
        });
    }
    let of_count = held.iter().filter(|one| one.limit == 3);
    let taken: u64 = of_count.map(|one| one.cost).sum();
    records.push(Record {
        when: Span::exact(now + 1 + simulation.doubt_us),
        checks: vec![check_of(3, 0, 0)],
        verdict: Verdict::Left(1_000_000 - taken),
    });
    History {
        limits,
        records,
        retry_late_us: UNIT,
        ..History::default()
    }
}
