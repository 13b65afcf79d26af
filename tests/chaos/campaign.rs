//! Breaks one thing at a time under load and mends it.

use std::time::{Duration, Instant};

use sluicegate_history::{Record, Span, Verdict};

use crate::chain::Chain;
use crate::fault::Fault;
use crate::judge::{Times, judge, record};
use crate::load::{Load, admitted};
use crate::outcome::Outcome;
use crate::rules::{self, RULES, WINDOW_US};
use crate::table;

/// Before a fault, so that a window is full; and after it, so that the last judged window has nothing of it.
const BEFORE: Duration = Duration::from_micros(WINDOW_US + 500_000);
const AFTER: Duration = Duration::from_micros(2 * WINDOW_US);
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
        println!(
            "{:>4} s  {} slowest answer {:?}, {} without one while the machine stood still",
            self.began.elapsed().as_secs(),
            table::row(&outcome),
            outcome.slowest,
            outcome.counts.stalled,
        );
        self.outcomes.push(outcome);
    }

    /// Prints the table.
    ///
    /// # Panics
    /// A promise was broken.
    pub fn finish(self) {
        println!("\n{}", table::text(&self.outcomes));
        let mut failures = Vec::new();
        for one in &self.outcomes {
            let each = one.failures.iter();
            failures.extend(each.map(|failure| format!("{}: {failure}", one.name)));
        }
        assert!(failures.is_empty(), "{failures:#?}");
        assert!(!self.outcomes.is_empty(), "no fault has such a name");
        if table::is_wanted() && self.form == Form::Whole && self.only.is_none() {
            table::write(&self.outcomes);
        }
    }
}

async fn run(
    fault: &Fault,
    breaks: impl AsyncFnOnce(&mut Chain, &Load),
    mends: impl AsyncFnOnce(&mut Chain, &Load),
) -> Outcome {
    let mut chain = Chain::start(fault.place).await;
    let load = Load::start(chain.ports());
    let clock = load.clock;
    // The length of each part is part of the test.
    tokio::time::sleep(BEFORE).await;
    let broken_us = clock.now_us();
    breaks(&mut chain, &load).await;
    tokio::time::sleep(fault.lasts).await;
    mends(&mut chain, &load).await;
    let mended_us = clock.now_us();
    chain.settled().await;
    let times = Times {
        broken_us,
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
