//! How filters get the rules that a policy has: `GET /v1/rules`, whose answer is the document of `filter/rules/src/config/document.rs`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The path.
pub const RULES_PATH: &str = "/v1/rules";

/// The header by which a filter says which rules it has: a [`RulesReport`] as JSON.
pub const RULES_HEADER: &str = "sluicegate-rules";

/// For how many seconds the sidecar keeps a request for rules waiting while it has none that the filter does not know.
pub const RULES_WAIT_S: u64 = 20;

/// Which rules a filter has.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RulesReport<'a> {
    /// Identifies the filter's root context: 32 hexadecimal digits.
    #[serde(borrow)]
    pub vm: Cow<'a, str>,
    /// The node id of its Envoy.
    #[serde(borrow)]
    pub node: Cow<'a, str>,
    /// Whether it has had a request. The root context of Envoy's main thread never has one.
    pub serves: bool,
    /// The digest of the rules in force; `None` if it has none yet.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub in_force: Option<Cow<'a, str>>,
    /// The digest of rules that it could not use, if they are newer.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<Cow<'a, str>>,
    /// Why.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub why: Option<Cow<'a, str>>,
}

impl<'a> RulesReport<'a> {
    /// Reads the header's value. `None`: no filter can have written it.
    pub fn read(value: &'a str) -> Option<Self> {
        let report: Self = serde_json::from_str(value).ok()?;
        let hexadecimal = |text: &str, digits| {
            text.len() == digits && text.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'))
        };
        let mut digests = report.in_force.iter().chain(&report.refused);
        let valid = hexadecimal(&report.vm, 32) && digests.all(|digest| hexadecimal(digest, 12));
        valid.then_some(report)
    }

    /// The digest that the filter need not be sent.
    pub fn known(&self) -> Option<&str> {
        self.refused.as_deref().or(self.in_force.as_deref())
    }
}

impl fmt::Display for RulesReport<'_> {
    /// Writes the header's value: JSON in ASCII, since a header is no place for anything else.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_string(self).unwrap_or_default();
        let ascii = |c: char| if c.is_ascii() { c } else { '?' };
        f.write_str(&json.chars().map(ascii).collect::<String>())
    }
}
