//! Breaks one thing at a time under load and mends it.

use std::time::{Duration, Instant};

use sluicegate_history::Entry;

use super::chain::Chain;
use super::fault::Fault;
use super::judge::{Run, Times, judge, keep, record, span};
use super::load::{Load, admitted};
use super::outcome::Outcome;
use super::rules::{self, RULES, WINDOW_US};
use super::stalls::Stalls;
use super::table;

/// Before a fault, so that a window is full; and after it, so that the last judged window has nothing of it.
const BEFORE: Duration = Duration::from_micros(WINDOW_US + 500_000);
const AFTER: Duration = Duration::from_micros(2 * WINDOW_US);

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The first fault of the short form, in a quarter of a minute.
    One,
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
        breaks: impl AsyncFnOnce(&mut Chain),
        mends: impl AsyncFnOnce(&mut Chain),
    ) {
        let mut only = self.only.iter();
        let is_of_form = match self.form {
            Form::One => fault.short && self.outcomes.is_empty(),
            Form::Short => fault.short,
            Form::Whole => true,
        };
        if !is_of_form || !only.all(|words| fault.name.contains(words)) {
            return;
        }
        let outcome = run(&fault, breaks, mends).await;
        println!(
            "{:>4} s  {} slowest answer {:?}; while the machine stood still, {} without an answer and {} without a verdict",
            self.began.elapsed().as_secs(),
            table::row(&outcome),
            outcome.slowest,
            outcome.counts.stalled,
            outcome.excused,
        );
        self.outcomes.push(outcome);
    }

    /// Runs a fault that ends by itself.
    pub async fn run_once(&mut self, fault: Fault, breaks: impl AsyncFnOnce(&mut Chain)) {
        self.run(fault.at_once(), breaks, async |_| {}).await;
    }

    /// Prints the table.
    ///
    /// # Panics
    /// A promise was broken.
    pub fn finish(self) {
        println!("\n{}", table::text(&self.outcomes));
        let failed = self.outcomes.iter().filter(|one| !one.failures.is_empty());
        let failures: Vec<_> = failed.map(|one| (one.name, &one.failures)).collect();
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(!self.outcomes.is_empty(), "no fault has such a name");
        if table::is_wanted() && self.form == Form::Whole && self.only.is_none() {
            table::write(&self.outcomes);
        }
    }
}

async fn run(
    fault: &Fault,
    breaks: impl AsyncFnOnce(&mut Chain),
    mends: impl AsyncFnOnce(&mut Chain),
) -> Outcome {
    let mut chain = Chain::start(fault.place).await;
    let load = Load::start(&chain.targets);
    let clock = load.clock;
    let stalls = Stalls::watch();
    // The length of each part is part of the test.
    tokio::time::sleep(BEFORE).await;
    let broken_us = clock.now_us();
    breaks(&mut chain).await;
    let holds_us = clock.now_us();
    tokio::time::sleep(fault.lasts).await;
    let ends_us = clock.now_us();
    mends(&mut chain).await;
    let mended_us = clock.now_us();
    chain.settled().await;
    let times = Times {
        broken_us,
        holds_us,
        ends_us,
        mended_us,
        settled_us: clock.now_us(),
    };
    tokio::time::sleep(AFTER).await;
    let seen = load.stop().await;
    chain.quiet().await;
    let mut records: Vec<_> = seen.iter().map(|one| record(one, &times)).collect();
    let mut lost_units = (!fault.forgets && !fault.lies).then_some(0);
    for rule in 0..RULES.len() {
        let (decision, checks) = rules::look_at_count(rule);
        let from = clock.now_us();
        let left = chain.look(&decision).await;
        if let Some(units) = &mut lost_units {
            *units += rules::taken(left).saturating_sub(admitted(&seen, rule));
        }
        records.push(Entry::looked(span(from, clock.now_us()), checks, left));
    }
    let stalls = stalls.long().into_iter();
    let stalls = stalls.map(|(from, to)| span(clock.us_of(from), clock.us_of(to)));
    let run = Run {
        seen,
        records,
        times,
        lost_units,
        vm_deaths: chain.vm_deaths().await,
        stalls: stalls.collect(),
    };
    let outcome = judge(fault, &run);
    if !outcome.failures.is_empty() {
        keep(fault.name, &run.seen, &times);
    }
    outcome
}
