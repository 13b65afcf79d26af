//! The slot map: refreshed every few seconds, and whenever a connection is lost or a node redirects.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::layout::Layout;
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};
use crate::store::redis::common::Common;
use crate::store::redis::connection::Deadline;
use crate::store::redis::node::Node;
use crate::store::redis::pool::{ConnectionPool, Recheck};

const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest pause between two refreshes, and the interval while no node answers.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// A primary.
#[derive(Clone)]
pub struct Primary {
    /// Its address.
    pub endpoint: Endpoint,
    /// Its connections.
    pub node: Arc<Node>,
}

/// Which primary owns which slots.
pub struct SlotMap {
    primaries: Vec<Primary>,
    /// For each slot the index of its primary; empty while nothing is known.
    owners: Vec<Option<u16>>,
    /// Why no primary of a slot is known.
    why: StoreError,
}

/// Caches the slot map.
pub struct SlotCache {
    common: Arc<Common>,
    seeds: Vec<Endpoint>,
    map: ArcSwap<SlotMap>,
    /// Counts completed refreshes, successful or not.
    refreshes: watch::Sender<u64>,
    recheck: Recheck,
}

impl SlotMap {
    fn unknown(why: ConnectionError) -> Self {
        Self {
            primaries: Vec::new(),
            owners: Vec::new(),
            why: why.into(),
        }
    }

    /// The primary of a slot.
    pub fn owner(&self, slot: u16) -> Result<Primary, StoreError> {
        let number = self.owners.get(usize::from(slot)).copied().flatten();
        let primary = number.and_then(|number| self.primaries.get(usize::from(number)));
        primary.cloned().ok_or_else(|| self.why.clone())
    }

    /// The primary at this address.
    pub fn at(&self, endpoint: &Endpoint) -> Option<Primary> {
        let mut primaries = self.primaries.iter();
        primaries.find(|one| one.endpoint == *endpoint).cloned()
    }
}

impl SlotCache {
    /// Starts to refresh, in the current runtime.
    pub fn start(common: Arc<Common>, seeds: Vec<Endpoint>, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let cache = Arc::new(Self {
            common,
            seeds,
            map: ArcSwap::from_pointee(SlotMap::unknown(ConnectionError::NotYet)),
            refreshes: watch::Sender::new(0),
            recheck: Recheck::new(()),
        });
        tasks.spawn(refresh_loop(Arc::clone(&cache)));
        cache
    }

    /// The current map.
    pub fn map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The current map; before the first refresh has completed, waits for it until the deadline.
    pub async fn wait_until_known(&self, deadline: Deadline) -> Arc<SlotMap> {
        let mut refreshes = self.refreshes.subscribe();
        // If it does not complete in time, the empty map gives the reason.
        let _ = timeout_at(deadline.at.into(), refreshes.wait_for(|count| *count > 0)).await;
        self.map()
    }

    /// The node to which a slot's owner refers, also one that owns no slot yet: that is known until the next refresh.
    pub fn node_at(&self, endpoint: &Endpoint, slot: u16) -> Option<Primary> {
        let map = self.map();
        if map.at(endpoint).is_none() {
            let earlier = map.owner(slot).ok();
            let primary = connect(self, endpoint.clone(), "probe", earlier);
            self.map.rcu(|map| SlotMap {
                primaries: [map.primaries.as_slice(), std::slice::from_ref(&primary)].concat(),
                owners: map.owners.clone(),
                why: map.why.clone(),
            });
        }
        self.map().at(endpoint)
    }

    /// Requests a refresh and waits until it has completed, at most for this time.
    pub async fn refresh(&self, at_most: Duration) {
        let mut refreshes = self.refreshes.subscribe();
        self.request_refresh();
        let _ = timeout(at_most, refreshes.changed()).await;
    }

    /// Requests a refresh, because an answer contradicts the map.
    pub fn request_refresh(&self) {
        self.recheck.send_replace(());
    }
}

async fn refresh_loop(cache: Arc<SlotCache>) {
    let component = cache.common.monitor.add();
    let mut recheck = cache.recheck.subscribe();
    let mut rotation = 0;
    loop {
        let answer = ask(&cache, &mut rotation).await;
        let pause = match answer {
            Ok(layout) => {
                let whole = layout.is_whole();
                let map = build_map(&cache, layout);
                // Before it is reported: a store that is up, and whose slots are nobody's, would count as down.
                cache.map.store(Arc::new(map));
                match whole {
                    Ok(()) => cache.common.monitor.up(component),
                    Err(cause) => cache.common.monitor.down(component, cause.into()),
                }
                REFRESH_INTERVAL
            }
            Err(cause) => {
                // Keep an older map: its nodes themselves report that they are down.
                if cache.map.load().primaries.is_empty() {
                    let map = SlotMap::unknown(ConnectionError::NoSlots(Arc::new(cause)));
                    cache.common.monitor.down(component, map.why.clone());
                    cache.map.store(Arc::new(map));
                }
                MIN_REFRESH_INTERVAL
            }
        };
        cache.refreshes.send_modify(|count| *count += 1);
        sleep(MIN_REFRESH_INTERVAL).await;
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = recheck.changed() => {}
        }
    }
}

/// Asks the connected primaries, beginning with another one each time, and then the policy's seeds.
async fn ask(cache: &SlotCache, rotation: &mut usize) -> Result<Layout, StoreError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer_timeout = cache.common.dialer.answer_timeout;
    let map = cache.map.load_full();
    let read = |answer: Result<Value, StoreError>, asked: &Endpoint| {
        Layout::read(&answer?, asked).map_err(StoreError::from)
    };
    let mut last = ConnectionError::NoNode.into();
    *rotation = rotation.wrapping_add(1);
    let (count, all) = (map.primaries.len(), map.primaries.iter().cycle());
    for primary in all.skip(*rotation % count.max(1)).take(count) {
        let deadline = Deadline::after(answer_timeout / 4);
        let answer = primary.node.announce(&command, false, deadline).await;
        match read(answer, &primary.endpoint) {
            Ok(layout) => return Ok(layout),
            Err(error) => last = error,
        }
    }
    for seed in &cache.seeds {
        let answer = cache.common.dialer.ask(seed, &command).await;
        match read(answer, seed) {
            Ok(layout) => return Ok(layout),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Starts to connect to a node, which may have slots that were an earlier one's.
fn connect(cache: &SlotCache, endpoint: Endpoint, tag: &str, earlier: Option<Primary>) -> Primary {
    // It never changes.
    let (_, address) = watch::channel(Ok(endpoint.clone()));
    let (common, recheck) = (Arc::clone(&cache.common), cache.recheck.clone());
    let earlier = earlier.as_ref().map(|earlier| &*earlier.node.pool);
    let pool = ConnectionPool::new(common, address, recheck, Some(tag), earlier);
    Primary {
        endpoint,
        node: Arc::new(Node::start(pool)),
    }
}

/// Builds the map of a layout. Primaries of the previous map stay connected.
fn build_map(cache: &SlotCache, layout: Layout) -> SlotMap {
    let before = cache.map.load();
    let primaries = layout.primaries.into_iter().map(|owner| {
        if let Some(primary) = before.at(&owner.endpoint) {
            primary.node.pool.probe_in(&owner.tag);
            return primary;
        }
        let earlier = before.owner(owner.slot).ok();
        connect(cache, owner.endpoint, &owner.tag, earlier)
    });
    SlotMap {
        primaries: primaries.collect(),
        owners: layout.owners,
        why: ConnectionError::NoNode.into(),
    }
}
