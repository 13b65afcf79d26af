//! When a denial was first made. A cache may give it again to the same checks, so what is known of it is what its client
//! saw, and what clients saw who asked the same shortly before.

use std::collections::BTreeMap;

use crate::record::{Entry, History, Said};

/// The filter and the sidecar each have a cache, and the answers that filled them may have been two.
const CACHES: u64 = 2;

/// Limits, keys and costs.
type Checks = Vec<(usize, usize, u64)>;

/// Denials, and requests without a verdict, whose denial may have arrived all the same: by what they asked for.
pub(crate) struct Origins<'a> {
    cached_us: u64,
    alike: BTreeMap<Checks, Alike<'a>>,
}

/// Requests with the same checks, by their earliest instant.
#[derive(Default)]
struct Alike<'a> {
    each: Vec<&'a Entry>,
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
        for entry in history.log.iter().filter(|_| history.cached_us > 0) {
            if let Some(checks) = checks(entry) {
                let of = alike.entry(checks).or_default();
                of.each.push(entry);
                of.longest_us = of.longest_us.max(entry.to - entry.from);
            }
        }
        for of in alike.values_mut() {
            of.each.sort_by_key(|one| one.from);
        }
        Self {
            cached_us: history.cached_us,
            alike,
        }
    }

    /// Where a denial may come from: itself, or one of those with the same checks that could still be cached.
    pub(crate) fn of_denial(&self, denial: &Entry) -> Origin {
        let oldest = denial.from.saturating_sub(self.cached_us);
        let mut origin = Origin {
            made_us: denial.from,
            late_us: 0,
        };
        let Some(alike) = checks(denial).and_then(|checks| self.alike.get(&checks)) else {
            return origin;
        };
        let until = alike.each.partition_point(|one| one.from <= denial.to);
        let before = alike.each[..until].iter().rev();
        let before = before.take_while(|one| one.from + alike.longest_us >= oldest);
        for one in before.filter(|one| one.to >= oldest && !std::ptr::eq(**one, denial)) {
            origin.made_us = origin.made_us.min(one.from.max(oldest));
            origin.late_us = origin.late_us.max(CACHES * (one.to - one.from));
        }
        origin
    }
}

/// What an entry asked for, if it may have been a denial.
fn checks(entry: &Entry) -> Option<Checks> {
    let request = entry.request()?;
    let may_be = request.is_denied() || request.said == Said::Unknown;
    let checks = may_be.then_some(&request.checks)?;
    let each = checks.iter().map(|one| (one.limit, one.key, one.cost));
    Some(each.collect())
}
