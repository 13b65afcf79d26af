//! The script's calls as Redis commands. All keys of a call are in one slot.

use std::time::Duration;

use redis::{Cmd, Script as Hashed};
use sluicegate_engine::script::{self, BrokenState, GiveBack, WriteBack};
use sluicegate_engine::{Batch, Bucket, Returns};

use super::overrides::{StoredOverrides, field, to_text};

/// The script's SHA-1, and the prefix of every key.
pub struct Script {
    hash: String,
    sidecars_hash: String,
    prefix: String,
}

/// How long the store remembers a sidecar after its last announcement.
pub const SIDECAR_TTL: Duration = Duration::from_secs(5);

/// How long it remembers limits and key prefixes. Each sidecar enters its own once a minute.
const FLEET_TTL: Duration = Duration::from_secs(150);

/// What is entered into a list of the store.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A sidecar's name among those that share the store.
    Sidecar(&'a str),
    /// The digest of its limits.
    Limits(&'a str),
    /// Its key prefix, in a list that is outside any prefix.
    KeyPrefix,
}

/// That a sidecar is there, or is leaving.
#[derive(Clone, Copy, Debug)]
pub struct Announcement<'a> {
    /// What it enters.
    pub entry: Entry<'a>,
    /// It is leaving.
    pub leaving: bool,
    /// The answer has the head of the overrides too; on a Cluster they are in another slot.
    pub with_overrides: bool,
}

impl<'a> Announcement<'a> {
    /// That this is there.
    pub const fn of(entry: Entry<'a>) -> Self {
        Self {
            entry,
            leaving: false,
            with_overrides: false,
        }
    }
}

/// The answer: rank, number of entries, age of the list in milliseconds, head of the overrides.
pub type Listed = (u64, u64, u64, Option<Vec<u8>>);

/// One call of the script: its keys, and its arguments except for the time after which it must not run.
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

/// The script's answer for each decision or bucket, unless its key cannot be read.
pub type Each<T> = Vec<Result<T, BrokenState>>;

impl<'a> Request<'a> {
    /// Decides a batch.
    pub fn decide(batch: &'a Batch) -> Self {
        Self {
            keys: script::keys(batch).collect(),
            arguments: Arguments::Decide(batch),
        }
    }

    /// Gives back; each bucket at most once.
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

    /// Writes back; each bucket at most once, and nothing if `once` is already marked.
    pub fn write_back(writes: &'a [WriteBack<'a>], once: &'a Bucket) -> Self {
        Self {
            keys: script::write_back_keys(writes, Some(once)).collect(),
            arguments: Arguments::WriteBack(writes, once),
        }
    }

    /// The key that determines the call's slot in a Cluster.
    pub fn first_key(&self) -> &str {
        self.keys.first().copied().unwrap_or_default()
    }
}

/// Enters something into a list, and returns how many entries there are, and the head of the overrides.
const SIDECARS: &str = include_str!("../../../lua/sidecars.lua");
/// Its keys by list, all in one slot.
const SIDECARS_KEYS: [&str; 2] = ["sg:{sidecars}:names", "sg:{sidecars}:ends"];
pub const LIMITS_KEYS: [&str; 2] = ["sg:{sidecars}:limits", "sg:{sidecars}:limits:ends"];
pub const PREFIXES_KEYS: [&str; 2] = ["sg:{sidecars}:prefixes", "sg:{sidecars}:prefixes:ends"];
/// A key in the slot of all lists.
pub const SIDECARS_SLOT_KEY: &str = SIDECARS_KEYS[0];

/// Changes the overrides.
const OVERRIDES: &str = include_str!("../../../lua/overrides.lua");
/// Where they are.
pub const OVERRIDES_KEY: &str = "sg:{overrides}";
/// The field of the hash that has the version.
pub const OVERRIDES_HEAD: &str = ":";

impl Script {
    /// Announces a sidecar, by the script's hash or, with `text`, so that Redis caches it. It answers as [`Listed`].
    pub fn sidecars(&self, call: &Announcement<'_>, text: bool) -> Cmd {
        let mut command = redis::cmd(if text { "EVAL" } else { "EVALSHA" });
        command.arg(if text { SIDECARS } else { &self.sidecars_hash });
        // As a pattern, since a name in the list is never empty.
        let pattern = self.key("*");
        let (keys, prefix, entry, ttl) = match call.entry {
            Entry::Sidecar(name) => (SIDECARS_KEYS, &*self.prefix, name, SIDECAR_TTL),
            Entry::Limits(digest) => (LIMITS_KEYS, &*self.prefix, digest, FLEET_TTL),
            Entry::KeyPrefix => (PREFIXES_KEYS, "", &*pattern, FLEET_TTL),
        };
        let overrides = call.with_overrides.then_some(OVERRIDES_KEY);
        command.arg(2 + overrides.iter().len());
        for key in keys.into_iter().chain(overrides) {
            command.arg(format!("{prefix}{key}"));
        }
        let ttl_ms = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
        command.arg(entry).arg(ttl_ms).arg(u8::from(call.leaving));
        command
    }

    /// Changes the overrides from what was read. Answers 0 if they are not what was read.
    pub fn change_overrides(&self, read: &StoredOverrides, next: &StoredOverrides) -> Cmd {
        let mut command = redis::cmd("EVAL");
        command.arg(OVERRIDES).arg(1).arg(self.key(OVERRIDES_KEY));
        let dropped: Vec<_> = read.dropped_by(next).collect();
        let ended = dropped.iter().filter(|(_, entry)| !entry.is_removal());
        let ended = ended.filter_map(|(_, entry)| entry.end_ms()).max();
        command.arg(read.version).arg(next.version);
        command.arg(ended.unwrap_or(0)).arg(&next.sums());
        let swept_now = !dropped.is_empty() || read.swept == u64::MAX;
        command.arg(if swept_now { 0 } else { read.swept.max(1) });
        let entries = next.entries.iter();
        for (name, entry) in entries.filter(|(name, entry)| read.entries.get(*name) != Some(*entry))
        {
            command.arg(field(name)).arg(entry.version);
            command.arg(to_text(entry));
        }
        for (name, _) in dropped {
            command.arg(field(name)).arg(0).arg("");
        }
        command
    }

    /// Reads the head of the overrides, which has their version.
    pub fn overrides_head(&self) -> Cmd {
        let mut command = redis::cmd("HGET");
        command.arg(self.key(OVERRIDES_KEY)).arg(OVERRIDES_HEAD);
        command
    }

    /// How many fields their hash has, with the head.
    pub fn overrides_length(&self) -> Cmd {
        let mut command = redis::cmd("HLEN");
        command.arg(self.key(OVERRIDES_KEY));
        command
    }

    /// Reads all overrides.
    pub fn overrides(&self) -> Cmd {
        let mut command = redis::cmd("HGETALL");
        command.arg(self.key(OVERRIDES_KEY));
        command
    }

    /// The script with this key prefix.
    pub fn new(prefix: &str) -> Self {
        Self {
            hash: Hashed::new(script::DECIDE).get_hash().to_owned(),
            sidecars_hash: Hashed::new(SIDECARS).get_hash().to_owned(),
            prefix: prefix.to_owned(),
        }
    }

    /// The call by the script's hash. A Redis without the script refuses it, and has then done nothing.
    pub fn evalsha(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
        self.command("EVALSHA", &self.hash, request, not_after_us)
    }

    /// The call with the script's text, which Redis then caches.
    pub fn eval(&self, request: &Request<'_>, not_after_us: Option<u64>) -> Cmd {
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

    /// Resets buckets; Redis answers how many existed.
    pub fn reset<'a>(&self, keys: impl IntoIterator<Item = &'a str>) -> Cmd {
        let mut command = redis::cmd("UNLINK");
        for key in keys {
            command.arg(self.key(key));
        }
        command
    }

    /// A key with the prefix.
    pub fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}
