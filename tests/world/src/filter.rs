//! An Envoy beside a sidecar, or in front of several: two workers, each with a VM of the filter's own code, and the cluster of
//! sidecars. What became of a request is what its client gets, and what Envoy and the sidecars saw of it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluicegate::clock;
use sluicegate::decide::Service;
use sluicegate_history::{By, Said};
use sluicegate_protocol::{
    Code, Decision, RULES_HEADER, RULES_PATH, RulesReport, Verdict, read_decisions,
};
use sluicegate_rules::{Reply, metadata};
use sluicegate_vm::{Action, Root, Stream};
use tokio::sync::{Notify, oneshot};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::host::{Call, Effect, Envoy, ROOT, Request};
use super::script::{CONSUMERS, Check, PEPPER, SETS, Way, World, number_of};

/// How many workers an Envoy has.
pub const WORKERS: usize = 2;
/// Longer than a callout is under way whose client has hung up.
const SETTLED: Duration = Duration::from_millis(500);

/// The sidecars that a filter asks in turn; none in the place of one that is down.
#[derive(Default)]
pub struct Sidecars {
    all: RefCell<Vec<Option<Arc<Service>>>>,
    next: Cell<usize>,
}

/// A sidecar with its number.
type Numbered = (usize, Arc<Service>);

impl Sidecars {
    /// A sidecar has come or gone.
    pub fn set(&self, number: usize, service: Option<Arc<Service>>) {
        let mut all = self.all.borrow_mut();
        let least = all.len().max(number + 1);
        all.resize(least, None);
        all[number] = service;
    }

    fn peek(&self) -> Option<Numbered> {
        let all = self.all.borrow();
        let mut order = (0..all.len()).map(|further| (self.next.get() + further) % all.len());
        order.find_map(|number| Some((number, Arc::clone(all[number].as_ref()?))))
    }

    fn next(&self) -> Option<Numbered> {
        let next = self.peek()?;
        self.next.set(next.0 + 1);
        Some(next)
    }

    fn has(&self, (number, service): &Numbered) -> bool {
        let all = self.all.borrow();
        let still = all[*number].as_ref();
        still.is_some_and(|still| Arc::ptr_eq(still, service))
    }
}

/// A worker's VM.
struct Worker {
    envoy: Envoy,
    root: Root<Envoy>,
    streams: RefCell<BTreeMap<u32, (Stream<Envoy>, oneshot::Sender<End>)>>,
    period: Cell<Duration>,
    timer: Notify,
}

/// How a request ended in Envoy; its sender is dropped if its VM ended.
enum End {
    /// It went to the upstream.
    Passed {
        unmetered: bool,
    },
    Replied(Reply),
}

/// What a sidecar was asked for a request.
struct Sent {
    sidecar: usize,
    limits: Vec<usize>,
    /// What the filter got.
    got: Option<Got>,
}

enum Got {
    /// With the limits that the sidecar does not have.
    Admitted(Vec<usize>),
    Denied,
    Invalid(Code),
    Unavailable,
}

/// What the network saw of a request.
#[derive(Default)]
struct Seen {
    sent: Vec<Sent>,
    /// A callout for it was lost, late or refused.
    is_disturbed: bool,
}

/// An Envoy.
pub struct Filter {
    world: Rc<World>,
    workers: RefCell<Vec<Rc<Worker>>>,
    pub sidecars: Sidecars,
    /// It cannot use rules that it does not have.
    pub refuses: Cell<bool>,
    /// What becomes of its callouts.
    way: Cell<Way>,
    requests: Cell<u32>,
    seen: RefCell<BTreeMap<u32, Seen>>,
    /// By the digest of its rules: the policy that a sidecar had.
    versions: RefCell<BTreeMap<String, usize>>,
    /// States of the filter's own code.
    pub reached: RefCell<BTreeSet<&'static str>>,
}

/// What became of a request.
pub struct Asked {
    /// The sidecar that was asked, or would have been.
    pub sidecar: usize,
    /// What its rules ask for.
    pub checks: Vec<Check>,
    pub said: Said,
    pub by: By,
    /// The checks that had no part in the verdict.
    pub unknown: Vec<usize>,
    /// Other sidecars that may have taken the same.
    pub also: Vec<usize>,
    /// It has no verdict because its client hung up, its VM ended or the network failed.
    pub is_disturbed: bool,
}

/// A verdict as the record has it.
pub fn said(verdict: &Verdict<'_>) -> Said {
    match verdict {
        Verdict::Admitted(_) => Said::Admitted,
        Verdict::Denied(status) => Said::Denied {
            retry_ms: Some(status.retry_after_ms),
        },
        Verdict::Unavailable { .. } => Said::Unknown,
        Verdict::Error(_) => Said::Refused,
    }
}

impl Filter {
    pub fn start(world: &Rc<World>) -> Rc<Self> {
        let filter = Rc::new(Self {
            world: Rc::clone(world),
            workers: RefCell::default(),
            sidecars: Sidecars::default(),
            refuses: Cell::new(false),
            way: Cell::new(Way::Good),
            requests: Cell::new(0),
            seen: RefCell::default(),
            versions: RefCell::default(),
            reached: RefCell::default(),
        });
        for _ in 0..WORKERS {
            let worker = filter.start_worker();
            filter.workers.borrow_mut().push(worker);
        }
        filter
    }

    fn start_worker(self: &Rc<Self>) -> Rc<Worker> {
        let mut configuration = json!({
            "version": 2,
            "sidecar": {"cluster": "s", "timeout": "300ms", "traces": true},
            "pepper": PEPPER,
        });
        if !self.world.second_set.is_empty() {
            configuration["rule_sets"] =
                json!({"default": SETS[0], "others": [SETS[1]], "by": "route_name"});
        }
        let envoy = Envoy::new(configuration.to_string());
        self.set_refuses(&envoy);
        envoy.begin(ROOT);
        let mut root = Root::new(envoy.clone(), ROOT);
        assert!(root.on_configure(0), "a configuration");
        let worker = Rc::new(Worker {
            envoy,
            root,
            streams: RefCell::default(),
            period: Cell::default(),
            timer: Notify::new(),
        });
        self.perform(&worker);
        let (filter, of) = (Rc::clone(self), Rc::clone(&worker));
        spawn_local(async move {
            while !of.envoy.is_over() {
                if timeout(of.period.get(), of.timer.notified()).await.is_err() {
                    filter.enter(&of, ROOT, |worker| worker.root.on_tick());
                }
            }
        });
        worker
    }

    /// A worker's VM ends and starts again, whatever waits in it.
    pub fn restart(self: &Rc<Self>, worker: usize) {
        if !end(&self.workers.borrow()[worker]) {
            self.reach("a VM ends while requests wait in it");
        }
        let next = self.start_worker();
        self.workers.borrow_mut()[worker] = next;
    }

    /// It ends.
    pub fn stop(&self) {
        self.workers.borrow_mut().drain(..).for_each(|worker| {
            end(&worker);
        });
    }

    pub fn set_way(&self, way: Way) {
        self.way.set(way);
        let workers = self.workers.borrow();
        workers.iter().for_each(|one| self.set_refuses(&one.envoy));
    }

    fn set_refuses(&self, envoy: &Envoy) {
        envoy.0.refuses_calls.set(self.way.get() == Way::Refused);
    }

    /// A sidecar has rules with this digest since it took this policy.
    pub fn knows(&self, digest: Option<String>, version: usize) {
        if let Some(digest) = digest {
            self.versions.borrow_mut().entry(digest).or_insert(version);
        }
    }

    fn reach(&self, state: &'static str) {
        self.reached.borrow_mut().insert(state);
    }

    /// A call into a VM, and what Envoy does when it has returned.
    fn enter<T>(
        self: &Rc<Self>,
        worker: &Rc<Worker>,
        context: u32,
        call: impl FnOnce(&Worker) -> T,
    ) -> T {
        worker.envoy.begin(context);
        let result = call(worker);
        self.perform(worker);
        result
    }

    fn perform(self: &Rc<Self>, worker: &Rc<Worker>) {
        if worker.envoy.0.has_refused.take() {
            self.reach("a callout is refused");
        }
        while let Some(effect) = worker.envoy.next_effect() {
            match effect {
                Effect::Tick(period) => {
                    worker.period.set(period.max(Duration::from_millis(1)));
                    worker.timer.notify_one();
                }
                Effect::Wake(queue) => {
                    let (filter, of) = (Rc::clone(self), Rc::clone(worker));
                    spawn_local(async move {
                        yield_now().await;
                        if !of.envoy.is_over() {
                            filter.enter(&of, ROOT, |worker| worker.root.on_queue_ready(queue));
                        }
                    });
                }
                Effect::Resume(id) => finish(worker, id, None),
                Effect::Reply(id, reply) => finish(worker, id, Some(reply)),
                Effect::Call(call) => self.send(worker, call),
            }
        }
    }

    fn send(self: &Rc<Self>, worker: &Rc<Worker>, call: Call) {
        let next = self.sidecars.next();
        let (filter, worker) = (Rc::clone(self), Rc::clone(worker));
        spawn_local(async move {
            let (status, body) = if call.header(":path") == Some(RULES_PATH) {
                filter.rules(next, &call).await
            } else {
                filter.decide(next, &call).await
            };
            if !worker.envoy.is_over() {
                let size = body.len();
                worker.envoy.responds(status, body);
                filter.enter(&worker, ROOT, |of| of.root.on_response(call.token, 1, size));
            }
        });
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
        let Ok(answer) = timeout(call.timeout, answer).await else {
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
                && let Some(sent) = seen.sent.last_mut()
            {
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

    /// A request with these checks, by the names that rules have for them, on a route of this set. `None`: it was neither admitted nor
    /// denied nor was any sidecar asked, or its rules ask for nothing.
    pub async fn ask(self: &Rc<Self>, set: usize, checks: &[Check]) -> Option<Asked> {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        let workers = self.workers.borrow();
        let worker = Rc::clone(workers.get(number as usize % WORKERS)?);
        let other = workers.get((number as usize + 1) % WORKERS)?;
        if worker.envoy.0.rules.borrow()[0] != other.envoy.0.rules.borrow()[0] {
            self.reach("workers of one Envoy have different rules");
        }
        drop(workers);
        let before = self.rules_of(&worker);
        let (id, (ended, end)) = (ROOT + number, oneshot::channel());
        let request = envoy_request(number, set, checks);
        worker.envoy.0.requests.borrow_mut().insert(id, request);
        let action = self.enter(&worker, id, |worker| {
            let mut stream = worker.root.stream(id);
            let action = stream.on_request_headers();
            worker.streams.borrow_mut().insert(id, (stream, ended));
            action
        });
        if action == Action::Continue {
            finish(&worker, id, None);
            self.perform(&worker);
        }
        let end = match self.hangs_up(number) {
            Some(after) => timeout(after, end).await.ok(),
            None => Some(end.await),
        };
        let hung_up = end.is_none();
        if hung_up {
            self.reach("a client hangs up before its verdict");
            self.enter(&worker, id, |worker| forget(worker, id));
        }
        let seen = |number| self.seen.borrow_mut().remove(number).unwrap_or_default();
        let Some(Ok(end)) = end else {
            sleep(SETTLED).await;
            let seen = seen(&number);
            let sidecar = seen.sent.last()?.sidecar;
            let checks = self.world.asks(before?, checks);
            return Some(Asked {
                sidecar,
                checks,
                said: Said::Unknown,
                by: By::Sidecar,
                unknown: Vec::new(),
                also: others(&seen.sent),
                is_disturbed: true,
            });
        };
        let seen = seen(&number);
        let checks = self
            .world
            .asks(before.or_else(|| self.rules_of(&worker))?, checks);
        self.judge(&end, seen, checks)
    }

    /// The policy by whose rules a worker decides.
    fn rules_of(&self, worker: &Worker) -> Option<usize> {
        let rules = worker.envoy.0.rules.borrow();
        self.versions.borrow().get(rules[0].as_ref()?).copied()
    }

    /// When the client of a request hangs up, if it does: at once, or while its callout is under way.
    fn hangs_up(&self, number: u32) -> Option<Duration> {
        let one_in = self.world.hang_ups?;
        let after_us = [0, 500, 3_000, 120_000];
        let which = (number / one_in) as usize % after_us.len();
        (number.is_multiple_of(one_in)).then(|| Duration::from_micros(after_us[which]))
    }

    fn judge(&self, end: &End, seen: Seen, checks: Vec<Check>) -> Option<Asked> {
        let last = seen.sent.last();
        let got = last.and_then(|sent| sent.got.as_ref());
        let mut said = match end {
            End::Passed { unmetered: false } => Said::Admitted,
            End::Passed { unmetered: true } => Said::Unknown,
            End::Replied(reply) => match reply.status {
                429 => Said::Denied {
                    retry_ms: Some(retry_ms(reply)?),
                },
                422 => Said::Refused,
                _ => Said::Unknown,
            },
        };
        if let End::Replied(reply) = end
            && reply.details.contains("reason=full")
        {
            self.reach("a queue is full");
        }
        let all = || (0..checks.len()).collect();
        let mut unknown = Vec::new();
        match got {
            // The units of the others are taken. What leases had of them is put back.
            Some(Got::Admitted(lacks)) if said == Said::Unknown && !lacks.is_empty() => {
                let all_sent = last.is_some_and(|sent| sent.limits.len() == checks.len());
                said = if all_sent { Said::Admitted } else { said };
                let lacks =
                    |(index, check): (usize, &Check)| lacks.contains(&check.limit).then_some(index);
                unknown = checks.iter().enumerate().filter_map(lacks).collect();
            }
            Some(Got::Invalid(code)) if said == Said::Unknown => {
                said = Said::Refused;
                unknown = if *code == Code::UnknownLimit {
                    all()
                } else {
                    unknown
                };
            }
            _ => {}
        }
        let by = match (said, got) {
            (Said::Denied { .. }, Some(Got::Denied)) => By::Sidecar,
            (Said::Denied { .. }, _) => By::Cache,
            (Said::Admitted, None) if last.is_none() => By::Lease,
            _ => By::Sidecar,
        };
        // Without a verdict, and no sidecar was asked.
        if checks.is_empty() || said == Said::Unknown && last.is_none() {
            return None;
        }
        let mut also = others(&seen.sent);
        if let (By::Cache, Some(last)) = (by, last) {
            also.push(last.sidecar);
        }
        let sidecar = last.map(|sent| sent.sidecar);
        Some(Asked {
            sidecar: sidecar
                .or_else(|| Some(self.sidecars.peek()?.0))
                .unwrap_or(0),
            checks,
            said,
            by,
            unknown,
            also,
            is_disturbed: seen.is_disturbed,
        })
    }

    /// Whether a worker should have the rules with this digest, and has others. It does not try again what it has refused.
    pub fn lacks(&self, digest: Option<&str>) -> bool {
        let workers = self.workers.borrow();
        workers.iter().any(|worker| {
            let known = worker.envoy.0.rules.borrow();
            known.iter().all(|known| known.as_deref() != digest)
        })
    }
}

/// The sidecars that were asked before the last one.
fn others(sent: &[Sent]) -> Vec<usize> {
    let others = sent.iter().rev().skip(1);
    others.map(|sent| sent.sidecar).collect()
}

/// A VM ends; whether nothing waited.
fn end(worker: &Worker) -> bool {
    worker.envoy.end();
    worker.timer.notify_one();
    std::mem::take(&mut *worker.streams.borrow_mut()).is_empty()
}

/// A request goes to the upstream or gets a reply, and its response leaves.
fn finish(worker: &Worker, id: u32, reply: Option<Reply>) {
    worker.envoy.begin(id);
    let stream = worker.streams.borrow_mut().remove(&id);
    if let Some((mut stream, ended)) = stream {
        stream.on_response_headers();
        drop(stream);
        let request = worker.envoy.0.requests.borrow_mut().remove(&id);
        let state = request.and_then(|request| request.filter_state);
        let passed = End::Passed {
            unmetered: state.is_some(),
        };
        let _ = ended.send(reply.map_or(passed, End::Replied));
    }
}

/// Its client has gone.
fn forget(worker: &Worker, id: u32) {
    let stream = worker.streams.borrow_mut().remove(&id);
    drop(stream);
    worker.envoy.0.requests.borrow_mut().remove(&id);
}

/// The request that a decision is for.
fn request(decision: &Decision<'_>) -> u32 {
    let trace = decision.traceparent.as_deref();
    let number = trace.and_then(|trace| u32::from_str_radix(trace.get(27..35)?, 16).ok());
    number.expect("a request's traceparent")
}

/// What Envoy has of a request.
fn envoy_request(number: u32, set: usize, checks: &[Check]) -> Request {
    let mut headers = vec![(
        "traceparent".to_owned(),
        format!("00-{number:032x}-{number:016x}-01"),
    )];
    let mut quotas = serde_json::Map::new();
    for check in checks {
        headers.push((format!("u{}", check.limit), check.cost.to_string()));
        let name = if check.limit == CONSUMERS { "c" } else { "x" };
        headers.push((name.to_owned(), format!("k{}", check.key)));
        if let Some(quota) = check.quota {
            quotas.insert(format!("q{}", check.limit), json!(quota));
        }
    }
    Request {
        headers: headers.into_iter().collect(),
        route: SETS[set],
        metadata: metadata("w", &quotas.into()),
        filter_state: None,
    }
}

/// When a denial says to come back.
fn retry_ms(reply: &Reply) -> Option<u64> {
    let header = |name| {
        let mut headers = reply.headers.iter();
        let (_, value) = headers.find(|(known, _)| *known == name)?;
        value.parse::<u64>().ok()
    };
    header("retry-after-ms").or_else(|| Some(header("retry-after")? * 1_000))
}
