//! What the requests of one configuration share: rules, cached denials, counters, and the log of outages.

use std::cell::{Cell, RefCell};

use sluicegate_protocol::Verdict;
use sluicegate_rules::{Conclusion, Denials, OutageLog, Question, Rules, Unusable};

use crate::host::{self, Counter};

pub struct Plugin {
    pub rules: Rules,
    pub denials: RefCell<Denials>,
    /// By the index that the rules know them by, each with what Envoy has not been told yet: a hostcall for every count
    /// would be three for a denial.
    counters: Vec<(Option<Counter>, Cell<i64>)>,
    outages: RefCell<OutageLog>,
}

impl Plugin {
    pub fn new(rules: Rules) -> Self {
        let name = host::plugin_name();
        let name = if name.is_empty() { "sluicegate" } else { &name };
        let counter = |counter: &String| {
            let counter = Counter::define(&format!("{name}.{counter}"));
            (counter, Cell::new(0))
        };
        Self {
            counters: rules.counters().names().iter().map(counter).collect(),
            denials: RefCell::default(),
            rules,
            outages: RefCell::default(),
        }
    }

    /// How long a request waits for its verdict.
    pub fn timeout_us(&self) -> u64 {
        u64::try_from(self.rules.sidecar.timeout.as_micros()).unwrap_or(u64::MAX)
    }

    /// Counts one.
    pub fn count(&self, index: usize) {
        if let Some((_, count)) = self.counters.get(index) {
            count.set(count.get().saturating_add(1));
        }
    }

    /// Adds to Envoy's statistics what was counted.
    pub fn flush_counters(&self) {
        for (counter, count) in &self.counters {
            if let (Some(counter), count @ 1..) = (counter, count.take()) {
                counter.add(count);
            }
        }
    }

    /// What becomes of a request, counted and, where verdicts are missing, logged.
    pub fn conclude(
        &self,
        question: &Question,
        verdicts: Result<&[Verdict<'_>], Unusable>,
    ) -> Conclusion {
        let (conclusion, why) = self
            .rules
            .conclude(question, verdicts, &mut |index| self.count(index));
        // Bound to names, so that each borrow is over before the next. The clock is read only where it matters.
        let outage = self.outages.borrow().is_open();
        if outage || why.is_some() {
            let line = self
                .outages
                .borrow_mut()
                .note(host::monotonic_us(), why.as_ref());
            if let Some(line) = line {
                host::log(host::Level::Warn, &line);
            }
        }
        conclusion
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        self.flush_counters();
    }
}
