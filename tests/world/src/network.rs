//! The way from an Envoy to the sidecars, and what it saw of each request.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use sluicegate::clock;
use sluicegate::decide::Service;
use sluicegate_history::{Sign, Span, Told};
use sluicegate_protocol::{
    Code, Decision, RULES_HEADER, RULES_PATH, RulesReport, SETTLE_PATH, Settled, Verdict,
    read_decisions, read_settles,
};
use tokio::time::{sleep, timeout};

use super::determined::passed_us;
use super::host::Call;
use super::script::{Way, number_of};

/// The sidecars that a filter asks in turn; none in the place of one that is down.
#[derive(Default)]
pub struct Sidecars {
    all: RefCell<Vec<Option<Arc<Service>>>>,
}

/// A sidecar with its number.
pub type Numbered = (usize, Arc<Service>);

impl Sidecars {
    /// A sidecar has come or gone.
    pub fn set(&self, number: usize, service: Option<Arc<Service>>) {
        let mut all = self.all.borrow_mut();
        let least = all.len().max(number + 1);
        all.resize(least, None);
        all[number] = service;
    }

    /// The first that runs, from this number on.
    pub fn first(&self, from: usize) -> Option<Numbered> {
        let all = self.all.borrow();
        let mut order = (0..all.len()).map(|further| (from + further) % all.len());
        order.find_map(|number| Some((number, Arc::clone(all[number].as_ref()?))))
    }

    fn has(&self, (number, service): &Numbered) -> bool {
        let all = self.all.borrow();
        let still = all[*number].as_ref();
        still.is_some_and(|still| Arc::ptr_eq(still, service))
    }
}

/// What a sidecar was asked for a request.
pub struct Sent {
    pub sidecar: usize,
    pub limits: Vec<usize>,
    /// What the filter got.
    pub got: Option<Got>,
}

pub enum Got {
    /// With the limits that the sidecar does not have.
    Admitted(Vec<usize>),
    Denied,
    Invalid(Code),
    Unavailable,
}

/// What the network saw of a request.
#[derive(Default)]
pub struct Seen {
    pub sent: Vec<Sent>,
    /// What it has reserved, by limit.
    pub receipts: Vec<(usize, String)>,
    /// A callout for it was lost, late or refused.
    pub is_disturbed: bool,
}

impl Seen {
    /// The sidecars that were asked before the last one, and may have taken something.
    pub fn others(&self) -> Vec<usize> {
        let others = self.sent.iter().rev().skip(1);
        let others = others.filter(|sent| !matches!(sent.got, Some(Got::Denied)));
        others.map(|sent| sent.sidecar).collect()
    }
}

/// A step of the settlement of a receipt, or of the life of its slots.
pub struct Step {
    pub when: Span,
    pub sidecar: usize,
    pub receipt: String,
    pub what: Becomes,
}

/// What becomes of a receipt.
pub enum Becomes {
    /// So much was used of it, and this was told.
    Settled(Option<u64>, Told),
    Held(Sign),
}

/// The network.
#[derive(Default)]
pub struct Network {
    pub sidecars: Sidecars,
    /// The filter cannot use rules that it does not have.
    pub refuses: Cell<bool>,
    /// What becomes of callouts.
    pub way: Cell<Way>,
    seen: RefCell<BTreeMap<u32, Seen>>,
    /// The receipts of each request, and what was used of each: nothing, until the request has passed.
    pub receipts: RefCell<BTreeMap<u32, Vec<String>>>,
    used: RefCell<BTreeMap<String, Option<u64>>>,
    pub steps: RefCell<Vec<Step>>,
    /// States of the filter's own code.
    pub reached: RefCell<BTreeSet<&'static str>>,
}

impl Network {
    pub fn reach(&self, state: &'static str) {
        self.reached.borrow_mut().insert(state);
    }

    /// All that it saw of a request.
    pub fn seen(&self, request: u32) -> Seen {
        self.seen.borrow_mut().remove(&request).unwrap_or_default()
    }

    /// The answer to a callout, with its status, from this sidecar.
    pub async fn answer(&self, next: Option<Numbered>, call: &Call) -> (&'static str, Vec<u8>) {
        if call.header(":path") == Some(RULES_PATH) {
            self.rules(next, call).await
        } else if call.header(":path") == Some(SETTLE_PATH) {
            self.settle(next, call).await
        } else {
            self.decide(next, call).await
        }
    }

    async fn rules(&self, next: Option<Numbered>, call: &Call) -> (&'static str, Vec<u8>) {
        let Some(next) = next else {
            return ("503", Vec::new());
        };
        let report = call.header(RULES_HEADER).and_then(RulesReport::read);
        let answer = next.1.rules_for(report.map(|report| (report, "world")));
        let answer = timeout(call.timeout, answer).await;
        sleep(Duration::from_millis(1)).await;
        match answer {
            _ if !self.sidecars.has(&next) => ("503", Vec::new()),
            Err(_) => ("504", Vec::new()),
            Ok(text) if self.refuses.get() => {
                let text = text.replacen("\"format\":1", "\"format\":9", 1);
                ("200", text.into_bytes())
            }
            Ok(text) => ("200", text.into_bytes()),
        }
    }

    async fn settle(&self, next: Option<Numbered>, call: &Call) -> (&'static str, Vec<u8>) {
        let Some(next) = next else {
            return ("503", Vec::new());
        };
        if self.way.get() == Way::Lost {
            sleep(call.timeout).await;
            return ("504", Vec::new());
        }
        let (asked, from) = (read_settles(&call.body).expect("facts"), passed_us());
        let answer = timeout(call.timeout, next.1.settle(&asked, None)).await;
        for (number, entry) in asked.iter().flatten().enumerate() {
            let outcome = answer.as_ref().ok().map(|listed| &listed.outcomes[number]);
            if is_of_slots(&entry.receipt) {
                let sign = sign(entry.within_ms, outcome);
                self.step(next.0, from, &entry.receipt, Becomes::Held(sign));
                continue;
            }
            match (entry.within_ms, outcome) {
                (Some(1), _) => self.reach("a reserve is kept"),
                (Some(_), Some(Settled::Renewed)) => self.reach("a hold is renewed"),
                (Some(_), _) => {}
                (None, _) => self.settled(next.0, from, &entry.receipt, told(outcome)),
            }
        }
        if let Way::Late(ms) = self.way.get() {
            sleep(Duration::from_millis(ms)).await;
        }
        match answer {
            _ if !self.sidecars.has(&next) => ("503", Vec::new()),
            Err(_) => ("504", Vec::new()),
            Ok(listed) => ("200", serde_json::to_vec(&listed).expect("outcomes")),
        }
    }

    fn step(&self, sidecar: usize, from: u64, receipt: &str, what: Becomes) {
        let to = passed_us();
        self.steps.borrow_mut().push(Step {
            when: Span { from, to },
            sidecar,
            receipt: receipt.to_owned(),
            what,
        });
    }

    fn settled(&self, sidecar: usize, from: u64, receipt: &str, told: Told) {
        if let Some(used) = self.used.borrow().get(receipt) {
            self.step(sidecar, from, receipt, Becomes::Settled(*used, told));
        }
    }

    /// The stream of a request has ended, and has used this.
    pub fn ended(&self, request: u32, units: Option<u64>) {
        for receipt in self.receipts.borrow().get(&request).into_iter().flatten() {
            if is_of_slots(receipt) {
                self.step(0, passed_us(), receipt, Becomes::Held(Sign::Ended));
                continue;
            }
            self.used.borrow_mut().insert(receipt.clone(), units);
            if units.is_some() {
                self.settled(0, passed_us(), receipt, Told::Ended);
            }
        }
    }

    async fn decide(&self, next: Option<Numbered>, call: &Call) -> (&'static str, Vec<u8>) {
        let asked = read_decisions(&call.body).expect("a filter's questions");
        let requests: Vec<_> = asked.decisions.iter().flatten().map(request).collect();
        let way = self.way.get();
        if way != Way::Good {
            self.disturbed(&requests);
        }
        let Some(next) = next else {
            return ("503", Vec::new());
        };
        if way == Way::Lost {
            sleep(call.timeout).await;
            return ("504", Vec::new());
        }
        for (decision, request) in asked.decisions.iter().flatten().zip(&requests) {
            let limits = decision.checks.iter().map(|check| number_of(&check.limit));
            let sent = Sent {
                sidecar: next.0,
                limits: limits.collect(),
                got: None,
            };
            self.seen
                .borrow_mut()
                .entry(*request)
                .or_default()
                .sent
                .push(sent);
        }
        if let Some(report) = call.header(RULES_HEADER).and_then(RulesReport::read) {
            next.1.filters.hears(&report, "world", clock::now_us(), 0);
        }
        let answer = async {
            let answer = next.1.decide(&asked, |name| call.header(name)).await;
            if let Way::Late(ms) = way {
                sleep(Duration::from_millis(ms)).await;
            }
            answer
        };
        let (from, answer) = (passed_us(), timeout(call.timeout, answer).await);
        for release in &asked.settles {
            let sign = Becomes::Held(Sign::FreeLost);
            self.step(next.0, from, &release.receipt, sign);
        }
        let Ok(answer) = answer else {
            if !requests.is_empty() {
                self.reach("the answer for a batch is late");
            }
            return ("504", Vec::new());
        };
        if !self.sidecars.has(&next) {
            self.disturbed(&requests);
            return ("503", Vec::new());
        }
        for (request, verdict) in requests.iter().zip(&answer.verdicts) {
            if let Some(seen) = self.seen.borrow_mut().get_mut(request)
                && let [before @ .., sent] = &mut seen.sent[..]
            {
                let waits = asked.wait_ms > 0 && !before.is_empty();
                if waits && matches!(verdict, Verdict::Admitted(_)) {
                    self.reach("a request that waits for a slot is admitted");
                }
                let receipts = match verdict {
                    Verdict::Admitted(status) => &status.receipt[..],
                    _ => &[],
                };
                for (limit, receipt) in sent.limits.iter().zip(receipts) {
                    if !receipt.is_empty() {
                        seen.receipts.push((*limit, receipt.clone()));
                        let mut receipts = self.receipts.borrow_mut();
                        receipts.entry(*request).or_default().push(receipt.clone());
                        self.used.borrow_mut().insert(receipt.clone(), Some(0));
                    }
                }
                sent.got = Some(match verdict {
                    Verdict::Admitted(status) => {
                        let unknown = status.unknown.iter();
                        Got::Admitted(unknown.map(|index| sent.limits[*index]).collect())
                    }
                    Verdict::Denied(_) => Got::Denied,
                    Verdict::Error(problem) => Got::Invalid(problem.code),
                    Verdict::Unavailable { .. } => Got::Unavailable,
                });
            }
        }
        ("200", serde_json::to_vec(&answer).expect("an answer"))
    }

    fn disturbed(&self, requests: &[u32]) {
        let mut seen = self.seen.borrow_mut();
        for request in requests {
            seen.entry(*request).or_default().is_disturbed = true;
        }
    }
}

/// What an outcome tells.
pub fn told(outcome: Option<&Settled>) -> Told {
    match outcome {
        Some(Settled::Returned { units }) => Told::Returned(*units),
        Some(Settled::Charged { units }) => Told::Charged(*units),
        Some(Settled::Unknown | Settled::Error(_)) => Told::Unknown,
        Some(Settled::Renewed | Settled::Unavailable) | None => Told::Nothing,
    }
}

/// Whether a receipt names slots.
pub fn is_of_slots(receipt: &str) -> bool {
    receipt.len() == 48
}

/// What an outcome says of slots, which were to be renewed or freed.
pub fn sign(within_ms: Option<u64>, outcome: Option<&Settled>) -> Sign {
    match (within_ms, outcome) {
        (Some(_), Some(Settled::Renewed)) => Sign::Renewed,
        (Some(_), _) => Sign::RenewalLost,
        (None, Some(Settled::Returned { units })) => Sign::Freed(*units),
        (None, Some(Settled::Unknown)) => Sign::Freed(0),
        (None, _) => Sign::FreeLost,
    }
}

/// The request that a decision is for.
fn request(decision: &Decision<'_>) -> u32 {
    let trace = decision.traceparent.as_deref();
    let number = trace.and_then(|trace| u32::from_str_radix(trace.get(27..35)?, 16).ok());
    number.expect("a request's traceparent")
}
