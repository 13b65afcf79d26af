//! What `sluicegate check-store` finds out about a store, by the connections and scripts that sidecars use.

mod findings;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, FromRedisValue, RedisError, Value};
use tokio::task::JoinSet;

pub use self::findings::{Finding, State};
use self::findings::{
    Said, clock, contradicts, failed, fleets, is_refusal, of_info, permissions, reached,
    round_trip, sharding,
};
use super::call::{LIMITS_KEYS, OVERRIDES_KEY, PREFIXES_KEYS, SIDECARS_SLOT_KEY, Script};
use super::cluster::layout::Layout;
use super::error::{ConnectionError, StoreError};
use super::redis::connection::{Connection, Deadline, is_no_script};
use super::redis::dial::Dialer;
use super::redis::probe::{Probe, ProbeResult, is_elsewhere};
use super::redis::sentinel::primary_of;
use super::redis::sharding::is_sharded;
use crate::clock::unix_us;
use crate::policy::{Endpoint, RedisStore, Topology};

/// For each answer: longer than decisions wait, so that a slow Redis is told as slow.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a round trip is measured.
const ROUND_TRIPS: usize = 5;

/// Tries commands, in which `*` stands for the key; answers which are refused, and why. After SET there is a string, so that
/// commands that would write something else fail; where it is refused, they are not tried.
const TRIAL: &str = "local refused = {}
for _, words in ipairs(ARGV) do
  local command = {}
  for word in words:gmatch('%S+') do command[#command + 1] = word == '*' and KEYS[1] or word end
  local answer = redis.pcall(unpack(command))
  local why = type(answer) == 'table' and answer.err
  if why and not why:find('WRONGTYPE') then refused[#refused + 1] = { command[1], why } end
  if why and command[1] == 'SET' then break end
end
return refused";
const WRITES: &str = "TIME,GET *,SET * 1 PX 9000,HGET * f,HSET * f v,HDEL * f,PEXPIRE * 9000,ZADD * 1 m,ZREM * m,ZCARD *,\
                      ZRANK * m,ZRANGEBYSCORE * 0 1,UNLINK *";
/// What sidecars run, by key. PERSIST has a key of its own, since it would keep what is there.
const COMMANDS: [(&str, &str); 4] = [
    ("sg:{TAG}:written:probe", WRITES),
    ("sg:{TAG}:absent:probe", "HGETALL *,PERSIST *"),
    (SIDECARS_SLOT_KEY, "ZREM * m"),
    (OVERRIDES_KEY, "HDEL * f"),
];

/// A store, as the sidecars of a policy use it.
#[derive(Debug)]
pub struct CheckedStore<'a> {
    /// Where it is.
    pub store: &'a RedisStore,
    /// The policy's deadline of a call.
    pub store_timeout: Duration,
    /// The digest of the policy's limits.
    pub limits: &'a str,
}

/// A connection, and what was refused on it: commands, with Redis's answers.
struct Visit(Connection, BTreeSet<(String, String)>);

impl Visit {
    /// Sends a command; no answer where it is refused, or its slot is at another node.
    async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> Result<Option<T>, StoreError> {
        match self.0.ask(command, soon()).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if is_no_script(&error) || is_elsewhere(&error) => Ok(None),
            Err(error @ StoreError::Refused(_)) => {
                let name = command.args_iter().next().map(|name| match name {
                    Arg::Simple(name) => String::from_utf8_lossy(name).into_owned(),
                    _ => String::new(),
                });
                self.1.insert((name.unwrap_or_default(), error.to_string()));
                Ok(None)
            }
            Err(error) => Err(error.on_new_connection()),
        }
    }
}

fn soon() -> Deadline {
    Deadline::after(PATIENCE)
}

/// A command, by its words.
fn words(text: &str) -> Cmd {
    let mut command = Cmd::new();
    command.arg(text.split(' ').collect::<Vec<_>>());
    command
}

impl CheckedStore<'_> {
    /// Checks it.
    pub async fn check(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (endpoint, tag) in self.nodes(&mut findings).await {
            let mut said = Vec::new();
            if let Err(error) = self.node(&endpoint, &tag, &mut said).await {
                said.push(failed(&error));
            }
            findings.extend(said.into_iter().map(|said| Finding::new(&endpoint, said)));
        }
        findings
    }

    fn is_cluster(&self) -> bool {
        matches!(self.store.url.topology, Topology::Cluster(_))
    }

    /// Each primary, and a tag of its slots, as all sentinels or seeds name them.
    async fn nodes(&self, findings: &mut Vec<Finding>) -> Vec<(Endpoint, String)> {
        let (asked, command) = match &self.store.url.topology {
            Topology::Single(endpoint) => return vec![(endpoint.clone(), "probe".to_owned())],
            Topology::Cluster(seeds) => (seeds, "CLUSTER SLOTS".to_owned()),
            Topology::Sentinel { sentinels, name } => (
                sentinels,
                format!("SENTINEL GET-MASTER-ADDR-BY-NAME {name}"),
            ),
        };
        let dialer = match self.is_cluster() {
            true => Dialer::new(self.store, PATIENCE),
            false => Dialer::to_sentinels(self.store, PATIENCE),
        };
        let mut known = None::<Vec<_>>;
        for endpoint in asked {
            let answer = dialer.ask(endpoint, &words(&command)).await;
            match answer.and_then(|answer| self.read(answer, endpoint)) {
                Ok(nodes) if *known.get_or_insert_with(|| nodes.clone()) == nodes => {}
                Ok(_) => findings.push(Finding::new(endpoint, contradicts())),
                Err(error) => {
                    let (_, message) = failed(&error);
                    findings.push(Finding::new(endpoint, (State::Warning, message)));
                }
            }
        }
        known.unwrap_or_else(|| {
            findings.iter_mut().for_each(|one| one.state = State::Error);
            Vec::new()
        })
    }

    fn read(&self, answer: Value, asked: &Endpoint) -> Result<Vec<(Endpoint, String)>, StoreError> {
        if !self.is_cluster() {
            let primary = primary_of(answer).map_err(RedisError::from)?;
            let primary = primary.ok_or(ConnectionError::NoPrimary)?;
            return Ok(vec![(primary, "probe".to_owned())]);
        }
        let primaries = Layout::read(&answer, asked)?.primaries.into_iter();
        let mut nodes: Vec<_> = primaries.map(|one| (one.endpoint, one.tag)).collect();
        nodes.sort();
        Ok(nodes)
    }

    /// Checks one Redis.
    async fn node(&self, at: &Endpoint, tag: &str, said: &mut Vec<Said>) -> Result<(), StoreError> {
        let dialer = Dialer::new(self.store, self.store_timeout.max(PATIENCE));
        let (connection, driver) = dialer.dial(at).await?;
        let mut task = JoinSet::new();
        task.spawn(driver);
        let connection = Connection::new(connection, None, Arc::default());
        let mut visit = Visit(connection, BTreeSet::new());
        said.push(reached(self.store.url.tls));
        visit.ask::<Value>(&words("ROLE")).await?;
        let info: String = visit.ask(&words("INFO")).await?.unwrap_or_default();
        if info.contains("role:slave") {
            return Err(ConnectionError::Replica.into());
        }
        said.extend(of_info(&info));
        let prefix = &self.store.options.key_prefix;
        let script = Script::new(prefix);
        let named = |key: &str| script.key(&key.replace("TAG", tag));
        for (key, commands) in COMMANDS {
            let mut trial = redis::cmd("EVAL");
            trial.arg(TRIAL).arg(1).arg(named(key));
            trial.arg(commands.split(',').collect::<Vec<_>>());
            let refused: Option<Vec<_>> = visit.ask(&trial).await?;
            visit.1.extend(refused.into_iter().flatten());
        }
        let unknown = format!("EVALSHA {:040} 1 {}", 0, named(COMMANDS[0].0));
        visit.ask::<()>(&words(&unknown)).await?;
        let Visit(connection, refused) = &visit;
        said.extend(permissions(refused, prefix));
        if said.iter().any(is_refusal) {
            return Ok(());
        }
        let mut least = Duration::MAX;
        for _ in 0..ROUND_TRIPS {
            let began = Instant::now();
            match Probe::new(tag).run(connection, &script, soon()).await {
                ProbeResult::Writable => least = least.min(began.elapsed()),
                ProbeResult::Refused(error) | ProbeResult::Unusable(error) => return Err(error),
            }
        }
        said.push(round_trip(least, self.store_timeout));
        let now_us = connection.clock_us().unwrap_or_default();
        said.push(clock(now_us.cast_signed() - unix_us().cast_signed()));
        if !self.is_cluster() {
            let look = async || match is_sharded(connection, &script, soon()).await {
                // A proxy or a Cluster that refuses keys of several tags.
                Err(StoreError::Refused(_)) => Ok(true),
                looked => looked,
            };
            said.push(sharding(look().await? && look().await?));
        }
        let others = async |list: &str, own: &str| {
            let alive = words(&format!("ZRANGEBYSCORE {list} {} +inf", now_us / 1_000));
            let alive = connection.ask::<Vec<String>>(&alive, soon()).await;
            alive.map(|alive| alive.iter().filter(|one| *one != own).count())
        };
        if let Ok(limits) = others(&named(LIMITS_KEYS[1]), self.limits).await {
            // A user may be confined to the keys of one prefix.
            let prefixes = others(PREFIXES_KEYS[1], &named("*")).await;
            said.push(fleets(limits, prefixes.ok()));
        }
        Ok(())
    }
}
