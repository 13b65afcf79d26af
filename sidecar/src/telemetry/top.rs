//! Who is denied most and who is nearest to a limit, in bounded memory. Pure: time comes as an argument.
//!
//! It has to forget, since whoever was denied an hour ago is not denied now. So it counts in halves: what is told is
//! of the half under way and the one before it, and covers between one and two halves' time.
//!
//! Denials are counted by Apache DataSketches' sketch of frequent items, which never says less than the truth and
//! tells by how much it may say more. What is nearest needs no estimate: of the highest ratio of each subject, the
//! few highest are known exactly.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};

use crate::telemetry::subject::Subject;

/// Half of the time that denials are remembered for.
const DENIED_HALF_US: u64 = 150_000_000;
/// Half of the time that a subject near its limit is remembered for.
const NEAREST_HALF_US: u64 = 30_000_000;
/// Places of a sketch, a power of two; 26 bytes each. Whoever has more than one in [`SURE`] of the denials is
/// in it for sure.
const PLACES: usize = 512;
/// By the sketch's own bound: 3.5 denials in `PLACES` are the largest error.
pub const SURE: u64 = 146;
/// Subjects that are shown.
pub const SHOWN: usize = 10;

/// Something that is counted anew in each half of a span of time.
#[derive(Clone, Debug)]
struct Halves<T> {
    length_us: u64,
    since_us: u64,
    now: T,
    before: Option<T>,
}

impl<T> Halves<T> {
    const fn new(length_us: u64, empty: T) -> Self {
        Self {
            length_us,
            since_us: 0,
            now: empty,
            before: None,
        }
    }

    /// Goes on to the half that is under way at `now_us`.
    fn turn(&mut self, now_us: u64, empty: impl Fn() -> T) {
        match now_us.saturating_sub(self.since_us) / self.length_us {
            0 => {}
            1 => {
                self.before = Some(std::mem::replace(&mut self.now, empty()));
                self.since_us += self.length_us;
            }
            _ => {
                // Nothing was counted in the half before this one.
                self.before = None;
                self.now = empty();
                self.since_us = now_us;
            }
        }
    }

    /// What is not forgotten, the older first.
    fn iter(&self) -> impl Iterator<Item = &T> {
        self.before.iter().chain([&self.now])
    }
}

/// How often a subject was denied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denials {
    /// Who.
    pub subject: Subject,
    /// Not less than the truth.
    pub count: u64,
    /// By how much it may be more.
    pub error: u64,
}

/// The denials of a limit, by subject.
#[derive(Clone, Debug)]
pub struct Denied {
    empty: FrequentItemsSketch<Subject>,
    halves: Halves<Sketch>,
}

#[derive(Clone, Debug)]
struct Sketch {
    /// All denials, those included whose subject is not known.
    total: u64,
    items: FrequentItemsSketch<Subject>,
}

impl Denied {
    /// Nobody.
    ///
    /// # Errors
    /// [`PLACES`] is not a size that a sketch can have, which is a defect of this file.
    pub fn new() -> Result<Self, datasketches::error::Error> {
        let empty = FrequentItemsSketch::new(PLACES)?;
        let sketch = Sketch {
            total: 0,
            items: empty.clone(),
        };
        Ok(Self {
            empty,
            halves: Halves::new(DENIED_HALF_US, sketch),
        })
    }

    /// Counts denials; of nobody in particular where the subject is not known.
    pub fn count(&mut self, subject: Option<Subject>, count: u64, now_us: u64) {
        self.turn(now_us);
        let sketch = &mut self.halves.now;
        // The count may come over the wire, and the sketch panics when its sum overflows.
        let count = count.min(u64::MAX - sketch.total);
        sketch.total += count;
        if let Some(subject) = subject {
            sketch.items.update_with_count(subject, count);
        }
    }

    /// All denials that are remembered.
    pub fn total(&mut self, now_us: u64) -> u64 {
        self.turn(now_us);
        let totals = self.halves.iter().map(|half| half.total);
        totals.fold(0, u64::saturating_add)
    }

    /// For how long denials have been remembered, in microseconds.
    pub fn span_us(&self, now_us: u64) -> u64 {
        let before = self.halves.before.as_ref().map_or(0, |_| DENIED_HALF_US);
        now_us.saturating_sub(self.halves.since_us) + before
    }

    /// The most denied, the most denied first.
    pub fn most(&mut self, now_us: u64) -> Vec<Denials> {
        self.turn(now_us);
        let mut known = BTreeMap::new();
        for half in self.halves.iter() {
            for row in half.items.frequent_items(ErrorType::NoFalseNegatives) {
                known.insert(*row.item(), (0_u64, 0_u64));
            }
        }
        for half in self.halves.iter() {
            for (subject, (least, most)) in &mut known {
                *least = least.saturating_add(half.items.lower_bound(subject));
                *most = most.saturating_add(half.items.upper_bound(subject));
            }
        }
        let denials = |(subject, (least, most)): (Subject, (u64, u64))| Denials {
            subject,
            count: most,
            error: most - least,
        };
        let mut denials: Vec<_> = known.into_iter().map(denials).collect();
        denials.sort_by_key(|one| (std::cmp::Reverse(one.count), one.subject));
        denials.truncate(SHOWN);
        denials
    }

    fn turn(&mut self, now_us: u64) {
        let empty = &self.empty;
        self.halves.turn(now_us, || Sketch {
            total: 0,
            items: empty.clone(),
        });
    }
}

/// The subjects that have used most of a limit.
#[derive(Debug)]
pub struct Nearest {
    hashes: RandomState,
    halves: Halves<Vec<Near>>,
}

/// How near a subject was to its limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Near {
    // Of its key, to find it again: much cheaper than its subject.
    hash: u64,
    /// Who.
    pub subject: Subject,
    /// The highest share of its limit that was used, 0 to 1.
    pub used_ratio: f64,
}

/// What has to be known to see, without looking, that a subject is not among the nearest.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// A ratio that is not higher changes nothing, ...
    pub ratio: f64,
    /// ... up to this time.
    pub until_us: u64,
}

impl Default for Nearest {
    fn default() -> Self {
        Self {
            hashes: RandomState::new(),
            halves: Halves::new(NEAREST_HALF_US, Vec::new()),
        }
    }
}

impl Nearest {
    /// Notes the share that a key's subject has used.
    pub fn note(&mut self, key: &str, used_ratio: f64, now_us: u64) -> Gate {
        self.halves.turn(now_us, Vec::new);
        let hash = self.hashes.hash_one(key);
        let near = &mut self.halves.now;
        if let Some(known) = near.iter_mut().find(|known| known.hash == hash) {
            known.used_ratio = known.used_ratio.max(used_ratio);
        } else {
            let lowest = lowest(near);
            if near.len() < SHOWN || used_ratio > lowest {
                if near.len() >= SHOWN
                    && let Some(place) = near.iter().position(|one| one.used_ratio <= lowest)
                {
                    near.swap_remove(place);
                }
                near.push(Near {
                    hash,
                    subject: Subject::of(key),
                    used_ratio,
                });
            }
        }
        Gate {
            // Where there is room anyone comes in.
            ratio: if near.len() < SHOWN {
                -1.0
            } else {
                lowest(near)
            },
            until_us: self.halves.since_us + NEAREST_HALF_US,
        }
    }

    /// The nearest, the nearest first.
    pub fn most(&mut self, now_us: u64) -> Vec<Near> {
        self.halves.turn(now_us, Vec::new);
        let mut all: Vec<Near> = Vec::with_capacity(2 * SHOWN);
        for near in self.halves.iter().flatten() {
            match all.iter_mut().find(|known| known.hash == near.hash) {
                Some(known) => known.used_ratio = known.used_ratio.max(near.used_ratio),
                None => all.push(*near),
            }
        }
        all.sort_by(|a, b| {
            let higher = b.used_ratio.total_cmp(&a.used_ratio);
            higher.then(a.subject.cmp(&b.subject))
        });
        all.truncate(SHOWN);
        all
    }
}

fn lowest(near: &[Near]) -> f64 {
    near.iter().map(|one| one.used_ratio).fold(1.0, f64::min)
}

#[cfg(test)]
mod tests;
