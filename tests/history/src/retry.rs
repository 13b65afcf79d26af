//! The fourth promise: if nobody else uses the key, the same request is admitted at the promised time, and denied just
//! before it.

use crate::denials::{forgotten_until, windows};
use crate::record::{History, Record, Span, Verdict};
use crate::report::{Report, Wrong};
use crate::uses::Ledger;

pub(crate) fn check(history: &History, ledger: &Ledger, report: &mut Report) {
    for record in &history.records {
        if let Verdict::Denied(Some(retry_after)) = record.verdict
            && !history.disturbed(record.when, |one| one.denials)
        {
            promise(history, ledger, record, retry_after, report);
        }
    }
}

fn promise(
    history: &History,
    ledger: &Ledger,
    record: &Record,
    retry_after: u64,
    report: &mut Report,
) {
    let when = record.when;
    let at = Span {
        from: when.from + retry_after,
        to: when.to + retry_after,
    };
    // Only what was certainly taken before the denial was first made counts: later takings are somebody else's traffic.
    let since = forgotten_until(history, when);
    let until = when.from.saturating_sub(history.cached_us);
    let early = windows(history, &record.checks).find(|(_, window, bucket, cost)| {
        let used = ledger.certain(*bucket).at_least(window, at, since, until);
        used + cost > window.quota
    });
    if let Some((limit, _, bucket, _)) = early {
        report.add(&limit.name, bucket, when, Wrong::TooEarly);
    }
    // It is told rounded up: the promised time is later than this.
    let before = Span {
        from: at.from.saturating_sub(history.retry_unit_us),
        to: at.to.saturating_sub(history.retry_unit_us),
    };
    let full = windows(history, &record.checks).any(|(limit, window, bucket, cost)| {
        let used = ledger.possible(bucket).at_most(window, before, when.to);
        used + limit.idle + cost > window.quota
    });
    if !full && let Some((limit, _, bucket, _)) = windows(history, &record.checks).next() {
        report.add(&limit.name, bucket, when, Wrong::TooLate);
    }
}
