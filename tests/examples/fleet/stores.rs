//! What a fleet counts in: one Redis, a primary with a replica and sentinels, or a Cluster; what can happen to it, and what
//! its nodes tell of their connections.

use std::cell::Cell;

use redis::RedisResult;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::redis::{Redis, ask, connect};
use sluicegate_tests::sentinel::Sentinels;
use tempfile::TempDir;

const MANY: [&str; 2] = ["--maxclients", "20000"];
/// Longer than the 1.5 s for which a primary is stopped: that is no reason for a failover.
const DOWN_AFTER: &str = "sentinel down-after-milliseconds main 3000";
/// How long a Cluster waits before it replaces a primary. By default 15 s: longer than the 8 s for which one is killed.
const FAILS_OVER_AFTER: &str = "CONFIG SET cluster-node-timeout 1000";

/// A store, and how many connections its nodes have had from here: each question is one.
pub struct Store {
    kind: Kind,
    own: Cell<i64>,
}

enum Kind {
    One(Redis),
    Sentinel(
        Sentinels,
        #[expect(dead_code, reason = "it goes with them")] TempDir,
    ),
    /// With the number of the node that has the key of the limit `hot`, and a replica of that one.
    Cluster(Cluster, usize),
}

/// What the nodes tell that answer, together.
#[derive(Default)]
pub struct Seen {
    /// Connections made since each of them started, but for those from here. Sentinels and replicas are clients too: they
    /// make up to a dozen at a failover.
    pub made: i64,
    /// Connections of sidecars.
    pub connected: u64,
    pub primaries: u64,
    /// Seconds of CPU.
    pub cpu: f64,
}

impl Store {
    /// Starts the one that the environment names.
    pub async fn start(hot: &str) -> Self {
        let kind = match std::env::var("STORE").as_deref() {
            Err(_) => Kind::One(Redis::start_with(&MANY).await),
            Ok("sentinel") => {
                let folder = tempfile::tempdir().expect("a folder");
                let sentinels = Sentinels::start_with(folder.path(), DOWN_AFTER).await;
                sentinels.agree().await;
                Kind::Sentinel(sentinels, folder)
            }
            Ok("cluster") => {
                let mut cluster = Cluster::start().await;
                let node = cluster.owner_of(hot).await;
                cluster.add_replica(node).await;
                Kind::Cluster(cluster, node)
            }
            Ok(other) => panic!("STORE={other}: there are `cluster` and `sentinel`"),
        };
        let own = Cell::default();
        Self { kind, own }
    }

    pub fn url(&self) -> String {
        match &self.kind {
            Kind::One(redis) => redis.url(),
            Kind::Sentinel(sentinels, _) => sentinels.url(),
            Kind::Cluster(cluster, _) => cluster.url(),
        }
    }

    /// The only Redis.
    pub const fn one(&self) -> Option<&Redis> {
        match &self.kind {
            Kind::One(redis) => Some(redis),
            _ => None,
        }
    }

    /// Whether nothing replaces a primary within the 8 s for which one is killed.
    pub const fn restarts(&self) -> bool {
        !matches!(self.kind, Kind::Sentinel(..))
    }

    pub const fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster(..))
    }

    /// How many primaries it has when all is well.
    pub const fn primaries(&self) -> u64 {
        if self.is_cluster() { 3 } else { 1 }
    }

    /// Asks all nodes.
    pub async fn look(&self) -> Seen {
        let mut seen = Seen::default();
        for port in self.ports() {
            // One that has been killed refuses it.
            let Ok(mut connection) = connect(port).await else {
                continue;
            };
            self.count_own();
            let mut questions = redis::pipe();
            questions.cmd("INFO").cmd("CLIENT").arg("LIST");
            questions.arg("TYPE").arg("NORMAL");
            let answers: RedisResult<(String, String)> =
                questions.query_async(&mut connection).await;
            let (info, clients) = answers.expect("its answers");
            let field = |name: &str| {
                let mut lines = info.lines();
                let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
                value.unwrap_or_else(|| panic!("Redis tells no {name}"))
            };
            let number = |name: &str| field(name).parse::<f64>().expect("a number");
            seen.made += number("total_connections_received") as i64;
            // Those of sentinels have names.
            let unnamed = clients.lines().filter(|line| line.contains(" name= "));
            seen.connected += unnamed.count() as u64 - 1;
            seen.primaries += u64::from(field("role") == "master");
            seen.cpu += number("used_cpu_user") + number("used_cpu_sys");
        }
        seen.made -= self.own.get();
        seen
    }

    fn count_own(&self) {
        self.own.set(self.own.get() + 1);
    }

    fn ports(&self) -> Vec<u16> {
        match &self.kind {
            Kind::One(redis) => vec![redis.port()],
            Kind::Sentinel(sentinels, _) => vec![sentinels.first.port(), sentinels.second.port()],
            Kind::Cluster(cluster, _) => cluster.ports(),
        }
    }

    /// Stops a primary: connections stay open and nothing is answered.
    pub fn pause(&self) {
        match &self.kind {
            Kind::One(first) | Kind::Sentinel(Sentinels { first, .. }, _) => first.pause(),
            Kind::Cluster(cluster, node) => cluster.pause(*node),
        }
    }

    /// It goes on.
    pub fn resume(&self) {
        match &self.kind {
            Kind::One(first) | Kind::Sentinel(Sentinels { first, .. }, _) => first.resume(),
            Kind::Cluster(cluster, node) => cluster.resume(*node),
        }
    }

    /// Kills the same one.
    pub fn kill(&mut self) {
        match &mut self.kind {
            Kind::One(first) | Kind::Sentinel(Sentinels { first, .. }, _) => first.kill(),
            Kind::Cluster(cluster, node) => cluster.kill(*node),
        }
    }

    /// Starts it again: empty, or with what it has saved.
    pub async fn restart(&mut self, has_saved: bool) {
        match &mut self.kind {
            Kind::One(redis) if has_saved => redis.restart_loading(&MANY).await,
            Kind::One(first) | Kind::Sentinel(Sentinels { first, .. }, _) => first.restart().await,
            Kind::Cluster(cluster, node) => cluster.restart(*node).await,
        }
        self.count_own();
    }

    /// Kills it for good. Its replica is promoted.
    pub async fn kill_for_good(&mut self) {
        if self.is_cluster() {
            for port in self.ports() {
                let set: RedisResult<()> = ask(port, FAILS_OVER_AFTER).await;
                set.expect("a configuration");
                self.count_own();
            }
        }
        self.kill();
    }
}
