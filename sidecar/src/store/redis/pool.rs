//! The connections of a node: which are usable, since when none is, and why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use sluicegate_engine::Batch;
use tokio::sync::{Mutex, MutexGuard, Notify, watch};
use tokio::time::timeout_at;

use super::clock::Clock;
use super::common::Common;
use super::connection::{Connection, Deadline};
use super::probe::{is_elsewhere, probe, run};
use crate::lock::lock;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError, is_not_yet};
use crate::store::health::ComponentId;

/// The node's current address, or why it is unknown.
pub type AddressWatch = watch::Receiver<Result<Endpoint, StoreError>>;

/// A node is down if a broken connection is not replaced within this time. Decisions without the store may exceed a
/// limit, so a single broken connection must not cause them.
const DOWN_AFTER: Duration = Duration::from_millis(100);

/// Requests that the address, or the slot map, be checked again now.
pub type Recheck = watch::Sender<()>;

/// A node's connections, shared by their supervisors and the callers.
pub struct ConnectionPool {
    /// Shared with the other nodes.
    pub common: Arc<Common>,
    /// Its current address.
    pub address: AddressWatch,
    /// Sent to when a connection was lost.
    pub recheck: Recheck,
    /// Whether the node is part of a Cluster, where the slot map determines the primaries.
    pub clustered: bool,
    entries: Vec<ArcSwap<Entry>>,
    probe: ArcSwap<Batch>,
    /// Held by the task that connects while no connection is usable: the others follow when its connection works.
    first: Mutex<()>,
    /// Held by the task that replaces a connection in use.
    pub replacing: Mutex<()>,
    /// The server at the node's address.
    server: std::sync::Mutex<Server>,
    /// Notified when another connection is offered than before.
    pub connected: Notify,
    /// A proxy in front of it spreads the keys.
    sharded: AtomicBool,
    /// Whether a first attempt to connect has completed.
    attempted: watch::Sender<bool>,
    component: ComponentId,
    /// Since when no connection is usable.
    down_since: ArcSwapOption<Instant>,
    /// Why Redis refused the last probe, or a call for its keys, if it did.
    refusal: ArcSwapOption<StoreError>,
    /// A batch that Redis refused because of its keys while it serves other keys: probes use these keys until they are served.
    refused: ArcSwapOption<Batch>,
    /// What the last usable connection, here or to the node that had these slots before, knows of Redis's clock.
    last_clock: ArcSwapOption<std::sync::Mutex<Clock>>,
}

/// What connections have shown of the server at the node's address.
#[derive(Default)]
struct Server {
    /// When the newest connection that told it was opened, and the `run_id` that it told.
    newest: Option<(Instant, String)>,
    /// Whether it evicts keys, and how many it has.
    evicts: bool,
    evicted: Option<u64>,
}

/// A connection that calls may use, or why there is none.
type Entry = Result<Arc<Connection>, StoreError>;

impl ConnectionPool {
    /// Without a connection yet. In a Cluster, `tag` is in a slot of this node, which was `before`'s: if this one's clock is
    /// behind, that is a step.
    pub fn new(
        common: Arc<Common>,
        address: AddressWatch,
        recheck: Recheck,
        tag: Option<&str>,
        before: Option<&Self>,
    ) -> Self {
        let entry = |_| ArcSwap::from_pointee(Err(ConnectionError::NotYet.into()));
        Self {
            entries: (0..common.connections).map(entry).collect(),
            address,
            recheck,
            clustered: tag.is_some(),
            probe: ArcSwap::from_pointee(probe(tag)),
            first: Mutex::default(),
            replacing: Mutex::default(),
            server: std::sync::Mutex::default(),
            connected: Notify::new(),
            sharded: AtomicBool::new(false),
            attempted: watch::Sender::new(false),
            component: common.monitor.add(),
            down_since: ArcSwapOption::empty(),
            refusal: ArcSwapOption::empty(),
            refused: ArcSwapOption::empty(),
            last_clock: ArcSwapOption::new(before.and_then(Self::last_clock)),
            common,
        }
    }

    /// Probes in the slot of this tag from now on.
    pub fn probe_in(&self, tag: &str) {
        self.probe.store(Arc::new(probe(Some(tag))));
    }

    /// The connection for the next call. Before the first attempt to connect has completed, waits for it until the
    /// deadline; afterwards fails at once with the reason.
    pub async fn connection(&self, deadline: Deadline) -> Result<Arc<Connection>, StoreError> {
        let mut picked = self.pick();
        if picked.as_ref().is_err_and(is_not_yet) {
            let mut attempted = self.attempted.subscribe();
            let attempted = attempted.wait_for(|attempted| *attempted);
            // If no attempt completes in time, the reason is still `NotYet`.
            let _ = timeout_at(deadline.at.into(), attempted).await;
            picked = self.pick();
        }
        picked.map_err(StoreError::before_call)
    }

    /// Whether no connection has been usable for a while: calls fail without being sent.
    pub fn is_down(&self) -> bool {
        let since = self.down_since.load();
        since
            .as_ref()
            .is_some_and(|since| since.elapsed() >= DOWN_AFTER)
    }

    /// Notes that Redis refused a batch, if it may have done so because of its keys. Then the node counts as down for all keys: if
    /// it served the others, their limits would hold, and that some limits are not enforced would go unnoticed.
    pub fn note_refused(&self, error: &StoreError, batch: &Batch) {
        // In a Cluster, it is no fault of the node that a slot has moved or is on its way.
        if !error.may_be_for_keys() || (self.clustered && is_elsewhere(error)) {
            return;
        }
        if self.refused.load().is_none() {
            let mut peek = batch.clone();
            for decision in &mut peek.decisions {
                decision.peek = true;
                decision.holds.clear();
            }
            self.refused.store(Some(Arc::new(peek)));
        }
        self.refusal.store(Some(Arc::new(error.clone())));
        self.report();
    }

    /// Probes a connection of the node, and notes whether Redis refuses to write, or still refuses what it did.
    ///
    /// # Errors
    /// The connection is useless.
    pub async fn probe(
        &self,
        connection: &Connection,
        deadline: Deadline,
    ) -> Result<(), StoreError> {
        let probe = self.probe.load_full();
        let mut probed = run(&probe, connection, self.clustered, deadline).await;
        // Read now, since it may have been refused meanwhile.
        if let (Ok(()), Some(peek)) = (&probed, self.refused.load_full()) {
            probed = run(&peek, connection, self.clustered, deadline).await;
            if probed.is_ok() {
                self.refused.store(None);
            }
        }
        let refusal = match probed {
            Err(error) if error.ends_connection() || matches!(error, StoreError::Timeout(_)) => {
                return Err(error);
            }
            result => result.err().map(Arc::new),
        };
        let is_refusing = refusal.is_some();
        if self.refusal.swap(refusal).is_some() || is_refusing {
            self.report();
        }
        Ok(())
    }

    /// The connection with the fewest calls in flight; one that did not answer its last call comes last.
    fn pick(&self) -> Result<Arc<Connection>, StoreError> {
        let load = |one: &Arc<Connection>| (!one.answered_last_call(), one.in_flight());
        let picked = self.usable().min_by_key(load).ok_or_else(|| {
            let entries = self.entries.iter().rev();
            let mut causes =
                entries.filter_map(|entry| entry.load().as_ref().as_ref().err().cloned());
            let lost = causes.find(|cause| !is_not_yet(cause));
            lost.unwrap_or(ConnectionError::NotYet.into())
        })?;
        if let Some(cause) = &*self.refusal.load() {
            return Err(StoreError::clone(cause));
        }
        if self.sharded.load(Ordering::Relaxed) {
            return Err(ConnectionError::Sharded.into());
        }
        Ok(picked)
    }

    /// The connections that calls may use.
    pub fn usable(&self) -> impl Iterator<Item = Arc<Connection>> {
        let entries = self.entries.iter();
        entries.filter_map(|entry| entry.load().as_ref().as_ref().ok().cloned())
    }

    /// The connection that needs a sign of life most: one that did not answer, or has been silent for longest.
    pub fn quietest(&self) -> Option<Arc<Connection>> {
        let needs = |connection: &Arc<Connection>| {
            (!connection.answered_last_call(), connection.silent_for())
        };
        self.usable().max_by_key(needs)
    }

    /// Asks for a probe of each connection that calls may use: one of this node does not answer.
    pub fn question_all(&self) {
        self.usable().for_each(|connection| connection.question());
    }

    /// The turn to connect: at once if another connection is usable.
    pub async fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        if self.usable().next().is_some() {
            return None;
        }
        let turn = self.first.lock().await;
        self.usable().next().is_none().then_some(turn)
    }

    /// Redis's clock now, if known; a lost connection's estimate remains valid.
    pub fn clock_us(&self) -> Option<u64> {
        lock(&*self.last_clock()?).at(Instant::now())
    }

    /// What the last usable connection knows of Redis's clock.
    pub fn last_clock(&self) -> Option<Arc<std::sync::Mutex<Clock>>> {
        self.last_clock.load_full()
    }

    /// Offers a connection to calls, or withdraws it.
    pub fn set(&self, number: usize, entry: Entry) {
        let is_known = |new| self.usable().any(|known| Arc::ptr_eq(&known, new));
        let is_new = entry.as_ref().is_ok_and(|new| !is_known(new));
        if let Ok(connection) = &entry {
            self.last_clock.store(Some(Arc::clone(&connection.clock)));
        }
        if let Some(former) = self.entries.get(number) {
            former.store(Arc::new(entry));
        }
        self.report();
        self.attempted.send_replace(true);
        if is_new {
            self.connected.notify_one();
        }
    }

    /// Notes the `run_id` of a connection that was opened then. Returns that of a later connection, if it is another one.
    pub fn newer_server(&self, opened: Instant, run_id: &str) -> Option<String> {
        let mut server = lock(&self.server);
        match &mut server.newest {
            Some((newest, known)) if *newest > opened => {
                return (known.as_str() != run_id).then(|| known.clone());
            }
            Some((_, known)) if known.as_str() != run_id => {
                self.common.monitor.facts().server_changes += 1;
                server.evicted = None;
            }
            _ => {}
        }
        server.newest = Some((opened, run_id.to_owned()));
        None
    }

    /// Notes whether the server evicts keys, and how many it has; whether it begins to.
    pub fn note_eviction(&self, evicts: bool, evicted: u64) -> bool {
        let mut server = lock(&self.server);
        let before = server.evicted.replace(evicted).unwrap_or(evicted);
        let did = std::mem::replace(&mut server.evicts, evicts);
        let mut facts = self.common.monitor.facts();
        facts.evicted += evicted.saturating_sub(before);
        facts.evicting = (facts.evicting + u64::from(evicts)).saturating_sub(did.into());
        evicts && !did
    }

    /// A proxy in front of Redis was found to spread the keys, or not to.
    pub fn set_sharded(&self, sharded: bool) {
        if self.sharded.swap(sharded, Ordering::Relaxed) != sharded {
            self.report();
        }
    }

    /// Reports the node as up while one connection is usable and probes are not refused.
    fn report(&self) {
        match self.pick() {
            Ok(_) => {
                self.down_since.store(None);
                self.common.monitor.up(self.component);
            }
            Err(cause) => {
                if self.down_since.load().is_none() {
                    self.down_since.store(Some(Arc::new(Instant::now())));
                }
                self.common.monitor.down(self.component, cause);
            }
        }
    }

    /// Whether Redis refused the last probe.
    pub fn is_refusing(&self) -> bool {
        self.refusal.load().is_some()
    }
}

impl Drop for ConnectionPool {
    /// Removes the node from the store's health.
    fn drop(&mut self) {
        let evicts = u64::from(lock(&self.server).evicts);
        let monitor = &self.common.monitor;
        let mut facts = monitor.facts();
        facts.evicting = facts.evicting.saturating_sub(evicts);
        drop(facts);
        monitor.up(self.component);
    }
}
