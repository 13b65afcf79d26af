//! Runs a world: sidecars and filters with one store, in virtual time, on a thread and a runtime of its own.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluicegate::decide::{PolicyHandle, Service};
use sluicegate::policy::StoreAddress;
use sluicegate::store::Store;
use sluicegate::store::simulated::{Call, Fault, Faults, Server};
use sluicegate::telemetry::metrics::Metrics;
pub use sluicegate_history::{By, Entry, Held, Request, Said, Settled, Sign, Span, Told, What};
use sluicegate_protocol::{
    Reset, Settle, Verdict, WasReset, read_decisions, read_remove_override, read_set_override,
};
use tokio::task::{AbortHandle, LocalSet, spawn_local};
use tokio::time::{Instant, sleep, timeout};

use super::determined;
use super::filter::{Asked, Filter, said};
use super::network::{Becomes, is_of_slots, sign, told};
use super::script::{CONSUMERS, Check, Event, Grant, KEYS, Link, World, names};

/// The policy's `store_timeout`.
const STORE_TIMEOUT: Duration = Duration::from_millis(100);
/// After the last event: how long until everything that was away is back and has been told.
const CALM: Duration = Duration::from_secs(8);
/// Who is told to come back later than this does not.
const MOST_PATIENT_MS: u64 = 120_000;
/// After that: longer than anything is kept. A large burst drains for months.
const FORGOTTEN: Duration = Duration::from_secs(700 * 86_400);

/// What a world showed.
#[derive(Debug, Default)]
pub struct Shown {
    pub log: Vec<Entry>,
    /// Keys in the store at the end.
    pub keys_left: usize,
    /// From when on all faults were healed.
    pub healed: u64,
    /// All sidecars of a fleet have the same rules at the end, and its filter has others and did not refuse these.
    pub is_behind: bool,
    /// For each step of the clock: when an answer had told the last sidecar of it.
    pub told: Vec<u64>,
    /// States of the filter's own code that it reached.
    pub reached: BTreeSet<&'static str>,
    /// The receipts that somebody was told.
    pub receipts: BTreeSet<String>,
    /// The store's calls, if they were to be recorded, or the world has slots.
    pub calls: Vec<Call>,
}

/// A receipt, its limit and key, and the entry of its taking.
type Receipt = (String, usize, usize, u64, usize);
/// A taking in the record: its entry, the limit and the key.
type Taking = (usize, usize, usize);

/// Who has slots that it has asked for directly: the receipt, the limit and key as asked and as counted, and the entry of the taking.
struct Program {
    receipt: String,
    asked: (usize, usize),
    counted: (usize, usize),
    entry: usize,
}

struct Sidecar {
    service: Arc<Service>,
    tasks: Vec<AbortHandle>,
}

struct Run {
    world: Rc<World>,
    began: Instant,
    server: Arc<Server>,
    faults: Vec<Faults>,
    /// The Envoy in front of all sidecars, or one beside each; none if nobody asks them.
    filters: Vec<Rc<Filter>>,
    folder: PathBuf,
    sidecars: RefCell<Vec<Option<Rc<Sidecar>>>>,
    versions: RefCell<Vec<usize>>,
    /// Of each sidecar.
    receipts: RefCell<Vec<Vec<Receipt>>>,
    /// By the receipts that filters have.
    reserved: RefCell<BTreeMap<String, Vec<Taking>>>,
    /// Those that have got slots and do not hold them yet.
    programs: RefCell<Vec<Program>>,
    /// All faults are healed.
    is_calm: Cell<bool>,
    /// Receipts that somebody was told.
    told: RefCell<BTreeSet<String>>,
    log: RefCell<Vec<Entry>>,
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
    }
}

/// Runs it; `records` keeps the store's calls.
pub fn run(world: &World, records: bool) -> Shown {
    let world = world.clone();
    let thread = std::thread::Builder::new().stack_size(8 << 20);
    let run = move || {
        determined::seed(world.seed);
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let local = LocalSet::new();
        let shown = local.block_on(&runtime, async {
            determined::begin(world.start_us);
            let shown = go(world, records).await;
            determined::end();
            shown
        });
        drop(local);
        shown
    };
    thread
        .spawn(run)
        .expect("a thread")
        .join()
        .unwrap_or_else(|_| panic!("seed failed"))
}

async fn go(world: World, records: bool) -> Shown {
    let folder = tempfile::tempdir().expect("a folder");
    let world = Rc::new(world);
    let count = world.sidecars;
    let asks = |event: &Event| matches!(event, Event::Ask { filter: true, .. });
    let envoys = match world.events.iter().any(|(_, event)| asks(event)) {
        true if world.fleet => 1,
        true => count,
        false => 0,
    };
    let run = Rc::new(Run {
        began: Instant::now(),
        server: Server::new(world.start_us, records || world.has_slots()),
        faults: (0..count).map(|_| Faults::default()).collect(),
        filters: (0..envoys).map(|_| Filter::start(&world)).collect(),
        folder: folder.path().to_owned(),
        sidecars: RefCell::new((0..count).map(|_| None).collect()),
        versions: RefCell::new(vec![0; count]),
        receipts: RefCell::new(vec![Vec::new(); count]),
        reserved: RefCell::default(),
        programs: RefCell::default(),
        is_calm: Cell::default(),
        told: RefCell::default(),
        log: RefCell::default(),
        world,
    });
    for sidecar in 0..count {
        run.link(sidecar, Link::Good);
        run.start(sidecar);
    }
    let mut tasks = Vec::new();
    for (at_ms, event) in run.world.events.clone() {
        tokio::time::sleep_until(run.began + Duration::from_millis(at_ms)).await;
        let happens = Rc::clone(&run);
        tasks.push(spawn_local(async move { happens.happen(event).await }));
    }
    for task in tasks {
        let _ = task.await;
    }
    for sidecar in 0..count {
        run.link(sidecar, Link::Good);
    }
    sleep(CALM).await;
    let healed = run.now();
    run.is_calm.set(true);
    run.ask_all(true).await;
    run.ask_all(false).await;
    let is_behind = run.is_behind();
    let mut reached = BTreeSet::new();
    for filter in &run.filters {
        filter.stop();
        reached.append(&mut filter.network.reached.borrow_mut());
        run.note_settled(filter);
        let told = filter.network.receipts.take();
        run.told.borrow_mut().extend(told.into_values().flatten());
    }
    for sidecar in 0..count {
        run.end(sidecar);
    }
    sleep(FORGOTTEN).await;
    let keys_left = run.server.keys_left();
    let told = |step| {
        run.server
            .told(step)
            .map_or(u64::MAX, |at| micros(at - run.began))
    };
    let steps = run
        .log
        .borrow()
        .iter()
        .filter(|entry| matches!(entry.what, What::Clock(_)))
        .count();
    let told = (0..steps).map(told).collect();
    Shown {
        log: run.log.take(),
        keys_left,
        healed,
        is_behind,
        told,
        reached,
        receipts: run.told.take(),
        calls: run.server.calls(),
    }
}

fn micros(passed: Duration) -> u64 {
    u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)
}

impl Run {
    fn now(&self) -> u64 {
        micros(self.began.elapsed())
    }

    /// Notes what took from then until now; its number.
    fn note(&self, from: u64, sidecar: usize, what: What) -> usize {
        let to = self.now();
        self.log.borrow_mut().push(Entry {
            from,
            to,
            sidecar,
            what,
        });
        self.log.borrow().len() - 1
    }

    fn note_now(&self, sidecar: usize, what: What) {
        self.note(self.now(), sidecar, what);
    }

    /// The Envoy beside a sidecar, or that of the fleet.
    fn filter(&self, sidecar: usize) -> Option<&Rc<Filter>> {
        let index = if self.world.fleet { 0 } else { sidecar };
        self.filters.get(index)
    }

    /// Says to the world which rules a sidecar has now.
    fn knows(&self, sidecar: usize, service: &Service) {
        if let Some(filter) = self.filter(sidecar) {
            let digest = service.policy.current().policy.rules.told();
            filter.knows(digest, self.versions.borrow()[sidecar]);
        }
    }

    fn of(&self, sidecar: usize) -> Option<Rc<Sidecar>> {
        self.sidecars.borrow().get(sidecar).cloned().flatten()
    }

    fn path(&self, sidecar: usize) -> PathBuf {
        self.folder.join(format!("{sidecar}.yaml"))
    }

    /// Its state folder, which is there.
    fn state_folder(&self, sidecar: usize) -> PathBuf {
        let folder = self.folder.join(format!("{sidecar}.state"));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    fn write_policy(&self, sidecar: usize) {
        let version = self.versions.borrow()[sidecar];
        let text = self.world.yaml(version);
        std::fs::write(self.path(sidecar), text).expect("a file");
    }

    fn start(&self, sidecar: usize) {
        self.write_policy(sidecar);
        let metrics = Metrics::new().expect("metrics");
        let state = self.world.keeps_state.then(|| self.state_folder(sidecar));
        let policy = PolicyHandle::load(&self.path(sidecar), state.as_deref(), &metrics);
        let policy = policy.unwrap_or_else(|why| panic!("{why}\n{}", self.world));
        let store = if self.world.embedded {
            Store::open(&StoreAddress::Memory, STORE_TIMEOUT, 1 << 28)
        } else {
            let faults = Arc::clone(&self.faults[sidecar]);
            Store::simulated(Arc::clone(&self.server), faults, STORE_TIMEOUT)
        };
        let service = Arc::new(Service::new(policy, store, metrics));
        if let Some(filter) = self.filter(sidecar) {
            filter
                .network
                .sidecars
                .set(sidecar, Some(Arc::clone(&service)));
        }
        self.knows(sidecar, &service);
        let mut tasks = Vec::new();
        let mut task = |task: tokio::task::JoinHandle<()>| tasks.push(task.abort_handle());
        let its = || Arc::clone(&service);
        let (one, two, three, four, five) = (its(), its(), its(), its(), its());
        task(spawn_local(async move {
            loop {
                one.tick().await;
                sleep(Duration::from_secs(1)).await;
            }
        }));
        task(spawn_local(async move { two.watch_store().await }));
        task(spawn_local(async move { three.watch_fleet().await }));
        task(spawn_local(async move { four.write_back().await }));
        task(spawn_local(async move { five.keep_leases().await }));
        let started = Sidecar { service, tasks };
        self.sidecars.borrow_mut()[sidecar] = Some(Rc::new(started));
        self.note_now(sidecar, What::Up);
    }

    /// It is gone, with everything that it had not written.
    fn kill(&self, sidecar: usize) {
        if self.end(sidecar) {
            self.receipts.borrow_mut()[sidecar].clear();
            self.note_now(sidecar, What::Down);
        }
    }

    /// Ends it, if it runs.
    fn end(&self, sidecar: usize) -> bool {
        let gone = self.sidecars.borrow_mut()[sidecar].take();
        gone.is_some_and(|gone| {
            gone.tasks.iter().for_each(AbortHandle::abort);
            if let Some(filter) = self.filter(sidecar) {
                filter.network.sidecars.set(sidecar, None);
            }
            gone.service.filters.stop();
            true
        })
    }

    fn is_behind(&self) -> bool {
        let sidecars = self.sidecars.borrow();
        let digests = sidecars.iter().flatten();
        let mut digests = digests.map(|of| of.service.policy.current().policy.rules.told());
        let newest = digests.next().flatten();
        let are_same = digests.all(|other| other == newest);
        let mut filters = self.filters.iter().filter(|_| self.world.fleet);
        are_same && filters.any(|filter| filter.lacks(newest.as_deref()))
    }

    fn link(&self, sidecar: usize, link: Link) {
        let (there, back) = match link {
            Link::Slow(there, back) => (there, back),
            _ => self.world.latency_ms,
        };
        let fault = Fault {
            cut: link == Link::Cut,
            loses_answers: link == Link::LosesAnswers,
            refuses_half: link == Link::RefusesHalf,
            there: Duration::from_millis(there),
            back: Duration::from_millis(back),
        };
        *self.faults[sidecar].lock().expect("no panic") = fault;
        self.note_now(sidecar, What::Link(link));
    }

    async fn happen(self: &Rc<Self>, event: Event) {
        match event {
            Event::Ask {
                sidecar,
                filter,
                checks,
                peek,
                receipt,
                times,
                every_ms,
                again,
            } => {
                let mut asks = Vec::new();
                for _ in 0..times {
                    let (run, checks) = (Rc::clone(self), checks.clone());
                    let how = (filter, peek, receipt, again);
                    asks.push(spawn_local(
                        async move { run.ask(sidecar, &checks, how).await },
                    ));
                    if every_ms > 0 {
                        sleep(Duration::from_millis(every_ms)).await;
                    }
                }
                for ask in asks {
                    let _ = ask.await;
                }
            }
            Event::GiveBack {
                sidecar,
                back,
                units,
            } => self.give_back(sidecar, back, units).await,
            Event::Policy { sidecar, version } => {
                self.versions.borrow_mut()[sidecar] = version;
                self.write_policy(sidecar);
                if let Some(of) = self.of(sidecar) {
                    of.service.reload();
                    self.knows(sidecar, &of.service);
                }
                self.note_now(sidecar, What::Policy(version));
            }
            Event::Override {
                sidecar,
                limit,
                key,
                grant,
                for_ms,
            } => {
                self.override_by(sidecar, limit, key, Some(grant), for_ms)
                    .await;
            }
            Event::RemoveOverride {
                sidecar,
                limit,
                key,
            } => {
                self.override_by(sidecar, limit, key, None, None).await;
            }
            Event::Reset {
                sidecar,
                limit,
                key,
            } => {
                let Some(of) = self.of(sidecar) else { return };
                let from = self.now();
                let (name, text) = names(limit, key);
                let asked = [Ok(Reset {
                    limit: name.into(),
                    key: text.into(),
                    subject: None,
                })];
                let answer = timeout(Duration::from_secs(2), of.service.reset(&asked)).await;
                let outcomes = answer.map_or_else(|_| Vec::new(), |listed| listed.outcomes);
                let done = matches!(outcomes.first(), Some(WasReset::Reset { .. }));
                self.note(from, sidecar, What::Reset { limit, key, done });
            }
            Event::Link { sidecar, link } => self.link(sidecar, link),
            Event::Clock { by_ms } => {
                self.server.step_us(by_ms * 1_000);
                determined::step_wall_us(by_ms * 1_000);
                self.note_now(0, What::Clock(by_ms));
            }
            Event::LoseData => {
                self.server.lose_data();
                self.note_now(0, What::Lost);
            }
            Event::LoseSidecars => self.server.lose_sidecars(),
            Event::LoseOverrides => {
                self.server.lose_overrides();
                self.note_now(0, What::OverridesLost);
            }
            Event::Refuse(refuses) => {
                if let Some(filter) = self.filter(0) {
                    filter.network.refuses.set(refuses);
                }
            }
            Event::Callouts { sidecar, way } => {
                if let Some(filter) = self.filter(sidecar) {
                    filter.set_way(way);
                    self.note_now(sidecar, What::Envoy);
                }
            }
            Event::EndVm { sidecar, worker } => {
                if let Some(filter) = self.filter(sidecar) {
                    filter.restart(worker);
                    self.note_now(sidecar, What::Envoy);
                    self.note_now(sidecar, What::VmEnded);
                }
            }
            Event::StateFull { sidecar, full } => {
                // In the place of each new file there is a folder.
                for name in ["last-good-policy.new", "earlier-policies.new"] {
                    let path = self.state_folder(sidecar).join(name);
                    if full {
                        let _ = std::fs::remove_file(&path);
                        std::fs::create_dir_all(path).expect("a folder");
                    } else {
                        let _ = std::fs::remove_dir(path);
                    }
                }
                self.note_now(sidecar, What::StateFull(full));
            }
            Event::Restart { sidecar } => {
                if let Some(of) = self.of(sidecar) {
                    let _ = timeout(Duration::from_secs(1), of.service.leave()).await;
                    self.kill(sidecar);
                    self.start(sidecar);
                }
            }
            Event::Kill { sidecar, for_ms } => {
                self.kill(sidecar);
                sleep(Duration::from_millis(for_ms)).await;
                if self.of(sidecar).is_none() {
                    self.start(sidecar);
                }
            }
        }
    }

    async fn override_by(
        &self,
        sidecar: usize,
        limit: usize,
        key: usize,
        grant: Option<Grant>,
        for_ms: Option<u64>,
    ) {
        let Some(of) = self.of(sidecar) else { return };
        let from = self.now();
        let (name, text) = names(limit, key);
        let mut body = json!({"limit": name, "key": text});
        let until = for_ms.map(|for_ms| from + for_ms * 1_000);
        match grant {
            None => {}
            Some(Grant::Quota(quota, burst)) => {
                body["quota"] = json!(quota);
                if let Some(burst) = burst {
                    body["burst"] = json!(burst);
                }
            }
            Some(Grant::Unlimited) => body["unlimited"] = json!(true),
            Some(Grant::Blocked) => body["blocked"] = json!(true),
        }
        if let (Some(for_ms), Some(_)) = (for_ms, grant) {
            let wall = jiff::Timestamp::now() + Duration::from_millis(for_ms);
            body["until"] = json!(format!("{wall:.3}"));
        }
        let body = body.to_string();
        let change = async {
            match grant {
                Some(_) => {
                    let asked = read_set_override(body.as_bytes())?;
                    of.service.set_override(asked).await.map(drop)
                }
                None => {
                    let asked = read_remove_override(body.as_bytes())?;
                    of.service.remove_override(asked).await.map(drop)
                }
            }
        };
        let done = matches!(timeout(Duration::from_secs(2), change).await, Ok(Ok(_)));
        // That of a consumer acts on it in whichever tier it is.
        let versions = 0..self.world.policies.len();
        let counted = versions.map(|version| self.world.counted(version, limit, key));
        for (limit, key) in counted.collect::<BTreeSet<_>>() {
            let what = What::Override {
                limit,
                key,
                grant,
                until,
                done,
            };
            self.note(from, sidecar, what);
        }
    }

    async fn ask(
        self: Rc<Self>,
        sidecar: usize,
        checks: &[Check],
        (filter, peek, receipt, again): (bool, bool, bool, bool),
    ) {
        let said = self
            .ask_once(sidecar, checks, (filter, peek, receipt, false))
            .await;
        if let (
            true,
            Some(Said::Denied {
                retry_ms: Some(retry_ms @ ..=MOST_PATIENT_MS),
            }),
        ) = (again, said)
        {
            sleep(Duration::from_millis(retry_ms + 1)).await;
            self.ask_once(sidecar, checks, (filter, peek, receipt, true))
                .await;
        }
        for program in self.programs.take() {
            let run = Rc::clone(&self);
            spawn_local(async move { run.hold(sidecar, program).await });
        }
    }

    /// A program holds slots for a while, renews them, and gives them back once or twice; or it crashes.
    async fn hold(&self, sidecar: usize, program: Program) {
        let Program {
            receipt,
            asked,
            counted,
            entry,
        } = program;
        let mut state = self.world.seed ^ 0x9067A3 ^ ((entry as u64) << 32);
        let mut below = |most: usize| determined::next(&mut state) as usize % most;
        let (for_ms, times) = ([0, 30, 400, 5_000][below(4)], below(3));
        let settle = async |within_ms: Option<u64>| {
            let (from, (name, text)) = (self.now(), names(asked.0, asked.1));
            let service = self.of(sidecar)?;
            let entries = [Ok(Settle {
                limit: name.into(),
                key: text.into(),
                receipt: receipt.as_str().into(),
                units: within_ms.is_none().then_some(0),
                within_ms,
            })];
            let answer = timeout(
                Duration::from_secs(2),
                service.service.settle(&entries, None),
            );
            let answer = answer.await.ok();
            let outcome = answer.as_ref().and_then(|listed| listed.outcomes.first());
            let what = self.held(entry, counted, sign(within_ms, outcome), (from, sidecar));
            self.note(from, sidecar, what);
            Some(())
        };
        for _ in 0..for_ms / 1_000 {
            sleep(Duration::from_secs(1)).await;
            settle(Some(3_000)).await;
        }
        sleep(Duration::from_millis(for_ms % 1_000)).await;
        for _ in 0..times {
            settle(None).await;
        }
    }

    async fn ask_once(
        &self,
        sidecar: usize,
        checks: &[Check],
        (filter, peek, receipt, again): (bool, bool, bool, bool),
    ) -> Option<Said> {
        let of = self.of(sidecar)?;
        let (from, versions) = (self.now(), self.versions.borrow().clone());
        let noted = self.log.borrow().len();
        let (mut receipts, mut remaining) = (Vec::new(), None);
        let asked = if filter && !peek && !receipt {
            let filter = self.filter(sidecar)?;
            filter.ask(self.world.set_of(checks), checks).await?
        } else {
            let check = |check: &Check| {
                let (limit, key) = names(check.limit, check.key);
                let mut one = json!({"limit": limit, "key": key, "cost": check.cost});
                if let Some(quota) = check.quota {
                    one["quota"] = json!(quota);
                }
                one
            };
            let body = json!({"decisions": [{"checks": checks.iter().map(check).collect::<Vec<_>>(), "peek": peek, "receipt": receipt}]});
            let body = body.to_string();
            let asked = read_decisions(body.as_bytes()).unwrap();
            let answer = of.service.decide(&asked, |_| None);
            // Some have gone before the store's answer comes.
            let is_impatient =
                self.world.has_slots() && !self.is_calm.get() && noted.is_multiple_of(8);
            let patience_ms = if is_impatient { 5 } else { 1_000 };
            let answer = timeout(Duration::from_millis(patience_ms), answer)
                .await
                .ok();
            let verdict = answer.as_ref().and_then(|answer| answer.verdicts.first());
            if let Some(Verdict::Admitted(status) | Verdict::Denied(status)) = verdict {
                receipts.clone_from(&status.receipt);
                self.told.borrow_mut().extend(receipts.iter().cloned());
                remaining = Some(status.remaining);
            }
            // With a receipt, who takes nothing asks whether something is left.
            let asks = |check: &Check| match check.cost {
                0 if receipt => check.reserves(100),
                _ => *check,
            };
            Asked {
                sidecar,
                checks: checks.iter().map(asks).collect(),
                said: verdict.map_or(Said::Unknown, said),
                by: By::Sidecar,
                unknown: Vec::new(),
                leased: Vec::new(),
                also: Vec::new(),
                is_disturbed: is_impatient,
                receipts: Vec::new(),
            }
        };
        let said = asked.said;
        let (mut metered, mut leased, mut unmetered) = (Vec::new(), Vec::new(), Vec::new());
        for (index, check) in asked.checks.into_iter().enumerate() {
            let unknown = asked.unknown.contains(&index);
            unmetered.extend((unknown || said == Said::Unknown).then_some(check.limit));
            if asked.leased.contains(&index) {
                leased.push(check);
            } else if !unknown {
                metered.push(check);
            }
        }
        if filter && self.world.fleet && !asked.is_disturbed {
            for limit in unmetered {
                self.note(from, asked.sidecar, What::Unmetered { limit });
            }
        }
        for other in asked.also {
            let version = self.versions.borrow()[other];
            let checks = self.world.counted_of(version, &metered);
            let mut entry = Entry::asked(Span::exact(from), checks, Said::Unknown);
            if let What::Asked(request) = &mut entry.what {
                request.peek = peek;
            }
            self.note(from, other, entry.what);
        }
        // Of a change of tiers meanwhile nobody knows whether it came before. A cached denial may be from before.
        let counted = |version| self.world.counted_of(version, &metered);
        let before = counted(versions[asked.sidecar]);
        let log = self.log.borrow();
        let changes = log[noted..].iter();
        let changes = changes.filter(|one| one.sidecar == asked.sidecar);
        let others = changes.filter_map(|one| match one.what {
            What::Policy(version) => Some(counted(version)).filter(|other| *other != before),
            _ => None,
        });
        let others: Vec<_> = others.collect();
        drop(log);
        let is_cached = asked.by == By::Cache && before != metered;
        let is_unsure = !others.is_empty();
        if (is_cached || is_unsure) && matches!(said, Said::Denied { .. }) {
            return Some(said);
        }
        let note = |checks, said, by| {
            let request = Request {
                checks,
                peek,
                said,
                by,
                remaining,
                again,
            };
            self.note(from, asked.sidecar, What::Asked(request))
        };
        if !leased.is_empty() {
            note(leased, said, By::Lease);
            if before.is_empty() {
                return Some(said);
            }
        }
        // Where nobody knows which policy counted it, each of its countings is a taking that may have been.
        let said_of = if is_unsure { Said::Unknown } else { said };
        let counted = others.into_iter().chain([before.clone()]);
        let takings = counted.map(|checks| (note(checks.clone(), said_of, asked.by), checks));
        let takings: Vec<_> = takings.collect();
        let entry = takings.last().expect("its own").0;
        let mut reserved = self.reserved.borrow_mut();
        for (index, check) in metered.iter().enumerate() {
            let mut of = asked
                .receipts
                .iter()
                .filter(|(limit, _)| *limit == check.limit);
            if let Some((_, receipt)) = of.next() {
                let taken = takings
                    .iter()
                    .map(|(entry, checks)| (*entry, checks[index].limit, checks[index].key));
                reserved.insert(receipt.clone(), taken.collect());
            }
        }
        let of_slots = receipts.iter().zip(checks).zip(&before);
        let of_slots = of_slots.filter(|((receipt, _), _)| is_of_slots(receipt));
        let programs = of_slots.map(|((receipt, check), counted)| Program {
            receipt: receipt.clone(),
            asked: (check.limit, check.key),
            counted: (counted.limit, counted.key),
            entry,
        });
        self.programs.borrow_mut().extend(programs);
        let mut held = self.receipts.borrow_mut();
        let first = receipts
            .into_iter()
            .next()
            .filter(|receipt| !is_of_slots(receipt) && !receipt.is_empty());
        if let (Some(receipt), [check, ..]) = (first, checks) {
            let same = checks
                .iter()
                .filter(|one| (one.limit, one.key) == (check.limit, check.key));
            let cost = same.map(|one| one.cost).sum();
            held[sidecar].push((receipt, check.limit, check.key, cost, entry));
        }
        Some(said)
    }

    async fn give_back(&self, sidecar: usize, back: usize, units: u64) {
        let Some(service) = self.of(sidecar) else {
            return;
        };
        let receipts = self.receipts.borrow()[sidecar].clone();
        let of = receipts.iter().rev().nth(back).cloned();
        let Some((receipt, limit, key, cost, entry)) = of else {
            return;
        };
        let from = self.now();
        let (name, text) = names(limit, key);
        let used = cost.saturating_sub(units);
        let asked = [Ok(Settle {
            limit: name.into(),
            key: text.into(),
            receipt: receipt.into(),
            units: Some(used),
            within_ms: None,
        })];
        let answer = timeout(Duration::from_secs(2), service.service.settle(&asked, None)).await;
        let settled = Settled {
            entry,
            limit,
            key,
            used: Some(used),
            told: told(
                answer
                    .as_ref()
                    .ok()
                    .and_then(|listed| listed.outcomes.first()),
            ),
        };
        self.note(from, sidecar, What::Settled(settled));
    }

    /// Notes what the streams of a filter have settled.
    fn note_settled(&self, filter: &Filter) {
        let reserved = self.reserved.borrow();
        for step in filter.network.steps.take() {
            let Some(takings) = reserved.get(&step.receipt) else {
                continue;
            };
            let (Span { from, to }, sidecar) = (step.when, step.sidecar);
            for (entry, limit, key) in takings.iter().copied() {
                let what = match step.what {
                    Becomes::Settled(used, told) => What::Settled(Settled {
                        entry,
                        limit,
                        key,
                        used,
                        told,
                    }),
                    Becomes::Held(sign) => self.held(entry, (limit, key), sign, (from, sidecar)),
                };
                self.log.borrow_mut().push(Entry {
                    from,
                    to,
                    sidecar,
                    what,
                });
            }
        }
    }

    /// A step of the life of slots. Those of a consumer are renewed in its tier of then.
    fn held(
        &self,
        entry: usize,
        (limit, key): (usize, usize),
        sign: Sign,
        (at, sidecar): (u64, usize),
    ) -> What {
        let mut limit = limit;
        if let (Some(consumer), true) = (key.checked_sub(KEYS), sign != Sign::Ended) {
            let log = self.log.borrow();
            let before = log
                .iter()
                .filter(|one| one.sidecar == sidecar && one.to <= at);
            let versions = before.filter_map(|one| match one.what {
                What::Policy(version) => Some((one.to, version)),
                _ => None,
            });
            let last = versions.max_by_key(|(to, _)| *to);
            let version = last.map_or(0, |(_, version)| version);
            (limit, _) = self.world.counted(version, CONSUMERS, consumer);
        }
        What::Held(Held {
            entry,
            limit,
            key,
            sign,
        })
    }

    /// What each key has left when everything is calm, or a unit of each.
    async fn ask_all(&self, peek: bool) {
        for sidecar in 0..self.world.sidecars {
            for limit in 0..self.world.policies[0].len() {
                for key in 0..KEYS {
                    let check = Check::new(limit, key, u64::from(!peek));
                    self.ask_once(sidecar, &[check], (false, peek, false, false))
                        .await;
                }
            }
        }
    }
}
