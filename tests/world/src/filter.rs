//! An Envoy beside a sidecar, or in front of several: two workers, each with a VM of the filter's own code, and the cluster of
//! sidecars. What became of a request is what its client gets, and what Envoy and the sidecars saw of it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use serde_json::json;
use sluicegate_history::{By, Said};
use sluicegate_rules::{Reply, metadata};
use sluicegate_vm::{Action, Root, Stream};
use tokio::sync::{Notify, oneshot};
use tokio::task::{spawn_local, yield_now};
use tokio::time::{sleep, timeout};

use super::asked::End;
pub use super::asked::{Asked, said};
use super::host::{Call, Effect, Ends, Envoy, ROOT, Request};
use super::network::Network;
use super::script::{CONSUMERS, Check, PEPPER, SETS, Way, World};
use super::settling::{self, Attribute, Fate};

/// How many workers an Envoy has.
pub const WORKERS: usize = 2;
/// Longer than a callout is under way whose client has hung up.
const SETTLED: Duration = Duration::from_millis(500);

/// A stream, and who waits for its verdict.
type OpenStream = (Stream<Envoy>, Option<oneshot::Sender<End>>);

/// A worker's VM.
struct Worker {
    envoy: Envoy,
    root: Root<Envoy>,
    streams: RefCell<BTreeMap<u32, OpenStream>>,
    period: Cell<Duration>,
    timer: Notify,
    /// The sidecar whose turn is next: each worker takes them in turn by itself.
    next: Cell<usize>,
}

/// An Envoy.
pub struct Filter {
    world: Rc<World>,
    workers: RefCell<Vec<Rc<Worker>>>,
    pub network: Network,
    requests: Cell<u32>,
    /// By the digest of its rules: the policy that a sidecar had.
    versions: RefCell<BTreeMap<String, usize>>,
}

impl Filter {
    pub fn start(world: &Rc<World>) -> Rc<Self> {
        let filter = Rc::new(Self {
            world: Rc::clone(world),
            workers: RefCell::default(),
            network: Network::default(),
            requests: Cell::new(0),
            versions: RefCell::default(),
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
            next: Cell::default(),
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
        let before = Rc::clone(&self.workers.borrow()[worker]);
        for (_, ended) in end(&before).values() {
            self.network.reach(match ended {
                Some(_) => "a VM ends while requests wait in it",
                None => "a VM ends while streams live that it has let pass",
            });
        }
        if self.world.has_streams() {
            // What it knows dies with it, and is left to no other VM of this thread.
            std::mem::forget(before);
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
        self.network.way.set(way);
        let workers = self.workers.borrow();
        workers.iter().for_each(|one| self.set_refuses(&one.envoy));
    }

    fn set_refuses(&self, envoy: &Envoy) {
        envoy
            .0
            .refuses_calls
            .set(self.network.way.get() == Way::Refused);
    }

    /// A sidecar has rules with this digest since it took this policy.
    pub fn knows(&self, digest: Option<String>, version: usize) {
        if let Some(digest) = digest {
            self.versions.borrow_mut().entry(digest).or_insert(version);
        }
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
            self.network.reach("a callout is refused");
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
                Effect::Resume(id) => self.finish(worker, id, None),
                Effect::Reply(id, reply) => self.finish(worker, id, Some(reply)),
                Effect::Call(call) => self.send(worker, call),
            }
        }
    }

    fn send(self: &Rc<Self>, worker: &Rc<Worker>, call: Call) {
        let next = self.network.sidecars.first(worker.next.get());
        if let Some((number, _)) = &next {
            worker.next.set(number + 1);
        }
        let (filter, worker) = (Rc::clone(self), Rc::clone(worker));
        spawn_local(async move {
            let (status, body) = filter.network.answer(next, &call).await;
            if !worker.envoy.is_over() {
                let size = body.len();
                worker.envoy.responds(status, body);
                filter.enter(&worker, ROOT, |of| of.root.on_response(call.token, 1, size));
            }
        });
    }

    /// A request with these checks, by the names that rules have for them, on a route of this set. `None`: it was neither admitted nor
    /// denied nor was any sidecar asked, or its rules ask for nothing.
    pub async fn ask(self: &Rc<Self>, set: usize, checks: &[Check]) -> Option<Asked> {
        let number = self.requests.get() + 1;
        self.requests.set(number);
        let worker = self.worker_of(number)?;
        let before = self.rules_of(&worker);
        let (id, (ended, end)) = (ROOT + number, oneshot::channel());
        let cost = checks.iter().map(|check| check.cost).max().unwrap_or(0);
        let fate = || Fate::of(self.world.seed, number, cost, self.world.settles.is_none());
        let fate = self.world.has_streams().then(fate);
        let request = envoy_request(number, set, checks, fate);
        worker.envoy.0.requests.borrow_mut().insert(id, request);
        let action = self.enter(&worker, id, |worker| {
            let mut stream = worker.root.stream(id);
            let action = stream.on_request_headers();
            worker
                .streams
                .borrow_mut()
                .insert(id, (stream, Some(ended)));
            action
        });
        if action == Action::Continue {
            self.finish(&worker, id, None);
            self.perform(&worker);
        }
        let end = match self.hangs_up(number) {
            Some(after) => timeout(after, end).await.ok(),
            None => Some(end.await),
        };
        let hung_up = end.is_none();
        if hung_up {
            self.network.reach("a client hangs up before its verdict");
            self.enter(&worker, id, |worker| forget(worker, id));
        }
        let Some(Ok(end)) = end else {
            sleep(SETTLED).await;
            let seen = self.network.seen(number);
            let sidecar = seen.sent.last()?.sidecar;
            let checks = self.world.asks(before?, checks);
            return Some(Asked {
                sidecar,
                checks,
                said: Said::Unknown,
                by: By::Sidecar,
                unknown: Vec::new(),
                leased: Vec::new(),
                also: seen.others(),
                receipts: seen.receipts.clone(),
                is_disturbed: true,
            });
        };
        let seen = self.network.seen(number);
        let by = before
            .or_else(|| self.world.asked_by(&seen.sent.last()?.limits, checks))
            .or_else(|| self.rules_of(&worker));
        let checks = self.world.asks(by?, checks);
        if matches!(&end, End::Replied(reply) if reply.details.contains("reason=full")) {
            self.network.reach("a queue is full");
        }
        let next = self.network.sidecars.first(worker.next.get());
        Asked::of(&end, &seen, checks, next.map_or(0, |next| next.0))
    }

    /// The worker that gets this request.
    fn worker_of(&self, number: u32) -> Option<Rc<Worker>> {
        let workers = self.workers.borrow();
        let mut rules = workers
            .iter()
            .map(|one| one.envoy.0.rules.borrow()[0].clone());
        let first = rules.next();
        if rules.any(|other| Some(other) != first) {
            let different = "workers of one Envoy have different rules";
            self.network.reach(different);
        }
        workers.get(number as usize % WORKERS).cloned()
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

    /// Whether a worker should have the rules with this digest, and has others. It does not try again what it has refused.
    pub fn lacks(&self, digest: Option<&str>) -> bool {
        let workers = self.workers.borrow();
        workers.iter().any(|worker| {
            let known = worker.envoy.0.rules.borrow();
            known.iter().all(|known| known.as_deref() != digest)
        })
    }
}

/// A VM ends, with these streams.
fn end(worker: &Worker) -> BTreeMap<u32, OpenStream> {
    worker.envoy.end();
    worker.timer.notify_one();
    std::mem::take(&mut *worker.streams.borrow_mut())
}

impl Filter {
    /// A request goes to the upstream or gets a reply. Its response leaves at once, or, where rules settle, when its stream says.
    fn finish(self: &Rc<Self>, worker: &Rc<Worker>, id: u32, reply: Option<Reply>) {
        worker.envoy.begin(id);
        let stream = worker.streams.borrow_mut().remove(&id);
        let Some((mut stream, Some(ended))) = stream else {
            return;
        };
        let mut requests = worker.envoy.0.requests.borrow_mut();
        let request = requests.get_mut(&id);
        let ends = request.and_then(|request| request.ends.take());
        let state = requests
            .get(&id)
            .and_then(|request| request.filter_state.as_ref());
        let passed = End::Passed {
            unmetered: state.is_some(),
        };
        drop(requests);
        match ends.filter(|_| reply.is_none()) {
            Some(ends) => {
                worker.streams.borrow_mut().insert(id, (stream, None));
                let (filter, worker) = (Rc::clone(self), Rc::clone(worker));
                spawn_local(async move { filter.live(&worker, id, ends).await });
            }
            None => {
                stream.on_response_headers();
                drop(stream);
                worker.envoy.0.requests.borrow_mut().remove(&id);
            }
        }
        let _ = ended.send(reply.map_or(passed, End::Replied));
    }

    /// The stream of a request that has passed goes on until its end.
    async fn live(self: &Rc<Self>, worker: &Rc<Worker>, id: u32, (fate, metadata): Ends) {
        let set = |attributes: Vec<Attribute>| {
            let mut requests = worker.envoy.0.requests.borrow_mut();
            let request = requests.get_mut(&id).expect("it lives");
            request.attributes.extend(attributes);
            if fate.tells {
                request.metadata.clone_from(&metadata);
            }
        };
        sleep(Duration::from_millis(fate.begins_ms)).await;
        if worker.envoy.is_over() {
            return;
        }
        if fate.end != settling::End::HungUpBefore {
            set(fate.header().into_iter().collect());
            self.enter(worker, id, |worker| {
                if let Some((stream, _)) = worker.streams.borrow_mut().get_mut(&id) {
                    stream.on_response_headers();
                }
            });
        }
        sleep(Duration::from_millis(fate.lasts_ms - fate.begins_ms)).await;
        if worker.envoy.is_over() {
            return;
        }
        set(fate.attributes());
        self.enter(worker, id, |worker| forget(worker, id));
        let used = self.world.settles.as_ref().and_then(|of| fate.used(of));
        self.network.ended(id - ROOT, used);
    }
}

/// Its client has gone.
fn forget(worker: &Worker, id: u32) {
    let stream = worker.streams.borrow_mut().remove(&id);
    drop(stream);
    worker.envoy.0.requests.borrow_mut().remove(&id);
}

/// What Envoy has of a request.
fn envoy_request(number: u32, set: usize, checks: &[Check], fate: Option<Fate>) -> Request {
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
    let ends = fate.map(|fate| {
        let mut told = quotas.clone();
        told.insert("used".to_owned(), json!(fate.used));
        let told = metadata("w", &told.into());
        if !fate.tells {
            // It was there before: no usage.
            quotas.insert("used".to_owned(), json!(fate.used));
        }
        (fate, told)
    });
    Request {
        headers: headers.into_iter().collect(),
        route: SETS[set],
        metadata: metadata("w", &quotas.into()),
        ends,
        ..Request::default()
    }
}
