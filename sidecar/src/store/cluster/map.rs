//! The slot map: refreshed every few seconds, and whenever a connection is lost or a node redirects.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::Value;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};

use super::slots::{SLOTS, slot};
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};
use crate::store::redis::connection::Deadline;
use crate::store::redis::node::{Common, Node};

const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// The shortest pause between two refreshes, and the interval while no node answers.
const MIN_REFRESH_INTERVAL: Duration = Duration::from_millis(50);

/// A primary.
pub struct Primary {
    /// Its address.
    pub endpoint: Endpoint,
    /// Its connections.
    pub node: Node,
    _address_sender: watch::Sender<Result<Endpoint, StoreError>>,
}

/// Which primary owns which slots.
#[derive(Default)]
pub struct SlotMap {
    primaries: Vec<Arc<Primary>>,
    /// For each slot the index of its primary; empty while nothing is known.
    owners: Vec<Option<u16>>,
    /// Why nothing is known, where an attempt failed.
    why: Option<StoreError>,
}

/// Caches the slot map and refreshes it.
pub struct SlotCache {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    common: Arc<Common>,
    seeds: Vec<Endpoint>,
    map: ArcSwap<SlotMap>,
    /// Counts completed refreshes, successful or not.
    refreshes: watch::Sender<u64>,
    recheck: Arc<Notify>,
}

impl SlotMap {
    /// The primary of a slot.
    pub fn owner(&self, slot: u16) -> Result<Arc<Primary>, StoreError> {
        let number = self.owners.get(usize::from(slot)).copied().flatten();
        let primary = number.and_then(|number| self.primaries.get(usize::from(number)));
        primary.cloned().ok_or_else(|| match &self.why {
            Some(why) => why.clone(),
            None if self.owners.is_empty() => ConnectionError::NotYet.into(),
            None => ConnectionError::NoNode.into(),
        })
    }

    /// The primary at this address.
    pub fn at(&self, endpoint: &Endpoint) -> Option<Arc<Primary>> {
        let mut primaries = self.primaries.iter();
        primaries
            .find(|primary| primary.endpoint == *endpoint)
            .cloned()
    }
}

impl SlotCache {
    /// Starts to refresh, in the current runtime.
    pub fn start(common: Arc<Common>, seeds: Vec<Endpoint>) -> Self {
        let shared = Arc::new(Shared {
            common,
            seeds,
            map: ArcSwap::default(),
            refreshes: watch::Sender::new(0),
            recheck: Arc::default(),
        });
        let mut task = JoinSet::new();
        task.spawn(refresh_loop(Arc::clone(&shared)));
        Self {
            shared,
            _task: task,
        }
    }

    /// The current map.
    pub fn map(&self) -> Arc<SlotMap> {
        self.shared.map.load_full()
    }

    /// The current map; before the first refresh has completed, waits for it until the deadline.
    pub async fn wait_until_known(&self, deadline: Deadline) -> Arc<SlotMap> {
        let mut refreshes = self.shared.refreshes.subscribe();
        // If it does not complete in time, the empty map gives the reason.
        let _ = timeout_at(deadline.at().into(), refreshes.wait_for(|count| *count > 0)).await;
        self.map()
    }

    /// Requests a refresh and waits until it has completed, at most for this time.
    pub async fn refresh(&self, at_most: Duration) {
        let mut refreshes = self.shared.refreshes.subscribe();
        self.shared.recheck.notify_one();
        let _ = timeout(at_most, refreshes.changed()).await;
    }

    /// Requests a refresh, because an answer contradicts the map.
    pub fn request_refresh(&self) {
        self.shared.recheck.notify_one();
    }
}

/// A range of slots (first, last) and the primary that owns it.
type Range = (u16, u16, Endpoint);

async fn refresh_loop(shared: Arc<Shared>) {
    let component = shared.common.monitor.add();
    let mut rotation = 0;
    loop {
        let answer = ask(&shared, &mut rotation).await;
        let pause = match answer {
            Ok(ranges) => {
                let map = build_map(&shared, &ranges);
                shared.map.store(Arc::new(map));
                shared.common.monitor.up(component);
                REFRESH_INTERVAL
            }
            Err(cause) => {
                let cause: StoreError = ConnectionError::NoSlots(Arc::new(cause)).into();
                // Keep an older map: its nodes themselves report that they are down.
                if shared.map.load().primaries.is_empty() {
                    shared.common.monitor.down(component, cause.clone());
                    shared.map.store(Arc::new(SlotMap {
                        why: Some(cause),
                        ..SlotMap::default()
                    }));
                }
                MIN_REFRESH_INTERVAL
            }
        };
        shared.refreshes.send_modify(|count| *count += 1);
        sleep(MIN_REFRESH_INTERVAL).await;
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.recheck.notified() => {}
        }
    }
}

/// Asks the connected primaries, beginning with another one each time, and then the policy's seeds.
async fn ask(shared: &Shared, rotation: &mut usize) -> Result<Vec<Range>, StoreError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let answer_timeout = shared.common.dialer.answer_timeout();
    let map = shared.map.load_full();
    let mut last = ConnectionError::NoNode.into();
    *rotation = rotation.wrapping_add(1);
    let first = *rotation % map.primaries.len().max(1);
    let (before, after) = map.primaries.split_at(first.min(map.primaries.len()));
    for primary in after.iter().chain(before) {
        let deadline = Deadline::after(answer_timeout / 4);
        match primary.node.ask::<Value>(&command, deadline).await {
            Ok(slots) => match ranges(&slots, &primary.endpoint) {
                Some(ranges) => return Ok(ranges),
                None => last = ConnectionError::NoNode.into(),
            },
            Err(error) => last = error,
        }
    }
    for seed in &shared.seeds {
        match ask_seed(shared, seed, &command, answer_timeout).await {
            Ok(slots) => match ranges(&slots, seed) {
                Some(ranges) => return Ok(ranges),
                None => last = ConnectionError::NoNode.into(),
            },
            Err(error) => last = error,
        }
    }
    Err(last)
}

async fn ask_seed(
    shared: &Shared,
    seed: &Endpoint,
    command: &redis::Cmd,
    answer_timeout: Duration,
) -> Result<Value, StoreError> {
    let (mut connection, driver) = shared.common.dialer.dial(seed).await?;
    let mut task = JoinSet::new();
    task.spawn(driver);
    match timeout(answer_timeout, command.query_async(&mut connection)).await {
        Ok(answer) => answer.map_err(StoreError::from),
        Err(_) => Err(ConnectionError::Silent(answer_timeout).into()),
    }
}

/// Parses the answer to CLUSTER SLOTS; `None` if it contains no slots.
fn ranges(answer: &Value, asked: &Endpoint) -> Option<Vec<Range>> {
    let Value::Array(rows) = answer else {
        return None;
    };
    let ranges: Vec<_> = rows.iter().filter_map(|row| range(row, asked)).collect();
    Some(ranges).filter(|ranges| !ranges.is_empty())
}

fn range(row: &Value, asked: &Endpoint) -> Option<Range> {
    let Value::Array(row) = row else { return None };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(primary),
        ..,
    ] = row.as_slice()
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = primary.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => std::str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        _ => "",
    };
    let slot = |number: i64| u16::try_from(number).ok().filter(|slot| *slot < SLOTS);
    let endpoint = endpoint_of(host, u16::try_from(*port).ok()?, asked)?;
    Some((slot(*first)?, slot(*last)?, endpoint))
}

/// The address of a node in another node's answer. A missing host means the host of the node that answered.
pub fn endpoint_of(host: &str, port: u16, asked: &Endpoint) -> Option<Endpoint> {
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp(asked, _)) => asked,
        ("" | "?", Endpoint::Unix(_)) => return None,
        (host, _) => host,
    };
    Some(Endpoint::Tcp(host.to_owned(), port))
}

/// Builds a map from these ranges. Primaries of the previous map stay connected.
fn build_map(shared: &Shared, ranges: &[Range]) -> SlotMap {
    let before = shared.map.load();
    let mut map = SlotMap {
        owners: vec![None; usize::from(SLOTS)],
        ..SlotMap::default()
    };
    for (first, _, endpoint) in ranges {
        if map.at(endpoint).is_some() {
            continue;
        }
        let has = |slot: u16| {
            let mut ranges = ranges.iter().filter(|range| range.2 == *endpoint);
            ranges.any(|(first, last, _)| (*first..=*last).contains(&slot))
        };
        let tag = find_tag(has).unwrap_or_else(|| first.to_string());
        let primary = match before.at(endpoint) {
            Some(primary) => {
                primary.node.probe_in(&tag);
                primary
            }
            None => {
                let (sender, address) = watch::channel(Ok(endpoint.clone()));
                let (common, recheck) = (Arc::clone(&shared.common), Arc::clone(&shared.recheck));
                let owner = before.owner(*first).ok();
                let owner = owner.as_ref().map(|owner| &owner.node);
                Arc::new(Primary {
                    endpoint: endpoint.clone(),
                    node: Node::start(common, address, recheck, Some(&tag), owner),
                    _address_sender: sender,
                })
            }
        };
        map.primaries.push(primary);
    }
    for (first, last, endpoint) in ranges {
        let number = map
            .primaries
            .iter()
            .position(|one| one.endpoint == *endpoint);
        let number = number.and_then(|number| u16::try_from(number).ok());
        if let Some(owners) = map.owners.get_mut(usize::from(*first)..=usize::from(*last)) {
            owners.fill(number);
        }
    }
    map
}

/// A hash tag in a slot that a node owns.
fn find_tag(has: impl Fn(u16) -> bool) -> Option<String> {
    // Sixteen per slot on average, so that nearly every slot has one.
    let tags = (0..u32::from(SLOTS) * 16).map(|number| format!("probe-{number}"));
    tags.into_iter().find(|tag| has(slot(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_slots_replies_of_every_version_are_read() {
        let asked = Endpoint::Tcp("seed".to_owned(), 1);
        let bulk = |text: &str| Value::BulkString(text.into());
        let row = |first, last, host, port| {
            let primary = vec![host, Value::Int(port), bulk("id"), Value::Array(Vec::new())];
            Value::Array(vec![
                Value::Int(first),
                Value::Int(last),
                Value::Array(primary),
                Value::Array(vec![bulk("replica"), Value::Int(9), bulk("id")]),
            ])
        };
        let answer = Value::Array(vec![
            row(0, 5, bulk("10.0.0.1"), 7000),
            row(6, 6, Value::Nil, 7001),
            row(7, 16_383, bulk(""), 7002),
            row(9, 16_384, bulk("beyond"), 7002),
        ]);
        let tcp = |host: &str, port| Endpoint::Tcp(host.to_owned(), port);
        assert_eq!(
            ranges(&answer, &asked).unwrap(),
            [
                (0, 5, tcp("10.0.0.1", 7000)),
                (6, 6, tcp("seed", 7001)),
                (7, 16_383, tcp("seed", 7002))
            ]
        );
        assert_eq!(ranges(&Value::Array(Vec::new()), &asked), None);
        assert_eq!(ranges(&Value::Nil, &asked), None);
    }

    #[test]
    fn a_tag_is_found_in_the_narrowest_range() {
        for wanted in [0, 5_000, SLOTS - 1] {
            assert_eq!(slot(&find_tag(|slot| slot == wanted).unwrap()), wanted);
        }
        assert_eq!(find_tag(|_| false), None);
    }
}
