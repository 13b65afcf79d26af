//! Whole histories of the script and of the embedded store, judged by the checker of tests/history: it scans what was
//! admitted and shares nothing with the engine or its model.

use super::lua::Lua;
use super::made::{SECOND, START_US, is_refuted, more_cases, numbered};
use super::mutations::with_bug;
use super::promises::{PRECISE, Store, spec};
use proptest::prelude::*;
use sluicegate_engine::{Algorithm, Bucket, BucketSpec, Memory, script};
use sluicegate_history::{
    Check, History, Kind, Limit, Record, Span, Verdict, Violation, Window, check,
};
use std::cell::RefCell;

/// One decision.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause_us: u64,
    /// When the last denial promised, and not after the pause.
    as_promised: bool,
    /// Units of each bucket, cut to what the bucket allows; of some bucket at least one.
    costs: [u64; BUCKETS],
}

const BUCKETS: usize = 3;

fn step() -> impl Strategy<Value = Step> {
    let pause = prop_oneof![6 => 1u64..4 * SECOND, 1 => 1u64..70 * SECOND];
    let cost = || prop_oneof![3 => Just(0u64), 4 => 1u64..3, 1 => 1u64..40];
    (pause, prop::bool::weighted(0.4), [cost(), cost(), cost()]).prop_map(
        |(pause_us, as_promised, mut costs)| {
            costs[0] = costs[0].max(u64::from(costs == [0; BUCKETS]));
            Step {
                pause_us,
                as_promised,
                costs,
            }
        },
    )
}

fn inputs() -> impl Strategy<Value = (Vec<BucketSpec>, Vec<Step>)> {
    let specs = prop_oneof![
        2 => spec(Algorithm::SlidingLog),
        2 => spec(PRECISE),
        1 => spec(Algorithm::FixedWindow)
    ];
    let specs = prop::collection::vec(specs, BUCKETS);
    (specs, prop::collection::vec(step(), 1..80))
}

/// A bucket as the checker knows it.
fn limit(bucket: &Bucket) -> Limit {
    let kind = match bucket.spec.algorithm {
        Algorithm::SlidingWindow { precision_us, .. } => Kind::Steps(precision_us),
        Algorithm::FixedWindow => Kind::Aligned,
        _ => Kind::Trailing,
    };
    let window = Window {
        kind,
        quota: bucket.spec.quota,
        per_us: bucket.spec.window_us,
    };
    Limit {
        name: bucket.key.clone(),
        windows: vec![window],
        idle: 0,
    }
}

/// Sends the decisions and looks at each bucket in the end.
fn history(store: &Store, buckets: &[Bucket], steps: &[Step]) -> History {
    let (mut now, mut promised) = (START_US, None);
    let mut records = Vec::new();
    for step in steps {
        now = promised
            .take()
            .filter(|_| step.as_promised)
            .unwrap_or(now + step.pause_us);
        let cut = |(bucket, cost): (&Bucket, &u64)| (*cost).min(bucket.spec.most_at_once());
        let costs: Vec<_> = buckets.iter().zip(&step.costs).map(cut).collect();
        let outcome = store.decide(now, buckets, &costs, false);
        let verdict = if outcome.admitted {
            Verdict::Admitted
        } else {
            promised = Some(now + outcome.retry_after_us);
            Verdict::Denied(Some(outcome.retry_after_us))
        };
        let asked = costs.into_iter().enumerate().filter(|(_, cost)| *cost > 0);
        records.push(record(now, asked, verdict));
    }
    now += 1;
    for (index, bucket) in buckets.iter().enumerate() {
        let left = store.decide(now, std::slice::from_ref(bucket), &[0], true);
        records.push(record(now, [(index, 0)], Verdict::Left(left.remaining)));
    }
    History {
        limits: buckets.iter().map(limit).collect(),
        records,
        disturbances: Vec::new(),
        cached_us: 0,
        // An exact time: a microsecond earlier there must be no room.
        retry_late_us: 1,
    }
}

fn record(now: u64, takes: impl IntoIterator<Item = (usize, u64)>, verdict: Verdict) -> Record {
    let check = |(limit, cost)| Check {
        limit,
        subject: 0,
        cost,
    };
    Record {
        when: Span::exact(now),
        checks: takes.into_iter().map(check).collect(),
        verdict,
    }
}

/// Runs generated histories on a store until one is wrong.
fn first_wrong(store: &Store, cases: u32) -> Option<Vec<Violation>> {
    let (case, wrong) = (RefCell::new(0), RefCell::new(None));
    let _ = is_refuted(cases, &inputs(), |(specs, steps)| {
        *case.borrow_mut() += 1;
        let buckets = numbered(format!("checked-{}", case.borrow()), specs);
        let found = check(&history(store, &buckets, &steps)).violations;
        if found.is_empty() {
            return Ok(());
        }
        let text = format!("{found:#?}");
        *wrong.borrow_mut() = Some(found);
        Err(TestCaseError::fail(text))
    });
    wrong.into_inner()
}

#[test]
fn histories_of_both_stores_keep_the_promises() {
    let cases = 60 * more_cases();
    let lua = RefCell::new(Lua::start());
    assert_eq!(first_wrong(&Store::Lua(&lua), cases), None);
    let memory = Store::Memory(RefCell::new(Memory::new()));
    assert_eq!(first_wrong(&memory, cases), None);
}

/// Bugs of mutations.rs that break a promise in such histories.
const FOUND: [&str; 5] = [
    "the cost is left out of the test",
    "one more than the limit is let through",
    "retry-after is when the oldest entry goes",
    "the first bucket without room decides, not the last",
    "stamps are rounded down to the precision",
];

/// A denied decision takes what it asked for, from every bucket.
const DENIALS_TAKE: [(&str, &str); 2] = [
    ("if retry > 0 then from, to = -said, -said end", ""),
    (
        "if retry == 0 and cost > 0 and what ~= PEEK then",
        "if cost > 0 and what ~= PEEK then",
    ),
];

#[test]
fn the_checker_finds_the_scripts_bugs_that_break_a_promise() {
    let lua = RefCell::new(Lua::start());
    let mut denials_take = script::DECIDE.to_owned();
    for (right, wrong) in DENIALS_TAKE {
        assert_eq!(denials_take.matches(right).count(), 1, "`{right}`");
        denials_take = denials_take.replace(right, wrong);
    }
    let named = FOUND.map(|name| (name, with_bug(name)));
    for (name, source) in named.into_iter().chain([("a denial takes", denials_take)]) {
        lua.borrow_mut().use_script(&source);
        // Keys of another bug's histories would still be there.
        lua.borrow_mut().forget_everything();
        let found = first_wrong(&Store::Lua(&lua), 500);
        assert!(found.is_some(), "not found: {name}");
    }
}
