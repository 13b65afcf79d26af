//! Makes decisions: asks the store, counts and answers. What comes and goes is typed: `server/` and `cli/` read and write JSON.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use sluicegate_protocol::{Answer, Read, RulesState, UNKNOWN_HEADER, VM_HEADER, Verdict};
use tokio::runtime::Handle;

use super::backend::Backend;
use super::denials::Denials;
use super::epoch::PolicyHandle;
use super::filters::Filters;
use super::holds::read_vm;
use super::in_flight::InFlight;
use super::leases::{LeaseBasis, Leases};
use super::plan::{Basis, Drawn, Plan};
use super::slots::Slots;
use super::unclaimed::Unclaimed;
use crate::clock;
use crate::random;
use crate::store::batch::Batcher;
use crate::store::{Outage, Store};
use crate::telemetry::events::{EventKind, EventLog};
use crate::telemetry::history::History;
use crate::telemetry::metrics::Metrics;
use crate::telemetry::traces::{Trace, Traces};
use crate::telemetry::verdict::{Decided, Source};

mod background;
mod leases;
mod neighbours;
mod overrides;
mod past_overrides;
mod rules;
mod settle;
mod slots;
mod stored_overrides;
mod waiting;

/// The state of a sidecar.
pub struct Service {
    /// Distinguishes this process from an earlier one, which also counted its epochs from 1: see [`Answer::instance`].
    instance: u64,
    /// The policy in force.
    pub policy: PolicyHandle,
    store: Arc<Store>,
    backend: Arc<Backend>,
    denials: Denials,
    leases: Arc<Leases>,
    slots: Slots,
    in_flight: Mutex<InFlight>,
    /// The number of known steps of the store's clock.
    clock_steps: AtomicU64,
    /// Held while the store's overrides are read.
    reading_overrides: tokio::sync::Mutex<()>,
    /// Whether they have ever been read: before, nothing is decided by the store.
    overrides_were_read: AtomicBool,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The events of the live page.
    pub events: Arc<EventLog>,
    /// The live page's chart.
    history: Mutex<History>,
    /// The spans; off by default.
    pub traces: Traces,
    /// The filters that get rules from here.
    pub filters: Filters,
    /// Whether it was logged that some have another pepper than the policy's consumers.
    warned_of_pepper: AtomicBool,
    /// Warnings that were logged about filters that do not take the rules.
    warned_of_filters: Mutex<BTreeSet<String>>,
}

impl Service {
    /// A service that applies `policy` in `store`. Requires a running runtime.
    pub fn new(policy: PolicyHandle, store: Store, metrics: Metrics) -> Self {
        let (store, metrics) = (Arc::new(store), Arc::new(metrics));
        let events = Arc::new(EventLog::default());
        let now_ms = clock::unix_ms();
        let version = env!("CARGO_PKG_VERSION").to_owned();
        events.add(now_ms, EventKind::Started, version);
        let batcher = Batcher::start(
            Arc::clone(&store),
            Arc::clone(&metrics),
            Arc::clone(&events),
        );
        // Later processes have later times.
        let instance = random::number().unwrap_or(now_ms);
        // Debts that wait for the write-back come in addition: docs/sizing.md.
        let share_limit = policy.current().policy.memory_limit / 4;
        Self {
            instance,
            backend: Arc::new(Backend::new(
                Arc::clone(&store),
                batcher,
                Outage::new(share_limit),
                format!("{instance:x}"),
            )),
            policy,
            leases: Leases::new(store.is_shared().then(|| store.timeout())),
            store,
            denials: Denials::default(),
            slots: Slots::default(),
            in_flight: Mutex::default(),
            clock_steps: AtomicU64::new(0),
            reading_overrides: tokio::sync::Mutex::default(),
            overrides_were_read: AtomicBool::new(false),
            metrics,
            events,
            history: Mutex::new(History::new(now_ms)),
            traces: Traces::default(),
            filters: Filters::default(),
            warned_of_pepper: AtomicBool::new(false),
            warned_of_filters: Mutex::default(),
        }
    }

    /// Makes decisions without waiting for slots. Returns those that were granted, too, until whoever asked is told.
    async fn decide_now<'h>(
        &self,
        request: &Read<'_>,
        header: impl Fn(&str) -> Option<&'h str>,
    ) -> (Answer<'static>, Unclaimed) {
        let started = Instant::now();
        let start = self.start().await;
        self.void_after_step();
        let epoch = self.policy.current();
        // Before anything else looks at limits and keys.
        let policy = &epoch.policy;
        let renamed = policy.renamed(&request.decisions, |asked| {
            let checks = asked.iter_mut().flat_map(|asked| &mut asked.checks);
            checks.for_each(|check| policy.rename(&mut check.limit, &mut check.key));
        });
        let denied = policy.renamed(&request.denied, |denied| {
            if let Some(key) = &mut denied.key {
                policy.rename(&mut denied.limit, key);
            }
        });
        let asked = renamed.as_ref();
        let now_us = clock::now_us();
        for denied in denied.iter() {
            epoch.metrics.count_filter_denials(denied, now_us);
        }
        let parts = self.account_parts(&header, &epoch, now_us);
        if let (Some(wanted), true) = (&parts, asked.is_empty()) {
            self.prepare_parts(wanted).await;
        }
        let traceparents = asked
            .iter()
            .map(|asked| asked.as_ref().ok()?.traceparent.as_deref());
        let trace = self.traces.decide(&header, traceparents);
        let moment = self.denials.moment(epoch.number);
        let overrides = epoch.overrides.at(clock::unix_ms());
        let store_us = |bucket: &str| self.backend.advance_clock_us(bucket);
        let basis = Basis {
            start,
            policy: &epoch.policy,
            overrides,
            names_unknown: header(UNKNOWN_HEADER).is_some(),
            certificates: Some((&self.denials, moment)),
            leases: Some(LeaseBasis {
                leases: &self.leases,
                epoch: epoch.number,
                metrics: &epoch.metrics,
                store_us: &store_us,
            }),
            drawn: Drawn {
                at_us: clock::unix_us(),
                by: self.instance as u32,
            },
        };
        let mut plan = Plan::new(basis, asked);
        for limit in &plan.refused_quotas {
            epoch.metrics.count_refused_quota(&limit.name);
        }
        let store_asked = !plan.batch.decisions.is_empty();
        let parent = trace.as_ref().and_then(Trace::parent);
        let mut unclaimed = Unclaimed::new(&self.backend, self.store.timeout() * 2, plan.slots());
        let (outcomes, fallbacks) = self.backend.decide(&plan, parent).await;
        for (check, outcome, decided) in plan.for_leases(&outcomes) {
            self.leases.note(check, epoch.number, outcome, decided);
        }
        plan.settle_leases(&outcomes, self.policy.current().number);
        for (limit, ended) in plan.ended(&outcomes) {
            if let Some(slots) = epoch.metrics.slots(&limit.name) {
                slots.expired.inc_by(ended);
            }
        }
        let has_slots = !unclaimed.is_empty();
        if has_slots {
            let denied = plan.denied_by(&outcomes);
            unclaimed.keep(|decision| !denied.contains(&decision));
        }
        let reserves = plan.reserves();
        let mut decided = plan.verdicts(&outcomes, &fallbacks, clock::now_us());
        let granted = unclaimed.granted(|decision| {
            let decided = decided.get(decision).map(|decided| &decided.verdict);
            matches!(decided, Some(Verdict::Admitted(_)))
        });
        drop(unclaimed);
        self.note_reserved(&reserves, &decided);
        for decided in &mut decided {
            if decided.verdict.is_denied_by_slots()
                && let Verdict::Denied(status) = &mut decided.verdict
            {
                status.retry_after_ms = self.slots.retry_ms(&status.limit, status.quota);
            }
        }
        self.look_past_overrides(&epoch, overrides, asked, &mut decided)
            .await;
        // This request's answers may have shown a step. Nothing is lent of leases from before it.
        self.void_after_step();
        let leases = match parts {
            Some(wanted) if self.policy.current().number == epoch.number => {
                self.lend_parts(&wanted, &epoch, asked)
            }
            _ => Vec::new(),
        };
        for (decided, asked) in decided.iter().zip(asked) {
            let decision = asked.as_ref().ok();
            // A filter asks for a slot again, and waits: that is counted.
            let asks_again = decided.verdict.is_denied_by_slots()
                && decision.is_some_and(|one| one.shadow.is_none() && !one.peek)
                && (request.wait_ms > 0 || basis.names_unknown);
            if !asks_again {
                epoch.metrics.count(decided, decision, now_us);
            }
            if has_slots
                && let (Verdict::Admitted(status), Some(decision)) = (&decided.verdict, decision)
            {
                let vm = header(VM_HEADER).and_then(read_vm);
                self.note_granted(&epoch, decision, &status.receipt, vm);
            }
            if let (Source::Store, Some(decision)) = (decided.source, decision) {
                self.denials.hold(moment, decision, &decided.verdict);
            }
        }
        if let Cow::Owned(asked) = &renamed {
            self.know_denied(&decided, asked, &request.decisions);
        }
        let by_itself = |decided: &Decided| {
            let source = decided.source;
            matches!(
                source,
                Source::Certificate | Source::Override | Source::Lease
            )
        };
        if store_asked || decided.iter().any(by_itself) {
            let took = started.elapsed();
            let by_share = decided.iter().any(|one| one.source == Source::Share);
            self.metrics.observe_decision(took, store_asked, by_share);
        }
        if let Some(trace) = trace {
            trace.end(&decided);
        }
        let rules = epoch.policy.rules.told();
        let answer = Answer {
            epoch: epoch.number,
            instance: self.instance,
            verdicts: decided.into_iter().map(|decided| decided.verdict).collect(),
            leases,
            limits: rules.as_ref().map(|_| epoch.limits.clone().into()),
            rules: rules.map(Into::into),
            earlier: epoch.earlier.clone().map(Into::into),
        };
        (answer, granted)
    }

    /// Voids denials from before the store's clock stepped, the filters' too: their units become available earlier or later
    /// now, and the read that repairs the state must reach the store. A new epoch does so, and ends all leases.
    fn void_after_step(&self) {
        let steps = self.store.clock_steps();
        if self.clock_steps.load(Ordering::Relaxed) != steps
            && self.clock_steps.swap(steps, Ordering::Relaxed) != steps
        {
            self.policy.void_denials();
        }
    }

    /// The metrics as text.
    ///
    /// # Errors
    /// The metrics cannot be encoded.
    pub fn metrics_text(&self) -> Result<Vec<u8>, prometheus::Error> {
        let families = &self.metrics.families;
        families.sidecars.set(self.sidecars() as f64);
        let unwritten = self.backend.outage.pending();
        families.unwritten.set(unwritten as f64);
        families.certificates.set(self.denials.count() as f64);
        if let Some(ahead_us) = self.store.clock_ahead_us() {
            families.store_clock_ahead.set(ahead_us as f64 / 1e6);
        }
        let tasks = Handle::try_current().map_or(0, |runtime| runtime.metrics().num_alive_tasks());
        families.tasks.set(tasks as f64);
        let epoch = self.policy.current();
        for (allowance, count) in epoch.overrides.counts(&epoch.policy, clock::unix_ms()) {
            let overrides = families.overrides.with_label_values(&[allowance]);
            overrides.set(count as f64);
        }
        let states = self.filter_states();
        for state in RulesState::ALL.map(RulesState::name) {
            let filters = families.filter_rules.with_label_values(&[state]);
            filters.set(states.get(state).copied().unwrap_or(0) as f64);
        }
        let others = self.filters.with_other_pepper(&epoch.policy);
        families.other_pepper.set(others as f64);
        families.held_back.set(self.holds_back() as f64);
        families.kept.set(epoch.policy.kept_ratio());
        let unkept = self.policy.source.unkept();
        families.unkept.set(i64::from(unkept.is_some()));
        families.rules.reset();
        if let Some(digest) = epoch.policy.rules.told() {
            let source = if self.policy.source.is_last_good() {
                "last_good"
            } else {
                "file"
            };
            let labels = [digest.as_str(), source, &self.number()];
            let info = families.rules.with_label_values(&labels);
            info.set(1.0);
        }
        let slots = self.slots_in_use().into_iter();
        let slots = slots.map(|of| (of.oldest.limit, of.in_use)).collect();
        self.metrics
            .text(&epoch.policy, &self.store.facts(), &slots)
    }

    /// The number of sidecars that divide the limits among them; 0 if the store was never reached.
    pub fn sidecars(&self) -> u64 {
        let position = self.backend.outage.position();
        position.map_or(0, |position| position.of)
    }

    /// The kind of store, for people.
    pub fn store_name(&self) -> &'static str {
        self.store.name()
    }
}

#[cfg(test)]
mod tests;
