//! The cost of a request.

use crate::header::has_look_alike;
use crate::matcher::is_method;
use crate::request_view::{Reading, RequestView};
use crate::template::Template;

/// How to determine the cost of a check.
#[derive(Debug)]
pub(crate) enum Cost {
    Constant(u64),
    /// The cost of the first entry that matches, otherwise `default`.
    Table {
        entries: Vec<Entry>,
        default: u64,
    },
    /// The value of a header that something trusted in front of this filter sets.
    Header {
        name: String,
        most: u64,
        /// The cost without the header.
        default: u64,
    },
}

/// An entry of a cost table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub template: Option<Template>,
    /// In capitals; an empty list includes any method.
    pub methods: Vec<String>,
    pub cost: u64,
}

impl Cost {
    /// Whether the upstream might see another cost than [`Cost::of`] does.
    pub fn is_ambiguous(&self, view: &RequestView<'_>) -> bool {
        matches!(self, Self::Header { name, .. } if has_look_alike(view.headers(), name))
    }

    /// Cost in units, at least 1, of a request whose rule applies in these readings: the largest cost in any of them.
    pub fn of<'a, 'r: 'a>(
        &self,
        view: &RequestView<'_>,
        readings: impl Iterator<Item = Reading<'a, 'r>>,
    ) -> u64 {
        match self {
            Self::Constant(cost) => *cost,
            Self::Table { entries, default } => {
                let of_method = || {
                    let entries = entries.iter();
                    entries.filter(|entry| {
                        entry.methods.is_empty() || is_method(&entry.methods, view.method)
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
                // An invalid value costs `most`, and of several values the largest counts: never too little.
                let costs = view.headers().all(name).map(|value| {
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
