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

/// Most earlier digests that a sidecar names, and how many of their digits: two in a million differ in the others alone.
pub const MAX_EARLIER: usize = 32;
const SHORT_DIGITS: usize = 6;

/// The list of earlier digests that answers carry.
pub fn list_of<'d>(digests: impl Iterator<Item = &'d str>) -> String {
    let short = digests.filter_map(|digest| digest.get(..SHORT_DIGITS));
    short.collect::<Vec<_>>().join(" ")
}

/// Whether such a list has this one.
pub fn lists(earlier: &str, digest: &str) -> bool {
    let mut all = earlier.split(' ');
    all.any(|short| short.len() == SHORT_DIGITS && digest.starts_with(short))
}

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
    /// The digest of newer rules that it would have if another sidecar did not hold them back.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub held: Option<Cow<'a, str>>,
    /// That sidecar, by its [`crate::Answer::instance`] in hexadecimal digits.
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<Cow<'a, str>>,
    /// The limits that a document has told it last: [`crate::Answer::limits`].
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Cow<'a, str>>,
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
    /// The sidecar that answers, by its number in hexadecimal digits.
    #[serde(default)]
    pub sidecar: String,
    /// The digest of everything else by which the policy decides: limits, tiers, consumers.
    #[serde(default)]
    pub policy: String,
    /// Whether it counts in its own memory.
    #[serde(default)]
    pub in_memory: bool,
    /// Why the policy file as it is now is refused; absent if it is in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
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
    /// The sidecar whose answers name earlier rules, if the filter keeps these for its sake.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_by: Option<String>,
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
    /// It has others, and should have these within a second, or within five if its cluster has several sidecars.
    Behind,
    /// It could not use them, and has others or none.
    Refused,
    /// It has no rules yet.
    None,
    /// Not heard of for ten seconds: its Envoy has ended, or asks other sidecars.
    Gone,
}

impl RulesState {
    /// All.
    pub const ALL: [Self; 5] = [
        Self::InForce,
        Self::Behind,
        Self::Refused,
        Self::None,
        Self::Gone,
    ];

    /// As in JSON and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::InForce => "in_force",
            Self::Behind => "behind",
            Self::Refused => "refused",
            Self::None => "none",
            Self::Gone => "gone",
        }
    }
}

impl<'a> RulesReport<'a> {
    /// Reads the header's value. `None`: no filter can have written it.
    pub fn read(value: &'a str) -> Option<Self> {
        let report: Self = serde_json::from_str(value).ok()?;
        let digests = report
            .in_force
            .iter()
            .chain(&report.refused)
            .chain(&report.held);
        let mut digests = digests.chain(&report.pepper);
        let are_digests = digests.all(|digest| is_digits(digest, DIGEST_DIGITS));
        let valid = is_digits(&report.vm, 32) && are_digests;
        valid.then_some(report)
    }

    /// Whether the filter need not be sent the rules with this digest.
    pub fn knows(&self, digest: &str) -> bool {
        let known = [&self.in_force, &self.refused, &self.held];
        known.into_iter().flatten().any(|known| known == digest)
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
