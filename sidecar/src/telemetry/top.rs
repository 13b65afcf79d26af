//! The most denied subjects and those nearest to a limit, and how much of what is reserved is used, in bounded memory. Pure: time comes as an argument.
//!
//! Old denials must not count for ever, so counts are kept in halves of a time span: the results cover the current
//! half and the previous one, that is between one and two halves.
//!
//! Denials are counted by the frequent-items sketch of Apache DataSketches, which never counts too low and states by
//! how much it may count too high. The nearest subjects need no estimate: the few highest ratios are known exactly.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

use datasketches::frequencies::{ErrorType, FrequentItemsSketch};
use sluicegate_protocol::{TopDenied, TopNearest, TopReserves};

use crate::policy::consumer_of;
use crate::telemetry::subject::Subject;

/// Half of the time span that denials are counted over.
const DENIED_HALF_US: u64 = 150_000_000;
/// Half of the time span that ratios are kept for.
const NEAREST_HALF_US: u64 = 30_000_000;
/// Bytes of keys that are kept, of all limits together, and once as many of older ones: some 25,000 keys each, or 7,000 of
/// the longest.
const KEPT_BYTES: usize = 4 << 20;
/// Bytes that a key takes besides its own.
const KEY_ENTRY: usize = 80;
/// Slots of a sketch, a power of two; 26 bytes each. A subject with more than one in [`CERTAIN_ONE_IN`] of the denials
/// is certain to be in it.
const SKETCH_SLOTS: usize = 512;
/// From the sketch's own bound: the largest error is 3.5 denials in `SKETCH_SLOTS`.
pub const CERTAIN_ONE_IN: u64 = 146;
/// Subjects that are shown.
pub const MAX_SHOWN: usize = 10;

/// Counts that start again in each half of a time span; a half has `HALF_US` microseconds.
#[derive(Debug, Default)]
struct Halves<T, const HALF_US: u64> {
    since_us: u64,
    current: T,
    previous: Option<T>,
}

impl<T: Default, const HALF_US: u64> Halves<T, HALF_US> {
    /// Moves on to the half that contains `now_us`.
    fn rotate(&mut self, now_us: u64) {
        match now_us.saturating_sub(self.since_us) / HALF_US {
            0 => {}
            1 => {
                self.previous = Some(std::mem::take(&mut self.current));
                self.since_us += HALF_US;
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
#[derive(Debug, Default)]
pub struct DenialCounts(Halves<Sketch, DENIED_HALF_US>);

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
            consumer: None,
            count: most,
            error: most - least,
        });
        shown.collect()
    }
}

/// What settles of a limit's receipts said.
#[derive(Debug, Default)]
pub struct Reserves(Halves<Used, DENIED_HALF_US>);

#[derive(Debug, Default)]
struct Used {
    settles: u64,
    reserved: u64,
    used: u64,
}

impl Reserves {
    /// Counts a receipt: what had been reserved, and what was used.
    pub fn count(&mut self, reserved: u64, used: u64, now_us: u64) {
        self.0.rotate(now_us);
        let half = &mut self.0.current;
        half.settles += 1;
        half.reserved = half.reserved.saturating_add(reserved);
        half.used = half.used.saturating_add(used);
    }

    /// How much of what was reserved in both halves was used, if anything was, beside so many denials.
    pub fn top(&mut self, denied: u64, now_us: u64) -> Option<TopReserves> {
        self.0.rotate(now_us);
        let sum = |of: fn(&Used) -> u64| self.0.iter().map(of).fold(0, u64::saturating_add);
        let (settles, reserved) = (sum(|half| half.settles), sum(|half| half.reserved));
        #[expect(clippy::cast_precision_loss, reason = "a ratio")]
        let used_ratio = (reserved > 0).then(|| sum(|half| half.used) as f64 / reserved as f64)?;
        // A settle stands for a request that was admitted.
        let is_denying = denied.saturating_mul(100) > settles.saturating_add(denied);
        Some(TopReserves {
            used_ratio,
            starve: is_denying && used_ratio < 0.25,
        })
    }
}

/// Keys that were denied or near the limit last, for commands that name a key by its digits.
#[derive(Debug, Default)]
pub struct RecentKeys {
    /// The newest, and those before them, by their subjects: a request may name a thousand.
    keys: [HashMap<Subject, Box<str>>; 2],
    /// Bytes of the newest.
    bytes: usize,
}

impl RecentKeys {
    /// Keeps the key of a subject.
    pub fn keep(&mut self, subject: Subject, key: &str) {
        let [current, previous] = &mut self.keys;
        if !current.contains_key(&subject) {
            let bytes = key.len() + KEY_ENTRY;
            if self.bytes + bytes > KEPT_BYTES {
                (*previous, self.bytes) = (std::mem::take(current), 0);
            }
            self.bytes += bytes;
            current.insert(subject, key.into());
        }
    }

    /// The key with these digits, if it is kept.
    pub fn find(&self, digits: &str) -> Option<&str> {
        let subject = Subject::read(digits)?;
        let found = self.keys.iter().find_map(|keys| keys.get(&subject));
        found.map(AsRef::as_ref)
    }
}

/// The keys whose subjects have used the largest share of a limit, each with the highest share of its quota that it had used,
/// above 1 if it was over. In each half, the highest first.
#[derive(Debug, Default)]
pub struct Nearest(Halves<Vec<(Box<str>, f64)>, NEAREST_HALF_US>);

impl Nearest {
    /// Records the share of the quota that a key's subject has used; whether it is among the nearest.
    pub fn note(&mut self, key: &str, used_ratio: f64, now_us: u64) -> bool {
        self.0.rotate(now_us);
        let near = &mut self.0.current;
        // Most decisions end here.
        let least = near.get(MAX_SHOWN - 1);
        if least.is_some_and(|(_, least)| used_ratio <= *least) {
            return false;
        }
        match near.iter_mut().find(|(known, _)| **known == *key) {
            Some((_, highest)) => *highest = highest.max(used_ratio),
            None => near.push((key.into(), used_ratio)),
        }
        near.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        near.truncate(MAX_SHOWN);
        true
    }

    /// The nearest subjects, the nearest first.
    pub fn top(&mut self, now_us: u64) -> Vec<TopNearest> {
        self.0.rotate(now_us);
        let mut highest = BTreeMap::<&str, f64>::new();
        for (key, used_ratio) in self.0.iter().flatten() {
            let ratio = highest.entry(key).or_default();
            *ratio = ratio.max(*used_ratio);
        }
        let near = highest.into_iter().map(|(key, used_ratio)| TopNearest {
            subject: Subject::of(key).to_string(),
            consumer: consumer_of(key).map(str::to_owned),
            used_ratio,
        });
        let mut near: Vec<_> = near.collect();
        near.sort_by(|a, b| {
            let higher = b.used_ratio.total_cmp(&a.used_ratio);
            higher.then_with(|| a.subject.cmp(&b.subject))
        });
        near.truncate(MAX_SHOWN);
        near
    }
}

#[cfg(test)]
mod tests;
