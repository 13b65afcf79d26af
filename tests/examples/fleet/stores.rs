//! What a fleet counts in, as `STORE` names it; what can happen to it, and what its nodes tell of their connections.

use std::cell::Cell;

use redis::RedisResult;
use sluicegate_tests::cluster::Cluster;
use sluicegate_tests::link::{Link, Packets};
use sluicegate_tests::name::{self, NAME};
use sluicegate_tests::process::Process;
use sluicegate_tests::redis::{Redis, connect};
use sluicegate_tests::sentinel::Sentinels;
use sluicegate_tests::sidecar::{Planned, Sidecar};
use tempfile::TempDir;

pub const MANY: [&str; 2] = ["--maxclients", "20000"];
/// Longer than the 1.5 s for which a primary is stopped: that is no reason for a failover.
const DOWN_AFTER: &str = "sentinel down-after-milliseconds main 3000";

/// A store, and how many connections its nodes have had from here: each look at one is one.
pub struct Store {
    pub kind: Kind,
    own: Cell<u32>,
    /// Of the sentinels or the name.
    folder: TempDir,
}

pub enum Kind {
    One(Redis),
    /// By a name, which leads to a link at first.
    Named(Redis, Link),
    /// A primary and its replica.
    Sentinel(Sentinels),
    /// With the number of the primary that has the key of the limit `hot`; it has a replica.
    Cluster(Cluster, usize),
}

/// What the nodes that answer tell, together.
#[derive(Default)]
pub struct Seen {
    /// Connections of sidecars that were made since each node started, also the planned ones.
    pub made: f64,
    /// Those that are open.
    pub open: u64,
    pub primaries: u64,
    /// Seconds of CPU.
    pub cpu: f64,
}

impl Store {
    pub async fn start(hot: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let kind = match std::env::var("STORE").as_deref() {
            Err(_) => Kind::One(Redis::start_with(&MANY).await),
            Ok("name") => {
                let link = Link::start();
                let bind = format!("--bind 127.0.0.1 {} --protected-mode no", link.server());
                let words: Vec<_> = bind.split(' ').chain(MANY).collect();
                name::leads_to(&link.own(), folder.path());
                Kind::Named(Redis::start_with(&words).await, link)
            }
            Ok("sentinel") => {
                let sentinels = Sentinels::start_with(folder.path(), DOWN_AFTER).await;
                sentinels.agree().await;
                Kind::Sentinel(sentinels)
            }
            Ok("cluster") => {
                let mut cluster = Cluster::start().await;
                let node = cluster.owner_of(hot).await;
                cluster.add_replica(node).await;
                Kind::Cluster(cluster, node)
            }
            Ok(other) => panic!("STORE={other}: there are `cluster`, `sentinel` and `name`"),
        };
        Self {
            kind,
            own: Cell::default(),
            folder,
        }
    }

    pub fn url(&self) -> String {
        match &self.kind {
            Kind::One(redis) => redis.url(),
            Kind::Named(redis, _) => format!("redis://{NAME}:{}", redis.port()),
            Kind::Sentinel(sentinels) => sentinels.url(),
            Kind::Cluster(cluster, _) => cluster.url(),
        }
    }

    /// How many primaries it has when all is well.
    pub const fn primaries(&self) -> u64 {
        match self.kind {
            Kind::Cluster(..) => 3,
            _ => 1,
        }
    }

    /// How many connections a sidecar makes that starts, with so many to each primary. In a Cluster one more asks for the
    /// slots; later the others do.
    pub const fn needed(&self, to_each: u64) -> u64 {
        to_each * self.primaries() + matches!(self.kind, Kind::Cluster(..)) as u64
    }

    /// A sidecar to start.
    pub fn sidecar(&self, policy: &str) -> Planned {
        let sidecar = Sidecar::with(policy);
        match self.kind {
            Kind::Named(..) => sidecar.program(&name::program(self.folder.path())),
            _ => sidecar,
        }
    }

    /// Drops all packets of the link, and has the name lead past it.
    pub fn falls_silent(&self) {
        if let Kind::Named(_, link) = &self.kind {
            link.set(Packets::Drop);
            name::leads_to("127.0.0.1", self.folder.path());
        }
    }

    /// Looks at all nodes.
    pub async fn look(&self) -> Seen {
        let ports = match &self.kind {
            Kind::One(redis) | Kind::Named(redis, _) => vec![redis.port()],
            Kind::Sentinel(all) => vec![all.first.port(), all.second.port()],
            Kind::Cluster(cluster, _) => cluster.ports(),
        };
        let mut seen = Seen::default();
        for port in ports {
            // One that has been killed refuses it.
            let Ok(mut connection) = connect(port).await else {
                continue;
            };
            self.count_own();
            let mut questions = redis::pipe();
            questions.cmd("INFO").arg("all");
            let questions = questions.cmd("CLIENT").arg(&["LIST", "TYPE", "NORMAL"]);
            let answers: RedisResult<(String, String)> =
                questions.query_async(&mut connection).await;
            let (info, clients) = answers.expect("its answers");
            let find = |start: &str| info.lines().find_map(|line| line.strip_prefix(start));
            let number = |start: &str| {
                let value =
                    find(start).and_then(|rest| rest.split(',').next()?.parse::<f64>().ok());
                value.unwrap_or(0.0)
            };
            seen.made += number("total_connections_received:");
            // Sentinels and replicas are clients too: the former name each connection, the latter begin it so.
            seen.made -= number("cmdstat_client|setname:calls=") + number("cmdstat_psync:calls=");
            let unnamed = clients.lines().filter(|line| line.contains(" name= "));
            seen.open += unnamed.count() as u64 - 1;
            seen.primaries += u64::from(find("role:") == Some("master"));
            seen.cpu += number("used_cpu_user:") + number("used_cpu_sys:");
        }
        seen.made -= f64::from(self.own.get());
        seen
    }

    fn count_own(&self) {
        self.own.set(self.own.get() + 1);
    }

    /// The primary that faults befall.
    pub fn victim(&mut self) -> &mut Process {
        match &mut self.kind {
            Kind::Cluster(cluster, node) => cluster.process(*node),
            Kind::One(first) | Kind::Named(first, _) | Kind::Sentinel(Sentinels { first, .. }) => {
                first.process()
            }
        }
    }

    /// Starts it again: empty, or with what it has saved.
    pub async fn restart(&mut self, has_saved: bool) {
        match &mut self.kind {
            Kind::One(redis) if has_saved => redis.restart_loading(&MANY).await,
            Kind::Cluster(cluster, node) => cluster.restart(*node).await,
            Kind::One(first) | Kind::Named(first, _) | Kind::Sentinel(Sentinels { first, .. }) => {
                first.restart().await
            }
        }
        self.count_own();
    }
}
