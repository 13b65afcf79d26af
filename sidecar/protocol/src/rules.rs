//! How filters get the rules that a policy has: `GET /v1/rules`, whose answer is the document of `filter/rules/src/config/document.rs`.

use std::borrow::Cow;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{DIGEST_DIGITS, is_digits};

/// The path.
pub const RULES_PATH: &str = "/v1/rules";

/// Which filters have which rules; on the admin port.
pub const FILTERS_PATH: &str = "/v1/filters";

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
    /// The sets that it may run; the first is the default.
    #[serde(borrow)]
    pub sets: Vec<Cow<'a, str>>,
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
    /// The digest of its pepper. Older filters tell none.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub pepper: Option<Cow<'a, str>>,
}

/// The body that answers `GET /v1/filters`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FilterList {
    /// The digest of the policy's rules.
    pub rules: String,
    /// The filters that asked this sidecar for rules within the last minute, by node.
    pub filters: Vec<FilterState>,
    /// Whether there are more: at most 4,096 are listed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// One filter: a worker of an Envoy, or its main thread.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FilterState {
    /// [`RulesReport::vm`].
    pub vm: String,
    /// The node id of its Envoy.
    pub node: String,
    /// The filter's version.
    pub version: String,
    /// The sets that it may run; the first is the default.
    pub sets: Vec<String>,
    /// Whether it has had a request: then it is a worker's. Envoy's main thread has a filter too, which never has one.
    pub serves: bool,
    /// Whether its rules are those of the policy.
    pub state: RulesState,
    /// The digest of its rules; absent if it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// For how many seconds this sidecar has known that it has them.
    pub since_seconds: u64,
    /// The digest of newer rules that it could not use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// The digest of its pepper; absent if it is too old to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pepper: Option<String>,
    /// Whether that is another than the pepper of the policy's `consumers`: it recognizes none of them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub other_pepper: bool,
    /// How many seconds ago it was last heard of; 0 while it waits for news.
    pub seen_seconds: u64,
}

/// Whether a filter has the rules of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum RulesState {
    /// It has.
    InForce,
    /// It has others, and should have these within a second.
    Behind,
    /// It could not use them, and has others or none.
    Refused,
    /// It has no rules yet.
    None,
}

impl RulesState {
    /// All.
    pub const ALL: [Self; 4] = [Self::InForce, Self::Behind, Self::Refused, Self::None];

    /// As in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InForce => "in_force",
            Self::Behind => "behind",
            Self::Refused => "refused",
            Self::None => "none",
        }
    }
}

impl<'a> RulesReport<'a> {
    /// Reads the header's value. `None`: no filter can have written it.
    pub fn read(value: &'a str) -> Option<Self> {
        let report: Self = serde_json::from_str(value).ok()?;
        let digests = report.in_force.iter().chain(&report.refused);
        let mut digests = digests.chain(&report.pepper);
        let are_digests = digests.all(|digest| is_digits(digest, DIGEST_DIGITS));
        let valid = is_digits(&report.vm, 32) && are_digests;
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
