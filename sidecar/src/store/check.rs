//! What `sluicegate check-store` finds out about a store, by the connections and scripts that sidecars use.

mod findings;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, FromRedisValue, RedisError, Value};

pub use self::findings::Finding;
use self::findings::{Checked, State, failed};
use super::cluster::layout::{Layout, Owner};
use super::commands::{LIMITS_KEYS, PREFIXES_KEYS, SIDECARS_KEYS};
use super::error::{ConnectionError, StoreError};
use super::redis::common::Common;
use super::redis::connection::{Connection, Deadline, is_no_script};
use super::redis::dial::Dialer;
use super::redis::probe::{probe, run};
use super::redis::sentinel::primary_of;
use super::redis::server::field;
use super::redis::sharding::is_sharded;
use crate::clock::unix_us;
use crate::lock::lock;
use crate::policy::{Policy, RedisStore, Topology};
use crate::telemetry::subject::Subject;

/// Timeout of each answer: longer than decisions wait, so that a slow Redis is reported as slow.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a round trip is measured.
const ROUND_TRIPS: usize = 5;

/// The commands that sidecars run; `*` is a key. SET comes before the commands on hashes and sorted sets that write, so that these
/// fail with WRONGTYPE instead of writing.
const COMMANDS: &str = "EVAL return 1 *,EVALSHA 0 1 *,TIME,GET *,SET * 1 PX 9000,HGET * f,HSET * f v,HDEL * f,HGETALL *,HLEN *,\
                        PEXPIRE * 9000,ZADD * 1 m,ZREM * m,ZCARD *,ZRANK * m,ZRANGEBYSCORE * 0 1,ZCOUNT * 0 1,ZRANGE * 0 1,ZSCORE * m,ZREMRANGEBYSCORE * 0 1,\
                        UNLINK *,\
                        PERSIST sg:{TAG}:absent:probe,ZREM sg:{sidecars}:names m,HDEL sg:{overrides} f";

/// Commands that were refused, with Redis's answers.
type Refused = BTreeSet<(String, String)>;

/// Sends a command; no answer where it is refused, its key is of another kind, or its slot is at another node.
async fn ask<T: FromRedisValue>(
    connection: &Connection,
    text: &str,
    refused: &mut Refused,
) -> Result<Option<T>, StoreError> {
    match connection.ask(&command(text), false, soon()).await {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if is_no_script(&error) || error.is_elsewhere() => Ok(None),
        // A command for another kind of key than the one that is tried.
        Err(StoreError::Refused(error))
            if error.code() == Some("WRONGTYPE") && text.contains("probe") =>
        {
            Ok(None)
        }
        Err(error @ StoreError::Refused(_)) => {
            let (name, _) = text.split_once(' ').unwrap_or((text, ""));
            refused.insert((name.to_owned(), error.to_string()));
            Ok(None)
        }
        Err(error) => Err(error.on_new_connection(&connection.dialled.heard)),
    }
}

fn command(text: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(text.split(' ').collect::<Vec<_>>());
    command
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// What is found.
#[derive(Debug, Default)]
pub struct Found {
    /// In the order in which they were looked for.
    pub findings: Vec<Finding>,
    /// The names of the sidecars that count there.
    pub sidecars: Vec<String>,
}

/// Checks a store, as the sidecars of a policy use it.
pub async fn check(store: &RedisStore, policy: &Policy) -> Found {
    let mut found = Found::default();
    let layout = layout(store, &mut found.findings).await;
    for primary in layout.unwrap_or_default().primaries {
        let mut checked = Vec::new();
        match node(store, policy, &primary, &mut checked).await {
            Err(error) => checked.push(failed(&error)),
            // On a Cluster, one node has the list.
            Ok(sidecars) => found.sidecars.extend(sidecars),
        }
        let checked = checked.into_iter();
        let of_node = checked.map(|checked| Finding::new(&primary.endpoint, checked));
        found.findings.extend(of_node);
    }
    found
}

/// The primaries, as all sentinels or seeds name them.
async fn layout(store: &RedisStore, findings: &mut Vec<Finding>) -> Option<Layout> {
    let dialer = Dialer::new(store, PATIENCE);
    let (asked, asks, dialer) = match &store.url.topology {
        Topology::Single(endpoint) => return Some(Layout::one(endpoint.clone())),
        Topology::Cluster(seeds) => (seeds, "CLUSTER SLOTS".to_owned(), dialer),
        Topology::Sentinel { sentinels, name } => (
            sentinels,
            format!("SENTINEL GET-MASTER-ADDR-BY-NAME {name}"),
            Dialer::to_sentinels(store, PATIENCE),
        ),
    };
    let (mut known, mut silent) = (None, Vec::new());
    for endpoint in asked {
        let answer = dialer.ask(endpoint, &command(&asks)).await;
        let layout = answer.and_then(|answer| match store.url.topology {
            Topology::Cluster(_) => Ok(Layout::read(&answer, endpoint)?),
            _ => {
                let primary = primary_of(answer).map_err(RedisError::from)?;
                Ok(Layout::one(primary.ok_or(ConnectionError::NoPrimary)?))
            }
        });
        let checked = match layout {
            Err(error) => {
                silent.push((endpoint, failed(&error).1));
                continue;
            }
            Ok(layout) if *known.get_or_insert_with(|| layout.clone()) != layout => {
                let message = "primary: not that of the others; wait for the end of a failover";
                (State::Error, message.to_owned())
            }
            Ok(layout) => match layout.is_whole() {
                Ok(()) => continue,
                Err(unserved) => failed(&unserved.into()),
            },
        };
        findings.push(Finding::new(endpoint, checked));
    }
    let state = known.as_ref().map_or(State::Error, |_| State::Warning);
    let silent = silent.into_iter();
    findings.extend(silent.map(|(endpoint, why)| Finding::new(endpoint, (state, why))));
    known
}

/// Checks one Redis. Returns the names of the sidecars that it lists.
async fn node(
    store: &RedisStore,
    policy: &Policy,
    Owner { endpoint, tag, .. }: &Owner,
    checked: &mut Vec<Checked>,
) -> Result<Vec<String>, StoreError> {
    let patience = policy.store_timeout.max(PATIENCE);
    let common = Arc::new(Common::new(store, patience, Arc::default()));
    let connection = &Connection::open(&common, endpoint, None).await?;
    let message = format!(
        "address: Redis accepts the credentials, TLS: {}",
        store.url.tls
    );
    checked.push((State::Ok, message));
    let (mut refused, prefix) = (Refused::new(), &store.options.key_prefix);
    let info: Option<String> = ask(connection, "INFO", &mut refused).await?;
    let info = info.unwrap_or_default();
    if field(&info, "role") == Some("slave") {
        return Err(ConnectionError::Replica.into());
    }
    checked.extend(findings::of_info(&info));
    let script = &common.script;
    let own = if common.is_cluster() {
        "ASKING"
    } else {
        "ROLE"
    };
    for text in COMMANDS.split(',').chain([own]) {
        let text = text
            .replace('*', "sg:{TAG}:check:probe")
            .replace("TAG", tag);
        let text = text.replace("sg:", &script.key("sg:"));
        let answer: Option<Value> = ask(connection, &text, &mut refused).await?;
        if answer.is_none() && text.starts_with("SET") {
            // The commands after it would write something that stays.
            break;
        }
    }
    checked.extend(findings::permissions(&refused, prefix));
    if !common.is_cluster() {
        let is_sharded = match is_sharded(connection).await {
            Err(error) if error.is_elsewhere() => true,
            looked => looked?,
        };
        checked.push(findings::sharding(is_sharded));
        if is_sharded {
            return Ok(Vec::new());
        }
    }
    let (mut least, probe) = (Duration::MAX, probe(tag));
    for _ in 0..ROUND_TRIPS {
        let began = Instant::now();
        run(&probe, connection, soon()).await?;
        least = least.min(began.elapsed());
    }
    checked.push(findings::round_trip(least, policy.store_timeout));
    let now_us = lock(&connection.clock).at(Instant::now());
    let now_us = now_us.unwrap_or_else(unix_us);
    checked.push(findings::clock(
        now_us.cast_signed() - unix_us().cast_signed(),
    ));
    let alive = async |list: &str| {
        let alive = command(&format!("ZRANGEBYSCORE {list} {} +inf", now_us / 1_000));
        let alive: Result<Vec<String>, _> = connection.ask(&alive, false, soon()).await;
        alive.ok()
    };
    let others = async |list: &str, own: &str| {
        let alive = alive(list).await?;
        Some(alive.iter().filter(|one| *one != own).count())
    };
    let limits = Subject::of(&policy.limits_text()).to_string();
    if let Some(limits) = others(&script.key(LIMITS_KEYS[1]), &limits).await {
        // A user may be confined to the keys of one prefix.
        let prefixes = others(PREFIXES_KEYS[1], &script.key("*")).await;
        checked.push(findings::fleets(limits, prefixes));
    }
    let sidecars = alive(&script.key(SIDECARS_KEYS[1])).await;
    Ok(sidecars.unwrap_or_default())
}
