//! Judges what clients saw of a fault: by the checker of tests/history, and by counts.

use std::time::Duration;

use sluicegate_history::{Disturbance, Entry, History, Said, Span, check};

use sluicegate_tests::process::repository;

use super::chain::Place;
use super::fault::Fault;
use super::load::{Answer, CLIENTS_OF_A_RULE, Seen, UNDER_WAY};
use super::noticed;
use super::outcome::{Counts, Outcome};
use super::rules::{self, FILTER_TIMEOUT_MS, MOST, QUOTA, SHUT, WINDOW_US};

/// How long a request that was given up may still be on its way to the store.
const ON_ITS_WAY_US: u64 = FILTER_TIMEOUT_MS * 1_000;
/// How long a denial may be cached: the default of `denial_ttl`.
const CACHED_US: u64 = 1_000_000;
/// Retry-after is rounded up to milliseconds three times: in the verdict, and in what is left of it when the sidecar and
/// then the filter give it again.
const ROUNDED_UP_US: u64 = 3_000;
/// Units that decisions of others may hold on a Cluster while they are taken and given back: each of a rule's other clients
/// waits for one answer at most, and is answered when all is given back.
const TAKEN_AND_GIVEN_BACK: u64 = (CLIENTS_OF_A_RULE - 1) * MOST;

/// Verdicts come from the store again within this time: the documented second, which the table shows, and the rest for a
/// machine whose processors others keep busy.
const BACK_WITHIN: Duration = Duration::from_secs(15);

pub const fn span(from: u64, to: u64) -> Span {
    Span { from, to }
}

/// When it broke and when it was mended.
#[derive(Clone, Copy, Debug)]
pub struct Times {
    /// Before anything is broken.
    pub broken_us: u64,
    /// From here on it is broken for certain,
    pub holds_us: u64,
    /// and until here.
    pub ends_us: u64,
    pub mended_us: u64,
    pub settled_us: u64,
}

/// What a client saw, for the checker.
pub fn record(seen: &Seen, times: &Times) -> Entry {
    let (mut to, said) = match seen.answer {
        Answer::Admitted => (seen.answered_us, Said::Admitted),
        Answer::Denied(after) => {
            let retry_ms = Some(after / 1_000);
            (seen.answered_us, Said::Denied { retry_ms })
        }
        _ => (seen.answered_us + ON_ITS_WAY_US, Said::Unknown),
    };
    // What was on its way when something broke may arrive when it is mended.
    let during = seen.answered_us >= times.broken_us && seen.sent_us <= times.mended_us;
    if said == Said::Unknown && during {
        to = to.max(times.mended_us + ON_ITS_WAY_US);
    }
    let checks = rules::checks(seen.rule, seen.client, seen.cost);
    Entry::asked(span(seen.sent_us, to), checks, said)
}

/// What was seen, for the checker; `idle` units may be held by decisions that are taken back.
pub fn history(records: Vec<Entry>, disturbance: Disturbance, idle: u64) -> History {
    History {
        disturbances: vec![disturbance],
        cached_us: CACHED_US,
        retry_late_us: ROUNDED_UP_US,
        idle,
        ..History::new(rules::limits(), records)
    }
}

/// Everything that is known of one run.
#[derive(Clone, Debug)]
pub struct Run {
    pub seen: Vec<Seen>,
    /// The same for the checker, with what is counted in the end.
    pub records: Vec<Entry>,
    pub times: Times,
    pub lost_units: Option<u64>,
    pub vm_deaths: u64,
    /// When the machine itself stood still.
    pub stalls: Vec<Span>,
}

/// What came of a fault.
pub fn judge(fault: &Fault, run: &Run) -> Outcome {
    let Run { seen, times, .. } = run;
    let on_cluster = matches!(fault.place, Place::Cluster | Place::Replicated);
    let idle = if on_cluster { TAKEN_AND_GIVEN_BACK } else { 0 };
    let disturbance = Disturbance {
        when: span(times.broken_us, times.settled_us),
        once_more: fault.once_more,
        forgets: fault.forgets,
        denials: fault.unchecked,
    };
    let report = check(&history(run.records.clone(), disturbance, idle));
    let counts = Counts::of(seen);
    let back = seen.iter().filter(|one| {
        one.rule == SHUT && one.sent_us >= times.mended_us && one.answer.is_verdict()
    });
    let back = back.map(|one| one.answered_us).min();
    let back_after = Duration::from_micros(back.map_or(u64::MAX, |at| at - times.mended_us));
    let (excused, mut failures) = noticed::judge(fault, run);
    let mut at_most = |count: u64, most: Option<u64>, what: &str| {
        if let Some(most) = most.filter(|most| count > *most) {
            failures.push(format!("{count} {what}, of {most}"));
        }
    };
    at_most(counts.hung, Some(0), "requests hung");
    at_most(counts.other, Some(0), "other answers");
    at_most(run.vm_deaths, Some(0), "VMs died");
    let lost = (!fault.breaks_connections).then_some(0);
    at_most(counts.lost, lost, "connections broke");
    // What is lost beyond that was carried out although its request had long been given up.
    let most = fault.cuts.map(|cuts| cuts * UNDER_WAY);
    at_most(run.lost_units.unwrap_or(0), most, "units lost");
    let most_ms = Some(BACK_WITHIN.as_millis() as u64);
    let back_ms = u64::try_from(back_after.as_millis()).unwrap_or(u64::MAX);
    at_most(back_ms, most_ms, "ms until it was back");
    // More than a thousand, where the machine is fast enough for more traffic than quota.
    if report.denials <= 10 && asks_for_more_than_the_quota(seen) {
        failures.push(format!("{} denials checked", report.denials));
    }
    if !fault.lies {
        // One line for each finding would be thousands: the first and the last.
        let after = |at: u64| (at as i64 - times.broken_us as i64) as f64 / 1e6;
        let mut found: Vec<_> = report.violations.iter().collect();
        found.sort_by_key(|one| one.when.to);
        for one in found.first().into_iter().chain(found.last()) {
            let (all, from, to) = (found.len(), after(one.when.from), after(one.when.to));
            let when = format!("{from:.3} to {to:.3} s after the fault");
            failures.push(format!("one of {all}, {when}: {one}"));
        }
    }
    let fullest = report.largest_excess().map(|peak| (peak.units, peak.quota));
    let waited = seen.iter().map(|one| one.answered_us - one.sent_us);
    Outcome {
        name: fault.name,
        counts,
        slowest: Duration::from_micros(waited.max().unwrap_or_default()),
        excused,
        vm_deaths: run.vm_deaths,
        fullest,
        lost_units: run.lost_units,
        back_after,
        failures,
    }
}

/// Whether a client got so many verdicts that many of them must be denials: more units than its quota in each window, and in
/// one at each end, and once more while shares decide.
fn asks_for_more_than_the_quota(seen: &[Seen]) -> bool {
    let first = seen.iter().map(|one| one.sent_us).min();
    let last = seen.iter().map(|one| one.answered_us).max();
    let length = last.unwrap_or_default() - first.unwrap_or_default();
    let most = QUOTA * (length / WINDOW_US + 3);
    let of_first = |one: &&Seen| one.rule == SHUT && one.client == 1 && one.answer.is_verdict();
    let asked = seen.iter().filter(of_first);
    asked.map(|one| one.cost).sum::<u64>() > most + 100
}

/// Writes everything that clients saw to a file under target/chaos: seconds after the fault, rule, client, cost, answer.
pub fn keep(name: &str, seen: &[Seen], times: &Times) {
    let mut seen = seen.to_vec();
    seen.sort_by_key(|one| one.sent_us);
    let after = |at: u64| (at as i64 - times.broken_us as i64) as f64 / 1e6;
    let mut text = format!("{name}: {times:?}\n");
    for one in seen {
        let (sent, answered) = (after(one.sent_us), after(one.answered_us));
        let rule = rules::RULES[one.rule];
        text += &format!(
            "{sent:.6} {answered:.6} {rule} {} {} {:?}\n",
            one.client, one.cost, one.answer
        );
    }
    let folder = repository("target/chaos");
    std::fs::create_dir_all(&folder).expect("a folder under target");
    let file = folder.join(format!("{}.txt", name.replace([' ', ':', '/'], "-")));
    std::fs::write(&file, text).expect("a file under target");
    println!("what clients saw: {}", file.display());
}
