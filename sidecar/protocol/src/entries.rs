//! A list whose length is limited while it is read.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Deserialize, Deserializer, IgnoredAny, SeqAccess, Visitor};

use crate::{Code, MAX_ENTRIES, Problem};

/// The entries of a list. Those above [`MAX_ENTRIES`] are counted and not kept: otherwise a megabyte of numbers would
/// become a hundred megabytes of entries, each answered with its own error.
#[derive(Debug)]
pub(crate) struct Entries<T> {
    kept: Vec<T>,
    count: usize,
}

impl<T> Entries<T> {
    /// All entries of this list, or the error that there are too many.
    pub fn bounded(self, list: &str) -> Result<Vec<T>, Problem> {
        let count = self.count;
        if count > MAX_ENTRIES {
            let why = format_args!(
                "`{list}` has {count} entries; the maximum is {MAX_ENTRIES}: send several requests"
            );
            return Err(Problem::new(Code::TooManyEntries, why).at(list));
        }
        Ok(self.kept)
    }
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
        let mut kept = Vec::new();
        while kept.len() < MAX_ENTRIES
            && let Some(entry) = list.next_element()?
        {
            kept.push(entry);
        }
        let mut count = kept.len();
        while count >= MAX_ENTRIES && list.next_element::<IgnoredAny>()?.is_some() {
            count += 1;
        }
        Ok(Entries { kept, count })
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
            let entries = read::<u8>(&zeros(count));
            assert_eq!(entries.count, count);
            assert_eq!(entries.kept.len(), count.min(MAX_ENTRIES));
            assert_eq!(entries.bounded("list").is_ok(), whole, "{count}");
        }
        assert!(serde_json::from_str::<Entries<u8>>("[0,0").is_err());
        assert!(serde_json::from_str::<Entries<u8>>(&zeros(2_000).replace(']', "")).is_err());
        // A syntax error after the last allowed entry is an error of the whole list.
        assert!(serde_json::from_str::<Entries<u8>>(&zeros(2_000).replace("0]", "x]")).is_err());
    }
}
