//! Which overrides a store has lost since this sidecar read them, and which have come back although they were removed: after a
//! key or all data was deleted, a snapshot was restored, or a replica that lagged became primary. Pure.
//!
//! A removal is an entry too, so an entry that has vanished without one was lost. Versions never repeat, so an unknown entry that
//! is no newer than the version this sidecar knew is old.

use crate::policy::Grant;
use crate::store::{Entries, Mark, StoredOverride, StoredOverrides};

/// The difference.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// The entries that the store should hold: blocks that it lost, removals in place of everything else that it lost, and marks on
    /// overrides that have come back.
    pub remedies: Entries,
    /// How many other overrides are gone.
    pub gone: usize,
}

impl Losses {
    /// Compares the overrides that were known at `now_ms`, in milliseconds since 1970, with those that were read.
    pub fn between(known: &StoredOverrides, read: &StoredOverrides, now_ms: u64) -> Self {
        let mut losses = Self::default();
        if known.version < read.swept {
            return losses;
        }
        for (name, entry) in &known.entries {
            let now = read.entries.get(name);
            if entry.has_ended(now_ms) || now.is_some_and(|now| now.version >= entry.version) {
                continue;
            }
            let is_block = entry.is_in_force() && entry.one.grant == Grant::Blocked;
            losses.gone += usize::from(entry.is_in_force() && !is_block);
            // The remedy keeps its version, so that later changes by other sidecars win over it and earlier ones do not.
            let mark = match now {
                _ if is_block => Mark::Restored,
                Some(now) if now.is_in_force() => continue,
                _ => Mark::Removed,
            };
            let mut remedy = entry.clone();
            remedy.mark = mark;
            losses.remedies.insert(name.clone(), remedy);
        }
        for (name, entry) in &read.entries {
            let is_old = match known.entries.get(name) {
                Some(known) => entry.version < known.version,
                // An override that another sidecar has restored is old, and yet unknown to sidecars that have started since.
                None if entry.mark == Mark::Restored => read.version < known.version,
                None => entry.version <= known.version,
            };
            if is_old && entry.is_in_force() && !entry.has_ended(now_ms) {
                let returned = || StoredOverride {
                    // A sidecar that knows of a later block restores that.
                    version: known.version,
                    mark: Mark::Returned,
                    one: entry.one.clone(),
                };
                losses.remedies.entry(name.clone()).or_insert_with(returned);
            }
        }
        losses
    }

    /// How many blocks were lost, how many overrides are back, and how many others are gone.
    pub fn counts(&self) -> (usize, usize, usize) {
        let remedies = || self.remedies.values();
        let of = |mark| remedies().filter(|entry| entry.mark == mark).count();
        (of(Mark::Restored), of(Mark::Returned), self.gone)
    }
}

#[cfg(test)]
mod tests {
    use sluicegate_protocol::Whom;

    use super::*;
    use crate::policy::Override;

    const BLOCKED: &str = r#"{"blocked":true}"#;
    const UNLIMITED: &str = r#"{"unlimited":true}"#;
    const ENDS: &str = r#"{"blocked":true,"until":"1970-01-01T00:00:05Z"}"#;
    use Mark::{Removed, Restored, Returned, Set};

    /// A store of this version.
    fn store(version: u64, entries: &[(&str, u64, Mark, &str)]) -> StoredOverrides {
        let entry = |(key, version, mark, terms): &(&str, u64, Mark, &str)| {
            let one = Override::read(serde_json::from_str(terms).unwrap()).unwrap();
            let (version, mark) = (*version, *mark);
            let name = ("l".to_owned(), Whom::Key((*key).to_owned()));
            (name, StoredOverride { version, mark, one })
        };
        StoredOverrides {
            version,
            entries: entries.iter().map(entry).collect(),
            ..StoredOverrides::default()
        }
    }

    /// Keys with the mark that they should have, and how many others are gone.
    fn losses(known: &StoredOverrides, read: &StoredOverrides) -> (Vec<(String, Mark)>, usize) {
        let losses = Losses::between(known, read, 4_000);
        let remedies = losses.remedies.into_iter();
        let remedies = remedies.map(|((_, whom), entry)| match whom {
            Whom::Key(key) => (key, entry.mark),
            other => panic!("{other:?}"),
        });
        (remedies.collect(), losses.gone)
    }

    fn remedy(key: &str, mark: Mark) -> (String, Mark) {
        (key.to_owned(), mark)
    }

    const NOTHING: (Vec<(String, Mark)>, usize) = (Vec::new(), 0);

    #[test]
    fn ordinary_changes_are_no_loss() {
        let known = store(5, &[("a", 3, Set, BLOCKED), ("b", 5, Set, UNLIMITED)]);
        let removed = store(7, &[("a", 7, Removed, BLOCKED), ("b", 6, Set, BLOCKED)]);
        assert_eq!(losses(&known, &removed), NOTHING);
        let new = store(
            8,
            &[
                ("a", 7, Removed, BLOCKED),
                ("b", 6, Set, BLOCKED),
                ("c", 8, Set, UNLIMITED),
            ],
        );
        assert_eq!(losses(&removed, &new), NOTHING);
        let marked = store(
            9,
            &[("a", 3, Restored, BLOCKED), ("b", 9, Returned, UNLIMITED)],
        );
        assert_eq!(
            losses(&known, &marked),
            NOTHING,
            "another sidecar was first"
        );
    }

    #[test]
    fn blocks_that_vanished_are_restored_and_others_are_told() {
        let known = [
            ("a", 1, Set, BLOCKED),
            ("b", 2, Set, UNLIMITED),
            ("c", 3, Removed, BLOCKED),
            ("d", 4, Set, ENDS),
        ];
        let known = store(4, &known);
        let all = vec![
            remedy("a", Restored),
            remedy("b", Removed),
            remedy("c", Removed),
            remedy("d", Restored),
        ];
        assert_eq!(losses(&known, &store(0, &[])), (all.clone(), 1));
        // A newer override has been set since.
        let other = store(9, &[("e", 9, Set, UNLIMITED)]);
        assert_eq!(losses(&known, &other), (all, 1));
        let ended = Losses::between(&known, &other, 5_000);
        assert_eq!(ended.remedies.len(), 3, "without the one that has ended");
        // Who was cut off does not bring back what was removed meanwhile.
        let removed = store(
            9,
            &[
                ("a", 8, Removed, BLOCKED),
                ("b", 2, Set, UNLIMITED),
                ("d", 4, Set, ENDS),
            ],
        );
        assert_eq!(losses(&known, &removed), (vec![remedy("c", Removed)], 0));
        let kept = Losses::between(&known, &store(0, &[]), 0).remedies;
        assert!(
            kept.values().map(|entry| entry.version).eq([1, 2, 3, 4]),
            "{kept:?}"
        );
    }

    #[test]
    fn what_was_removed_or_replaced_and_is_back_has_returned() {
        let known = [
            ("a", 7, Removed, UNLIMITED),
            ("c", 8, Set, UNLIMITED),
            ("d", 9, Set, BLOCKED),
        ];
        let known = store(9, &known);
        let snapshot = store(
            5,
            &[
                ("a", 1, Set, UNLIMITED),
                ("b", 2, Set, BLOCKED),
                ("c", 3, Set, UNLIMITED),
                ("d", 4, Set, UNLIMITED),
            ],
        );
        let marks = [
            ("a", Returned),
            ("b", Returned),
            ("c", Returned),
            ("d", Restored),
        ];
        let marks = marks.map(|(key, mark)| remedy(key, mark)).to_vec();
        assert_eq!(losses(&known, &snapshot), (marks, 1));
        let marked = store(10, &[("a", 9, Returned, UNLIMITED)]);
        assert_eq!(
            losses(&marked, &snapshot).0[0],
            remedy("a", Returned),
            "again"
        );
    }

    /// The change was made just before the loss.
    #[test]
    fn a_block_is_not_restored_once_another_sidecar_tells_that_it_was_replaced() {
        let (before, after) = (
            store(1, &[("a", 1, Set, BLOCKED)]),
            store(2, &[("a", 2, Set, UNLIMITED)]),
        );
        let first = Losses::between(&after, &store(0, &[]), 0).remedies;
        let told = StoredOverrides {
            entries: first,
            ..store(9, &[])
        };
        assert_eq!(losses(&before, &told), NOTHING);
        let restored = store(9, &[("a", 1, Restored, BLOCKED)]);
        assert_eq!(losses(&after, &restored), (vec![remedy("a", Returned)], 1));
    }

    /// A sidecar restores a block before it hears that it was removed.
    #[test]
    fn a_block_is_restored_only_for_who_does_not_know_of_its_removal() {
        let restored = store(9, &[("a", 1, Restored, BLOCKED)]);
        let known = store(3, &[("a", 3, Removed, BLOCKED)]);
        assert_eq!(losses(&known, &restored), (vec![remedy("a", Returned)], 0));
        assert_eq!(
            losses(&store(8, &[]), &restored),
            NOTHING,
            "it has started since"
        );
        assert_eq!(
            losses(&store(11, &[]), &restored),
            (vec![remedy("a", Returned)], 0),
            "from a snapshot"
        );
    }

    #[test]
    fn what_may_have_been_swept_is_no_loss() {
        let known = store(5, &[("a", 3, Set, BLOCKED)]);
        let swept = |swept| StoredOverrides {
            swept,
            ..store(9, &[])
        };
        assert_eq!(losses(&known, &swept(6)), NOTHING);
        assert_eq!(losses(&known, &swept(u64::MAX)), NOTHING);
        assert_eq!(losses(&known, &swept(5)), (vec![remedy("a", Restored)], 0));
    }
}
