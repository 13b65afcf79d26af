//! What `check-store` reports of its observations. Pure. A message is `CHECK: TEXT; REMEDY`; it has a remedy if the operator should
//! change something.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use self::State::{Error, Warning};
use crate::policy::Endpoint;
use crate::store::error::{ConnectionError, StoreError};
use crate::store::redis::server::field;

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
pub type Checked = (State, String);

impl Finding {
    /// The result of a check of this address.
    pub fn new(at: &Endpoint, (state, message): Checked) -> Self {
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

/// The check and the remedy for a node of a Cluster that serves no slots.
const NO_SLOTS: (&str, &str) = (
    "slots",
    "it is a node of a Cluster that serves none: let it join (`redis-cli --cluster add-node`), or name nodes that serve slots by `redis+cluster://`",
);

/// The finding for an error that ends the checks of an address.
pub fn failed(error: &StoreError) -> Checked {
    use StoreError::{Authentication, Connection, Refused};
    let (check, remedy) = match error {
        Authentication(_) => ("credentials", "correct the user and the password"),
        Connection(ConnectionError::File { .. }) => (
            "files",
            "correct the file, and let the sidecar's user read it",
        ),
        Connection(ConnectionError::Tls(_)) => (
            "tls",
            "correct the files and the name in `tls`, or use `redis://`",
        ),
        Connection(ConnectionError::Replica) => ("role", "name the primary or its sentinels"),
        Connection(ConnectionError::NoPrimary) => ("sentinel", "correct the URL's last part"),
        Connection(ConnectionError::NoNode) => NO_SLOTS,
        Connection(ConnectionError::Redis(error)) if error.code() == Some("CLUSTERDOWN") => {
            NO_SLOTS
        }
        Connection(ConnectionError::Unserved(_)) => {
            ("slots", "repair it: `redis-cli --cluster fix`")
        }
        Connection(ConnectionError::Dropped(_)) => {
            ("answer", "change that: of clients, raise `maxclients`")
        }
        Refused(error) if error.code() == Some("NOPERM") => {
            ("permissions", "give the user the ACL of docs/redis.md")
        }
        Refused(error) if error.code() == Some("OOM") => ("answer", "give Redis more memory"),
        Refused(error) if error.code() == Some("NOREPLICAS") => (
            "answer",
            "let a replica follow it, or lower `min-replicas-to-write`",
        ),
        Refused(_) => ("answer", "correct the URL, or change what Redis says"),
        _ => ("address", "correct the URL, or let this host reach Redis"),
    };
    (Error, format!("{check}: {error}; {remedy}"))
}

/// The findings on the answer to INFO.
pub fn of_info(info: &str) -> [Checked; 3] {
    let field = |name| field(info, name).unwrap_or("unknown");
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
    // Valkey has Redis's for old clients.
    let version = match field("valkey_version") {
        "unknown" => format!("Redis {}", field("redis_version")),
        valkey => format!("Valkey {valkey}"),
    };
    let is_old = ["2", "3", "4", "5", "6"]
        .iter()
        .any(|old| version.starts_with(&format!("Redis {old}.")));
    let message = format!("version: {version}; use 7.0 or later");
    [eviction, persistence, unless(!is_old, Warning, message)]
}

/// The findings on commands that were refused, with Redis's answer to each.
pub fn permissions(refused: &BTreeSet<(String, String)>, prefix: &str) -> Vec<Checked> {
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
        } else if has("wrongtype") {
            "finds what somebody else wrote under a key of sidecars; delete it".to_owned()
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

/// The finding on the shortest of several round trips. A decision takes one; `store_timeout` should have room for four, in
/// case it takes longer.
pub fn round_trip(least: Duration, store_timeout: Duration) -> Checked {
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

/// The finding on how far Redis's clock is ahead of this host's.
pub fn clock(ahead_us: i64) -> Checked {
    let text = format!("Redis's is {} ms ahead of this host's", ahead_us / 1_000);
    let message = format!("clock: {text}; synchronize both (NTP)");
    unless(ahead_us.abs() <= 1_000_000, Warning, message)
}

/// The finding on whether a proxy or a Cluster spreads the keys.
pub fn sharding(is_sharded: bool) -> Checked {
    let count = if is_sharded { "several" } else { "one" };
    let message = format!("keys are in {count} Redis; name one, or use `redis+cluster://`");
    unless(!is_sharded, Error, format!("sharding: {message}"))
}

/// The finding on the limits and key prefixes that other sidecars have entered, as far as the user may read them.
pub fn fleets(limits: usize, prefixes: Option<usize>) -> Checked {
    let prefixes = prefixes.map_or("?".to_owned(), |count| count.to_string());
    let text = format!("{limits} other limits under this `key_prefix`, {prefixes} other prefixes");
    let message = format!(
        "fleets: {text}; give each fleet a `key_prefix`, unless these are of a policy that has just changed"
    );
    unless(limits == 0, Warning, message)
}

const fn unless(is_good: bool, otherwise: State, message: String) -> Checked {
    let state = if is_good { State::Ok } else { otherwise };
    (state, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_has_its_bounds() {
        let ms = Duration::from_millis;
        let info =
            |more: &str| format!("redis_version:7.0.15\r\nrdb_last_bgsave_status:ok\r\n{more}");
        let state_of = |more: &str, check: usize| of_info(&info(more))[check].0;
        let evicts = "maxmemory_policy:volatile-lru\r\nevicted_keys:3\r\nmaxmemory:";
        for (found, expected) in [
            (round_trip(ms(5), ms(20)).0, State::Ok),
            (round_trip(ms(5), ms(19)).0, Warning),
            (round_trip(ms(20), ms(20)).0, Error),
            (clock(1_000_000).0, State::Ok),
            (clock(-1_000_001).0, Warning),
            (fleets(0, Some(3)).0, State::Ok),
            (fleets(1, None).0, Warning),
            (
                state_of("maxmemory_policy:noeviction\r\nmaxmemory:9", 0),
                State::Ok,
            ),
            (state_of(&format!("{evicts}0"), 0), Warning),
            (state_of(&format!("{evicts}9"), 0), Error),
            (of_info("rdb_last_bgsave_status:err")[1].0, Warning),
            (of_info("redis_version:6.2.14")[2].0, Warning),
            (of_info("redis_version:10.0.0")[2].0, State::Ok),
            (
                of_info("redis_version:6.2.4\r\nvalkey_version:9.1.2")[2].0,
                State::Ok,
            ),
            // INFO is not permitted.
            (of_info("")[0].0, State::Ok),
        ] {
            assert_eq!(found, expected);
        }
    }

    /// It was shown as the Redis that it says it is like.
    #[test]
    fn valkey_is_told_by_its_own_name_and_version() {
        let info = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2";
        let [.., (_, told)] = of_info(info);
        assert!(told.starts_with("version: Valkey 9.1.2;"), "{told}");
        let [.., (_, told)] = of_info("redis_version:8.2.1");
        assert!(told.starts_with("version: Redis 8.2.1;"), "{told}");
    }

    #[test]
    fn a_remedy_is_given_where_something_is_to_change() {
        let at = Endpoint::Tcp("h".to_owned(), 1);
        let good = Finding::new(&at, sharding(false));
        assert_eq!((good.at.as_str(), good.remedy), ("h:1", None));
        let bad = Finding::new(&at, sharding(true));
        assert_eq!(
            (bad.check.as_str(), bad.state.as_str()),
            ("sharding", "error")
        );
        assert_eq!(bad.text, "keys are in several Redis");
        assert_eq!(
            bad.remedy.as_deref(),
            Some("name one, or use `redis+cluster://`")
        );
    }

    /// As Redis 6.2, 7.0 and 8, Valkey, and Envoy say it.
    #[test]
    fn what_is_refused_is_told_by_what_to_add() {
        for (why, expected) in [
            (
                "NOPERM: this user has no permissions to run the 'zadd' command",
                "+zadd",
            ),
            (
                "NOPERM: User u has no permissions to run the 'zadd' command",
                "+zadd",
            ),
            (
                "ERR The user executing the script can't run this command or subcommand",
                "+zadd",
            ),
            ("NOPERM: No permissions to access a key", "~p/sg:*"),
            (
                "NOPERM: this user has no permissions to access one of the keys",
                "~p/sg:*",
            ),
            ("unknown command 'ZADD'", "rename-command"),
            ("unsupported command 'zadd'", "rename-command"),
            (
                "OOM command not allowed when used memory > 'maxmemory'",
                "change what",
            ),
        ] {
            let refused = BTreeSet::from([("ZADD".to_owned(), why.to_owned())]);
            let [(state, message)] = permissions(&refused, "p/").try_into().unwrap();
            assert!(state == Error && message.contains(expected), "{message}");
        }
    }
}
