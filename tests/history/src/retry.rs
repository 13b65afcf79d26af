//! The fourth promise: if nobody else uses the key, the same request is admitted at the promised time, and denied just
//! before it.

use crate::denials::{forgotten_until, windows};
use crate::origin::Origins;
use crate::record::{History, Record, Span, Verdict};
use crate::report::{Report, Wrong};
use crate::uses::Ledger;

pub(crate) fn check(history: &History, ledger: &Ledger, report: &mut Report) {
    let origins = Origins::of(history);
    for record in &history.records {
        if let Verdict::Denied(Some(retry_after)) = record.verdict
            && !history.disturbed(record.when, |one| one.denials)
        {
            promise(history, ledger, &origins, record, retry_after, report);
        }
    }
}

fn promise(
    history: &History,
    ledger: &Ledger,
    origins: &Origins<'_>,
    record: &Record,
    told: u64,
    report: &mut Report,
) {
    let when = record.when;
    let Some((limit, _, bucket, _)) = windows(history, &record.checks).next() else {
        return;
    };
    let after = |wait: u64| Span {
        from: when.from + wait,
        to: when.to + wait,
    };
    // Only what was certainly taken before the denial was first made counts: later takings are somebody else's traffic.
    let since = forgotten_until(history, when);
    let origin = origins.of_denial(record);
    let is_full = |wait: u64| {
        windows(history, &record.checks).any(|(_, window, bucket, cost)| {
            let uses = ledger.certain(bucket);
            uses.at_least(window, after(wait), since, origin.made_us) + cost > window.quota
        })
    };
    if is_full(told) {
        let longest = windows(history, &record.checks).map(|(_, window, ..)| window.held_us());
        let latest = told + longest.max().unwrap_or(0);
        let by_us = first(told, latest, |wait| !is_full(wait)) - told;
        report.add(&limit.name, bucket, when, Wrong::TooEarly { by_us });
    }
    let may_be_full = |wait: u64| {
        windows(history, &record.checks).any(|(limit, window, bucket, cost)| {
            let possible = ledger.possible(bucket);
            let used = possible.at_most(window, after(wait), when.to);
            used + limit.idle + cost > window.quota
        })
    };
    // Just before the promised time, whatever it was rounded up by, and however long its answers travelled.
    let before = told.saturating_sub(history.retry_late_us + origin.late_us);
    if !may_be_full(before) {
        let by_us = told - first(0, before, |wait| !may_be_full(wait));
        report.add(&limit.name, bucket, when, Wrong::TooLate { by_us });
    }
}

/// The first wait from `low` to `high` with which this holds; it holds from there on, since units only end.
fn first(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}
