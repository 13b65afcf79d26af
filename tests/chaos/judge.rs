//! Judges what clients saw of a fault: by the checker of tests/history, and by counts.

use std::time::Duration;

use sluicegate_history::{Disturbance, History, Record, Span, Verdict, check};

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
pub fn record(seen: &Seen, times: &Times) -> Record {
    let (mut to, verdict) = match seen.answer {
        Answer::Admitted => (seen.answered_us, Verdict::Admitted),
        Answer::Denied(after) => (seen.answered_us, Verdict::Denied(Some(after))),
        _ => (seen.answered_us + ON_ITS_WAY_US, Verdict::Unknown),
    };
    // What was on its way when something broke may arrive when it is mended.
    let during = seen.answered_us >= times.broken_us && seen.sent_us <= times.mended_us;
    if verdict == Verdict::Unknown && during {
        to = to.max(times.mended_us + ON_ITS_WAY_US);
    }
    Record {
        when: Span {
            from: seen.sent_us,
            to,
        },
        checks: rules::checks(seen.rule, seen.client, seen.cost),
        verdict,
    }
}

/// What was seen, for the checker; `idle` units may be held by decisions that are taken back.
pub fn history(records: Vec<Record>, disturbance: Disturbance, idle: u64) -> History {
    History {
        limits: rules::limits(idle),
        records,
        disturbances: vec![disturbance],
        cached_us: CACHED_US,
        retry_late_us: ROUNDED_UP_US,
    }
}

/// Everything that is known of one run.
#[derive(Clone, Debug)]
pub struct Run {
    pub seen: Vec<Seen>,
    /// The same for the checker, with what is counted in the end.
    pub records: Vec<Record>,
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
        when: Span {
            from: times.broken_us,
            to: times.settled_us,
        },
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
    let mut require = |holds: bool, what: String| {
        if !holds {
            failures.push(what);
        }
    };
    require(counts.hung == 0, format!("{} requests hung", counts.hung));
    require(counts.other == 0, format!("{} other answers", counts.other));
    require(run.vm_deaths == 0, format!("{} VMs died", run.vm_deaths));
    require(
        counts.lost == 0 || fault.breaks_connections,
        format!("{} connections broke", counts.lost),
    );
    // What is lost beyond that was carried out although its request had long been given up.
    if let (Some(lost), Some(cuts)) = (run.lost_units, fault.cuts) {
        let most = cuts * UNDER_WAY;
        require(lost <= most, format!("{lost} units lost, of {most}"));
    }
    require(
        back_after <= BACK_WITHIN,
        format!("back after {back_after:?}"),
    );
    // More than a thousand, where the machine is fast enough for more traffic than quota.
    require(
        report.denials > 10 || !asks_for_more_than_the_quota(seen),
        format!("{} denials checked", report.denials),
    );
    if !fault.lies {
        // One line for each finding would be thousands: the first and the last.
        let after = |at: u64| (at as i64 - times.broken_us as i64) as f64 / 1e6;
        let mut found: Vec<_> = report.violations.iter().collect();
        found.sort_by_key(|one| one.when.to);
        let ends = found.first().into_iter().chain(found.last());
        for one in ends {
            let (from, to) = (after(one.when.from), after(one.when.to));
            let all = found.len();
            require(
                false,
                format!("one of {all}, {from:.3} to {to:.3} s after the fault: {one}"),
            );
        }
    }
    let fullest = report.largest_excess().map(|peak| (peak.units, peak.quota));
    Outcome {
        name: fault.name,
        counts,
        slowest: Duration::from_micros(slowest(seen)),
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
    let of_first = seen
        .iter()
        .filter(|one| one.rule == SHUT && one.client == 1);
    let asked = of_first.filter(|one| one.answer.is_verdict());
    asked.map(|one| one.cost).sum::<u64>() > most + 100
}

/// The longest time until an answer, in microseconds.
fn slowest(seen: &[Seen]) -> u64 {
    let times = seen.iter().map(|one| one.answered_us - one.sent_us);
    times.max().unwrap_or_default()
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
