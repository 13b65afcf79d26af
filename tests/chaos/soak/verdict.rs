//! The history, minute by minute, and what is counted in the end.

use sluicegate_history::{Disturbance, History, check};
use sluicegate_tests::sidecar::metric_in;

use super::super::chain::Chain;
use super::super::judge::{Times, history, record, span};
use super::super::load::{CLIENTS_OF_A_RULE, Clock, Seen, admitted};
use super::super::noticed;
use super::super::outcome::Counts;
use super::super::rules::{self, RULES};

/// The length of a part of the history. Checking takes the square of it.
const PART_US: u64 = 60_000_000;
/// What came before a part and is checked with it: more than a window and a cached denial.
const BEFORE_US: u64 = 10_000_000;

/// Everything that breaks a promise, and what was counted.
///
/// A listener that is replaced, as `replaced` were, closes its connections: a request that is sent at that moment is lost.
pub async fn of(
    chain: &Chain,
    mut seen: Vec<Seen>,
    clock: Clock,
    replaced: u64,
) -> (Vec<String>, String) {
    let mut failures = Vec::new();
    seen.sort_by_key(|one| one.sent_us);
    let answers = Counts::of(&seen);
    let most = replaced * CLIENTS_OF_A_RULE * RULES.len() as u64;
    for (what, count, most) in [
        ("requests hung", answers.hung + answers.stalled, 0),
        ("requests got another status", answers.other, 0),
        ("requests lost their connection", answers.lost, most),
        ("VMs died", chain.vm_deaths().await, 0),
    ] {
        if count > most {
            failures.push(format!("{count} {what}, of {most}"));
        }
    }
    failures.extend(noticed::by_rule(&seen));
    let (first, last) = (seen[0].sent_us, clock.now_us());
    let (mut denials, mut from) = (0, first);
    while from < last {
        let part = part(&seen, from);
        let report = check(&part);
        denials += report.denials;
        let seconds = (from - first) / 1_000_000;
        let found = report.violations.iter().take(2);
        failures.extend(found.map(|one| format!("in the minute from {seconds} s: {one}")));
        from += PART_US;
    }
    let requests = seen.len();
    let mut counts =
        format!("- the history that was checked: {requests} requests, {denials} of them denied\n");
    for (rule, name) in RULES.iter().enumerate() {
        let (decision, _) = rules::look_at_count(rule);
        let taken = rules::taken(chain.look(&decision).await);
        let admitted = admitted(&seen, rule);
        counts +=
            &format!("- rule `{name}`: {admitted} units admitted, {taken} counted by Redis\n");
        if taken < admitted {
            failures.push(format!("{name}: {admitted} admitted and {taken} counted"));
        }
    }
    let (granted, told) = leases(chain).await;
    counts += &format!(
        "- leases of the last sidecar: {granted} units granted, {told} spent, returned or held\n"
    );
    if granted != told || granted == 0.0 {
        failures.push(format!("{granted} units granted, {told} accounted for"));
    }
    (failures, counts)
}

/// The part of the history from this time on.
fn part(seen: &[Seen], from: u64) -> History {
    let begin = from.saturating_sub(BEFORE_US);
    let first = seen.partition_point(|one| one.sent_us < begin);
    let end = seen.partition_point(|one| one.sent_us < from + PART_US);
    let seen = &seen[first..end];
    // There is no fault: the promises hold through restarts and reloads too.
    let times = Times {
        broken_us: u64::MAX,
        holds_us: u64::MAX,
        ends_us: 0,
        mended_us: 0,
        settled_us: 0,
    };
    // Of what came before the part only the uses are known, not what they were decided by.
    let unknown = Disturbance {
        when: span(0, from.max(begin + BEFORE_US / 2)),
        once_more: false,
        forgets: false,
        denials: true,
    };
    let records = seen.iter().map(|one| record(one, &times)).collect();
    history(records, unknown, 0)
}

/// Units of leases that were granted, and those that are accounted for.
async fn leases(chain: &Chain) -> (f64, f64) {
    let metrics = chain.sidecar.metrics().await;
    let units = |event: &str| {
        let labels = format!("{{event=\"{event}\",limit=\"hot\"}}");
        metric_in(&metrics, &format!("sluicegate_lease_units_total{labels}"))
    };
    let held = metric_in(&metrics, "sluicegate_lease_units_held{limit=\"hot\"}");
    let told = units("spent") + units("returned") + held;
    (units("granted"), told)
}
