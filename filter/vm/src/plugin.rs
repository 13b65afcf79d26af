//! State that all requests of one configuration share: rules, cached denials, counters, and the log of outages.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use sluicegate_protocol::Verdict;
use sluicegate_rules::config::free_unused_expressions;
use sluicegate_rules::{
    Conclusion, Counters, DenialCache, ERROR_UNKNOWN_CLUSTER, Leases, OF_UPDATES, OutageLog,
    Pushed, Question, Request, RuleSet, Settings, Taken, VerdictError,
};

use crate::host::{Host, Level};

/// Most expressions of replaced rules that are freed at once: half a millisecond.
const MAX_FREED: usize = 8;

pub struct Plugin<H: Host> {
    pub host: H,
    pub settings: Settings,
    /// Which rules it takes from the sidecar.
    pub pushed: Pushed,
    /// The sets by which new requests are evaluated; none until the sidecar has sent them.
    sets: RefCell<Vec<Rc<RuleSet>>>,
    /// Sets that were replaced and may have requests yet.
    replaced: RefCell<Vec<Rc<RuleSet>>>,
    pub denials: RefCell<DenialCache>,
    pub leases: RefCell<Leases>,
    outages: RefCell<OutageLog>,
    /// Version and configuration, as the filter announces them to the sidecar.
    pub announcement: String,
    /// Distinguishes this root context from all others.
    pub vm: String,
    /// The name of this Envoy.
    pub node: String,
    /// Whether it has had a request; that of Envoy's main thread never has.
    pub serves: Cell<bool>,
}

impl<H: Host> Plugin<H> {
    pub fn new(host: H, settings: Settings, pushed: Pushed, announcement: String) -> Self {
        // So that Envoy has all of them from the start, as 0.
        for name in OF_UPDATES {
            host.define_counter(name);
        }
        Self {
            settings,
            pushed,
            sets: RefCell::default(),
            replaced: RefCell::default(),
            denials: RefCell::default(),
            leases: RefCell::default(),
            outages: RefCell::default(),
            announcement,
            vm: host.random().unwrap_or_default(),
            node: host.node(),
            host,
            serves: Cell::new(false),
        }
    }

    /// The rules for a request; none if they are not known yet.
    pub fn rules_for(&self, request: &dyn Request) -> Option<Rc<RuleSet>> {
        let index = self.pushed.set_of(request);
        self.sets.borrow().get(index).cloned()
    }

    /// Whether any rules are known.
    pub fn has_rules(&self) -> bool {
        !self.sets.borrow().is_empty()
    }

    /// Puts other rules in force for new requests, and returns the earlier ones.
    pub fn replace_rules(&self, sets: Vec<Rc<RuleSet>>) -> Vec<Rc<RuleSet>> {
        let before = self.sets.replace(sets);
        let mut replaced = self.replaced.borrow_mut();
        // Once each, also if they were in force twice: a second entry would keep the first.
        replaced.retain(|set| !before.iter().any(|again| Rc::ptr_eq(set, again)));
        replaced.extend(before.iter().cloned());
        before
    }

    /// How long a request waits for its verdict.
    pub fn timeout_us(&self) -> u64 {
        u64::try_from(self.settings.timeout.as_micros()).unwrap_or(u64::MAX)
    }

    /// Flushes the counts to Envoy's statistics.
    pub fn flush_counters(&self) {
        let mut replaced = self.replaced.borrow_mut();
        for set in self.sets.borrow().iter().chain(replaced.iter()) {
            for (name, count) in set.counters.take() {
                self.host.add_to_counter(name, count);
            }
        }
        replaced.retain(|set| Rc::strong_count(set) > 1);
        free_unused_expressions(MAX_FREED);
    }

    /// Concludes for a request: counts, and logs missing verdicts.
    pub fn conclude(
        &self,
        question: &Question,
        verdicts: Result<&[Verdict<'_>], VerdictError>,
    ) -> Conclusion {
        let (conclusion, why) = question.conclude(verdicts, &|| self.host.system_s());
        // The clock is read only if needed.
        if why.is_some() || self.outages.borrow().is_open() {
            let now_us = self.host.monotonic_us();
            let line = self.outages.borrow_mut().note(now_us, why.as_ref());
            if let Some(line) = line {
                self.host.log(level_of(why.as_ref()), &line);
            }
        }
        conclusion
    }

    /// Admits a request whose units were just taken from leases.
    pub fn admit(&self, question: &Question, taken: &Taken) -> Conclusion {
        question.rules.counters.count(Counters::ADMITTED_BY_LEASE);
        self.conclude(question, Ok(&taken.verdicts(question, &[])))
    }

    /// As [`Plugin::conclude`], for a request that has waited, and of which units may have been taken from leases: they are spent
    /// if it passes. A denial that was learned meanwhile stands in for a verdict that is missing.
    pub fn conclude_rest(
        &self,
        (question, taken): (&Question, &Taken),
        verdicts: Result<&[Verdict<'_>], VerdictError>,
    ) -> Conclusion {
        let known = match verdicts {
            Err(_) if !taken.covers_enforced(question) => {
                let mut denials = self.denials.borrow_mut();
                denials.covering(question, self.host.monotonic_us())
            }
            _ => None,
        };
        let verdicts = known.as_deref().map_or(verdicts, Ok);
        if taken.is_empty() {
            return self.conclude(question, verdicts);
        }
        if taken.covers_enforced(question) {
            // They are spent already. Without an answer, only shadow rules lack a verdict.
            let by_lease = taken.verdicts(question, &[]);
            return self.conclude(question, Ok(verdicts.unwrap_or(&by_lease)));
        }
        let now_us = self.host.monotonic_us();
        let live = self.leases.borrow_mut().is_live(question, taken, now_us);
        let conclusion = match verdicts {
            Ok(verdicts) if !live => self.conclude(question, Ok(&Taken::ended(verdicts))),
            verdicts => self.conclude(question, verdicts),
        };
        match &conclusion {
            Conclusion::Continue(..) | Conclusion::Unmetered(_) => self.spend(question, taken),
            Conclusion::Answer(_) => self.put_back(question, taken),
        }
        conclusion
    }

    /// Spends what was taken.
    pub fn spend(&self, question: &Question, taken: &Taken) {
        self.leases.borrow_mut().spend(question, taken);
    }

    /// Puts back what was taken for a request that has no verdict yet, unless it is spent already.
    pub fn put_back(&self, question: &Question, taken: &Taken) {
        if !taken.covers_enforced(question) {
            self.leases.borrow_mut().put_back(question, taken);
        }
    }

    /// Counts and logs that an announcement could not be sent. Only if the cluster does not exist: that is wrong before the
    /// first request too, and never ends by itself.
    pub fn not_announced(&self, why: &VerdictError) {
        if matches!(why, VerdictError::UnknownCluster(_)) {
            self.host.add_to_counter(ERROR_UNKNOWN_CLUSTER, 1);
            self.host
                .log(level_of(Some(why)), &format!("sluicegate: {why}"));
        }
    }
}

/// A mistake in the configuration, which an operator has to correct, is an error; the rest may pass by itself.
const fn level_of(why: Option<&VerdictError>) -> Level {
    match why {
        Some(VerdictError::UnknownCluster(_)) => Level::Error,
        _ => Level::Warn,
    }
}

impl<H: Host> Drop for Plugin<H> {
    fn drop(&mut self) {
        self.flush_counters();
    }
}
