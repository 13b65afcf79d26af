//! What `check-store` says of what it has seen. Pure. A message is `CHECK: TEXT; REMEDY`, the last where something is to change.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use self::State::{Error, Warning};
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

/// Whether something is to be changed: not, perhaps, or certainly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Ok,
    Warning,
    Error,
}

/// What a check says of a Redis or a sentinel.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its address.
    pub at: String,
    /// The name of the check.
    pub check: String,
    /// How it ended: `ok`, `warning` or `error`.
    pub state: String,
    /// What it found.
    pub text: String,
    /// What to change, if anything.
    pub remedy: Option<String>,
}

/// How a check ended, and its message.
pub type Said = (State, String);

impl Finding {
    /// What is said of this address.
    pub fn new(at: &Endpoint, (state, message): Said) -> Self {
        let (check, message) = message.split_once(": ").unwrap_or_default();
        let (text, remedy) = message.split_once("; ").unwrap_or((message, ""));
        Self {
            at: match at {
                Endpoint::Tcp(host, port) => format!("{host}:{port}"),
                Endpoint::Unix(path) => path.display().to_string(),
            },
            check: check.to_owned(),
            state: format!("{state:?}").to_lowercase(),
            text: text.to_owned(),
            remedy: (state != State::Ok).then(|| remedy.to_owned()),
        }
    }
}

/// Of an error that ends the checks of an address.
pub fn failed(error: &StoreError) -> Said {
    use StoreError::{Authentication, Connection, Refused};
    let (check, remedy) = match error {
        Authentication(_) => ("credentials", "correct the user and the password"),
        Connection(ConnectionError::File { .. }) => ("files", "let the sidecar's user read it"),
        Connection(ConnectionError::Tls(_)) => ("tls", "correct `tls.ca`, or use `redis://`"),
        Connection(ConnectionError::Replica) => ("role", "name the primary or its sentinels"),
        Connection(ConnectionError::NoPrimary) => ("sentinel", "correct the URL's last part"),
        Refused(_) => ("answer", "correct the URL, or change what Redis says"),
        _ => ("address", "correct the URL, or let this host reach Redis"),
    };
    (Error, format!("{check}: {error}; {remedy}"))
}

/// Of the answer to INFO.
pub fn of_info(info: &str) -> [Said; 3] {
    let field = |name| {
        let mut lines = info.lines();
        let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        value.unwrap_or("unknown")
    };
    let (policy, evicted) = (field("maxmemory_policy"), field("evicted_keys"));
    let evicts = if field("maxmemory") == "0" {
        Warning
    } else {
        Error
    };
    let is_kept = matches!(policy, "noeviction" | "unknown");
    let message = format!("{policy}, {evicted} so far; set `maxmemory-policy noeviction`");
    let eviction = unless(is_kept, evicts, format!("eviction: {message}"));
    let status = field("rdb_last_bgsave_status");
    let message = format!("persistence: last snapshot {status}; free the disk of Redis");
    let persistence = unless(status != "err", Warning, message);
    let version = field("redis_version");
    let is_old = matches!(version.split('.').next(), Some("2" | "3" | "4" | "5" | "6"));
    let message = format!("version: {version}; use 7.0 or later");
    [eviction, persistence, unless(!is_old, Warning, message)]
}

/// Of the commands that were refused, with Redis's answer to each.
pub fn permissions(refused: &BTreeSet<(String, String)>, prefix: &str) -> Vec<Said> {
    if refused.is_empty() {
        return vec![(State::Ok, "permissions: all commands and keys".to_owned())];
    }
    let each = refused.iter().map(|(command, why)| {
        let is_optional = matches!(
            command.as_str(),
            "ROLE" | "INFO" | "HGETALL" | "HLEN" | "PERSIST"
        );
        let state = if is_optional { Warning } else { Error };
        let (rule, lower) = (command.to_lowercase(), why.to_lowercase());
        let has = |words| lower.contains(words);
        let message = if has("unknown") || has("unsupported") {
            "is renamed, or a proxy lacks it; remove `rename-command`".to_owned()
        } else if has("key") {
            format!("may not use the keys; add `~{prefix}sg:*` to the user's ACL")
        } else if has("permission") || has("can't run") {
            format!("is forbidden; add `+{rule}` to the user's ACL")
        } else {
            format!("is refused: {why}; change what Redis says")
        };
        (state, format!("permissions: {command} {message}"))
    });
    each.collect()
}

/// Of the shortest of several round trips. A decision takes one; the other three are for when it takes longer.
pub fn round_trip(least: Duration, store_timeout: Duration) -> Said {
    let short = if store_timeout > least {
        Warning
    } else {
        Error
    };
    let text = format!("{least:.1?} of a `store_timeout` of {store_timeout:?}");
    let wanted = (least * 4).as_millis() + 1;
    let message = format!("round trip: {text}; set `store_timeout: {wanted}ms`");
    unless(store_timeout >= least * 4, short, message)
}

/// Of how far Redis's clock is ahead of this host's.
pub fn clock(ahead_us: i64) -> Said {
    let text = format!("Redis's is {} ms ahead of this host's", ahead_us / 1_000);
    let message = format!("clock: {text}; synchronize both (NTP)");
    unless(ahead_us.abs() <= 1_000_000, Warning, message)
}

/// Of whether a proxy or a Cluster spreads the keys.
pub fn sharding(is_sharded: bool) -> Said {
    let count = if is_sharded { "several" } else { "one" };
    let message = format!("keys are in {count} Redis; name one, or use `redis+cluster://`");
    unless(!is_sharded, Error, format!("sharding: {message}"))
}

/// Of the limits and the key prefixes that others have entered, as far as they may be read.
pub fn fleets(limits: usize, prefixes: Option<usize>) -> Said {
    let prefixes = prefixes.map_or("?".to_owned(), |count| count.to_string());
    let text = format!("{limits} other limits under this `key_prefix`, {prefixes} other prefixes");
    let message = format!("fleets: {text}; give each fleet a `key_prefix`");
    unless(limits == 0, Warning, message)
}

const fn unless(is_good: bool, otherwise: State, message: String) -> Said {
    let state = if is_good { State::Ok } else { otherwise };
    (state, message)
}
