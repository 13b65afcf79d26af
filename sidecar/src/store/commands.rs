//! The script's calls as Redis commands. All keys of a call are in one slot.

use std::time::Duration;

use redis::{Cmd, Script as Hashed};
use sluicegate_engine::FleetPosition;
use sluicegate_engine::script::{self, BrokenState, Operation};

use super::error::StoreError;
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

/// An entry of one of the store's lists.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A sidecar's name among those that share the store.
    Sidecar(&'a str),
    /// The digest of its limits.
    Limits(&'a str),
    /// Its key prefix, in a list that is outside any prefix.
    KeyPrefix,
}

/// What a sidecar announces about an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Announcement {
    /// It is there.
    Present,
    /// The same, and the answer has the head of the overrides too; on a Cluster they are in another slot.
    PresentWithOverrides,
    /// It is leaving.
    Leaving,
}

/// The answer: rank, number of entries, age of the list in milliseconds, head of the overrides.
pub type Listed = (u64, u64, u64, Option<Vec<u8>>);

/// A sidecar's place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Announced {
    /// The sidecar's rank, and the number of sidecars.
    pub position: FleetPosition,
    /// How long the store has had the list.
    pub list_age: Duration,
}

/// A sidecar's place, if the store is shared, and the version of the overrides, or why that is not known.
pub type AnnounceResult = Result<(Option<Announced>, Result<u64, StoreError>), StoreError>;

impl From<Listed> for Announced {
    fn from((rank, of, age_ms, _): Listed) -> Self {
        Self {
            position: FleetPosition { rank, of },
            list_age: Duration::from_millis(age_ms),
        }
    }
}

/// The script's answer for each decision or bucket, unless its key cannot be read.
pub type Each<T> = Vec<Result<T, BrokenState>>;

/// Enters something into a list, and returns how many entries there are, and the head of the overrides.
const SIDECARS: &str = include_str!("../../../lua/sidecars.lua");
/// Its keys by list, all in one slot.
pub const SIDECARS_KEYS: [&str; 2] = ["sg:{sidecars}:names", "sg:{sidecars}:ends"];
pub const LIMITS_KEYS: [&str; 2] = ["sg:{sidecars}:limits", "sg:{sidecars}:limits:ends"];
pub const PREFIXES_KEYS: [&str; 2] = ["sg:{sidecars}:prefixes", "sg:{sidecars}:prefixes:ends"];
/// A key in the slot of all lists.
pub const SIDECARS_SLOT_KEY: &str = SIDECARS_KEYS[0];

/// Changes the overrides.
const OVERRIDES: &str = include_str!("../../../lua/overrides.lua");
/// Where they are.
pub const OVERRIDES_KEY: &str = "sg:{overrides}";

impl Script {
    /// Announces a sidecar, by the script's hash or, with `text`, so that Redis caches it. It answers as [`Listed`].
    pub fn sidecars(&self, entry: Entry<'_>, announced: Announcement, text: bool) -> Cmd {
        let mut command = redis::cmd(if text { "EVAL" } else { "EVALSHA" });
        command.arg(if text { SIDECARS } else { &self.sidecars_hash });
        // Stored with a trailing `*`, so that the entry is not empty when there is no prefix.
        let pattern = self.key("*");
        let (keys, prefix, entry, ttl) = match entry {
            Entry::Sidecar(name) => (SIDECARS_KEYS, &*self.prefix, name, SIDECAR_TTL),
            Entry::Limits(digest) => (LIMITS_KEYS, &*self.prefix, digest, FLEET_TTL),
            Entry::KeyPrefix => (PREFIXES_KEYS, "", &*pattern, FLEET_TTL),
        };
        let with_overrides = announced == Announcement::PresentWithOverrides;
        let overrides = with_overrides.then_some(OVERRIDES_KEY);
        command.arg(2 + overrides.iter().len());
        for key in keys.into_iter().chain(overrides) {
            command.arg(format!("{prefix}{key}"));
        }
        let is_leaving = announced == Announcement::Leaving;
        command
            .arg(entry)
            .arg(ttl.as_millis())
            .arg(u8::from(is_leaving));
        command
    }

    /// Changes the overrides from what was read. Answers the new version, or 0 if they are not what was read.
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

    /// A command about one key.
    pub fn on_key(&self, command: &str, key: &str) -> Cmd {
        let mut command = redis::cmd(command);
        command.arg(self.key(key));
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

    /// The call by the script's hash, or with its `text`, which Redis then caches. A Redis without the script refuses the hash,
    /// and has then done nothing.
    pub fn command<O: Operation>(
        &self,
        operation: &O,
        not_after_us: Option<u64>,
        text: bool,
    ) -> Cmd {
        let mut command = redis::cmd(if text { "EVAL" } else { "EVALSHA" });
        command.arg(if text { script::DECIDE } else { &self.hash });
        command.arg(operation.keys().count());
        for key in operation.keys() {
            command.arg(self.key(key));
        }
        command.arg(operation.request(not_after_us));
        command
    }

    /// A key with the prefix.
    pub fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }
}
