//! A Redis for simulations: the engine in memory, behind links that can be cut, be slow, or lose answers. Part of the library
//! with the feature `simulation` alone. Time is tokio's, so a paused runtime makes it virtual.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sluicegate_engine::{
    Batch, BatchBuilder, Decision, Done, FleetPosition, Memory, Outcome, Settlements,
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use super::commands::{Announced, SIDECAR_TTL};
use super::error::{ConnectionError, StoreError};
use super::health::{ComponentId, Monitor};
use super::overrides::StoredOverrides;
use super::redis::clock::Clock;
use super::reply::StoreReply;
use super::slots::{SLOTS, slot};

/// How often a link's supervisor looks whether the server answers.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// The Redis that the links of all sidecars lead to.
#[derive(Debug)]
pub struct Server(Mutex<State>);

#[derive(Debug)]
struct State {
    engine: Memory,
    overrides: StoredOverrides,
    /// The version of the overrides that were lost last.
    lost: u64,
    /// By name: when each expires.
    sidecars: BTreeMap<String, u64>,
    /// Since when it has the list.
    listed_us: u64,
    began: Instant,
    /// Its clock when the simulation began, and by how much it has stepped since.
    start_us: u64,
    stepped_us: i64,
    /// How often it has stepped, and when answers first told somebody of so many steps.
    steps: usize,
    told: Vec<(usize, Instant)>,
    calls: Option<Vec<Call>>,
}

/// A call that changed or read buckets, with its answer.
#[derive(Debug, Clone)]
pub enum Call {
    /// Decisions.
    Decide(u64, Batch, Vec<Outcome>),
    /// Settlements, and what became of each.
    Settle(u64, Settlements, Vec<Done>),
    /// Holds that are to live for so many milliseconds, and which of them did.
    Renew(u64, Vec<(String, u64)>, Vec<bool>),
    /// A reset of these keys.
    Reset(Vec<String>),
    /// All data was lost.
    Lost,
}

/// What is wrong with a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fault {
    /// Nothing arrives.
    pub cut: bool,
    /// Calls arrive, answers do not.
    pub loses_answers: bool,
    /// The keys of the upper half of a Cluster's slots are refused, as if no node served them.
    pub refuses_half: bool,
    /// How long a call takes, and its answer.
    pub there: Duration,
    /// The same for its answer.
    pub back: Duration,
}

/// What a test changes of a link while it is used.
pub type Faults = Arc<Mutex<Fault>>;

/// A sidecar's way to the server.
#[derive(Debug)]
pub struct Link {
    inner: Arc<Inner>,
    supervisor: tokio::task::JoinHandle<()>,
}

#[derive(Debug)]
struct Inner {
    server: Arc<Server>,
    faults: Faults,
    timeout: Duration,
    clock: Mutex<Clock>,
    steps: AtomicU64,
    told: AtomicUsize,
    down: AtomicBool,
    suspected: Notify,
    monitor: Arc<Monitor>,
    component: ComponentId,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn now_us(&self) -> u64 {
        let passed = crate::clock::micros(self.began.elapsed());
        (self.start_us + passed).saturating_add_signed(self.stepped_us)
    }

    fn lose_overrides(&mut self) {
        self.lost = std::mem::take(&mut self.overrides).version;
    }

    fn note(&mut self, call: impl FnOnce() -> Call) {
        if let Some(calls) = &mut self.calls {
            calls.push(call());
        }
    }
}

impl Server {
    /// An empty one whose clock begins here. If `records`, it keeps its calls.
    pub fn new(start_us: u64, records: bool) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            engine: Memory::default(),
            overrides: StoredOverrides::default(),
            lost: 0,
            sidecars: BTreeMap::new(),
            listed_us: start_us,
            began: Instant::now(),
            start_us,
            stepped_us: 0,
            steps: 0,
            told: Vec::new(),
            calls: records.then(Vec::new),
        })))
    }

    /// Its clock.
    pub fn now_us(&self) -> u64 {
        lock(&self.0).now_us()
    }

    /// Sets its clock forward, or back.
    pub fn step_us(&self, by_us: i64) {
        let mut state = lock(&self.0);
        state.stepped_us += by_us;
        state.steps += 1;
    }

    /// When the last link had an answer after the steps so far with this number, counted from 0.
    pub fn told(&self, step: usize) -> Option<Instant> {
        let state = lock(&self.0);
        let mut told = state.told.iter().filter(|(steps, _)| *steps > step);
        told.next_back().map(|(_, at)| *at)
    }

    /// Evicts the list of sidecars.
    pub fn lose_sidecars(&self) {
        lock(&self.0).sidecars.clear();
    }

    /// Loses the overrides alone.
    pub fn lose_overrides(&self) {
        lock(&self.0).lose_overrides();
    }

    /// Loses everything, as after a restart without persistence.
    pub fn lose_data(&self) {
        let mut state = lock(&self.0);
        state.engine = Memory::default();
        state.lose_overrides();
        state.sidecars.clear();
        state.note(|| Call::Lost);
    }

    /// How many keys are left now.
    pub fn keys_left(&self) -> usize {
        let mut state = lock(&self.0);
        let now_us = state.now_us();
        while !state.engine.sweep(now_us, 1_000) {}
        state.engine.len()
    }

    /// The calls so far.
    pub fn calls(&self) -> Vec<Call> {
        lock(&self.0).calls.clone().unwrap_or_default()
    }
}

impl Inner {
    fn fault(&self) -> Fault {
        *lock(&self.faults)
    }

    /// # Errors
    /// One of these keys is refused.
    fn serves<'k>(&self, mut keys: impl Iterator<Item = &'k str>) -> Result<(), StoreError> {
        let refuses = self.fault().refuses_half && keys.any(|key| slot(key) >= SLOTS / 2);
        let refusal = || StoreError::Connection(ConnectionError::NotYet);
        if refuses { Err(refusal()) } else { Ok(()) }
    }

    /// One call: `execute` runs at the server, if it gets there in time. As a connection does, it tries once more what the
    /// server found too late, because its clock may have been set.
    async fn exchange<T>(
        &self,
        within: Duration,
        execute: impl Fn(&mut State, u64) -> T,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + within;
        match self.exchange_once(deadline, within, &execute).await {
            Err(StoreError::Late) => self.exchange_once(deadline, within, &execute).await,
            answer => answer,
        }
    }

    async fn exchange_once<T>(
        &self,
        deadline: Instant,
        within: Duration,
        execute: impl Fn(&mut State, u64) -> T,
    ) -> Result<T, StoreError> {
        let sent = Instant::now();
        let late = || StoreError::Timeout(within);
        let not_after_us = lock(&self.clock).at(deadline.into_std());
        if self.fault().cut || sent + self.fault().there >= deadline {
            sleep_until(deadline).await;
            return Err(late());
        }
        sleep(self.fault().there).await;
        if self.fault().cut {
            sleep_until(deadline).await;
            return Err(late());
        }
        let (answer, now_us, steps) = {
            let mut state = lock(&self.server.0);
            let now_us = state.now_us();
            let in_time = not_after_us.is_none_or(|not_after_us| now_us <= not_after_us);
            let answer = in_time.then(|| execute(&mut state, now_us));
            (answer, now_us, state.steps)
        };
        let fault = self.fault();
        if fault.cut || fault.loses_answers || Instant::now() + fault.back >= deadline {
            sleep_until(deadline).await;
            return Err(late());
        }
        sleep(fault.back).await;
        let received = Instant::now().into_std();
        if self.told.swap(steps, Ordering::Relaxed) < steps {
            lock(&self.server.0).told.push((steps, Instant::now()));
        }
        let stepped = lock(&self.clock).observe(now_us, sent.into_std(), received);
        self.steps.fetch_add(u64::from(stepped), Ordering::Relaxed);
        answer.ok_or(StoreError::Late)
    }

    async fn call<T>(
        &self,
        within: Duration,
        execute: impl Fn(&mut State, u64) -> T,
    ) -> Result<T, StoreError> {
        if self.down.load(Ordering::Relaxed) {
            return Err(StoreError::Connection(ConnectionError::NotYet));
        }
        let answer = self.exchange(within, execute).await;
        if matches!(answer, Err(StoreError::Timeout(_))) {
            self.suspected.notify_one();
        }
        answer
    }

    /// Says whether the server is up, for ever.
    async fn supervise(&self) {
        loop {
            let answer = self.exchange(self.timeout, |_, _| ()).await;
            self.down.store(answer.is_err(), Ordering::Relaxed);
            match answer {
                Ok(()) => {
                    self.monitor.up(self.component);
                    let _ = tokio::time::timeout(PROBE_EVERY * 10, self.suspected.notified()).await;
                }
                Err(error) => {
                    self.monitor.down(self.component, error);
                    sleep(PROBE_EVERY).await;
                }
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.supervisor.abort();
    }
}

impl Link {
    pub(super) fn open(
        server: Arc<Server>,
        faults: Faults,
        timeout: Duration,
        monitor: Arc<Monitor>,
    ) -> Self {
        let inner = Arc::new(Inner {
            server,
            faults,
            timeout,
            clock: Mutex::new(Clock::new(Instant::now().into_std())),
            steps: AtomicU64::new(0),
            told: AtomicUsize::new(0),
            down: AtomicBool::new(true),
            suspected: Notify::new(),
            component: monitor.add(),
            monitor,
        });
        let supervised = Arc::clone(&inner);
        let supervisor = tokio::spawn(async move { supervised.supervise().await });
        Self { inner, supervisor }
    }

    pub(super) async fn decide(&self, batch: &Batch) -> StoreReply {
        let serves = |decision: &Decision| {
            let buckets = decision
                .takes
                .iter()
                .filter_map(|take| batch.buckets.get(take.bucket));
            self.inner.serves(buckets.map(|bucket| bucket.key.as_str()))
        };
        let served: Vec<_> = batch.decisions.iter().map(serves).collect();
        // Of what is refused the script is told nothing.
        let mut part = BatchBuilder::new();
        let decisions = batch.decisions.iter().zip(&served);
        for (decision, _) in decisions.filter(|(_, served)| served.is_ok()) {
            part.add(batch, decision);
        }
        let part = part.finish();
        let decide = |state: &mut State, now_us| {
            let outcomes = state.engine.decide(now_us, &part);
            let known = outcomes.iter().flatten().copied().collect();
            if !part.decisions.is_empty() {
                state.note(|| Call::Decide(now_us, part.clone(), known));
            }
            outcomes
        };
        let answer = self.inner.call(self.inner.timeout, decide).await;
        let whole = |outcomes: Vec<_>| {
            let mut outcomes = outcomes.into_iter();
            let outcome = |served: Result<(), StoreError>| {
                served?;
                Ok(outcomes.next().ok_or(StoreError::Late)??)
            };
            served.into_iter().map(outcome).collect()
        };
        StoreReply::whole::<StoreError>(batch, answer.map(whole))
    }

    pub(super) async fn settle(&self, settlements: &Settlements) -> Result<Vec<Done>, StoreError> {
        self.inner
            .serves(settlements.buckets.iter().map(|bucket| bucket.key.as_str()))?;
        let settle = |state: &mut State, now_us| {
            let done = state.engine.settle(now_us, settlements);
            state.note(|| Call::Settle(now_us, settlements.clone(), done.clone()));
            done
        };
        self.inner.call(self.inner.timeout, settle).await
    }

    pub(super) async fn reset(&self, keys: &[String]) -> Result<Vec<bool>, StoreError> {
        self.inner.serves(keys.iter().map(String::as_str))?;
        let reset = |state: &mut State, _| {
            state.note(|| Call::Reset(keys.to_vec()));
            keys.iter().map(|key| state.engine.reset(key)).collect()
        };
        self.inner.call(self.inner.timeout, reset).await
    }

    pub(super) async fn renew(&self, holds: &[(String, u64)]) -> Result<Vec<bool>, StoreError> {
        self.inner
            .serves(holds.iter().map(|(hold, _)| hold.as_str()))?;
        let renew = |state: &mut State, now_us| {
            let each = holds.iter();
            let each = each.map(|(hold, for_ms)| state.engine.renew(now_us, hold, for_ms * 1_000));
            let renewed: Vec<_> = each.collect();
            state.note(|| Call::Renew(now_us, holds.to_vec(), renewed.clone()));
            renewed
        };
        self.inner.call(self.inner.timeout, renew).await
    }

    pub(super) async fn announce(
        &self,
        name: &str,
    ) -> Result<(Option<Announced>, Result<u64, StoreError>), StoreError> {
        let (announced, version) = self.enter(name, false).await?;
        Ok((Some(announced), Ok(version)))
    }

    pub(super) async fn leave(&self, name: &str) -> Result<(), StoreError> {
        self.enter(name, true).await.map(drop)
    }

    async fn enter(&self, name: &str, leaving: bool) -> Result<(Announced, u64), StoreError> {
        let announce = |state: &mut State, now_us| {
            let until_us = now_us + crate::clock::micros(SIDECAR_TTL);
            state.sidecars.retain(|_, ends_us| *ends_us > now_us);
            for ends_us in state.sidecars.values_mut() {
                *ends_us = until_us.min(*ends_us);
            }
            if state.sidecars.is_empty() || state.listed_us > now_us {
                state.listed_us = now_us;
            }
            state.sidecars.remove(name);
            if !leaving {
                state.sidecars.insert(name.to_owned(), until_us);
            }
            let rank = state.sidecars.keys().position(|other| other == name);
            let position = FleetPosition {
                rank: rank.unwrap_or(0) as u64,
                of: state.sidecars.len() as u64,
            };
            let list_age = Duration::from_micros(now_us - state.listed_us);
            let announced = Announced { position, list_age };
            (announced, state.overrides.version)
        };
        self.inner.call(self.inner.timeout, announce).await
    }

    pub(super) async fn overrides_version(&self) -> Result<u64, StoreError> {
        Ok(self.overrides().await?.version)
    }

    pub(super) async fn overrides(&self) -> Result<StoredOverrides, StoreError> {
        let read = |state: &mut State, _| state.overrides.clone();
        self.inner.call(self.inner.timeout, read).await
    }

    pub(super) async fn change_overrides(
        &self,
        read: &StoredOverrides,
        next: &StoredOverrides,
    ) -> Result<Option<StoredOverrides>, StoreError> {
        let change = |state: &mut State, now_us: u64| {
            // Here a change, a loss and another change can be at one instant. Redis's clock has moved on in between, so that no
            // two versions are the same.
            let is_same = now_us.abs_diff(state.lost) < 1_000;
            let moved_us = if is_same { state.lost + 1 } else { 0 };
            state.overrides.replace(read, next, now_us.max(moved_us))
        };
        self.inner.call(self.inner.timeout, change).await
    }

    pub(super) fn is_down(&self, key: &str) -> bool {
        self.inner.down.load(Ordering::Relaxed) || self.inner.serves([key].into_iter()).is_err()
    }

    pub(super) fn clock_us(&self, _: &str) -> Option<u64> {
        lock(&self.inner.clock).at(Instant::now().into_std())
    }

    pub(super) fn clock_steps(&self) -> u64 {
        self.inner.steps.load(Ordering::Relaxed)
    }
}
