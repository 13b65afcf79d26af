//! A list whose length is limited while it is read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::MAX_ENTRIES;

/// The entries of a list. Those above [`MAX_ENTRIES`] are counted and not kept: otherwise a megabyte of numbers would
/// become a hundred megabytes of entries, each answered with its own error.
#[derive(Debug)]
pub(crate) enum Entries<T> {
    /// All entries.
    Whole(Vec<T>),
    /// The number of entries, which is too large.
    TooMany(usize),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Reader(PhantomData))
    }
}

struct Reader<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for Reader<T> {
    type Value = Entries<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The same words as a `Vec`'s; `field_error.rs` rewrites them.
        f.write_str("a sequence")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut entries = Vec::new();
        while entries.len() < MAX_ENTRIES {
            match list.next_element()? {
                Some(entry) => entries.push(entry),
                None => return Ok(Entries::Whole(entries)),
            }
        }
        let mut count = MAX_ENTRIES;
        while list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(if count > MAX_ENTRIES {
            Entries::TooMany(count)
        } else {
            Entries::Whole(entries)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read<T: for<'a> Deserialize<'a>>(json: &str) -> Entries<T> {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_list_that_is_too_long_is_counted_and_not_kept() {
        let zeros = |count| format!("[{}]", vec!["0"; count].join(","));
        for (count, whole) in [(0, true), (1_024, true), (1_025, false), (500_000, false)] {
            match read::<u8>(&zeros(count)) {
                Entries::Whole(list) => assert!(whole && list.len() == count, "{count}"),
                Entries::TooMany(many) => assert!(!whole && many == count, "{count}"),
            }
        }
        assert!(serde_json::from_str::<Entries<u8>>("[0,0").is_err());
        assert!(serde_json::from_str::<Entries<u8>>(&zeros(2_000).replace(']', "")).is_err());
        // A syntax error after the last allowed entry is an error of the whole list.
        assert!(serde_json::from_str::<Entries<u8>>(&zeros(2_000).replace("0]", "x]")).is_err());
    }
}
