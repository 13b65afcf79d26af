//! Breaks one thing under load, mends it, and judges what clients saw.

use std::time::{Duration, Instant};

use sluicegate_history::{Disturbance, History, Record, Span, Verdict, check};
use sluicegate_tests::process::{POLL, eventually};

use crate::chain::{Chain, Place};
use crate::fault::Fault;
use crate::load::{Answer, Load, Seen};
use crate::outcome::{Counts, Outcome};
use crate::rules::{self, FILTER_TIMEOUT_MS, MOST, RULES, SHUT, WINDOW_US};
use crate::table;

/// Before a fault, so that a window is full; and after it, so that the last judged window has nothing of it.
const BEFORE: Duration = Duration::from_micros(WINDOW_US + 500_000);
const AFTER: Duration = Duration::from_micros(2 * WINDOW_US);
/// How long a request that was given up may still be on its way to the store.
const ON_ITS_WAY_US: u64 = FILTER_TIMEOUT_MS * 1_000;
/// How long a denial may be cached: the default of `denial_ttl`.
const CACHED_US: u64 = 1_000_000;
/// Retry-after is rounded up to milliseconds three times: in the verdict, and in what is left of it when the sidecar and
/// then the filter give it again.
const ROUNDED_UP_US: u64 = 3_000;
/// Units that decisions of the other clients may hold on a Cluster while they are taken and given back.
const TAKEN_AND_GIVEN_BACK: u64 = 8 * MOST;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Some faults, in a minute or two.
    Short,
    /// All.
    Whole,
}

/// All faults of a run.
#[derive(Debug)]
pub struct Campaign {
    form: Form,
    only: Option<String>,
    began: Instant,
    outcomes: Vec<Outcome>,
}

impl Campaign {
    pub fn new(form: Form) -> Self {
        Self {
            form,
            only: std::env::var("SLUICEGATE_CHAOS").ok(),
            began: Instant::now(),
            outcomes: Vec::new(),
        }
    }

    /// Runs a fault, unless this form or the environment leaves it out.
    pub async fn run(
        &mut self,
        fault: Fault,
        breaks: impl AsyncFnOnce(&mut Chain, &Load),
        mends: impl AsyncFnOnce(&mut Chain, &Load),
    ) {
        let wanted = self
            .only
            .as_ref()
            .is_none_or(|words| fault.name.contains(words));
        if !wanted || self.form == Form::Short && !fault.short {
            return;
        }
        let outcome = run(&fault, breaks, mends).await;
        println!("{:>4} s  {outcome:?}", self.began.elapsed().as_secs());
        self.outcomes.push(outcome);
    }

    /// Prints the table.
    ///
    /// # Panics
    /// A promise was broken.
    pub fn finish(self) {
        println!("\n{}", table::text(&self.outcomes));
        let failures = self.outcomes.iter().flat_map(|one| {
            one.failures
                .iter()
                .map(move |failure| format!("{}: {failure}", one.name))
        });
        let failures: Vec<_> = failures.collect();
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(!self.outcomes.is_empty(), "no fault has such a name");
        if table::is_wanted() && self.form == Form::Whole && self.only.is_none() {
            table::write(&self.outcomes);
        }
    }
}

/// When it broke and when it was mended.
#[derive(Clone, Copy, Debug)]
struct Times {
    broken_us: u64,
    mended_us: u64,
    settled_us: u64,
}

async fn run(
    fault: &Fault,
    breaks: impl AsyncFnOnce(&mut Chain, &Load),
    mends: impl AsyncFnOnce(&mut Chain, &Load),
) -> Outcome {
    let mut chain = Chain::start(fault.place).await;
    let load = Load::start(chain.envoy.port);
    let clock = load.clock;
    // The length of each part is part of the test.
    tokio::time::sleep(BEFORE).await;
    let broken_us = clock.now_us();
    breaks(&mut chain, &load).await;
    tokio::time::sleep(fault.lasts).await;
    mends(&mut chain, &load).await;
    let mended_us = clock.now_us();
    settled(&chain).await;
    let times = Times {
        broken_us,
        mended_us,
        settled_us: clock.now_us(),
    };
    tokio::time::sleep(AFTER).await;
    let seen = load.stop().await;
    eventually("no request is active", async || {
        chain.envoy.stat("http.ingress.downstream_rq_active").await == 0
    })
    .await;
    let mut records: Vec<_> = seen.iter().map(|one| record(one, &times)).collect();
    let mut lost_units = (!fault.forgets && !fault.lies).then_some(0);
    for rule in 0..RULES.len() {
        let (decision, checks) = rules::look_at_count(rule);
        let from = clock.now_us();
        let left = look(&chain, &decision).await;
        let admitted = seen
            .iter()
            .filter(|one| one.rule == rule && one.answer == Answer::Admitted);
        let admitted: u64 = admitted.map(|one| one.cost).sum();
        if let Some(units) = &mut lost_units {
            *units += rules::taken(left).saturating_sub(admitted);
        }
        records.push(Record {
            when: Span {
                from,
                to: clock.now_us(),
            },
            checks,
            verdict: Verdict::Left(left),
        });
    }
    judge(fault, &chain, &seen, records, times, lost_units).await
}

/// Waits until the store decides again.
///
/// # Panics
/// It does not within a minute, which is long for a machine that stalls too.
async fn settled(chain: &Chain) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !chain.is_settled().await {
        let log = chain.sidecar.log();
        assert!(Instant::now() < deadline, "the store is not back: {log}");
        tokio::time::sleep(POLL).await;
    }
}

/// What is left, asked until there is a verdict: a machine that stalls may exceed the store's deadline.
async fn look(chain: &Chain, decision: &serde_json::Value) -> u64 {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(left) = chain.look(decision).await {
            return left;
        }
        assert!(Instant::now() < deadline, "nothing says what is left");
        tokio::time::sleep(POLL).await;
    }
}

/// What a client saw, for the checker.
fn record(seen: &Seen, times: &Times) -> Record {
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

async fn judge(
    fault: &Fault,
    chain: &Chain,
    seen: &[Seen],
    records: Vec<Record>,
    times: Times,
    lost_units: Option<u64>,
) -> Outcome {
    let on_cluster = fault.place == Place::Cluster;
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
    let report = check(&History {
        limits: rules::limits(idle),
        records,
        disturbances: vec![disturbance],
        cached_us: CACHED_US,
        // What is left of a cached retry-after counts from the arrival of the answer that brought it.
        retry_late_us: ROUNDED_UP_US + slowest(seen, |answer| matches!(answer, Answer::Denied(_))),
    });
    let counts = Counts::of(seen);
    let back = seen.iter().filter(|one| {
        one.rule == SHUT && one.sent_us >= times.mended_us && one.answer.is_verdict()
    });
    let back = back.map(|one| one.answered_us).min();
    let back_after = Duration::from_micros(back.map_or(u64::MAX, |at| at - times.mended_us));
    let vm_deaths = chain.envoy.vm_deaths().await;
    let mut failures = Vec::new();
    let mut require = |holds: bool, what: String| {
        if !holds {
            failures.push(what);
        }
    };
    require(counts.hung == 0, format!("{} requests hung", counts.hung));
    require(counts.other == 0, format!("{} other answers", counts.other));
    require(vm_deaths == 0, format!("{vm_deaths} VMs died"));
    require(
        counts.lost == 0 || fault.breaks_connections,
        format!("{} connections broke", counts.lost),
    );
    let without = counts.refused + counts.unmetered;
    require(!fault.felt || without > 0, "nobody felt it".to_owned());
    require(
        back_after <= fault.back_within,
        format!("back after {back_after:?}"),
    );
    require(
        report.denials > 100,
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
        slowest: Duration::from_micros(slowest(seen, |_| true)),
        vm_deaths,
        fullest,
        lost_units,
        back_after,
        failures,
    }
}

/// The longest time until an answer of some kind, in microseconds.
fn slowest(seen: &[Seen], kind: impl Fn(Answer) -> bool) -> u64 {
    let of_kind = seen.iter().filter(|one| kind(one.answer));
    let times = of_kind.map(|one| one.answered_us - one.sent_us);
    times.max().unwrap_or_default()
}
