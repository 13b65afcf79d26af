//! Overrides in a store.
//!
//! In Redis they are one hash, which the script `lua/overrides.lua` changes and every sidecar reads: one field for each
//! override, and a head field whose version shows whether the others changed. What has been removed stays for a day, as a
//! removal: so a loss can be told from a removal.

use std::collections::{BTreeMap, HashMap};

use sluicegate_protocol::{OverrideTerms, Whom};

use crate::policy::{MAX_OVERRIDES, Mark, Override};

/// The field of the hash that has the version.
pub const OVERRIDES_HEAD: &str = ":";

/// Most bytes of all overrides together, including their keys: each sidecar reads all of them after a change.
pub const MAX_STORED_BYTES: usize = 4 << 20;

/// What has happened to an override, in the hash before its text.
const fn text_of(mark: Mark) -> &'static str {
    match mark {
        Mark::Set => "",
        Mark::Restored => " ",
        Mark::Returned => "?",
        Mark::Removed => "-",
    }
}

/// A limit, and its keys.
pub type Name = (String, Whom);

/// The store's overrides.
pub type Entries = BTreeMap<Name, Override>;

/// A consistent snapshot of a store's overrides.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOverrides {
    /// Differs after each change; 0 if there are no overrides.
    pub version: u64,
    /// What has vanished since an earlier version may have ended.
    pub swept: u64,
    /// By limit and keys.
    pub entries: Entries,
    /// How many others there are, which this release cannot read.
    pub unreadable: usize,
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
pub fn read_hash(hash: &HashMap<Vec<u8>, Vec<u8>>) -> StoredOverrides {
    let head_field = OVERRIDES_HEAD.as_bytes();
    let head = hash.get(head_field).map(Vec::as_slice);
    let entries = hash.len() - usize::from(head.is_some());
    let swept = head.and_then(|head| head.get(26..33));
    let entry =
        |(field, state): (&Vec<u8>, &Vec<u8>)| from_state(std::str::from_utf8(field).ok()?, state);
    let all = hash.iter().filter(|(field, _)| *field != head_field);
    let readable: Entries = all.filter_map(entry).collect();
    StoredOverrides {
        version: version(head),
        swept: swept.map_or(0, number),
        unreadable: entries - readable.len(),
        entries: readable,
    }
}

/// The field of an override in the hash. No limit's name contains `:`, `#` or `*`.
pub fn field((limit, whom): &Name) -> String {
    match whom {
        Whom::Key(key) => format!("{limit}:{key}"),
        Whom::Subject(digits) => format!("{limit}#:{digits}"),
        Whom::AllKeys(_) => format!("{limit}*:"),
    }
}

/// The limit and the keys of a field.
fn name((limit, key): (&str, &str)) -> Name {
    let (of_subject, of_all) = (limit.strip_suffix('#'), limit.strip_suffix('*'));
    let (limit, whom) = match (of_subject, of_all) {
        (Some(limit), _) => (limit, Whom::Subject(key.to_owned())),
        (None, Some(limit)) if key.is_empty() => (limit, Whom::AllKeys(true)),
        (None, _) => (limit, Whom::Key(key.to_owned())),
    };
    (limit.to_owned(), whom)
}

/// The text of an override in the hash.
pub fn to_text(entry: &Override) -> Vec<u8> {
    let mut text = text_of(entry.mark).as_bytes().to_vec();
    // Strings and numbers can always be encoded as JSON.
    text.extend(serde_json::to_vec(&entry.terms).unwrap_or_default());
    text
}

/// Parses an override of the hash. `None` if a newer sidecar wrote it in a form that this one cannot read; the others
/// still apply.
fn from_state(field: &str, state: &[u8]) -> Option<(Name, Override)> {
    let name = name(field.split_once(':')?);
    let (version, text) = state.split_at_checked(7)?;
    let marks = [Mark::Restored, Mark::Returned, Mark::Removed, Mark::Set];
    let after = |mark: Mark| Some((mark, text.strip_prefix(text_of(mark).as_bytes())?));
    let (mark, text) = marks.into_iter().find_map(after)?;
    let terms: OverrideTerms = serde_json::from_slice(text).ok()?;
    let mut entry = Override::read(terms).ok()?;
    (entry.version, entry.mark) = (number(version), mark);
    Some((name, entry))
}

impl StoredOverrides {
    /// Sets an override, with the version of the change that does so; whether there was one.
    pub fn set(&mut self, name: &Name, one: &Override) -> bool {
        let before = self.entries.insert(name.clone(), one.clone());
        before.is_some_and(|before| !before.is_removal())
    }

    /// Removes an override; whether there was one.
    pub fn remove(&mut self, name: &Name) -> bool {
        let entry = self.entries.get_mut(name);
        let entry = entry.filter(|entry| !entry.is_removal());
        entry
            .map(|entry| (entry.version, entry.mark) = (0, Mark::Removed))
            .is_some()
    }

    /// Forgets removals if there is no room for them; whether the rest fits.
    pub fn fit(&mut self) -> bool {
        let most = [MAX_OVERRIDES, MAX_STORED_BYTES].map(|most| most as u64);
        let fits = |sums: [u64; 4]| sums[0] <= most[0] && sums[1] <= most[1];
        if !fits(self.sums()) {
            self.entries.retain(|_, entry| !entry.is_removal());
        }
        fits(self.sums())
    }

    /// Entries, their bytes, those without an end, and the latest end of the others.
    pub fn sums(&self) -> [u64; 4] {
        let unreadable = self.unreadable as u64;
        let mut sums = [unreadable, 0, unreadable, 0];
        for (name, entry) in &self.entries {
            let end_ms = entry.end_ms();
            sums[0] += 1;
            sums[1] += (field(name).len() + to_text(entry).len()) as u64;
            sums[2] += u64::from(end_ms.is_none());
            sums[3] = sums[3].max(end_ms.unwrap_or(0));
        }
        sums
    }

    /// What `next` does not have any more.
    pub fn dropped_by<'a>(
        &'a self,
        next: &'a Self,
    ) -> impl Iterator<Item = (&'a Name, &'a Override)> {
        let entries = self.entries.iter();
        entries.filter(|(name, _)| !next.entries.contains_key(*name))
    }

    /// What a store has when it has changed these to `next`, by a change of this version.
    pub fn changed_to(&self, next: &Self, version: u64) -> Self {
        let mut changed = next.clone();
        let drops = self.dropped_by(next).next().is_some() || self.swept == u64::MAX;
        changed.swept = if drops { version } else { self.swept };
        changed.version = version;
        let entries = changed.entries.values_mut();
        for entry in entries.filter(|entry| entry.version == 0) {
            entry.version = version;
        }
        changed
    }

    /// Becomes `next`, as the script does, if this is still what was `read`; for the embedded store. What it is then.
    pub fn replace(&mut self, read: &Self, next: &Self, now_us: u64) -> Option<Self> {
        if self.version != read.version {
            return None;
        }
        let version = self.version.max(now_us.saturating_sub(1)).max(next.version) + 1;
        *self = self.changed_to(next, version);
        Some(self.clone())
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

    fn of_key(key: &str) -> Name {
        ("l".to_owned(), Whom::Key(key.to_owned()))
    }

    fn entry(mark: Mark, one: &Override) -> Override {
        let (version, one) = (7, one.clone());
        Override {
            version,
            mark,
            ..one
        }
    }

    /// As the script does.
    fn state(entry: &Override) -> Vec<u8> {
        let version = entry.version.to_be_bytes();
        [&version[1..], &to_text(entry)].concat()
    }

    #[test]
    fn an_override_is_read_as_it_was_written() {
        let one = unlimited(Some("2026-11-22T03:00:00Z"));
        let subject = Whom::Subject("8aca0dd300d25df0a9b3".to_owned());
        let names = [
            of_key("a:b\n"),
            of_key("#:*"),
            ("l".to_owned(), subject),
            ("l".to_owned(), Whom::AllKeys(true)),
        ];
        let marks = [Mark::Set, Mark::Restored, Mark::Returned, Mark::Removed];
        for (name, mark) in names.into_iter().zip(marks) {
            let entry = entry(mark, &one);
            let read = from_state(&field(&name), &state(&entry)).unwrap();
            assert_eq!(read, (name, entry));
        }
        for (field, text) in [
            ("l:k", "{}"),
            ("l", r#"{"unlimited":true}"#),
            ("l:k", r#"{"more":1}"#),
            ("l:k", r#"!{"unlimited":true}"#),
        ] {
            let state = [&[0; 7], text.as_bytes()].concat();
            assert!(from_state(field, &state).is_none(), "{field} {text}");
        }
    }

    #[test]
    fn a_change_applies_to_what_was_read_and_to_nothing_else() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(Some("1970-01-01T00:00:05Z"));
        let mut next = stored.clone();
        assert!(!next.set(&of_key("k"), &one) && next.set(&of_key("k"), &one));
        assert!(!next.remove(&of_key("other")));
        let read = stored.clone();
        assert!(stored.replace(&read, &next, 4).is_some());
        let again = stored.replace(&read, &next, 5);
        assert_eq!(again, None, "it has changed since");
        let name = of_key("k");
        assert_eq!((stored.version, stored.entries[&name].version), (4, 4));
        let read = stored.clone();
        let mut next = read.clone();
        assert!(next.remove(&of_key("k")) && !next.remove(&of_key("k")));
        next.version = 9;
        assert!(stored.replace(&read, &next, 5).is_some());
        assert_eq!(
            (stored.version, stored.swept),
            (10, 0),
            "newer than what was known"
        );
        let removal = &stored.entries[&name];
        assert_eq!((removal.version, removal.is_removal()), (10, true));
        assert!(!removal.has_ended(4_999) && removal.has_ended(5_000));
        assert!(!stored.clone().set(&of_key("k"), &one), "it was removed");
        let empty = StoredOverrides::default();
        assert!(stored.replace(&stored.clone(), &empty, 5).is_some());
        assert_eq!((stored.version, stored.swept), (11, 11));
    }

    #[test]
    fn a_store_holds_so_many_overrides_and_no_more_and_removals_make_room() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(None);
        for n in 0..MAX_OVERRIDES {
            stored.set(&of_key(&n.to_string()), &one);
        }
        let mut more = stored.clone();
        assert!(more.fit());
        more.set(&of_key("more"), &one);
        assert!(!more.fit());
        assert!(more.remove(&of_key("7")) && more.fit());
        assert_eq!(more.entries.len(), MAX_OVERRIDES);
    }

    #[test]
    fn a_full_store_replaces_an_override_by_one_of_the_same_size() {
        let mut stored = StoredOverrides::default();
        let one = unlimited(None);
        stored.set(&of_key(""), &one);
        let [_, bytes, ..] = stored.sums();
        let mut full = StoredOverrides::default();
        let key = "k".repeat(MAX_STORED_BYTES - bytes as usize);
        full.set(&of_key(&key), &one);
        assert!(full.fit());
        full.set(&of_key(&key), &one);
        assert!(full.fit());
        full.set(&of_key(&key), &unlimited(Some("2026-11-22T03:00:00Z")));
        assert!(!full.fit());
    }

    #[test]
    fn a_head_tells_when_entries_were_dropped() {
        let head = |bytes: usize| HashMap::from([(OVERRIDES_HEAD.into(), vec![1; bytes])]);
        assert_eq!(read_hash(&head(33)).swept, 0x0001_0101_0101_0101);
        assert_eq!(read_hash(&HashMap::new()).swept, 0);
        let mut unreadable = head(33);
        unreadable.insert(b"l:k".to_vec(), b"12345670".to_vec());
        let [entries, _, endless, _] = read_hash(&unreadable).sums();
        assert_eq!((entries, endless), (1, 1), "a newer release wrote it");
    }
}
