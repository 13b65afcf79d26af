//! Which node has which slots: asked of the nodes every few seconds, and whenever one is lost or refers to another.

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
use crate::store::redis::live::Deadline;
use crate::store::redis::node::{Common, Node};

const ASK_EVERY: Duration = Duration::from_secs(5);
/// The shortest pause between two questions, and how often they are asked while nobody answers.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// A primary.
pub struct Primary {
    /// Where it listens.
    pub endpoint: Endpoint,
    /// Its connections.
    pub node: Node,
    _keeper: watch::Sender<Result<Endpoint, StoreError>>,
}

/// What is known of the slots.
#[derive(Default)]
pub struct Map {
    primaries: Vec<Arc<Primary>>,
    /// For each slot its primary's number; empty as long as nothing is known.
    owners: Vec<Option<u16>>,
    /// Why nothing is known.
    why: Option<StoreError>,
}

/// Keeps the map.
pub struct Atlas {
    shared: Arc<Shared>,
    _task: JoinSet<()>,
}

struct Shared {
    common: Arc<Common>,
    seeds: Vec<Endpoint>,
    map: ArcSwap<Map>,
    /// Counts the questions that came to something.
    asked: watch::Sender<u64>,
    doubted: Arc<Notify>,
}

impl Map {
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

    /// The primary at this place.
    pub fn at(&self, endpoint: &Endpoint) -> Option<Arc<Primary>> {
        let mut primaries = self.primaries.iter();
        primaries
            .find(|primary| primary.endpoint == *endpoint)
            .cloned()
    }
}

impl Atlas {
    /// Begins to ask, in the current runtime.
    pub fn start(common: Arc<Common>, seeds: Vec<Endpoint>) -> Self {
        let shared = Arc::new(Shared {
            common,
            seeds,
            map: ArcSwap::default(),
            asked: watch::Sender::new(0),
            doubted: Arc::default(),
        });
        let mut task = JoinSet::new();
        task.spawn(keep(Arc::clone(&shared)));
        Self {
            shared,
            _task: task,
        }
    }

    /// What is known now.
    pub fn map(&self) -> Arc<Map> {
        self.shared.map.load_full()
    }

    /// What is known; at the very first, waits for it until the deadline.
    pub async fn known(&self, deadline: Deadline) -> Arc<Map> {
        let mut asked = self.shared.asked.subscribe();
        // If nothing is known in time the map says so.
        let _ = timeout_at(deadline.at().into(), asked.wait_for(|asked| *asked > 0)).await;
        self.map()
    }

    /// Something does not agree with the map: waits until it was asked for anew, for so long at most.
    pub async fn ask_again(&self, at_most: Duration) {
        let mut asked = self.shared.asked.subscribe();
        self.shared.doubted.notify_one();
        let _ = timeout(at_most, asked.changed()).await;
    }

    /// Something does not agree with the map.
    pub fn doubt(&self) {
        self.shared.doubted.notify_one();
    }
}

/// Slots and the primary that has them.
type Range = (u16, u16, Endpoint);

async fn keep(shared: Arc<Shared>) {
    let part = shared.common.monitor.add();
    let mut turn = 0;
    loop {
        let answer = ask(&shared, &mut turn).await;
        let pause = match answer {
            Ok(ranges) => {
                let map = drawn(&shared, &ranges);
                shared.map.store(Arc::new(map));
                shared.common.monitor.up(part);
                ASK_EVERY
            }
            Err(cause) => {
                let cause: StoreError = ConnectionError::NoSlots(Arc::new(cause)).into();
                // What was known is better than nothing: its nodes tell by themselves that they are away.
                if shared.map.load().primaries.is_empty() {
                    shared.common.monitor.down(part, cause.clone());
                    shared.map.store(Arc::new(Map {
                        why: Some(cause),
                        ..Map::default()
                    }));
                }
                ASK_AGAIN
            }
        };
        shared.asked.send_modify(|asked| *asked += 1);
        sleep(ASK_AGAIN).await;
        tokio::select! {
            () = sleep(pause) => {}
            () = shared.doubted.notified() => {}
        }
    }
}

/// Asks a node that is connected, each in its turn, or else one that the policy names.
async fn ask(shared: &Shared, turn: &mut usize) -> Result<Vec<Range>, StoreError> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let patience = shared.common.dialer.patience();
    let map = shared.map.load_full();
    let mut last = ConnectionError::NoNode.into();
    *turn = turn.wrapping_add(1);
    let first = *turn % map.primaries.len().max(1);
    let (before, after) = map.primaries.split_at(first.min(map.primaries.len()));
    for primary in after.iter().chain(before) {
        let deadline = Deadline::after(patience / 4);
        match primary.node.ask::<Value>(&command, deadline).await {
            Ok(slots) => match ranges(&slots, &primary.endpoint) {
                Some(ranges) => return Ok(ranges),
                None => last = ConnectionError::NoNode.into(),
            },
            Err(error) => last = error,
        }
    }
    for seed in &shared.seeds {
        match ask_seed(shared, seed, &command, patience).await {
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
    patience: Duration,
) -> Result<Value, StoreError> {
    let (mut connection, driver) = shared.common.dialer.dial(seed).await?;
    let mut task = JoinSet::new();
    task.spawn(driver);
    match timeout(patience, command.query_async(&mut connection)).await {
        Ok(answer) => answer.map_err(StoreError::from),
        Err(_) => Err(ConnectionError::Silent(patience).into()),
    }
}

/// Reads the answer to CLUSTER SLOTS; nothing if there is no slot in it.
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
    let endpoint = named(host, u16::try_from(*port).ok()?, asked)?;
    Some((slot(*first)?, slot(*last)?, endpoint))
}

/// Where a node is that another node names. One that does not say its host has that of who was asked.
pub fn named(host: &str, port: u16, asked: &Endpoint) -> Option<Endpoint> {
    let host = match (host, asked) {
        ("" | "?", Endpoint::Tcp(asked, _)) => asked,
        ("" | "?", Endpoint::Unix(_)) => return None,
        (host, _) => host,
    };
    Some(Endpoint::Tcp(host.to_owned(), port))
}

/// A map of these ranges. Who was in the one before stays connected.
fn drawn(shared: &Shared, ranges: &[Range]) -> Map {
    let before = shared.map.load();
    let mut map = Map {
        owners: vec![None; usize::from(SLOTS)],
        ..Map::default()
    };
    for (first, _, endpoint) in ranges {
        if map.at(endpoint).is_some() {
            continue;
        }
        let has = |slot: u16| {
            let mut ranges = ranges.iter().filter(|range| range.2 == *endpoint);
            ranges.any(|(first, last, _)| (*first..=*last).contains(&slot))
        };
        let tag = tag_in(has).unwrap_or_else(|| first.to_string());
        let primary = match before.at(endpoint) {
            Some(primary) => {
                primary.node.probe_in(&tag);
                primary
            }
            None => {
                let (keeper, place) = watch::channel(Ok(endpoint.clone()));
                let (common, doubted) = (&shared.common, &shared.doubted);
                Arc::new(Primary {
                    endpoint: endpoint.clone(),
                    node: Node::start(Arc::clone(common), place, Arc::clone(doubted), Some(&tag)),
                    _keeper: keeper,
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

/// A hash tag in a slot that a node has.
fn tag_in(has: impl Fn(u16) -> bool) -> Option<String> {
    // Sixteen for each slot: there is one of them in the narrowest range but for bad luck.
    let tags = (0..u32::from(SLOTS) * 16).map(|number| format!("probe-{number}"));
    tags.into_iter().find(|tag| has(slot(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slots_of_every_version_are_read() {
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
            assert_eq!(slot(&tag_in(|slot| slot == wanted).unwrap()), wanted);
        }
        assert_eq!(tag_in(|_| false), None);
    }
}
