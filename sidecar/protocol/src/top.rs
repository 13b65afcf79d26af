//! Who is being denied, as the admin port tells it.

use serde::{Deserialize, Serialize};

/// The body that answers `GET /v1/top`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Top {
    /// Every limit of the policy in force, by name.
    pub limits: Vec<TopLimit>,
}

/// One limit's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopLimit {
    /// Its name in the policy.
    pub limit: String,
    /// Denials that are remembered.
    pub denied_total: u64,
    /// For how long they have been, in seconds.
    pub since_seconds: u64,
    /// Who was denied most of them, at most ten; the most denied first.
    pub most_denied: Vec<TopDenied>,
    /// Who has come nearest to the limit in the last minute, at most ten; the nearest first.
    pub nearest: Vec<TopNearest>,
}

/// A subject that was denied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopDenied {
    /// The first 12 hexadecimal digits of the SHA-256 of its key.
    pub subject: String,
    /// How often: the truth is from `count - error` to `count`.
    pub count: u64,
    /// By how much `count` may be too high.
    pub error: u64,
}

/// A subject that is near its limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopNearest {
    /// As in [`TopDenied`].
    pub subject: String,
    /// The highest share of the limit that it had used, 0 to 1.
    pub used_ratio: f64,
}
