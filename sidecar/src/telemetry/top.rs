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
#[derive(Debug)]
struct Halves<T> {
    length_us: u64,
    since_us: u64,
    current: T,
    previous: Option<T>,
}

impl<T: Default> Halves<T> {
    fn new(length_us: u64) -> Self {
        Self {
            length_us,
            since_us: 0,
            current: T::default(),
            previous: None,
        }
    }

    /// Moves on to the half that contains `now_us`.
    fn rotate(&mut self, now_us: u64) {
        match now_us.saturating_sub(self.since_us) / self.length_us {
            0 => {}
            1 => {
                self.previous = Some(std::mem::take(&mut self.current));
                self.since_us += self.length_us;
            }
            _ => {
                // Nothing was counted in the previous half.
                self.previous = None;
                self.current = T::default();
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
#[derive(Debug)]
pub struct DenialCounts(Halves<Sketch>);

#[derive(Debug)]
struct Sketch {
    /// All denials, including those of unknown subjects.
    total: u64,
    /// `None` if [`SKETCH_SLOTS`] were not a valid size.
    items: Option<FrequentItemsSketch<Subject>>,
}

impl Default for Sketch {
    fn default() -> Self {
        Self {
            total: 0,
            items: FrequentItemsSketch::new(SKETCH_SLOTS).ok(),
        }
    }
}

impl Default for DenialCounts {
    fn default() -> Self {
        Self(Halves::new(DENIED_HALF_US))
    }
}

impl DenialCounts {
    /// Counts denials; without a subject they count only in the total.
    pub fn count(&mut self, subject: Option<Subject>, count: u64, now_us: u64) {
        self.0.rotate(now_us);
        let sketch = &mut self.0.current;
        // The count may come over the wire, and the sketch panics on overflow.
        let count = count.min(u64::MAX - sketch.total);
        sketch.total += count;
        if let (Some(subject), Some(items)) = (subject, &mut sketch.items) {
            items.update_with_count(subject, count);
        }
    }

    /// All denials in both halves.
    pub fn total(&mut self, now_us: u64) -> u64 {
        self.0.rotate(now_us);
        let totals = self.0.iter().map(|half| half.total);
        totals.fold(0, u64::saturating_add)
    }

    /// The time that the counts cover, microseconds.
    pub fn span_us(&self, now_us: u64) -> u64 {
        let before = self.0.previous.as_ref().map_or(0, |_| DENIED_HALF_US);
        now_us.saturating_sub(self.0.since_us) + before
    }

    /// The most denied subjects, the most denied first.
    pub fn top(&mut self, now_us: u64) -> Vec<TopDenied> {
        self.0.rotate(now_us);
        let sketches = || self.0.iter().filter_map(|half| half.items.as_ref());
        let mut known = BTreeMap::new();
        for items in sketches() {
            for row in items.frequent_items(ErrorType::NoFalseNegatives) {
                known.insert(*row.item(), (0_u64, 0_u64));
            }
        }
        for items in sketches() {
            for (subject, (least, most)) in &mut known {
                *least = least.saturating_add(items.lower_bound(subject));
                *most = most.saturating_add(items.upper_bound(subject));
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

impl Default for Nearest {
    fn default() -> Self {
        Self {
            hashes: RandomState::new(),
            halves: Halves::new(NEAREST_HALF_US),
        }
    }
}

impl Nearest {
    /// Records the share of the quota that a key's subject has used; whether it is among the nearest.
    pub fn note(&mut self, key: &str, used_ratio: f64, now_us: u64) -> bool {
        self.halves.rotate(now_us);
        let near = &mut self.halves.current;
        // Most decisions end here.
        let least = near.get(MAX_SHOWN - 1);
        if least.is_some_and(|least| used_ratio <= least.used_ratio) {
            return false;
        }
        let hash = self.hashes.hash_one(key);
        match near.iter_mut().find(|known| known.hash == hash) {
            Some(known) => known.used_ratio = known.used_ratio.max(used_ratio),
            None => near.push(NearSubject {
                hash,
                subject: Subject::of(key),
                used_ratio,
            }),
        }
        near.sort_by(|a, b| b.used_ratio.total_cmp(&a.used_ratio));
        near.truncate(MAX_SHOWN);
        true
    }

    /// The nearest subjects, the nearest first.
    pub fn top(&mut self, now_us: u64) -> Vec<TopNearest> {
        self.halves.rotate(now_us);
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

#[cfg(test)]
mod tests;
