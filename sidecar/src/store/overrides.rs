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

/// How long a removed override is remembered: a sidecar that was cut off for less does not restore it.
const REMEMBERED_MS: u64 = 86_400_000;

/// What has happened to an override.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// It was set.
    Set,
    /// It was lost from the store, and a sidecar that knew it has written it back.
    Restored,
    /// It was removed or replaced, and is back. Not in force.
    Returned,
    /// It was removed. Not in force.
    Removed,
}

impl Mark {
    /// In the hash, before the text.
    const fn text(self) -> &'static str {
        match self {
            Self::Set => "",
            // Release 0.1.0 reads JSON after it.
            Self::Restored => " ",
            Self::Returned => "?",
            Self::Removed => "-",
        }
    }
}

/// An override in the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// That of the change that made it.
    pub version: u64,
    /// What has happened to it.
    pub mark: Mark,
    /// The override.
    pub one: Override,
}

impl Entry {
    /// Whether it has an effect until it ends.
    pub const fn is_in_force(&self) -> bool {
        matches!(self.mark, Mark::Set | Mark::Restored)
    }

    /// Whether it only says that there is none.
    pub fn is_removal(&self) -> bool {
        self.mark == Mark::Removed
    }

    /// Whether it has ended at `now_ms`, in milliseconds since 1970.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.end_ms().is_some_and(|end_ms| end_ms <= now_ms)
    }

    /// When it ends.
    pub fn end_ms(&self) -> Option<u64> {
        let forgotten = self
            .is_removal()
            .then(|| self.version / 1_000 + REMEMBERED_MS);
        self.one.until_ms.into_iter().chain(forgotten).min()
    }
}

/// A limit and a key.
pub type Name = (String, String);

/// The store's overrides.
pub type Entries = BTreeMap<Name, Entry>;

/// A consistent snapshot of a store's overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Differs after each change; 0 if there are no overrides.
    pub version: u64,
    /// What has vanished since an earlier version may have ended. The largest number if that is not known, because a sidecar
    /// of release 0.1.0 has changed them.
    pub swept: u64,
    /// By limit and key.
    pub entries: Entries,
}

/// A change of one override, or of several.
#[derive(Clone, Copy, Debug)]
pub enum Change<'a> {
    /// Sets the override of a limit and key.
    Set(&'a str, &'a str, &'a Override),
    /// Removes the override of a limit and key.
    Remove(&'a str, &'a str),
    /// Drops these entries: removals, and overrides whose end has passed.
    Sweep(&'a [(&'a Name, &'a Entry)]),
    /// Sets these entries, if the store's version is this.
    Recover(u64, &'a Entries),
}

/// The result of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// An override was replaced or removed.
    Known,
    /// There was no override for the limit and key.
    Unknown,
    /// [`MAX_OVERRIDES`] or [`MAX_STORED_BYTES`] would be exceeded: nothing was changed.
    Full,
    /// The store has another version: nothing was changed.
    Outdated,
}

/// A number in the head of the hash; 0 without a hash.
fn number(head: &[u8]) -> u64 {
    let bytes = head.first_chunk::<7>().into_iter().flatten();
    bytes.fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// The version in the head of the hash; 0 without a hash.
pub fn version(head: Option<&[u8]>) -> u64 {
    number(head.unwrap_or_default())
}

/// Parses the whole hash.
///
/// # Errors
/// It has more than [`MAX_OVERRIDES`]: no sidecar wrote them all.
pub fn read_hash(hash: &HashMap<Vec<u8>, Vec<u8>>) -> Result<StoredOverrides, StoreError> {
    let head_field = OVERRIDES_HEAD.as_bytes();
    let head = hash.get(head_field).map(Vec::as_slice);
    let entries = hash.len() - usize::from(head.is_some());
    if entries > MAX_OVERRIDES {
        return Err(StoreError::TooManyOverrides(entries));
    }
    let swept = head.map(|head| head.get(26..33).map_or(u64::MAX, number));
    let entry =
        |(field, state): (&Vec<u8>, &Vec<u8>)| from_state(std::str::from_utf8(field).ok()?, state);
    Ok(StoredOverrides {
        version: version(head),
        swept: swept.unwrap_or(0),
        entries: hash
            .iter()
            .filter(|(field, _)| *field != head_field)
            .filter_map(entry)
            .collect(),
    })
}

/// The field of an override in the hash. No limit's name contains a colon.
pub fn field(limit: &str, key: &str) -> String {
    format!("{limit}:{key}")
}

/// The text of an override in the hash.
pub fn to_text(mark: Mark, one: &Override) -> Vec<u8> {
    let mut text = mark.text().as_bytes().to_vec();
    // Strings and numbers can always be encoded as JSON.
    text.extend(serde_json::to_vec(&one.terms).unwrap_or_default());
    text
}

/// Parses an override of the hash. `None` if a newer sidecar wrote it in a form that this one cannot read; the others
/// still apply.
fn from_state(field: &str, state: &[u8]) -> Option<(Name, Entry)> {
    let (limit, key) = field.split_once(':')?;
    let (version, text) = state.split_at_checked(7)?;
    let (mark, text) = match text.split_first()? {
        (b' ', text) => (Mark::Restored, text),
        (b'?', text) => (Mark::Returned, text),
        (b'-', text) => (Mark::Removed, text),
        _ => (Mark::Set, text),
    };
    let terms: OverrideTerms = serde_json::from_slice(text).ok()?;
    let entry = Entry {
        version: number(version),
        mark,
        one: Override::read(terms).ok()?,
    };
    Some(((limit.to_owned(), key.to_owned()), entry))
}

/// What an entry adds to the bytes that [`MAX_STORED_BYTES`] bounds.
fn bytes_of((limit, key): &Name, mark: Mark, one: &Override) -> usize {
    field(limit, key).len() + to_text(mark, one).len()
}

impl StoredOverrides {
    /// Makes a change as the script does, at `now_us` in microseconds since 1970; for the embedded store.
    pub fn change(&mut self, known: u64, change: Change<'_>, now_us: u64) -> Changed {
        let named = |limit: &str, key: &str| (limit.to_owned(), key.to_owned());
        let version = self.version.max(now_us.saturating_sub(1)).max(known) + 1;
        let (known, changed) = match change {
            Change::Set(limit, key, one) => {
                let entry = Entry {
                    version,
                    mark: Mark::Set,
                    one: one.clone(),
                };
                let name = named(limit, key);
                let known = self
                    .entries
                    .get(&name)
                    .is_some_and(|before| !before.is_removal());
                if !self.put(&Entries::from([(name, entry)])) {
                    return Changed::Full;
                }
                (known, true)
            }
            Change::Remove(limit, key) => match self.entries.get_mut(&named(limit, key)) {
                Some(entry) if !entry.is_removal() => {
                    (entry.version, entry.mark) = (version, Mark::Removed);
                    (true, true)
                }
                _ => (false, false),
            },
            Change::Sweep(ended) => {
                let before = self.entries.len();
                for (name, entry) in ended {
                    let is_same = self.entries.get(*name) == Some(*entry);
                    if is_same && (entry.is_removal() || entry.has_ended(now_us / 1_000)) {
                        self.entries.remove(*name);
                        self.swept = version;
                    }
                }
                let swept = self.entries.len() < before;
                (swept, swept)
            }
            Change::Recover(read, _) if self.version != read => return Changed::Outdated,
            Change::Recover(_, entries) => {
                if !self.put(entries) {
                    return Changed::Full;
                }
                (true, true)
            }
        };
        if changed {
            self.version = version;
        }
        if known {
            Changed::Known
        } else {
            Changed::Unknown
        }
    }

    /// Sets entries; false if they would be too many or too large, and then it sets none.
    fn put(&mut self, entries: &Entries) -> bool {
        let mut all = self.entries.clone();
        all.extend(entries.clone());
        let bytes = |(name, entry): (&Name, &Entry)| bytes_of(name, entry.mark, &entry.one);
        let fits =
            all.len() <= MAX_OVERRIDES && all.iter().map(bytes).sum::<usize>() <= MAX_STORED_BYTES;
        if fits {
            self.entries = all;
        }
        fits
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
