//! Numbers of units that a request or its response tells: in a header, in metadata, by its size, its time or its status.

use crate::claims::Claim;

/// Units that a request reserves or has used.
#[derive(Debug)]
pub(crate) struct Amount {
    pub source: Source,
    pub weight: Weight,
    /// Most of it, before its weight.
    pub max: f64,
    /// In place of what is absent.
    pub default: Option<f64>,
}

/// Where the number is.
#[derive(Debug)]
pub(crate) enum Source {
    Constant(f64),
    /// A header of the request, or where usage is told, of the response.
    Header(String),
    /// A value in the dynamic metadata, and its number among those of its rule.
    Metadata(Claim, usize),
    /// The size of the request's body by its `content-length`, or of the response's.
    Bytes,
    /// How long the request took.
    Milliseconds,
    Status(StatusTable),
    GrpcStatus(StatusTable),
    Largest(Vec<Amount>),
    Sum(Vec<Amount>),
}

/// Units by status: `404`, `4xx` or `default`, the first that applies in this order.
#[derive(Debug)]
pub(crate) struct StatusTable(pub Vec<(String, f64)>);

/// What a number is multiplied by.
#[derive(Debug)]
pub(crate) enum Weight {
    Constant(f64),
    /// By a text in the metadata, such as the name of a model.
    Table {
        by: Claim,
        table: Vec<(String, f64)>,
        default: f64,
    },
}

/// What was found at a source.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Found {
    Nothing,
    /// Something that is no number.
    NoNumber,
    Number(f64),
}

/// What tells numbers: a request, or the end of its stream.
pub(crate) trait Tells {
    /// The number at a source that has no amounts of its own.
    fn number(&self, source: &Source) -> Found;
    /// The text at a place in the metadata.
    fn text(&self, claim: &Claim) -> Option<String>;
    /// What stands for something that is no number, or less than none, if it may be `max` at most.
    fn instead(&self, found: Found, max: f64) -> Option<f64>;
    /// Something was no number, less than none or too large.
    fn note_odd(&self) {}
}

impl Amount {
    /// The number, if all that it needs is there. Every source is read, whatever the others say.
    pub fn of(&self, told: &dyn Tells) -> Option<f64> {
        let found = match &self.source {
            Source::Constant(number) => Some(*number),
            Source::Largest(amounts) => {
                let found: Vec<_> = amounts.iter().map(|amount| amount.of(told)).collect();
                found.into_iter().flatten().reduce(f64::max)
            }
            Source::Sum(amounts) => {
                let found: Vec<_> = amounts.iter().map(|amount| amount.of(told)).collect();
                found.into_iter().sum()
            }
            source => match told.number(source) {
                Found::Nothing => None,
                Found::Number(number) if number >= 0.0 => Some(number),
                odd => {
                    told.note_odd();
                    told.instead(odd, self.max)
                }
            },
        };
        let found = found.inspect(|number| {
            if *number > self.max {
                told.note_odd();
            }
        });
        let number = found.map(|number| number.min(self.max)).or(self.default)?;
        Some(number * self.weight.of(told))
    }

    /// Calls this with each source that has no amounts of its own.
    pub fn visit<'a>(&'a self, visit: &mut dyn FnMut(&'a Source)) {
        match &self.source {
            Source::Largest(amounts) | Source::Sum(amounts) => {
                amounts.iter().for_each(|amount| amount.visit(visit));
            }
            source => visit(source),
        }
    }
}

impl Weight {
    fn of(&self, told: &dyn Tells) -> f64 {
        match self {
            Self::Constant(weight) => *weight,
            Self::Table { by, table, default } => {
                let name = told.text(by).unwrap_or_default();
                let mut entries = table.iter();
                entries
                    .find(|(entry, _)| *entry == name)
                    .map_or(*default, |(_, weight)| *weight)
            }
        }
    }
}

impl StatusTable {
    /// The units for a status; nothing without an entry for it.
    pub fn of(&self, status: u64) -> Found {
        let status = status.to_string();
        let class = |entry: &str| {
            let digits = entry.strip_suffix("xx");
            digits.is_some_and(|digit| status.len() == 3 && status.starts_with(digit))
        };
        let find = |is: &dyn Fn(&str) -> bool| self.0.iter().find(|(entry, _)| is(entry));
        let found = find(&|entry| entry == status).or_else(|| find(&class));
        let found = found.or_else(|| find(&|entry| entry == "default"));
        found.map_or(Found::Nothing, |(_, units)| Found::Number(*units))
    }
}

/// A number of units as it is counted: whole, not less than 0, and not more than a limit ever holds.
pub(crate) fn whole(units: f64, most: u64) -> u64 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and no number is 0"
    )]
    let whole = units.ceil() as u64;
    whole.min(most)
}

/// Rounds up to a step that grows with the number, at most by a sixty-fourth: requests that reserve nearly the same have the same
/// cost, and one cached denial answers all of them.
pub(crate) const fn rounded_up(units: u64) -> u64 {
    /// Bits that are kept.
    const BITS: u32 = 7;
    let bits = u64::BITS - units.leading_zeros();
    let step = 1 << bits.saturating_sub(BITS);
    units.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_adds_a_sixty_fourth_at_most_and_leaves_small_and_round_numbers() {
        for exact in [0, 1, 9, 127, 128, 1_000, 4_096, 16_000, 1 << 31] {
            assert_eq!(rounded_up(exact), exact);
        }
        let mut costs = std::collections::BTreeSet::new();
        for units in 1..100_000 {
            let rounded = rounded_up(units);
            assert!(rounded >= units && rounded - units <= units / 64, "{units}");
            costs.insert(rounded);
        }
        assert!(costs.len() < 800, "{}", costs.len());
    }

    #[test]
    fn statuses_are_found_by_number_then_class_then_default() {
        let table = StatusTable(
            [("default", 1.0), ("4xx", 2.0), ("404", 3.0)]
                .map(|(status, units)| (status.to_owned(), units))
                .into(),
        );
        for (status, units) in [(404, 3.0), (401, 2.0), (200, 1.0), (40, 1.0)] {
            assert_eq!(table.of(status), Found::Number(units), "{status}");
        }
        assert_eq!(StatusTable(Vec::new()).of(200), Found::Nothing);
    }

    #[test]
    fn units_are_whole_and_bounded() {
        for (units, expected) in [
            (0.1, 1),
            (-3.0, 0),
            (f64::NAN, 0),
            (f64::INFINITY, 9),
            (2.0, 2),
        ] {
            assert_eq!(whole(units, 9), expected);
        }
    }
}
