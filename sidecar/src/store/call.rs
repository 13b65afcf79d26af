//! The script as commands, on any connection. Every key of a call is in one slot.

use std::time::Duration;

use redis::{Cmd, Script as Hashed};
use sluicegate_engine::script::{self, BrokenState, GiveBack, WriteBack};
use sluicegate_engine::{Batch, Bucket, Returns};

/// The script, with its SHA-1 at hand, and what stands before every key.
pub struct Script {
    hash: String,
    prefix: String,
}

/// One call of the script: its keys, and its arguments for a time after which it must not run.
pub struct Request<'a> {
    keys: Vec<&'a str>,
    arguments: Arguments<'a>,
}

enum Arguments<'a> {
    Decide(&'a Batch),
    GiveBack(&'a [GiveBack<'a>]),
    WriteBack(&'a [WriteBack<'a>], &'a Bucket),
    Return(&'a Returns),
}

/// For each decision or bucket what the script says, unless its key cannot be read.
pub type Each<T> = Vec<Result<T, BrokenState>>;

impl<'a> Request<'a> {
    /// Decides a batch.
    pub fn decide(batch: &'a Batch) -> Self {
        Self {
            keys: script::keys(batch).collect(),
            arguments: Arguments::Decide(batch),
        }
    }

    /// Gives back, no bucket twice.
    pub fn give_back(returns: &'a [GiveBack<'a>]) -> Self {
        Self {
            keys: script::give_back_keys(returns).collect(),
            arguments: Arguments::GiveBack(returns),
        }
    }

    /// Returns units by receipts.
    pub fn return_units(returns: &'a Returns) -> Self {
        Self {
            keys: script::return_keys(returns).collect(),
            arguments: Arguments::Return(returns),
        }
    }

    /// Writes back, no bucket twice; nothing if `once` says that it was done.
    pub fn write_back(writes: &'a [WriteBack<'a>], once: &'a Bucket) -> Self {
        Self {
            keys: script::write_back_keys(writes, Some(once)).collect(),
            arguments: Arguments::WriteBack(writes, once),
        }
    }

    /// The key that says where in a Cluster the call belongs.
    pub fn first_key(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }
}

/// Says that a sidecar is there, and answers how many are.
const SIDECARS: &str = include_str!("../../../lua/sidecars.lua");
/// Where it does so: in one slot.
pub const SIDECARS_KEYS: [&str; 2] = ["sg:{sidecars}:names", "sg:{sidecars}:ends"];

impl Script {
    /// Says that the sidecar of this name is there, for so long, or that it leaves. Answers its rank, how many there are,
    /// and Redis's clock in microseconds.
    pub fn sidecars(&self, name: &str, lasts: Duration, leaves: bool) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(SIDECARS).arg(SIDECARS_KEYS.len());
        for key in SIDECARS_KEYS {
            command.arg(self.key(key));
        }
        let lasts_ms = u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX);
        command.arg(name).arg(lasts_ms).arg(u8::from(leaves));
        command
    }

    /// With this before every key.
    pub fn new(prefix: &str) -> Self {
        Self {
            hash: Hashed::new(script::DECIDE).get_hash().to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    /// The call by the script's hash: Redis refuses it where it does not have the script, and then has done nothing.
    pub fn by_hash(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
        self.command("EVALSHA", &self.hash, request, not_after_us)
    }

    /// The call with the script itself, which Redis then keeps.
    pub fn whole(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
        self.command("EVAL", script::DECIDE, request, not_after_us)
    }

    fn command(
        &self,
        name: &str,
        script: &str,
        request: &Request<'_>,
        not_after_us: Option<u64>,
    ) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(request.keys.len());
        if self.prefix.is_empty() {
            command.arg(&request.keys);
        } else {
            for key in &request.keys {
                command.arg(self.key(key));
            }
        }
        let arguments = match request.arguments {
            Arguments::Decide(batch) => script::arguments(batch, not_after_us),
            Arguments::GiveBack(returns) => script::give_back_arguments(returns, not_after_us),
            Arguments::WriteBack(writes, once) => {
                script::write_back_arguments(writes, Some(once), not_after_us)
            }
            Arguments::Return(returns) => script::return_arguments(returns, not_after_us),
        };
        command.arg(arguments);
        command
    }

    /// Makes buckets whole; how many held anything.
    pub fn reset<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Cmd {
        let mut command = redis::cmd("UNLINK");
        for key in keys {
            command.arg(self.key(key));
        }
        command
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}
