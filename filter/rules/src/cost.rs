//! What a request costs.

use crate::header::has_look_alike;
use crate::matcher::Seen;
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

    /// Units, at least 1.
    pub fn of(&self, seen: &Seen<'_>) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Table { entries, default } => {
                // The dearest reading of the path counts: see `path.rs`.
                let dearest = seen.target.readings().filter_map(|path| {
                    let entry = entries.iter().find(|entry| entry.matches(seen, path))?;
                    Some(entry.cost)
                });
                dearest.max().unwrap_or(*default)
            }
            Self::Header {
                name,
                most,
                default,
            } => {
                // What is no number, or too large, or one of several, costs the most that it may: never too little.
                let costs = seen.headers().all(name).map(|value| {
                    let number = std::str::from_utf8(value).ok();
                    let number = number.and_then(|text| text.trim().parse().ok());
                    number.unwrap_or(*most).clamp(1, *most)
                });
                costs.max().unwrap_or(*default)
            }
        }
    }
}

impl Entry {
    fn matches(&self, seen: &Seen<'_>, path: &[u8]) -> bool {
        let method = self.methods.is_empty()
            || self
                .methods
                .iter()
                .any(|method| seen.method.eq_ignore_ascii_case(method.as_bytes()));
        let path = self
            .template
            .as_ref()
            .is_none_or(|template| template.matches(path, &mut Vec::new()));
        method && path
    }
}
