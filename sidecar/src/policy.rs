//! The policy: limits by name, and the rules that ask for them.
//!
//! | file | for |
//! |---|---|
//! | `contents.rs`, `limits.rs` | a policy's contents, its limits |
//! | `store.rs` | where the state is kept and how to reach it |
//! | `overrides.rs`, `named_window.rs` | overrides of a limit for single keys, and how they name its windows |
//! | `file.rs`, `window_file.rs`, `override_file.rs`, `lease_file.rs` | the policy in YAML, and its validation |
//! | `yaml_error.rs` | describes a file with values of the wrong type |
//! | `rules.rs`, `key_forms.rs` | the rules that filters get, and which keys they can make |
//! | `covering.rs`, `certain.rs` | which matches contain others, and what fails for every request of a rule |
//! | `schemas.rs` | the JSON Schemas of both forms: fields, and what to give for them |
//! | `short.rs` | the short form, expanded to the long form |
//! | `consumers.rs`, `consumers_file.rs` | named consumers: whose bucket a hashed key belongs to, and the file that names them |
//! | `changes.rs`, `rule_changes.rs`, `counted.rs` | what changes from one policy to the next, which fields of rules, and whose counts start at zero, for people |
//! | `kept.rs` | what is kept of earlier policies |
//! | `ended.rs` | whose cached denials end in filters |
//! | `files.rs`, `source.rs` | its file and those that it names: read, watched, reloaded |
//! | `last_good.rs` | keeps the last good policy and earlier ones in the state directory |

mod certain;
mod changes;
mod consumers;
mod consumers_file;
mod contents;
mod counted;
mod covering;
mod ended;
mod fields;
mod file;
mod files;
mod kept;
mod key_forms;
mod last_good;
mod lease_file;
mod limits;
mod named_window;
mod overridden_names;
mod override_file;
mod overrides;
mod quotas;
mod rule_changes;
mod rules;
mod schemas;
mod short;
mod source;
mod store;
mod window_file;
mod yaml_error;

pub use certain::too_many_checks;
pub use changes::{changes, describe_window};
pub use consumers::{consumer_key, consumer_of};
pub use consumers_file::{ConsumersFile, MAX_CONSUMER_KEYS, read as read_consumers, start_of};
pub use contents::{DEFAULT_DENIAL_TTL, DEFAULT_MEMORY_LIMIT, DEFAULT_STORE_TIMEOUT, Policy};
pub use covering::{covers, excludes};
pub use ended::Ended;
pub(crate) use fields::duration;
pub use fields::is_name;
pub use file::{MAX_EXPIRE_US, policy_schema};
pub use files::Files;
pub use key_forms::{KeyForms, Made};
pub use limits::{Limit, WhenStoreIsDown, most};
pub use overrides::{Grant, MAX_OVERRIDES, Mark, Override, WindowQuota, check_texts};
pub use rules::RuleSets;
pub use short::{Expanded, line_and_why};
pub use source::{PolicyError, PolicySource};
pub use store::{
    CredentialFiles, Endpoint, RedisOptions, RedisStore, RedisUrl, StoreAddress, TlsFiles, Topology,
};
pub use window_file::{window_name, window_quota};
