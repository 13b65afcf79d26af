//! Which slots are in use, and whose they are. On the admin port.

use serde::{Deserialize, Serialize};

/// The path. Its query may have a `limit` and a `subject`.
pub const HOLDS_PATH: &str = "/v1/holds";

/// Most that are listed in one answer.
pub const MAX_LISTED_HOLDS: usize = 1_000;

/// The body that answers `GET /v1/holds`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct HoldList {
    /// The sidecar that answers, by its number in hexadecimal digits.
    pub sidecar: String,
    /// The slots that it granted or renewed last, longest in use first. Those that are taken together are one entry.
    pub holds: Vec<ListedHold>,
    /// Whether there are more: at most 1,000 are listed, and at most 100,000 known.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub more: bool,
}

/// Slots that were taken together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ListedHold {
    /// The limit's name in the policy.
    pub limit: String,
    /// The first 20 hexadecimal digits of the key's SHA-256, as in `sluicegate top`.
    pub subject: String,
    /// The consumer's name, if the key is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// How many slots they are.
    pub slots: u64,
    /// For how many seconds they have been in use, by the clock of the sidecar that granted them.
    pub since_seconds: u64,
    /// In how many seconds they end unless they are renewed; 0 if they have ended and are listed because they are `outlived`.
    pub ends_in_seconds: u64,
    /// The last eight digits of the number of the sidecar that granted them.
    pub granted_by: String,
    /// The filter's root context that holds them, as in `GET /v1/filters`; absent if none has said so, as for a job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The node id of its Envoy, if it has asked this sidecar for rules within the last minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// They have been in use for longer than the limit's `longest`, and nobody has freed them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outlived: bool,
}

/// For how many milliseconds slots with this receipt last without a renewal, as it was when they were taken; `None` of a receipt
/// that is not one of slots.
pub fn slots_last_ms(receipt: &str) -> Option<u64> {
    let seconds = receipt.get(24..30).filter(|_| receipt.len() == 48)?;
    u64::from_str_radix(seconds, 16).ok()?.checked_mul(1_000)
}
