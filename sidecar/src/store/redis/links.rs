//! The connections of a node: which can be used, since when none can, and why.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::{Notify, watch};
use tokio::time::timeout_at;

use super::dial::Dialer;
use super::live::{Deadline, Live};
use super::probe::Probe;
use crate::policy::Endpoint;
use crate::store::call::Script;
use crate::store::error::{ConnectionError, StoreError};
use crate::store::health::{Monitor, PartId};

/// Where the node is, as far as is known now.
pub type Place = watch::Receiver<Result<Endpoint, StoreError>>;

/// A connection that broke is replaced within this time, or the node is down: what is decided without it may be over its
/// limit, which a connection that is cut now and then is not worth.
const DOWN_AFTER: Duration = Duration::from_millis(100);

/// What all nodes of a store have in common.
pub struct Common {
    /// How to connect.
    pub dialer: Dialer,
    /// What to call.
    pub script: Script,
    /// Connections to each node.
    pub connections: usize,
    /// Where to report.
    pub monitor: Arc<Monitor>,
    /// Operators have been warned that this Redis evicts.
    pub warned: AtomicBool,
    /// Counts the times that a clock of it was found to be set back.
    pub steps: Arc<AtomicU64>,
}

/// A node's connections, shared by their owners and those who call.
pub struct Links {
    /// With the other nodes.
    pub common: Arc<Common>,
    /// Where it is.
    pub place: Place,
    /// Somebody should look whether it is still there.
    pub doubted: Arc<Notify>,
    /// Part of a Cluster: which node is primary is not its own affair then.
    pub clustered: bool,
    links: Vec<Link>,
    probe: ArcSwap<Probe>,
    /// The first attempts to connect have come to something.
    tried: watch::Sender<bool>,
    part: PartId,
    /// Since when it is known not to decide.
    down_since: ArcSwapOption<Instant>,
    /// Why the last probe was refused, if it was.
    refuses: ArcSwapOption<StoreError>,
    /// The last connection that could be used: it knows what time it is there.
    last: ArcSwapOption<Live>,
}

struct Link {
    state: ArcSwap<LinkState>,
}

/// What a connection is good for.
enum LinkState {
    /// Calls.
    Live(Arc<Live>),
    /// Nothing, and why.
    Lost(StoreError),
}

impl Links {
    /// None is made yet. Of a Cluster, `tag` is in a slot of this node.
    pub fn new(common: Arc<Common>, place: Place, doubted: Arc<Notify>, tag: Option<&str>) -> Self {
        let link = || Link {
            state: ArcSwap::from_pointee(LinkState::Lost(ConnectionError::NotYet.into())),
        };
        Self {
            links: (0..common.connections.max(1)).map(|_| link()).collect(),
            place,
            doubted,
            clustered: tag.is_some(),
            probe: ArcSwap::from_pointee(Probe::new(tag.unwrap_or("probe"))),
            tried: watch::Sender::new(false),
            part: common.monitor.add(),
            down_since: ArcSwapOption::empty(),
            refuses: ArcSwapOption::empty(),
            last: ArcSwapOption::empty(),
            common,
        }
    }

    /// How many there are to be.
    pub fn count(&self) -> usize {
        self.links.len()
    }

    /// Another slot is this node's.
    pub fn probe_in(&self, tag: &str) {
        self.probe.store(Arc::new(Probe::new(tag)));
    }

    /// The connection for the next call. At the very first, waits for one until the deadline; later says at once why
    /// there is none.
    pub async fn live(&self, deadline: Deadline) -> Result<Arc<Live>, StoreError> {
        match self.pick() {
            Err(StoreError::Connection(ConnectionError::NotYet)) => {
                let mut tried = self.tried.subscribe();
                // If it is not tried in time the reason stays.
                let _ = timeout_at(deadline.at().into(), tried.wait_for(|tried| *tried)).await;
                self.pick()
            }
            picked => picked,
        }
    }

    /// It has been known for a while that there is none: calls fail without being sent.
    pub fn are_down(&self) -> bool {
        let since = self.down_since.load();
        since
            .as_ref()
            .is_some_and(|since| since.elapsed() >= DOWN_AFTER)
    }

    /// The node is none any more.
    pub fn forget(&self) {
        self.common.monitor.remove(self.part);
    }

    /// The probe of now.
    pub fn probe(&self) -> Arc<Probe> {
        self.probe.load_full()
    }

    /// The connection with the fewest calls under way; one that did not answer its last call comes last.
    fn pick(&self) -> Result<Arc<Live>, StoreError> {
        if let Some(cause) = &*self.refuses.load() {
            return Err(StoreError::clone(cause));
        }
        let (mut best, mut lost) = (None::<(bool, u32, Arc<Live>)>, None);
        for link in &self.links {
            match &**link.state.load() {
                LinkState::Live(live) => {
                    let (doubtful, busy) = (!live.answers(), live.busy());
                    // Nearly always the first one, so its reference is not counted up and down for the others.
                    if best
                        .as_ref()
                        .is_none_or(|best| (doubtful, busy) < (best.0, best.1))
                    {
                        best = Some((doubtful, busy, Arc::clone(live)));
                    }
                }
                LinkState::Lost(StoreError::Connection(ConnectionError::NotYet)) => {}
                LinkState::Lost(cause) => lost = Some(cause.clone()),
            }
        }
        let best = best.map(|(_, _, live)| live);
        best.ok_or_else(|| lost.unwrap_or(ConnectionError::NotYet.into()))
    }

    /// Redis's clock now, as far as it is known. A connection that was lost knew it too, and time goes on.
    pub fn clock_us(&self) -> Option<u64> {
        self.last.load().as_ref().and_then(|live| live.clock_us())
    }

    /// The connection that was made last.
    pub fn last(&self) -> Option<Arc<Live>> {
        self.last.load_full()
    }

    /// A connection can be used.
    pub fn found(&self, number: usize, live: &Arc<Live>) {
        self.last.store(Some(Arc::clone(live)));
        self.set(number, LinkState::Live(Arc::clone(live)));
        self.report();
        self.tried.send_replace(true);
    }

    /// A connection cannot be used.
    pub fn lost(&self, number: usize, cause: StoreError) {
        self.set(number, LinkState::Lost(cause));
        self.report();
        self.tried.send_replace(true);
    }

    /// A probe was refused.
    pub fn refused(&self, cause: StoreError) {
        self.refuses.store(Some(Arc::new(cause)));
        self.report();
    }

    /// A probe was not refused.
    pub fn writes(&self) {
        if self.refuses.swap(None).is_some() {
            self.report();
        }
    }

    /// As long as one connection can be used, and it is not refused, the Redis is there.
    fn report(&self) {
        match self.pick() {
            Ok(_) => {
                self.down_since.store(None);
                self.common.monitor.up(self.part);
            }
            Err(cause) => {
                if self.down_since.load().is_none() {
                    self.down_since.store(Some(Arc::new(Instant::now())));
                }
                self.common.monitor.down(self.part, cause);
            }
        }
    }

    /// The last probe was refused.
    pub fn refuses(&self) -> bool {
        self.refuses.load().is_some()
    }

    fn set(&self, number: usize, state: LinkState) {
        if let Some(link) = self.links.get(number) {
            link.state.store(Arc::new(state));
        }
    }
}
