//! The most denied subjects and those nearest to a limit, in bounded memory. Pure: time comes as an argument.
//!
//! Old denials must not count for ever, so counts are kept in halves of a time span: the results cover the current
//! half and the previous one, that is between one and two halves.
//!
//! Denials are counted by the frequent-items sketch of Apache DataSketches, which never counts too low and states by
//! how much it may count too high. The nearest subjects need no estimate: the few highest ratios are known exactly.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use sluicegate_protocol::{TopDenied, TopNearest};

use crate::telemetry::subject::Subject;

/// Half of the time span that denials are counted over.
const DENIED_HALF_US: u64 = 150_000_000;
/// Half of the time span that ratios are kept for.
const NEAREST_HALF_US: u64 = 30_000_000;
/// Keys that are kept, and once as many older ones: nearly all subjects with more than one in
/// [`CERTAIN_ONE_IN`] of the denials are among them.
const KEPT_KEYS: usize = 512;
/// Slots of a sketch, a power of two; 26 bytes each. A subject with more than one in [`CERTAIN_ONE_IN`] of the denials
/// is certain to be in it.
const SKETCH_SLOTS: usize = 512;
/// From the sketch's own bound: the largest error is 3.5 denials in `SKETCH_SLOTS`.
pub const CERTAIN_ONE_IN: u64 = 146;
/// Subjects that are shown.
pub const MAX_SHOWN: usize = 10;

/// Counts that start again in each half of a time span.
#[derive(Clone, Debug)]
struct Halves<T> {
    length_us: u64,
    since_us: u64,
    current: T,
    previous: Option<T>,
}

impl<T> Halves<T> {
    const fn new(length_us: u64, empty: T) -> Self {
        Self {
            length_us,
            since_us: 0,
            current: empty,
            previous: None,
        }
    }

    /// Moves on to the half that contains `now_us`.
    fn rotate(&mut self, now_us: u64, empty: impl Fn() -> T) {
        match now_us.saturating_sub(self.since_us) / self.length_us {
            0 => {}
            1 => {
                self.previous = Some(std::mem::replace(&mut self.current, empty()));
                self.since_us += self.length_us;
            }
            _ => {
                // Nothing was counted in the previous half.
                self.previous = None;
                self.current = empty();
                self.since_us = now_us;
            }
        }
    }

    /// Both halves, the older first.
    fn iter(&self) -> impl Iterator<Item = &T> {
        self.previous.iter().chain([&self.current])
    }
}

/// The denials of a limit, by subject.
#[derive(Clone, Debug)]
pub struct DenialCounts {
    empty: FrequentItemsSketch<Subject>,
    halves: Halves<Sketch>,
}

#[derive(Clone, Debug)]
struct Sketch {
    /// All denials, including those of unknown subjects.
    total: u64,
    items: FrequentItemsSketch<Subject>,
}

impl DenialCounts {
    /// No denials.
    ///
    /// # Errors
    /// `SKETCH_SLOTS` is not a valid size of a sketch, which would be a bug in this file.
    pub fn new() -> Result<Self, datasketches::error::Error> {
        let empty = FrequentItemsSketch::new(SKETCH_SLOTS)?;
        let sketch = Sketch {
            total: 0,
            items: empty.clone(),
        };
        Ok(Self {
            empty,
            halves: Halves::new(DENIED_HALF_US, sketch),
        })
    }

    /// Counts denials; without a subject they count only in the total.
    pub fn count(&mut self, subject: Option<Subject>, count: u64, now_us: u64) {
        self.rotate(now_us);
        let sketch = &mut self.halves.current;
        // The count may come over the wire, and the sketch panics on overflow.
        let count = count.min(u64::MAX - sketch.total);
        sketch.total += count;
        if let Some(subject) = subject {
            sketch.items.update_with_count(subject, count);
        }
    }

    /// All denials in both halves.
    pub fn total(&mut self, now_us: u64) -> u64 {
        self.rotate(now_us);
        let totals = self.halves.iter().map(|half| half.total);
        totals.fold(0, u64::saturating_add)
    }

    /// The time that the counts cover, microseconds.
    pub fn span_us(&self, now_us: u64) -> u64 {
        let before = self.halves.previous.as_ref().map_or(0, |_| DENIED_HALF_US);
        now_us.saturating_sub(self.halves.since_us) + before
    }

    /// The most denied subjects, the most denied first.
    pub fn top(&mut self, now_us: u64) -> Vec<TopDenied> {
        self.rotate(now_us);
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
        let mut denials: Vec<_> = known.into_iter().collect();
        denials.sort_by_key(|(subject, (_, most))| (Reverse(*most), *subject));
        let shown = denials.into_iter().take(MAX_SHOWN);
        let shown = shown.map(|(subject, (least, most))| TopDenied {
            subject: subject.to_string(),
            count: most,
            error: most - least,
        });
        shown.collect()
    }

    fn rotate(&mut self, now_us: u64) {
        let empty = &self.empty;
        self.halves.rotate(now_us, || Sketch {
            total: 0,
            items: empty.clone(),
        });
    }
}

/// Keys that were denied or near the limit last, for commands that name a key by its digits.
#[derive(Debug, Default)]
pub struct RecentKeys([HashSet<Box<str>>; 2]);

impl RecentKeys {
    /// Keeps a key.
    pub fn keep(&mut self, key: &str) {
        let [current, previous] = &mut self.0;
        if !current.contains(key) {
            if current.len() >= KEPT_KEYS {
                *previous = std::mem::take(current);
            }
            current.insert(key.into());
        }
    }

    /// The key with these digits, if it is kept.
    pub fn find(&self, digits: &str) -> Option<&str> {
        let mut all = self.0.iter().flatten().map(AsRef::as_ref);
        all.find(|key| Subject::of(key).to_string() == digits)
    }
}

/// The subjects that have used the largest share of a limit.
#[derive(Debug)]
pub struct Nearest {
    hashes: RandomState,
    halves: Halves<Vec<NearSubject>>,
}

/// How near a subject was to its limit.
#[derive(Clone, Copy, Debug)]
struct NearSubject {
    // Of its key, for lookup: much cheaper than the subject's SHA-256.
    hash: u64,
    subject: Subject,
    /// The highest share of its quota that it had used, 0 to 1.
    used_ratio: f64,
}

/// Lets a caller skip subjects that cannot be among the nearest, without a lock. Its two fields may be of different moments:
/// then a subject is recorded without need, or missed once.
#[derive(Debug, Default)]
pub struct Gate {
    /// The bits of a ratio up to which nothing changes ...
    ratio: AtomicU64,
    /// ... before this time.
    until_us: AtomicU64,
}

impl Gate {
    /// Whether a subject that has used this share is certainly not among the nearest.
    pub fn excludes(&self, used_ratio: f64, now_us: u64) -> bool {
        now_us < self.until_us.load(Ordering::Relaxed)
            && used_ratio <= f64::from_bits(self.ratio.load(Ordering::Relaxed))
    }
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
    /// Records the share of the quota that a key's subject has used, and sets `gate` for the next ones.
    pub fn note(&mut self, key: &str, used_ratio: f64, now_us: u64, gate: &Gate) {
        self.halves.rotate(now_us, Vec::new);
        let hash = self.hashes.hash_one(key);
        let near = &mut self.halves.current;
        let least = least_shown(near);
        match near.iter_mut().find(|known| known.hash == hash) {
            Some(known) => known.used_ratio = known.used_ratio.max(used_ratio),
            None if used_ratio > least => near.push(NearSubject {
                hash,
                subject: Subject::of(key),
                used_ratio,
            }),
            None => {}
        }
        near.sort_by(|a, b| b.used_ratio.total_cmp(&a.used_ratio));
        near.truncate(MAX_SHOWN);
        let ratio = least_shown(near).to_bits();
        gate.ratio.store(ratio, Ordering::Relaxed);
        let until_us = self.halves.since_us + NEAREST_HALF_US;
        gate.until_us.store(until_us, Ordering::Relaxed);
    }

    /// The nearest subjects, the nearest first.
    pub fn top(&mut self, now_us: u64) -> Vec<TopNearest> {
        self.halves.rotate(now_us, Vec::new);
        let mut all: Vec<NearSubject> = Vec::with_capacity(2 * MAX_SHOWN);
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
        let shown = all.into_iter().take(MAX_SHOWN);
        let shown = shown.map(|near| TopNearest {
            subject: near.subject.to_string(),
            used_ratio: near.used_ratio,
        });
        shown.collect()
    }
}

/// The ratio that a subject must exceed to be shown; `near` begins with the highest. While there is room, every ratio does.
fn least_shown(near: &[NearSubject]) -> f64 {
    near.get(MAX_SHOWN - 1).map_or(-1.0, |one| one.used_ratio)
}

#[cfg(test)]
mod tests;
