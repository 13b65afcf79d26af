//! The cost of a request.

use std::cell::OnceCell;

use sluicegate_protocol::MAX_COST;

use crate::amount::{self, Amount, Found, Source, Tells};
use crate::claims::Claim;
use crate::header::has_look_alike;
use crate::matcher::is_method;
use crate::request_view::{Reading, RequestView};
use crate::settle::number_of;
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
    /// What the request tells; rounded up, because it is only reserved.
    Amount(Amount),
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
        let is_like = |name: &str| has_look_alike(view.headers(), name);
        match self {
            Self::Header { name, .. } => is_like(name),
            Self::Amount(amount) => {
                let mut found = false;
                amount.visit(&mut |source| {
                    found |= matches!(source, Source::Header(name) if is_like(name));
                });
                found
            }
            Self::Constant(_) | Self::Table { .. } => false,
        }
    }

    /// Cost in units of a request whose rule applies in these readings: the largest cost in any of them.
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
            Self::Amount(amount) => {
                let told = Asked {
                    view,
                    metadata: OnceCell::new(),
                };
                let units = amount.of(&told).unwrap_or_default();
                amount::rounded_up(amount::whole(units, MAX_COST)).min(MAX_COST)
            }
        }
    }
}

/// A request that tells what it may use.
struct Asked<'a, 'v> {
    view: &'a RequestView<'v>,
    metadata: OnceCell<Vec<u8>>,
}

impl Asked<'_, '_> {
    fn metadata(&self) -> &[u8] {
        let read = || self.view.request.property(&["metadata"]);
        self.metadata.get_or_init(|| read().unwrap_or_default())
    }
}

impl Tells for Asked<'_, '_> {
    fn number(&self, source: &Source) -> Found {
        let header = |name: &str| number_of(self.view.headers().all(name));
        match source {
            Source::Header(name) => header(name),
            Source::Bytes => header("content-length"),
            Source::Metadata(claim, _) => claim.number(self.metadata()),
            _ => Found::Nothing,
        }
    }

    fn text(&self, claim: &Claim) -> Option<String> {
        claim.word(self.metadata())
    }

    /// What is no number costs as much as it may: never too little.
    fn instead(&self, _: Found, max: f64) -> Option<f64> {
        Some(max)
    }
}

impl Entry {
    fn is_for(&self, path: &[u8]) -> bool {
        let template = self.template.as_ref();
        template.is_none_or(|template| template.matches(path, &mut Vec::new()))
    }
}
