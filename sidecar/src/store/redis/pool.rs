//! The connections of a node: which are usable, since when none is, and why.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use sluicegate_engine::Batch;
use tokio::sync::{Mutex, MutexGuard, watch};
use tokio::time::timeout_at;
use tracing::warn;

use super::clock::Clock;
use super::common::Common;
use super::connection::{Connection, ConnectionHealth, Deadline};
use super::probe::{probe, run};
use super::server::Server;
use crate::lock::lock;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError, is_not_yet};
use crate::store::health::ComponentId;
use crate::telemetry::labels::ConnectionCause;

/// A node is down if a broken connection is not replaced within this time. Decisions without the store may exceed a
/// limit, so a single broken connection must not cause them.
const DOWN_AFTER: Duration = Duration::from_millis(100);

/// For how long new connections have to lead to the server of the others, once that is another one than before.
const KEPT_FOR: Duration = Duration::from_secs(20);

/// Requests that the nodes be looked for again now.
pub type Recheck = watch::Sender<()>;

/// A node's connections, shared by their supervisors and the callers.
pub struct ConnectionPool {
    /// Shared with the other nodes.
    pub common: Arc<Common>,
    /// Its address.
    pub endpoint: Endpoint,
    /// Why its first connections are made.
    pub begins: ConnectionCause,
    /// Sent to when a connection was lost.
    pub recheck: Recheck,
    /// The connections that calls may use.
    entries: Vec<ArcSwapOption<Connection>>,
    /// Why another one may not, most recently.
    why: ArcSwap<StoreError>,
    probe: ArcSwap<Batch>,
    /// Held by the task that connects while no connection is usable: the others follow when its connection works.
    first: Mutex<()>,
    /// Held by the task that replaces a connection in use.
    pub replacing: Mutex<()>,
    /// The server of all connections, and since when it is.
    server: std::sync::Mutex<(Server, Instant)>,
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

impl ConnectionPool {
    /// Without a connection yet. `tag` is in a slot of this node, which was `before`'s: if this one's clock is behind, that is a
    /// step.
    pub fn new(
        common: Arc<Common>,
        endpoint: Endpoint,
        recheck: Recheck,
        tag: &str,
        before: Option<&Self>,
    ) -> Self {
        let run_id = before.and_then(|before| lock(&before.server).0.run_id.clone());
        Self {
            entries: (0..common.connections)
                .map(|_| ArcSwapOption::empty())
                .collect(),
            why: ArcSwap::from_pointee(ConnectionError::NotYet.into()),
            endpoint,
            begins: before.map_or(ConnectionCause::Start, |_| ConnectionCause::Moved),
            recheck,
            probe: ArcSwap::from_pointee(probe(tag)),
            first: Mutex::default(),
            replacing: Mutex::default(),
            server: std::sync::Mutex::new((
                Server {
                    run_id,
                    ..Server::default()
                },
                Instant::now(),
            )),
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
        self.probe.store(Arc::new(probe(tag)));
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
        if !error.may_be_for_keys() || self.common.is_elsewhere(error) {
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
        let mut probed = run(&probe, connection, deadline).await;
        // Read now, since it may have been refused meanwhile.
        if let (Ok(()), Some(peek)) = (&probed, self.refused.load_full()) {
            probed = run(&peek, connection, deadline).await;
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
        let picked = self.usable().min_by_key(load);
        let picked = picked.ok_or_else(|| StoreError::clone(&self.why.load()))?;
        if let Some(cause) = &*self.refusal.load() {
            return Err(StoreError::clone(cause));
        }
        Ok(picked)
    }

    /// The connections that calls may use.
    pub fn usable(&self) -> impl Iterator<Item = Arc<Connection>> {
        self.entries.iter().filter_map(ArcSwapOption::load_full)
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

    /// Withdraws a connection from calls.
    pub fn withdraw(&self, number: usize, cause: StoreError) {
        let is_sharded =
            |why: &StoreError| matches!(why, StoreError::Connection(ConnectionError::Sharded));
        let before = self.why.swap(Arc::new(cause.clone()));
        if is_sharded(&cause) && !is_sharded(&before) {
            warn!("no connection is used: {cause}");
        }
        self.set(number, None);
    }

    fn set(&self, number: usize, connection: Option<Arc<Connection>>) {
        if let Some(former) = self.entries.get(number) {
            former.store(connection);
        }
        self.report();
        self.attempted.send_replace(true);
    }

    /// Notes the server of a new connection. All connections lead to the newest: a limit would be counted in two.
    ///
    /// # Errors
    /// The others were only just made to another one: an address that leads to several does not replace all of them each time.
    pub fn admit(&self, new: &Server) -> Result<(), StoreError> {
        let mut known = lock(&self.server);
        let (before, since) = &mut *known;
        let mut facts = self.common.monitor.facts();
        if new.is_other_than(before) {
            if since.elapsed() < KEPT_FOR && self.usable().next().is_some() {
                return Err(ConnectionError::Moved.into());
            }
            facts.server_changes += 1;
            *since = Instant::now();
        } else if before.run_id.is_some() {
            facts.evicted += new.evicted.saturating_sub(before.evicted);
        }
        let (evicts, did) = (new.evicts_by.is_some(), before.evicts_by.is_some());
        facts.evicting = (facts.evicting + u64::from(evicts)).saturating_sub(did.into());
        if let (Some(policy), false) = (&new.evicts_by, did) {
            warn!(
                "Redis evicts keys when its memory is full (maxmemory-policy {policy}), and with them what was admitted: \
                 set `maxmemory-policy noeviction`"
            );
        }
        let run_id = new.run_id.clone().or(before.run_id.take());
        *before = Server {
            run_id,
            ..new.clone()
        };
        Ok(())
    }

    /// Offers a connection to calls, unless a newer one leads to another server; otherwise leaves those that do.
    pub fn offer(&self, number: usize, connection: &Arc<Connection>) {
        let known = lock(&self.server);
        let leave = |one: &Connection| {
            let moved = ConnectionHealth::Broken(ConnectionError::Moved.into());
            one.health.send_replace(moved);
        };
        if connection.server.is_other_than(&known.0) {
            return leave(connection);
        }
        self.last_clock.store(Some(Arc::clone(&connection.clock)));
        self.set(number, Some(Arc::clone(connection)));
        for (number, entry) in self.entries.iter().enumerate() {
            if let Some(one) = entry.load_full()
                && one.server.is_other_than(&known.0)
            {
                let [first, then] = [&one.server, &known.0].map(|one| one.run_id.as_deref());
                warn!(
                    "two servers have answered at the store's address, run_id {} and then {}: leaves the first",
                    first.unwrap_or_default(),
                    then.unwrap_or_default()
                );
                leave(&one);
                self.withdraw(number, ConnectionError::Moved.into());
            }
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
        let evicts = u64::from(lock(&self.server).0.evicts_by.is_some());
        let monitor = &self.common.monitor;
        let mut facts = monitor.facts();
        facts.evicting = facts.evicting.saturating_sub(evicts);
        drop(facts);
        monitor.up(self.component);
    }
}
