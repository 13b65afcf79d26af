//! The most denied subjects, from the admin port.

use serde::{Deserialize, Serialize};

/// The body that answers `GET /v1/top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Top {
    /// Every limit of the policy in force, sorted by name.
    pub limits: Vec<TopLimit>,
}

/// The most denied subjects of one limit, and the subjects nearest to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopLimit {
    /// The limit's name in the policy.
    pub limit: String,
    /// Denials that the sidecar has recorded.
    pub denied_total: u64,
    /// For how many seconds it has recorded them.
    pub since_seconds: u64,
    /// The subjects with the most of these denials, at most ten, the most denied first.
    pub most_denied: Vec<TopDenied>,
    /// The subjects that came nearest to the limit in the last minute, at most ten, the nearest first.
    pub nearest: Vec<TopNearest>,
    /// How much is used of what requests reserve. Absent if nothing that was reserved has been settled in this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserves: Option<TopReserves>,
}

/// What is reserved of a limit until its requests are settled, and what of it is used.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopReserves {
    /// The share of what was reserved that was used. Above 1 if more was used.
    pub used_ratio: f64,
    /// Less than a quarter of it was used, while more than one request in a hundred was denied: smaller reserves might admit them.
    pub starve: bool,
}

/// A subject that was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopDenied {
    /// The first 20 hexadecimal digits of the SHA-256 of its key.
    pub subject: String,
    /// The consumer whose key it is, if it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// Denials, estimated: the true number lies between `count - error` and `count`.
    pub count: u64,
    /// The maximum error of `count`.
    pub error: u64,
}

/// A subject that is near its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct TopNearest {
    /// The first 20 hexadecimal digits of the SHA-256 of its key.
    pub subject: String,
    /// The consumer whose key it is, if it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consumer: Option<String>,
    /// The highest share of the limit that it used: above 1 if it was over.
    pub used_ratio: f64,
}
