//! What a world showed, as the record that `tests/history` judges.

use std::collections::BTreeSet;

use jiff::{Timestamp, ToSpan};
use sluicegate_history::{History, Policy, check};

use super::run::Shown;
use super::script::{Algorithm, World};

/// How long a denial may be cached: the default of `denial_ttl`, and what its answer takes.
const CACHED_US: u64 = 1_100_000;
/// Retry-after is rounded up to milliseconds three times: in the verdict, and in what is left of it when the sidecar and
/// then the filter give it again.
const ROUNDED_UP_US: u64 = 3_000;

/// What is wrong.
#[derive(Clone, Debug)]
pub struct Wrong {
    /// Which promise: the same for all findings of a kind.
    pub kind: String,
    pub what: String,
}

/// Everything that is wrong with what a world has shown, and whether units in leases were the only reason of a denial.
pub fn judge(world: &World, shown: &Shown) -> (Vec<Wrong>, bool) {
    let mut wrong = Vec::new();
    let mut add = |kind: &str, what: String| {
        let kind = kind.to_owned();
        wrong.push(Wrong { kind, what });
    };
    if shown.keys_left > 0 {
        add("left behind", format!("{} keys", shown.keys_left));
    }
    if shown.is_behind {
        add(
            "rules",
            "all sidecars have others than their filter".to_owned(),
        );
    }
    let report = check(&history(world, shown));
    for found in report.violations {
        add(&found.what.kind(), found.to_string());
    }
    (wrong, report.idle > 0)
}

fn history(world: &World, shown: &Shown) -> History {
    History {
        policies: world.policies.clone(),
        sidecars: world.sidecars,
        keeps_state: world.keeps_state,
        fleet: world.fleet,
        start_us: world.start_us,
        days: days(&world.policies, world.start_us),
        told: shown.told.clone(),
        healed: shown.healed,
        cached_us: CACHED_US,
        retry_late_us: ROUNDED_UP_US,
        tiers: world.tiers_of_consumers(),
        ..History::new(Vec::new(), shown.log.clone())
    }
}

/// When days begin in the time zones of policies, from two days before until a week later.
fn days(policies: &[Policy], start_us: u64) -> Vec<(&'static str, Vec<u64>)> {
    let limits = policies.iter().flatten().flatten();
    let zones = limits.filter_map(|limit| match limit.algorithm {
        Algorithm::Day(zone) => Some(zone),
        _ => None,
    });
    let zones: BTreeSet<_> = zones.collect();
    let start = Timestamp::from_microsecond(start_us as i64).expect("a time");
    let of = zones.into_iter().map(|zone| {
        let today = start.in_tz(zone).expect("a zone");
        let begins = (-2..7).map(|later: i64| {
            let day = today.checked_add(later.days()).expect("a day");
            let begin = day.start_of_day().expect("a day").timestamp();
            begin.as_microsecond() as u64
        });
        (zone, begins.collect())
    });
    of.collect()
}
