//! Parts of leases: units that a sidecar has taken in advance and lends to a filter, which admits requests from them without
//! asking. The filter's side is in a header of its calls, which older sidecars ignore; the sidecar's is in the answer, where
//! older filters ignore it.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::integer::is_zero;

/// The header by which a filter says that it can spend parts of leases, and what became of those that it has: a JSON list of
/// [`PartReport`]s, often empty.
pub const LEASES_HEADER: &str = "sluicegate-leases";

/// Most parts in one report, and in one answer. A report then has at most some 12 KB.
pub const MAX_PARTS: usize = 128;

/// Units that a filter may spend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeasePart<'a> {
    /// A random number from 1 to 2^53 - 1. Anyone who has it can return the units, so keep it secret.
    pub id: u64,
    /// The name of the limit.
    #[serde(borrow)]
    pub limit: Cow<'a, str>,
    /// The key.
    #[serde(borrow)]
    pub key: Cow<'a, str>,
    /// Units to spend.
    pub units: u64,
    /// For how many microseconds they may be spent, counted from before the request was sent.
    pub lasts_us: u64,
    /// The quota of the window with the fewest units left.
    pub quota: u64,
    /// The length of that window in milliseconds.
    pub window_ms: u64,
    /// Units left in it for others.
    pub remaining: u64,
    /// Milliseconds until its whole quota is available again if nothing more is taken, rounded up.
    pub reset_ms: u64,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartReport {
    /// [`LeasePart::id`].
    pub id: u64,
    /// Units of it that were spent so far.
    pub spent: u64,
    /// Decisions so far that were made from it, and from no other part with fewer units left.
    pub decisions: u64,
    /// Whether the filter spends no more of it: the rest can be returned.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
    /// If the filter wants more units for this limit and key: for how many it is asked per second. Otherwise 0.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub wants_per_s: u64,
}

impl PartReport {
    /// Reads the header's value. `None`: no filter can have written it.
    pub fn read_all(value: &str) -> Option<Vec<Self>> {
        let reports: Vec<Self> = serde_json::from_str(value).ok()?;
        (reports.len() <= MAX_PARTS).then_some(reports)
    }

    /// Writes the header's value.
    pub fn write_all(reports: &[Self]) -> String {
        // Numbers can always be written.
        serde_json::to_string(reports).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_filter_writes_is_read_and_nothing_else() {
        let reports = [
            PartReport {
                id: 7,
                spent: 5,
                decisions: 4,
                ended: true,
                wants_per_s: 0,
            },
            PartReport {
                id: (1 << 53) - 1,
                wants_per_s: 1_200,
                ..PartReport::default()
            },
        ];
        let text = PartReport::write_all(&reports);
        assert_eq!(
            text,
            r#"[{"id":7,"spent":5,"decisions":4,"ended":true},{"id":9007199254740991,"spent":0,"decisions":0,"wants_per_s":1200}]"#
        );
        assert_eq!(PartReport::read_all(&text).unwrap(), reports);
        assert_eq!(PartReport::read_all("[]").unwrap(), []);
        let newer = r#"[{"id":7,"spent":5,"decisions":4,"mood":"good"}]"#;
        assert_eq!(PartReport::read_all(newer).unwrap().len(), 1);
        let many = format!(
            "[{}]",
            vec![r#"{"id":1,"spent":1,"decisions":1}"#; 129].join(",")
        );
        for other in [
            "",
            "7",
            "{}",
            "[7]",
            r#"[{"id":-1,"spent":5,"decisions":4}]"#,
            &many,
        ] {
            assert_eq!(PartReport::read_all(other), None, "{other}");
        }
    }
}
