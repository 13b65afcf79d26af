//! What `check-store` says of what it has seen. Pure. A message is `CHECK: TEXT; REMEDY`, the last where something is to change.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};

/// Whether something is to be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No.
    Ok,
    /// Perhaps.
    Warning,
    /// Yes.
    Error,
}

/// What a check says of a Redis or a sentinel.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// Its address.
    pub at: String,
    /// The name of the check.
    pub check: String,
    /// How it ended.
    pub state: State,
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
            state,
            text: text.to_owned(),
            remedy: (state != State::Ok).then(|| remedy.to_owned()),
        }
    }
}

/// Of a connection.
pub fn reached(tls: bool) -> Said {
    let tls = if tls { "with" } else { "without" };
    (
        State::Ok,
        format!("address: Redis accepts the connection, {tls} TLS, and the credentials"),
    )
}

/// Of a sentinel or node that names others than the first one.
pub fn contradicts() -> Said {
    let message = "primary: it names another than the others; wait for the end of a failover";
    (State::Error, message.to_owned())
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
    (State::Error, format!("{check}: {error}; {remedy}"))
}

/// Of the answer to INFO; nothing where it is refused.
pub fn of_info(info: &str) -> Vec<Said> {
    let field = |name: &str| {
        let mut lines = info.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
    };
    let (policy, evicted) = (
        field("maxmemory_policy"),
        field("evicted_keys").unwrap_or("0"),
    );
    let evicts = match field("maxmemory") {
        Some("0") => State::Warning,
        _ => State::Error,
    };
    let eviction = policy.map(|policy| {
        let message = format!("{policy}, {evicted} keys so far; set `maxmemory-policy noeviction`");
        (
            unless(policy == "noeviction", evicts),
            format!("eviction: {message}"),
        )
    });
    let persistence = field("rdb_last_bgsave_status").map(|status| {
        let message =
            format!("last snapshot {status}; free its disk, or Redis may refuse to write");
        (
            unless(status == "ok", State::Warning),
            format!("persistence: {message}"),
        )
    });
    let version = field("redis_version").map(|version| {
        let major = version
            .split('.')
            .next()
            .and_then(|major| major.parse().ok());
        let is_new = major.is_none_or(|major: u32| major >= 7);
        (
            unless(is_new, State::Warning),
            format!("version: {version}; use 7.0 or later"),
        )
    });
    [eviction, persistence, version]
        .into_iter()
        .flatten()
        .collect()
}

/// Of the commands that were refused, with Redis's answer to each.
pub fn permissions(refused: &BTreeSet<(String, String)>, prefix: &str) -> Vec<Said> {
    if refused.is_empty() {
        return vec![(State::Ok, "permissions: all commands and keys".to_owned())];
    }
    let each = refused.iter().map(|(command, why)| {
        let is_optional = matches!(command.as_str(), "ROLE" | "INFO" | "HGETALL" | "PERSIST");
        let (rule, has) = (command.to_lowercase(), |words| {
            why.to_lowercase().contains(words)
        });
        let message = if has("unknown") || has("unsupported") {
            "is renamed, or a proxy lacks it; remove `rename-command`".to_owned()
        } else if has("key") {
            format!("may not use the keys; add `~{prefix}sg:*` to the user's ACL")
        } else if has("permission") || has("can't run") {
            format!("is forbidden; add `+{rule}` to the user's ACL")
        } else {
            format!("is refused: {why}; change what Redis says")
        };
        let state = if is_optional {
            State::Warning
        } else {
            State::Error
        };
        (state, format!("permissions: {command} {message}"))
    });
    each.collect()
}

/// Whether other checks would fail too.
pub fn is_refusal((state, message): &Said) -> bool {
    *state == State::Error && message.starts_with("permissions")
}

/// Of the shortest of several round trips. A decision takes one; the other three are for when it takes longer.
pub fn round_trip(least: Duration, store_timeout: Duration) -> Said {
    let short = if store_timeout > least {
        State::Warning
    } else {
        State::Error
    };
    let wanted = (least * 4).as_millis() + 1;
    let text = format!("{least:.1?} of a `store_timeout` of {store_timeout:?}");
    let message = format!("round trip: {text}; set `store_timeout: {wanted}ms`");
    (unless(store_timeout >= least * 4, short), message)
}

/// Of how far Redis's clock is ahead of this host's.
pub fn clock(ahead_us: i64) -> Said {
    let text = format!("Redis's is {} ms ahead of this host's", ahead_us / 1_000);
    let is_near = ahead_us.abs() <= 1_000_000;
    (
        unless(is_near, State::Warning),
        format!("clock: {text}; synchronize both (NTP)"),
    )
}

/// Of whether a proxy or a Cluster spreads the keys.
pub fn sharding(is_sharded: bool) -> Said {
    let text = if is_sharded {
        "several Redis"
    } else {
        "one Redis"
    };
    let message =
        format!("sharding: keys are in {text}; name one Redis, or use `redis+cluster://`");
    (unless(!is_sharded, State::Error), message)
}

/// Of the limits and the key prefixes that others have entered, as far as they may be read.
pub fn fleets(limits: usize, prefixes: Option<usize>) -> Said {
    let prefixes = prefixes.map_or("?".to_owned(), |count| count.to_string());
    let text = format!("{limits} other limits under this `key_prefix`, {prefixes} other prefixes");
    (
        unless(limits == 0, State::Warning),
        format!("fleets: {text}; give each fleet a `key_prefix`"),
    )
}

const fn unless(is_good: bool, otherwise: State) -> State {
    if is_good { State::Ok } else { otherwise }
}
