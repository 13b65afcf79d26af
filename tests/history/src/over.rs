//! The first promise: in no window more than the quota.

use std::collections::BTreeMap;

use crate::record::{History, Kind, Span, Window};
use crate::report::{Peak, Report, Wrong};
use crate::uses::{Ledger, Uses};

/// What was certainly admitted in one window.
#[derive(Clone, Copy, Debug)]
struct Filled {
    units: u64,
    window: Span,
}

pub(crate) fn check(history: &History, ledger: &Ledger, report: &mut Report) {
    for (bucket, uses) in ledger.taken() {
        let Some(limit) = history.limits.get(bucket.0) else {
            continue;
        };
        for window in &limit.windows {
            let filled = match window.kind {
                Kind::Aligned => aligned(uses, window),
                Kind::Trailing | Kind::Steps(_) => trailing(uses, window),
            };
            // One finding for each window length and bucket, the worst: the windows beside it are wrong too.
            let worst = filled
                .iter()
                .map(|one| (one, allowed(history, window, one.window)))
                .max_by_key(|(one, allowed)| one.units.saturating_sub(*allowed));
            if let Some((one, allowed)) = worst
                && one.units > allowed
            {
                let units = one.units;
                let what = Wrong::Over { units, allowed };
                report.add(&limit.name, bucket, one.window, what);
            }
            if let Some(peak) = filled.iter().max_by_key(|one| one.units) {
                report.peaks.push(Peak {
                    limit: bucket.0,
                    subject: bucket.1,
                    units: peak.units,
                    quota: window.quota,
                    at: peak.window.to,
                });
            }
        }
    }
}

/// The quota, and once more for each disturbance in the window that allows it.
fn allowed(history: &History, window: &Window, when: Span) -> u64 {
    let touching = history.disturbing(when);
    let more = touching.filter(|one| one.once_more).count();
    window.quota * (1 + more as u64)
}

/// For each instant at which a use has certainly happened: what has certainly happened in the window that ends there.
fn trailing(uses: &Uses, window: &Window) -> Vec<Filled> {
    // A use at `from` or later counts until just before `from + per`, and certainly counts from `to`.
    let mut changes: Vec<(u64, bool, u64)> = Vec::new();
    for one in &uses.each {
        let ends = one.when.from + window.per_us;
        if ends > one.when.to {
            changes.push((one.when.to, true, one.cost));
            changes.push((ends, false, one.cost));
        }
    }
    // At the same instant, what ends goes first (`false` sorts before `true`): the window is open at its beginning.
    changes.sort_unstable();
    let (mut units, mut filled) = (0, Vec::new());
    for (at, begins, cost) in changes {
        if begins {
            units += cost;
            let from = (at + 1).saturating_sub(window.per_us);
            let window = Span { from, to: at };
            filled.push(Filled { units, window });
        } else {
            units -= cost;
        }
    }
    filled
}

/// For each aligned window what has certainly happened in it.
fn aligned(uses: &Uses, window: &Window) -> Vec<Filled> {
    let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
    for one in &uses.each {
        let index = one.when.from / window.per_us;
        if index == one.when.to / window.per_us {
            *sums.entry(index).or_default() += one.cost;
        }
    }
    let filled = sums.into_iter().map(|(index, units)| {
        let from = index * window.per_us;
        let to = from + window.per_us - 1;
        let window = Span { from, to };
        Filled { units, window }
    });
    filled.collect()
}
