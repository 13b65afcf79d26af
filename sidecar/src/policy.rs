//! The policy: limits by name.
//!
//! | file | for |
//! |---|---|
//! | `limits.rs` | what a policy says |
//! | `store.rs` | where the state is kept |
//! | `file.rs` | the policy in YAML, and its checks |
//! | `problem.rs` | what may be told of a broken one |
//! | `source.rs` | its file: read, watched, read again |

mod file;
mod limits;
mod problem;
mod source;
mod store;

pub use file::AlgorithmName;
pub use limits::{
    DEFAULT_DENIAL_TTL, DEFAULT_MEMORY_LIMIT, DEFAULT_STORE_TIMEOUT, Limit, Policy, WhenStoreIsDown,
};
pub use source::{PolicyError, PolicySource};
pub use store::{
    CredentialFiles, Endpoint, RedisOptions, RedisStore, RedisUrl, StoreAddress, TlsFiles, Topology,
};
