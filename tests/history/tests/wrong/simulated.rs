//! Traffic through a limiter that scans all that it admitted, with a bug in one place of the history.

use sluicegate_history::{Check, Disturbance, History, Kind, Limit, Record, Span, Verdict, Window};

use std::ops::Range;

pub const SECOND: u64 = 1_000_000;
/// Retry-after is told in milliseconds.
const UNIT: u64 = 1_000;
const DECISIONS: usize = 400;
/// The first decision that may be wrong, so that the windows are full.
const FROM: usize = 150;

/// With leniencies: units that may be idle, how long a denial is cached, and how long its answer travels at most.
const IDLE: u64 = 4;
const CACHED_US: u64 = 40_000;
const TRAVELS_US: u64 = 3_000;
/// Decisions while which everything is forgotten in the middle, and in which denials are not needed.
const FORGETS: Range<usize> = 10..16;
const DENIES_ALL: Range<usize> = 30..40;
/// The first decision that may be wrong then: the longest window ends after what was disturbed.
const FROM_LENIENT: usize = 200;
/// How often a bug strikes then that changes what is counted: more than what has no verdict can hide.
const STRIKES_LENIENT: usize = 60;

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
    /// With every leniency: requests without a verdict, idle units, cached denials, and two times in which less is promised.
    pub lenient: bool,
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
    /// A client was told so.
    certain: bool,
    limit: usize,
    subject: u32,
    at: u64,
    cost: u64,
}

impl Bug {
    pub const ALL: [Self; 7] = [
        Self::Admits,
        Self::Denies,
        Self::DenialTakes,
        Self::RetriesEarly,
        Self::RetriesLate,
        Self::TakesTwice,
        Self::Forgets,
    ];
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

fn limits(idle: u64) -> Vec<Limit> {
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
        idle,
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
        limits[check.limit].windows.iter().all(|window| {
            let of = held.iter().filter(|one| {
                (one.limit, one.subject) == (check.limit, check.subject)
                    && counts(window, one.at, now)
            });
            of.map(|one| one.cost).sum::<u64>() + check.cost <= window.quota
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

/// A denial that a cache may give again.
struct Cached {
    checks: Vec<Check>,
    arrived: u64,
    told: u64,
    ends: u64,
}

/// Runs the traffic; the bug strikes at the first decision after the windows have filled that allows it.
pub fn run(simulation: &Simulation) -> History {
    let Simulation { bug, lenient, .. } = *simulation;
    let mut random = Random(simulation.seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let idle = if lenient { IDLE } else { 0 };
    let limits = limits(idle);
    let (mut held, mut records): (Vec<Held>, Vec<Record>) = (Vec::new(), Vec::new());
    let (mut now, mut disturbances) = (1_000 * SECOND, Vec::new());
    let counts = matches!(bug, Bug::DenialTakes | Bug::TakesTwice | Bug::Forgets);
    let often = lenient && counts;
    let mut strikes_left = if often { STRIKES_LENIENT } else { 1 };
    let from = if lenient { FROM_LENIENT } else { FROM };
    let mut cached: Option<Cached> = None;
    for index in 0..DECISIONS {
        // Never two at one instant: their order would not be known.
        now += 1 + random.below(100_000);
        let cost = 1 + random.below(3);
        let subject = random.below(2) as u32;
        let limited = (0..3).filter(|_| random.below(2) == 0);
        let limited = limited.map(|limit| check_of(limit, subject, cost));
        let checks: Vec<_> = [check_of(3, 0, cost)].into_iter().chain(limited).collect();
        if let Some(cached) = cached.take() {
            let again = cached.arrived + random.below(CACHED_US - TRAVELS_US);
            if again < cached.ends && again < now {
                let left = cached.told - (again - cached.arrived) / UNIT * UNIT;
                records.push(Record {
                    when: Span::exact(again),
                    checks: cached.checks,
                    verdict: Verdict::Denied(Some(left)),
                });
            }
        }
        if lenient && [FORGETS, DENIES_ALL].iter().any(|one| one.start == index) {
            disturbances.push(Disturbance {
                when: Span::exact(now),
                once_more: index == FORGETS.start,
                forgets: index == FORGETS.start,
                denials: index == DENIES_ALL.start,
            });
        }
        if let Some(last) = disturbances.last_mut()
            && (FORGETS.contains(&index) || DENIES_ALL.contains(&index))
        {
            last.when.to = now;
        }
        if lenient && index == FORGETS.start + FORGETS.len() / 2 {
            held.clear();
        }
        let has_no_verdict = lenient && random.below(20) == 0 && index < from;
        let idles = lenient && random.below(10) == 0;
        let asked = |more: u64| -> Vec<Check> {
            let each = checks.iter();
            each.map(|one| check_of(one.limit, one.subject, one.cost + more))
                .collect()
        };
        let certain: Vec<Held> = held.iter().filter(|one| one.certain).copied().collect();
        let room = has_room(&limits, &held, &asked(if idles { idle } else { 0 }), now)
            && !(lenient && DENIES_ALL.contains(&index));
        let next = if room {
            now
        } else {
            next_room(&limits, &held, &checks, now)
        };
        let exact = next - now;
        let told = exact.div_ceil(UNIT) * UNIT;
        let strikes = |when: bool| when && index >= from && strikes_left > 0;
        // More than idle units and an answer's travel can excuse.
        let lenient_by = (10 * UNIT, 5 * SECOND);
        let (early, late) = if lenient { lenient_by } else { (UNIT, UNIT) };
        let is_certain = || next_room(&limits, &certain, &checks, now) == now + exact;
        let mut struck = true;
        let verdict = match bug {
            // Whatever had no verdict has taken, or has not.
            Bug::Admits if strikes(!has_room(&limits, &certain, &checks, now)) => Verdict::Admitted,
            Bug::Denies if strikes(has_room(&limits, &held, &asked(idle), now)) => {
                Verdict::Denied(None)
            }
            Bug::RetriesEarly if strikes(!room && !idles && told > early) && is_certain() => {
                Verdict::Denied(Some(told - early))
            }
            Bug::RetriesLate if strikes(!room && !idles) => Verdict::Denied(Some(told + late)),
            _ => {
                struck = false;
                match (room, idles) {
                    (true, _) => Verdict::Admitted,
                    (false, false) => Verdict::Denied(Some(told)),
                    // Told by units that nobody sees.
                    (false, true) => Verdict::Denied(None),
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
        strikes_left -= usize::from(struck);
        for _ in 0..times {
            held.extend(takes.iter().map(|check| Held {
                certain: !has_no_verdict,
                limit: check.limit,
                subject: check.subject,
                at: now,
                cost: check.cost,
            }));
        }
        let mut when = Span {
            from: now - random.below(simulation.doubt_us + 1),
            to: now + random.below(simulation.doubt_us + 1),
        };
        if lenient && simulation.doubt_us == 0 && matches!(verdict, Verdict::Denied(Some(_))) {
            let travelled = random.below(TRAVELS_US);
            when.to += travelled;
            // What is denied without need is not said again later.
            if !struck && !DENIES_ALL.contains(&index) {
                cached = Some(Cached {
                    checks: checks.clone(),
                    arrived: now + travelled,
                    told,
                    ends: ends_first(&limits, &held, now).min(now + CACHED_US.min(told)),
                });
            }
            // The next is decided after it.
            now += TRAVELS_US;
        }
        let unknown = has_no_verdict.then_some(Verdict::Unknown);
        records.push(Record {
            when,
            checks,
            verdict: unknown.unwrap_or(verdict),
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
        disturbances,
        cached_us: if lenient { CACHED_US } else { 0 },
        // Rounded up when it is made, and again when it is given from the cache.
        retry_late_us: if lenient { 2 * UNIT } else { UNIT },
    }
}

/// When the first of all units ends: until then no denial can become an admission.
fn ends_first(limits: &[Limit], held: &[Held], now: u64) -> u64 {
    let ends = held.iter().flat_map(|one| {
        let each = limits[one.limit].windows.iter();
        let each = each.filter(|window| counts(window, one.at, now));
        each.map(|window| end(window, one.at))
    });
    ends.min().unwrap_or(now)
}
