//! Which primary owns which slots: what a node of a Cluster answers to CLUSTER SLOTS, or all of them one Redis. Pure.

use redis::Value;

use crate::policy::Endpoint;
use crate::store::error::ConnectionError;
use crate::store::slots::{SLOTS, slot};

/// Which primary owns which slots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// The primaries that own a slot, each once.
    pub primaries: Vec<Owner>,
    /// For each slot the index of its primary; empty while nothing is known.
    pub owners: Vec<Option<u16>>,
}

/// A primary that owns a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Its address.
    pub endpoint: Endpoint,
    /// One of its slots.
    pub slot: u16,
    /// A hash tag in one of its slots; empty if none was found, or if there is no Cluster.
    pub tag: String,
}

impl Layout {
    /// One node, which owns all slots.
    pub fn one(endpoint: Endpoint) -> Self {
        Self {
            primaries: vec![Owner {
                endpoint,
                slot: 0,
                tag: String::new(),
            }],
            owners: vec![Some(0); usize::from(SLOTS)],
        }
    }

    /// Reads an answer of the node at `asked`. Skips rows that it does not understand, and those without a slot.
    ///
    /// # Errors
    /// It has no slots.
    pub fn read(answer: &Value, asked: &Endpoint) -> Result<Self, ConnectionError> {
        let Value::Array(rows) = answer else {
            return Err(ConnectionError::NoNode);
        };
        let mut layout = Self {
            primaries: Vec::new(),
            owners: vec![None; usize::from(SLOTS)],
        };
        let mut ranges: Vec<_> = rows.iter().filter_map(|row| range(row, asked)).collect();
        // Nodes of Redis 6 answer in an order of their own.
        ranges.sort_by_key(|(first, ..)| *first);
        for (first, last, endpoint) in ranges {
            let mut known = layout.primaries.iter();
            let known = known.position(|known| known.endpoint == endpoint);
            let number = known.unwrap_or(layout.primaries.len());
            if known.is_none() {
                layout.primaries.push(Owner {
                    endpoint,
                    slot: first,
                    tag: String::new(),
                });
            }
            let range = usize::from(first)..=usize::from(last);
            let owners = layout.owners.get_mut(range).unwrap_or_default();
            owners.fill(u16::try_from(number).ok());
        }
        if layout.primaries.is_empty() {
            return Err(ConnectionError::NoNode);
        }
        layout.find_tags();
        Ok(layout)
    }

    /// Whether each slot has a primary.
    ///
    /// # Errors
    /// So many have none.
    pub fn is_whole(&self) -> Result<(), ConnectionError> {
        let unserved = self.owners.iter().filter(|owner| owner.is_none());
        match unserved.count() {
            0 => Ok(()),
            count => Err(ConnectionError::Unserved(count)),
        }
    }

    /// Finds a tag for each primary, in one pass over the tags.
    fn find_tags(&mut self) {
        let mut left = self.primaries.len();
        // Sixteen per slot on average, so that nearly every slot has one.
        for number in 0..u32::from(SLOTS) * 16 {
            let tag = format!("probe-{number}");
            let owner = self.owners.get(usize::from(slot(&tag))).copied().flatten();
            let primary = owner.and_then(|owner| self.primaries.get_mut(usize::from(owner)));
            if let Some(primary) = primary.filter(|primary| primary.tag.is_empty()) {
                primary.tag = tag;
                left -= 1;
            }
            if left == 0 {
                return;
            }
        }
    }
}

/// A range of slots (first, last), and the primary that owns it.
fn range(row: &Value, asked: &Endpoint) -> Option<(u16, u16, Endpoint)> {
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
    let (first, last) = (slot(*first)?, slot(*last)?);
    let endpoint = endpoint_of(host, u16::try_from(*port).ok()?, asked)?;
    (first <= last).then_some((first, last, endpoint))
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp(host.to_owned(), port)
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    fn row(first: i64, last: i64, host: Value, port: i64) -> Value {
        let primary = vec![host, Value::Int(port), bulk("id"), Value::Array(Vec::new())];
        Value::Array(vec![
            Value::Int(first),
            Value::Int(last),
            Value::Array(primary),
            Value::Array(vec![bulk("replica"), Value::Int(9), bulk("id")]),
        ])
    }

    fn read(rows: impl IntoIterator<Item = Value>) -> Result<Layout, ConnectionError> {
        Layout::read(&Value::Array(rows.into_iter().collect()), &tcp("seed", 1))
    }

    /// Rows of so many primaries.
    fn rows(
        count: i64,
        range: impl Fn(i64) -> (i64, i64) + 'static,
    ) -> impl Iterator<Item = Value> {
        (0..count).map(move |number| {
            let (first, last) = range(number);
            row(first, last, bulk("h"), number)
        })
    }

    #[test]
    fn cluster_slots_replies_of_every_version_are_read() {
        let layout = read([
            row(0, 5, bulk("10.0.0.1"), 7000),
            row(6, 6, Value::Nil, 7001),
            row(7, 16_383, bulk(""), 7002),
            row(9, 16_384, bulk("beyond"), 7002),
        ])
        .unwrap();
        let primaries = layout.primaries.iter();
        let primaries: Vec<_> = primaries.map(|one| (one.slot, &one.endpoint)).collect();
        let [first, second, third] = [("10.0.0.1", 7000), ("seed", 7001), ("seed", 7002)]
            .map(|(host, port)| tcp(host, port));
        assert_eq!(primaries, [(0, &first), (6, &second), (7, &third)]);
        let owner = |slot: usize| layout.owners[slot];
        assert_eq!([owner(0), owner(5), owner(6)], [Some(0), Some(0), Some(1)]);
        assert_eq!([owner(7), owner(16_383)], [Some(2); 2]);
        assert!(matches!(read([]), Err(ConnectionError::NoNode)));
        let nil = Layout::read(&Value::Nil, &tcp("seed", 1));
        assert!(matches!(nil, Err(ConnectionError::NoNode)));
    }

    #[test]
    fn each_primary_is_probed_in_a_slot_of_its_own_however_few_it_has() {
        let ranges = [(0, 0), (1, 4_999), (5_000, 5_000), (5_001, 16_383)];
        let range = move |number| ranges[usize::try_from(number).unwrap()];
        let layout = read(rows(4, range)).unwrap();
        for (number, primary) in layout.primaries.iter().enumerate() {
            let owner = layout.owners[usize::from(slot(&primary.tag))];
            assert_eq!(owner.map(usize::from), Some(number), "{primary:?}");
        }
    }

    /// For each of them all tags were tried against all rows, in a task of the runtime: 147 KB stopped the sidecar.
    #[test]
    fn thousands_of_primaries_without_a_slot_are_skipped_at_once() {
        let since = Instant::now();
        let answer = read(rows(3_000, |_| (2, 1)));
        assert!(matches!(answer, Err(ConnectionError::NoNode)));
        let own = row(0, 16_383, bulk("own"), 1);
        let layout = read(rows(3_000, |_| (2, 1)).chain([own])).unwrap();
        assert_eq!(layout.primaries.len(), 1);
        // Milliseconds; the rest is for machines that stall.
        let took = since.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
    }
}
