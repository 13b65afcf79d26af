//! Which node serves which keys. A single Redis serves all, as does the primary that sentinels name; a Cluster's slot map is refreshed
//! every few seconds, and whenever a connection is lost or a node redirects.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::layout::Layout;
use super::referral::Referral;
use crate::policy::{Endpoint, RedisStore, Topology};
use crate::store::error::{ConnectionError, StoreError, is_not_yet};
use crate::store::health::ComponentId;
use crate::store::redis::common::Common;
use crate::store::redis::connection::Deadline;
use crate::store::redis::dial::Dialer;
use crate::store::redis::node::Node;
use crate::store::redis::pool::{ConnectionPool, Recheck};
use crate::store::redis::sentinel::poll_all;

const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest pause between two refreshes, and the interval while no node answers.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// Which primary owns which slots.
pub struct SlotMap {
    primaries: Vec<Arc<Node>>,
    /// For each slot the index of its primary; empty while nothing is known.
    owners: Vec<Option<u16>>,
    /// Why no primary of a slot is known.
    why: StoreError,
}

/// Caches the slot map.
pub struct SlotCache {
    common: Arc<Common>,
    component: ComponentId,
    map: ArcSwap<SlotMap>,
    /// Counts answers to where the nodes are, successful or not.
    refreshes: watch::Sender<u64>,
    recheck: Recheck,
}

impl SlotMap {
    fn unknown(why: StoreError) -> Self {
        Self {
            primaries: Vec::new(),
            owners: Vec::new(),
            why,
        }
    }

    /// The primary of a slot.
    pub fn owner(&self, slot: u16) -> Result<Arc<Node>, StoreError> {
        let primary = self.primaries.get(self.home(slot));
        primary.cloned().ok_or_else(|| self.why.clone())
    }

    /// The number of the primary of a slot; that of none if there is none.
    pub fn home(&self, slot: u16) -> usize {
        let number = self.owners.get(usize::from(slot)).copied().flatten();
        number.map_or(self.primaries.len(), usize::from)
    }

    /// The primary at this address.
    pub fn at(&self, endpoint: &Endpoint) -> Option<Arc<Node>> {
        let mut primaries = self.primaries.iter();
        let known = primaries.find(|one| one.pool.endpoint == *endpoint);
        known.cloned()
    }
}

impl SlotCache {
    /// Starts to look for the nodes of a store, in the current runtime.
    pub fn start(common: Arc<Common>, store: &RedisStore, tasks: &mut JoinSet<()>) -> Arc<Self> {
        let cache = Arc::new(Self {
            component: common.monitor.add(),
            common,
            map: ArcSwap::from_pointee(SlotMap::unknown(ConnectionError::NotYet.into())),
            refreshes: watch::Sender::new(0),
            recheck: Recheck::new(()),
        });
        match &store.url.topology {
            Topology::Single(endpoint) => cache.learn(Ok(Layout::one(endpoint.clone()))),
            Topology::Sentinel { sentinels, name } => {
                let dialer = Dialer::to_sentinels(store, cache.common.dialer.store_timeout);
                let follower = Arc::clone(&cache);
                let follow = move |primary| follower.follow(primary);
                poll_all(dialer, sentinels, name, &cache.recheck, tasks, follow);
            }
            Topology::Cluster(seeds) => {
                tasks.spawn(refresh_loop(Arc::clone(&cache), seeds.to_vec()));
            }
        }
        cache
    }

    /// Takes over the primary that sentinels name, if it is another one, or why they name none.
    fn follow(&self, primary: Result<Endpoint, StoreError>) {
        let is_known = |at| self.map().at(at).is_some();
        if !primary.as_ref().is_ok_and(is_known) && !primary.as_ref().is_err_and(is_not_yet) {
            self.learn(primary.map(Layout::one));
        }
    }

    /// Takes a layout over, or why there is none. Then an earlier one stays: its nodes themselves report that they are down.
    fn learn(&self, answer: Result<Layout, StoreError>) {
        let known = match answer {
            Ok(layout) => {
                let whole = layout.is_whole().map_err(StoreError::from);
                // Before it is reported: a store that is up, and whose slots are nobody's, would count as down.
                self.map.store(Arc::new(build_map(self, layout)));
                Some(whole)
            }
            Err(why) => self.map.load().primaries.is_empty().then(|| {
                self.map.store(Arc::new(SlotMap::unknown(why.clone())));
                Err(why)
            }),
        };
        match known {
            Some(Ok(())) => self.common.monitor.up(self.component),
            Some(Err(why)) => self.common.monitor.down(self.component, why),
            None => {}
        }
        self.refreshes.send_modify(|count| *count += 1);
    }

    /// Whether this is the answer of a Cluster's node that points to another node or to a later time.
    pub fn referral(&self, error: &StoreError, asked: &Endpoint) -> Option<Referral> {
        let of_cluster = self.common.is_cluster();
        of_cluster.then(|| Referral::of(error, asked)).flatten()
    }

    /// The current map.
    pub fn map(&self) -> Arc<SlotMap> {
        self.map.load_full()
    }

    /// The current map; before the first refresh has completed, waits for it until the deadline.
    pub async fn wait_until_known(&self, deadline: Deadline) -> Arc<SlotMap> {
        if *self.refreshes.borrow() == 0 {
            let mut refreshes = self.refreshes.subscribe();
            // If it does not complete in time, the empty map gives the reason.
            let _ = timeout_at(deadline.at.into(), refreshes.wait_for(|count| *count > 0)).await;
        }
        self.map()
    }

    /// The node to which a slot's owner refers, also one that owns no slot yet: that is known until the next refresh.
    pub fn node_at(&self, endpoint: &Endpoint, slot: u16) -> Option<Arc<Node>> {
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

async fn refresh_loop(cache: Arc<SlotCache>, seeds: Vec<Endpoint>) {
    let mut recheck = cache.recheck.subscribe();
    let mut rotation = 0;
    loop {
        let answer = ask(&cache, &seeds, &mut rotation).await;
        let pause = match &answer {
            Ok(_) => REFRESH_INTERVAL,
            Err(_) => MIN_REFRESH_INTERVAL,
        };
        cache.learn(answer.map_err(|why| ConnectionError::NoSlots(Arc::new(why)).into()));
        sleep(MIN_REFRESH_INTERVAL).await;
        tokio::select! {
            () = sleep(pause) => {}
            Ok(()) = recheck.changed() => {}
        }
    }
}

/// Asks the connected primaries, beginning with another one each time, and then the policy's seeds.
async fn ask(
    cache: &SlotCache,
    seeds: &[Endpoint],
    rotation: &mut usize,
) -> Result<Layout, StoreError> {
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
        let answer = primary.announce(&command, false, deadline).await;
        match read(answer, &primary.pool.endpoint) {
            Ok(layout) => return Ok(layout),
            Err(error) => last = error,
        }
    }
    for seed in seeds {
        let answer = cache.common.dialer.ask(seed, &command).await;
        match read(answer, seed) {
            Ok(layout) => return Ok(layout),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Starts to connect to a node, which may have slots that were an earlier one's.
fn connect(
    cache: &SlotCache,
    endpoint: Endpoint,
    tag: &str,
    earlier: Option<Arc<Node>>,
) -> Arc<Node> {
    let (common, recheck) = (Arc::clone(&cache.common), cache.recheck.clone());
    let earlier = earlier.as_ref().map(|earlier| &*earlier.pool);
    let pool = ConnectionPool::new(common, endpoint, recheck, tag, earlier);
    Arc::new(Node::start(pool))
}

/// Builds the map of a layout. Primaries of the previous map stay connected.
fn build_map(cache: &SlotCache, layout: Layout) -> SlotMap {
    let before = cache.map.load();
    let primaries = layout.primaries.into_iter().map(|owner| {
        if let Some(primary) = before.at(&owner.endpoint) {
            primary.pool.probe_in(&owner.tag);
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
