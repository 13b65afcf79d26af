//! The second and third promise: a denial is needed, and takes nothing. A peek at the end shows what was taken in all.

use crate::record::{Check, History, Limit, Record, Span, Verdict, Window};
use crate::report::{Report, Wrong};
use crate::uses::{Bucket, Ledger};

pub(crate) fn check(history: &History, ledger: &Ledger, report: &mut Report) {
    for record in &history.records {
        match record.verdict {
            Verdict::Denied(_) => denial(history, ledger, record, report),
            Verdict::Left(left) => peek(history, ledger, record, left, report),
            Verdict::Admitted | Verdict::Unknown => {}
        }
    }
}

/// The windows of a check, with its bucket.
pub(crate) fn windows<'a>(
    history: &'a History,
    checks: &'a [Check],
) -> impl Iterator<Item = (&'a Limit, &'a Window, Bucket, u64)> {
    checks.iter().flat_map(|check| {
        let limit = history.limits.get(check.limit).into_iter();
        limit.flat_map(move |limit| {
            let each = limit.windows.iter();
            each.map(move |window| (limit, window, (check.limit, check.subject), check.cost))
        })
    })
}

fn denial(history: &History, ledger: &Ledger, record: &Record, report: &mut Report) {
    if history.disturbed(record.when, |one| one.denials) {
        return;
    }
    report.denials += 1;
    let full = |denials_take: bool| {
        windows(history, &record.checks).any(|(limit, window, bucket, cost)| {
            let most = |uses: &crate::uses::Uses| uses.at_most(window, record.when, record.when.to);
            let mut used = most(ledger.possible(bucket)) + limit.idle;
            if denials_take {
                // Its own request is among them, and took nothing before it was made.
                used += most(ledger.denied(bucket)).saturating_sub(cost);
            }
            used + cost > window.quota
        })
    };
    if !full(false)
        && let Some((limit, _, bucket, _)) = windows(history, &record.checks).next()
    {
        let what = if full(true) {
            Wrong::DenialsTook
        } else {
            Wrong::WronglyDenied
        };
        report.add(&limit.name, bucket, record.when, what);
    }
}

/// A peek is told by the window with the least room: no window has less than it says, and one has no more.
fn peek(history: &History, ledger: &Ledger, record: &Record, left: u64, report: &mut Report) {
    let since = forgotten_until(history, record.when);
    let until = record.when.from;
    let each = windows(history, &record.checks).map(|(limit, window, bucket, _)| {
        let (possible, certain) = (ledger.possible(bucket), ledger.certain(bucket));
        let at_most = possible.at_most(window, record.when, record.when.to);
        let at_least = certain.at_least(window, record.when, since, until);
        let taken = window.quota.saturating_sub(left);
        (limit, bucket, window.quota, taken, at_most, at_least)
    });
    let each: Vec<_> = each.collect();
    // The window that can have the least room: if even that has more, none was emptied so far.
    let fullest = each
        .iter()
        .min_by_key(|(_, _, quota, _, at_most, _)| quota.saturating_sub(*at_most));
    if let Some((limit, bucket, _, taken, at_most, _)) = fullest.copied()
        && taken > at_most
    {
        let what = Wrong::LessLeft { taken, at_most };
        report.add(&limit.name, bucket, record.when, what);
    }
    for (limit, bucket, _, taken, _, at_least) in each {
        if taken < at_least {
            let what = Wrong::MoreLeft { taken, at_least };
            report.add(&limit.name, bucket, record.when, what);
        }
    }
}

/// What was admitted until then may be forgotten at `when`; 0 if nothing is.
pub(crate) fn forgotten_until(history: &History, when: Span) -> u64 {
    let each = history.disturbances.iter();
    let forgets = each.filter(|one| one.forgets && one.when.from <= when.to);
    forgets.map(|one| one.when.to).max().unwrap_or(0)
}
