//! The policy: limits by name. Domain types; how they stand in a file is `policy/file.rs`, and what may be
//! told of a broken one `policy/problem.rs`.

mod file;
mod problem;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sluicegate_engine::BucketSpec;

pub use file::AlgorithmName;

/// How long a store call may take unless the policy says otherwise. Under the filter's own default of 50 ms,
/// so that the filter hears *unavailable* from the sidecar rather than nothing.
pub const DEFAULT_STORE_TIMEOUT: Duration = Duration::from_millis(20);

/// How long a denial may be held unless the policy says otherwise: within this time an operator's reset and what other
/// sidecars have given back take effect everywhere.
pub const DEFAULT_DENIAL_TTL: Duration = Duration::from_secs(1);

/// A loaded policy.
#[derive(Debug)]
pub struct Policy {
    /// Where the state is kept.
    pub store: StoreAddress,
    /// Deadline of one store call.
    pub store_timeout: Duration,
    /// Longest time that a denial is given again without asking the store.
    pub denial_ttl: Duration,
    limits: BTreeMap<String, Arc<Limit>>,
}

/// A named allowance.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the policy, on the wire and in metrics.
    pub name: String,
    /// At least one; all must have room.
    pub windows: Vec<BucketSpec>,
}

impl Limit {
    /// The largest cost that every window could ever admit.
    pub fn most(&self) -> u64 {
        self.windows
            .iter()
            .map(BucketSpec::most_at_once)
            .min()
            .unwrap_or(0)
    }
}

/// Where a store keeps its state.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// In the Redis at this URL, which may hold a password and is therefore never shown.
    Redis(String),
    /// In the Redis Cluster that these URLs are nodes of; not shown either.
    Cluster(Vec<String>),
}

impl std::fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the URLs: they may hold passwords.
        f.write_str(match self {
            Self::Memory => "Memory",
            Self::Redis(_) => "Redis(..)",
            Self::Cluster(_) => "Cluster(..)",
        })
    }
}

impl std::str::FromStr for StoreAddress {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const SINGLE: [&str; 2] = ["redis://", "redis+unix://"];
        const CLUSTER: &str = "redis+cluster://";
        if text == "memory" {
            return Ok(Self::Memory);
        }
        if let Some(nodes) = text.strip_prefix(CLUSTER) {
            return Ok(Self::Cluster(
                nodes
                    .split(',')
                    .map(|node| format!("redis://{node}"))
                    .collect(),
            ));
        }
        if SINGLE.iter().any(|scheme| text.starts_with(scheme)) {
            return Ok(Self::Redis(text.to_owned()));
        }
        // The value is not shown: it may be a URL with a password and a typing error in its scheme.
        Err(
            "neither `memory` nor a URL: `redis://HOST:PORT`, `redis+unix:///PATH` or `redis+cluster://HOST:PORT,HOST:PORT`",
        )
    }
}

/// Why a policy cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PolicyError {
    /// The file cannot be read.
    #[error("cannot read policy {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not a policy.
    #[error("policy {path}: {message}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Line, field, remedy, and the value only where it cannot be a secret.
        message: String,
    },
}

impl PolicyError {
    /// Something in the file is wrong.
    pub fn invalid(path: &Path, message: String) -> Self {
        Self::Invalid {
            path: path.to_owned(),
            message,
        }
    }
}

impl Policy {
    /// The text of a policy file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(path: &Path) -> Result<String, PolicyError> {
        std::fs::read_to_string(path).map_err(|source| PolicyError::Read {
            path: path.to_owned(),
            source,
        })
    }

    /// Reads and checks a policy file.
    ///
    /// # Errors
    /// It cannot be read, or something in it is wrong: the error names file, line, field and remedy.
    pub fn load(path: &Path) -> Result<Self, PolicyError> {
        Self::parse(&Self::read(path)?).map_err(|message| PolicyError::invalid(path, message))
    }

    /// Checks the text of a policy.
    ///
    /// # Errors
    /// A message that names line, field and remedy, and never the value of `store`.
    pub fn parse(text: &str) -> Result<Self, String> {
        file::parse(text)
    }

    /// Whether a running sidecar may go on with this policy in place of its own.
    ///
    /// # Errors
    /// What would need a restart.
    pub fn may_become(&self, next: Self) -> Result<Self, String> {
        let changed = if self.store != next.store {
            "store"
        } else if self.store_timeout != next.store_timeout {
            "store_timeout"
        } else {
            return Ok(next);
        };
        Err(format!(
            "`{changed}` has changed, which needs a restart of the sidecar; limits may change at any time"
        ))
    }

    /// The limit of that name.
    pub fn limit(&self, name: &str) -> Option<&Arc<Limit>> {
        self.limits.get(name)
    }

    /// All limits, by name.
    pub fn limits(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.limits.values()
    }
}
