//! What a request costs.

use crate::header::has_look_alike;
use crate::matcher::is_method;
use crate::seen::{Reading, Seen};
use crate::template::Template;

/// How a check's cost comes about.
#[derive(Debug)]
pub(crate) enum Cost {
    Constant(u64),
    /// The first entry that matches, else `default`.
    Table {
        entries: Vec<Entry>,
        default: u64,
    },
    /// What a header says, which something trusted in front of this filter has written.
    Header {
        name: String,
        most: u64,
        /// Where the header is not there.
        default: u64,
    },
}

/// A line of a table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub template: Option<Template>,
    /// In capitals; empty: any.
    pub methods: Vec<String>,
    pub cost: u64,
}

impl Cost {
    /// Whether the upstream might read another cost than [`Cost::of`] does.
    pub fn is_ambiguous(&self, seen: &Seen<'_>) -> bool {
        matches!(self, Self::Header { name, .. } if has_look_alike(seen.headers(), name))
    }

    /// Units, at least 1, for a request that its rule is for in these readings: the most that it costs in any of them.
    pub fn of<'a, 'r: 'a>(
        &self,
        seen: &Seen<'_>,
        readings: impl Iterator<Item = Reading<'a, 'r>>,
    ) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Table { entries, default } => {
                let of_method = || {
                    let entries = entries.iter();
                    entries.filter(|entry| {
                        entry.methods.is_empty() || is_method(&entry.methods, seen.method)
                    })
                };
                let costs = readings.map(|reading| match reading.path() {
                    Some(path) => of_method()
                        .find(|entry| entry.is_for(path))
                        .map_or(*default, |entry| entry.cost),
                    None => of_method().fold(*default, |most, entry| most.max(entry.cost)),
                });
                costs.max().unwrap_or(*default)
            }
            Self::Header {
                name,
                most,
                default,
            } => {
                // What is no number from 1 to `most`, or one of several, costs the most that it may: never too little.
                let costs = seen.headers().all(name).map(|value| {
                    let number = std::str::from_utf8(value).ok();
                    let number = number.and_then(|text| text.trim().parse().ok());
                    number
                        .filter(|cost| (1..=*most).contains(cost))
                        .unwrap_or(*most)
                });
                costs.max().unwrap_or(*default)
            }
        }
    }
}

impl Entry {
    fn is_for(&self, path: &[u8]) -> bool {
        let template = self.template.as_ref();
        template.is_none_or(|template| template.matches(path, &mut Vec::new()))
    }
}
