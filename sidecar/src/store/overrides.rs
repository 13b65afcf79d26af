//! Overrides in a store.
//!
//! In Redis they are one hash, which the script `lua/overrides.lua` changes and every sidecar reads: one field for each
//! override, and a head field whose version shows whether the others changed.

use std::collections::{BTreeMap, HashMap};

use sluicegate_protocol::OverrideTerms;

use super::call::OVERRIDES_HEAD;
use super::error::StoreError;
use crate::policy::{MAX_OVERRIDES, Override};

/// Most bytes of all overrides together, including their keys: each sidecar reads all of them after a change.
pub const MAX_STORED_BYTES: usize = 4 << 20;

/// The store's overrides, by limit and key.
pub type Entries = BTreeMap<(String, String), Override>;

/// A consistent snapshot of a store's overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Differs after each change; 0 if there are no overrides.
    pub version: u64,
    /// By limit and key.
    pub entries: Entries,
}

/// A change of one override, or the removal of ended ones.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Sets the override of a limit and key.
    Set(&'a str, &'a str, &'a Override),
    /// Removes the override of a limit and key.
    Remove(&'a str, &'a str),
    /// Removes the overrides of these limits and keys whose end has passed.
    Sweep(&'a [(&'a str, &'a str)]),
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// An override was replaced or removed.
    Known,
    /// There was no override for the limit and key.
    Unknown,
    /// [`MAX_OVERRIDES`] or `MAX_STORED_BYTES` would be exceeded: nothing was changed.
    Full,
}

/// The version in the head of the hash; 0 without a hash.
pub fn version(head: Option<&[u8]>) -> u64 {
    let bytes = head.and_then(|head| head.first_chunk::<7>());
    bytes.map_or(0, |bytes| {
        bytes
            .iter()
            .fold(0, |version, byte| (version << 8) | u64::from(*byte))
    })
}

/// Parses the whole hash.
///
/// # Errors
/// It has more than [`MAX_OVERRIDES`]: no sidecar wrote them all.
pub fn read_hash(hash: &HashMap<Vec<u8>, Vec<u8>>) -> Result<StoredOverrides, StoreError> {
    let head = OVERRIDES_HEAD.as_bytes();
    let entries = hash.len() - usize::from(hash.contains_key(head));
    if entries > MAX_OVERRIDES {
        return Err(StoreError::TooManyOverrides(entries));
    }
    let entry = |(field, state): (&Vec<u8>, &Vec<u8>)| {
        // The 7 bytes before the text are its end, for the script; the text has the end too.
        let (_, text) = state.split_at_checked(7)?;
        from_text(std::str::from_utf8(field).ok()?, text)
    };
    Ok(StoredOverrides {
        version: version(hash.get(head).map(Vec::as_slice)),
        entries: hash
            .iter()
            .filter(|(field, _)| *field != head)
            .filter_map(entry)
            .collect(),
    })
}

/// The field of an override in the hash. No limit's name contains a colon.
pub fn field(limit: &str, key: &str) -> String {
    format!("{limit}:{key}")
}

/// The text of an override in the hash.
pub fn to_text(one: &Override) -> Vec<u8> {
    // Strings and numbers can always be encoded as JSON.
    serde_json::to_vec(&one.terms).unwrap_or_default()
}

/// Parses an override of the hash. `None` if a newer sidecar wrote it in a form that this one cannot read; the others
/// still apply.
pub fn from_text(field: &str, text: &[u8]) -> Option<((String, String), Override)> {
    let (limit, key) = field.split_once(':')?;
    let terms: OverrideTerms = serde_json::from_slice(text).ok()?;
    let one = Override::read(terms).ok()?;
    Some(((limit.to_owned(), key.to_owned()), one))
}

/// What an override adds to the bytes that [`MAX_STORED_BYTES`] bounds.
fn bytes_of(limit: &str, key: &str, one: &Override) -> usize {
    field(limit, key).len() + to_text(one).len()
}

impl StoredOverrides {
    /// Makes a change as the script does, at `now_ms` in milliseconds since 1970; for the embedded store.
    pub fn change(&mut self, change: Change<'_>, now_ms: u64) -> Changed {
        let named = |limit: &str, key: &str| (limit.to_owned(), key.to_owned());
        let (known, changed) = match change {
            Change::Set(limit, key, one) => {
                let name = named(limit, key);
                let replaced = self.entries.get(&name);
                let freed = replaced.map_or(0, |before| bytes_of(limit, key, before));
                let known = replaced.is_some();
                let bytes = self.bytes() - freed + bytes_of(limit, key, one);
                if !known && self.entries.len() >= MAX_OVERRIDES || bytes > MAX_STORED_BYTES {
                    return Changed::Full;
                }
                self.entries.insert(name, one.clone());
                (known, true)
            }
            Change::Remove(limit, key) => {
                let known = self.entries.remove(&named(limit, key)).is_some();
                (known, known)
            }
            Change::Sweep(names) => {
                let before = self.entries.len();
                for (limit, key) in names {
                    let name = named(limit, key);
                    if self
                        .entries
                        .get(&name)
                        .is_some_and(|one| one.has_ended(now_ms))
                    {
                        self.entries.remove(&name);
                    }
                }
                let swept = self.entries.len() < before;
                (swept, swept)
            }
        };
        if changed {
            self.version += 1;
        }
        if known {
            Changed::Known
        } else {
            Changed::Unknown
        }
    }

    fn bytes(&self) -> usize {
        let entries = self.entries.iter();
        entries
            .map(|((limit, key), one)| bytes_of(limit, key, one))
            .sum()
    }

    /// Limits and keys of at most `most` overrides whose end has passed.
    pub fn ended(&self, now_ms: u64, most: usize) -> Vec<(&str, &str)> {
        let ended = self.entries.iter().filter(|(_, one)| one.has_ended(now_ms));
        let ended = ended.map(|((limit, key), _)| (limit.as_str(), key.as_str()));
        ended.take(most).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unlimited(until: Option<&str>) -> Override {
        Override::read(OverrideTerms {
            unlimited: true,
            until: until.map(str::to_owned),
            ..OverrideTerms::default()
        })
        .unwrap()
    }

    #[test]
    fn an_override_is_read_as_it_was_written() {
        let one = unlimited(Some("2026-11-22T03:00:00Z"));
        let field = field("per-key", "a:b\n");
        let read = from_text(&field, &to_text(&one)).unwrap();
        assert_eq!(read, (("per-key".to_owned(), "a:b\n".to_owned()), one));
        for (field, text) in [
            ("l:k", "{}"),
            ("l", r#"{"unlimited":true}"#),
            ("l:k", r#"{"more":1}"#),
        ] {
            let read = from_text(field, text.as_bytes());
            assert!(read.is_none(), "{field} {text}");
        }
    }

    #[test]
    fn every_change_has_another_version_and_nothing_else_has() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(Some("1970-01-01T00:00:05Z"));
        let set = || Change::Set("l", "k", &one);
        let sweep = || Change::Sweep(&[("l", "k")]);
        assert_eq!(stored.change(set(), 0), Changed::Unknown);
        assert_eq!(stored.change(set(), 0), Changed::Known);
        assert_eq!((stored.version, stored.entries.len()), (2, 1));
        let other = Change::Remove("l", "other");
        assert_eq!(stored.change(other, 0), Changed::Unknown);
        assert_eq!(stored.change(sweep(), 4_999), Changed::Unknown);
        assert_eq!(stored.version, 2);
        assert!(stored.ended(4_999, 9).is_empty());
        assert_eq!(stored.ended(5_000, 9), [("l", "k")]);
        assert_eq!(stored.change(sweep(), 5_000), Changed::Known);
        assert_eq!((stored.version, stored.entries.len()), (3, 0));
    }

    #[test]
    fn a_store_holds_so_many_overrides_and_no_more() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(None);
        for n in 0..MAX_OVERRIDES {
            let name = ("l".to_owned(), n.to_string());
            stored.entries.insert(name, one.clone());
        }
        let more = Change::Set("l", "more", &one);
        assert_eq!(stored.change(more, 0), Changed::Full);
        let known = Change::Set("l", "7", &one);
        assert_eq!(stored.change(known, 0), Changed::Known);
        assert_eq!(stored.entries.len(), MAX_OVERRIDES);
    }

    /// A hash that only a liar could send would be parsed while decisions wait.
    #[test]
    fn a_hash_with_more_overrides_than_a_store_may_hold_is_refused() {
        let one = [&[0; 7][..], &to_text(&unlimited(None))].concat();
        let entry = |n: usize| (field("l", &n.to_string()).into_bytes(), one.clone());
        let mut hash: HashMap<_, _> = (0..MAX_OVERRIDES).map(entry).collect();
        hash.insert(OVERRIDES_HEAD.into(), vec![0, 0, 0, 0, 0, 0, 7]);
        let read = read_hash(&hash).unwrap();
        assert_eq!((read.version, read.entries.len()), (7, MAX_OVERRIDES));
        hash.extend([entry(MAX_OVERRIDES)]);
        let refused = read_hash(&hash).unwrap_err();
        assert!(refused.to_string().contains("10001"), "{refused}");
    }

    /// As in the script: the bytes of an override that is replaced are free again.
    #[test]
    fn a_full_store_replaces_an_override_by_one_of_the_same_size() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(None);
        let key = "k".repeat(MAX_STORED_BYTES - bytes_of("l", "", &one));
        let set = |stored: &mut StoredOverrides, key: &str, one| {
            stored.change(Change::Set("l", key, one), 0)
        };
        assert_eq!(set(&mut stored, &key, &one), Changed::Unknown);
        assert_eq!(set(&mut stored, &key, &one), Changed::Known);
        let longer = unlimited(Some("2026-11-22T03:00:00Z"));
        assert_eq!(set(&mut stored, &key, &longer), Changed::Full);
        assert_eq!(set(&mut stored, "", &one), Changed::Full);
    }
}
