//! When a denial was first made. A cache may give it again to the same checks, so what is known of it is what its client
//! saw, and what clients saw who asked the same shortly before.

use std::collections::BTreeMap;

use crate::record::{History, Record, Span, Verdict};

/// The filter and the sidecar each have a cache, and the answers that filled them may have been two.
const CACHES: u64 = 2;

/// Denials, and requests without a verdict, whose denial may have arrived all the same: by what they asked for.
pub(crate) struct Origins<'a> {
    cached_us: u64,
    alike: BTreeMap<Vec<(usize, u32, u64)>, Alike<'a>>,
}

/// Records with the same checks, by their earliest instant.
#[derive(Default)]
struct Alike<'a> {
    each: Vec<&'a Record>,
    longest_us: u64,
}

/// What is certain about the time when a denial was first made.
pub(crate) struct Origin {
    /// The earliest instant at which it may have been.
    pub made_us: u64,
    /// By how much its retry-after may be told too long since then.
    pub late_us: u64,
}

impl<'a> Origins<'a> {
    pub(crate) fn of(history: &'a History) -> Self {
        let mut alike: BTreeMap<_, Alike<'_>> = BTreeMap::new();
        if history.cached_us > 0 {
            for record in &history.records {
                if matches!(record.verdict, Verdict::Denied(_) | Verdict::Unknown) {
                    let of = alike.entry(checks(record)).or_default();
                    of.each.push(record);
                    of.longest_us = of.longest_us.max(length(record.when));
                }
            }
            for of in alike.values_mut() {
                of.each.sort_by_key(|one| one.when.from);
            }
        }
        Self {
            cached_us: history.cached_us,
            alike,
        }
    }

    /// Where a denial may come from: itself, or one of those with the same checks that could still be cached.
    pub(crate) fn of_denial(&self, denial: &Record) -> Origin {
        let when = denial.when;
        let oldest = when.from.saturating_sub(self.cached_us);
        let mut origin = Origin {
            made_us: when.from,
            late_us: 0,
        };
        let Some(alike) = self.alike.get(&checks(denial)) else {
            return origin;
        };
        let until = alike.each.partition_point(|one| one.when.from <= when.to);
        let before = alike.each.iter().take(until).rev();
        let before = before.take_while(|one| one.when.from + alike.longest_us >= oldest);
        for one in before.filter(|one| one.when.to >= oldest && !std::ptr::eq(**one, denial)) {
            origin.made_us = origin.made_us.min(one.when.from.max(oldest));
            origin.late_us = origin.late_us.max(CACHES * length(one.when));
        }
        origin
    }
}

fn checks(record: &Record) -> Vec<(usize, u32, u64)> {
    let each = record.checks.iter();
    each.map(|one| (one.limit, one.subject, one.cost)).collect()
}

const fn length(span: Span) -> u64 {
    span.to - span.from
}
