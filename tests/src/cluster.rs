//! A Redis Cluster of three nodes, with nothing on disk.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::process::{Process, eventually, free_port, run};
use crate::redis::{ask, launch, launch_in};

/// Offset of a node's cluster bus from its port; fixed by Redis.
const BUS: u16 = 10_000;
const NODES: usize = 3;

/// Three running redis-servers that share the slots.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<(Process, u16)>,
    /// The arguments of each node.
    arguments: Vec<Vec<String>>,
    folder: tempfile::TempDir,
}

impl Cluster {
    /// Starts one.
    ///
    /// # Panics
    /// The cluster does not form.
    pub async fn start() -> Self {
        Self::start_with(async |_| Vec::new()).await
    }

    /// Starts one whose nodes have further arguments, made from their ports.
    ///
    /// # Panics
    /// The cluster does not form.
    pub async fn start_with(arguments: impl AsyncFn(u16) -> Vec<String>) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut nodes, mut each) = (Vec::new(), Vec::new());
        for _ in 0..NODES {
            let port = port_with_bus();
            let state = format!("nodes-{port}.conf");
            let words = ["--cluster-enabled", "yes", "--cluster-config-file", &state];
            let mut words = words.map(str::to_owned).to_vec();
            words.extend(arguments(port).await);
            let process = launch(port, folder.path(), &borrowed(&words)).await;
            nodes.push((process, port));
            each.push(words);
        }
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|(_, port)| format!("127.0.0.1:{port}")));
        create.args(["--cluster-replicas", "0", "--cluster-yes"]);
        run(&mut create, "install it: apt-get install redis-tools");
        let cluster = Self {
            nodes,
            arguments: each,
            folder,
        };
        cluster.formed().await;
        cluster
    }

    /// Waits until each node knows all others and all slots are served.
    async fn formed(&self) {
        let all = format!("cluster_known_nodes:{}", self.nodes.len());
        for port in self.ports() {
            eventually("the cluster is up", async || {
                // A machine that stalls may exceed the client's own time limits.
                let info: redis::RedisResult<String> = ask(port, "CLUSTER INFO").await;
                info.is_ok_and(|info| info.contains("cluster_state:ok") && info.contains(&all))
            })
            .await;
        }
    }

    /// The nodes' ports.
    pub fn ports(&self) -> Vec<u16> {
        self.nodes.iter().map(|(_, port)| *port).collect()
    }

    /// As a policy's `store` names it.
    pub fn url(&self) -> String {
        let nodes: Vec<_> = self
            .ports()
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+cluster://{}", nodes.join(","))
    }

    /// Pauses a node: connections stay open and nothing is answered. For less than the 15 seconds after which the
    /// others would consider it failed.
    pub fn pause(&self, node: usize) {
        self.nodes[node].0.signal("STOP");
    }

    /// Resumes it.
    pub fn resume(&self, node: usize) {
        self.nodes[node].0.signal("CONT");
    }

    /// A node's process.
    pub fn process(&mut self, node: usize) -> &mut Process {
        &mut self.nodes[node].0
    }

    /// Kills a node, as a crash would; what it held is lost.
    pub fn kill(&mut self, node: usize) {
        self.nodes[node].0.kill();
    }

    /// Starts a node again, empty, with the slots that it had.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn restart(&mut self, node: usize) {
        self.kill(node);
        let (words, port) = (borrowed(&self.arguments[node]), self.nodes[node].1);
        self.nodes[node].0 = launch(port, self.folder.path(), &words).await;
    }

    /// Adds a replica of a node; returns its number when it has everything.
    ///
    /// # Panics
    /// It does not follow the node.
    pub async fn add_replica(&mut self, of: usize) -> usize {
        self.add_replica_in(of, &[]).await
    }

    /// Likewise; the replica has these variables in its environment.
    ///
    /// # Panics
    /// It does not follow the node.
    pub async fn add_replica_in(
        &mut self,
        of: usize,
        environment: &[(&'static str, PathBuf)],
    ) -> usize {
        let number = self.add(of, environment).await;
        let (port, primary) = (self.nodes[number].1, self.nodes[of].1);
        let id: String = ask(primary, "CLUSTER MYID").await.expect("its id");
        let _: String = ask(port, &format!("CLUSTER REPLICATE {id}"))
            .await
            .expect("a replica");
        eventually("it follows the node", async || {
            let info: redis::RedisResult<String> = ask(port, "INFO replication").await;
            info.is_ok_and(|info| info.contains("master_link_status:up"))
        })
        .await;
        self.formed().await;
        number
    }

    /// Adds a node without slots, whose arguments are like those of another one; returns its number when all know each other.
    ///
    /// # Panics
    /// They do not.
    pub async fn add(&mut self, like: usize, environment: &[(&'static str, PathBuf)]) -> usize {
        let (port, number) = (port_with_bus(), self.nodes.len());
        let mut words = self.arguments[like].clone();
        for word in &mut words {
            *word = word.replace(&self.nodes[like].1.to_string(), &port.to_string());
        }
        let folder = self.folder.path();
        let process = launch_in(port, folder, &borrowed(&words), environment).await;
        let known = self.nodes[like].1;
        self.nodes.push((process, port));
        self.arguments.push(words);
        let meet = format!("CLUSTER MEET 127.0.0.1 {known}");
        let _: String = ask(port, &meet).await.expect("it meets the others");
        self.formed().await;
        number
    }

    /// Makes a replica the primary, as an operator does.
    ///
    /// # Panics
    /// It refuses.
    pub async fn fail_over_to(&self, replica: usize) {
        let port = self.nodes[replica].1;
        let _: String = ask(port, "CLUSTER FAILOVER").await.expect("it begins");
    }

    /// Waits until a node is a primary.
    pub async fn promoted(&self, node: usize) {
        let port = self.nodes[node].1;
        eventually("it is a primary", async || {
            let info: redis::RedisResult<String> = ask(port, "INFO replication").await;
            info.is_ok_and(|info| info.contains("role:master"))
        })
        .await;
    }

    /// All keys on all nodes.
    ///
    /// # Panics
    /// A node does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let mut keys = Vec::new();
        for port in self.ports() {
            let held: Vec<String> = ask(port, "KEYS *").await.expect("its keys");
            keys.extend(held);
        }
        keys.retain(|key| !key.ends_with(":probe"));
        keys
    }

    /// The slot of a hash tag.
    ///
    /// # Panics
    /// A node does not answer.
    pub async fn slot(&self, tag: &str) -> u16 {
        let slot = ask(self.nodes[0].1, &format!("CLUSTER KEYSLOT {tag}")).await;
        slot.expect("a slot")
    }

    /// The index of the node that owns the slot of a hash tag.
    ///
    /// # Panics
    /// A node does not answer.
    pub async fn owner_of(&self, tag: &str) -> usize {
        self.owner(self.slot(tag).await).await
    }

    /// A hash tag whose slot another node owns.
    ///
    /// # Panics
    /// A node does not answer.
    pub async fn tag_elsewhere(&self, node: usize) -> String {
        let mut number = 0;
        loop {
            let tag = format!("other-{number}");
            if self.owner_of(&tag).await != node {
                return tag;
            }
            number += 1;
        }
    }

    /// The index of the node that owns a slot.
    ///
    /// # Panics
    /// A node does not answer.
    pub async fn owner(&self, slot: u16) -> usize {
        for (number, port) in self.ports().into_iter().enumerate() {
            let lines: String = ask(port, "CLUSTER NODES").await.expect("its nodes");
            let mine = lines
                .lines()
                .find(|line| line.contains("myself"))
                .expect("a node knows itself");
            let owns = mine.split(' ').skip(8).any(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                matches!((first.parse::<u16>(), last.parse::<u16>()), (Ok(a), Ok(b)) if (a..=b).contains(&slot))
            });
            if owns {
                return number;
            }
        }
        panic!("nobody owns slot {slot}")
    }

    /// Moves a slot with all its keys to another node, slowly, as an operator's resharding does.
    ///
    /// # Panics
    /// A node refuses.
    pub async fn migrate(&self, slot: u16, to: usize, pause: Duration) {
        let open = self.open(slot, to).await;
        tokio::time::sleep(pause).await;
        for key in open.keys().await {
            open.carry(&key).await;
            tokio::time::sleep(pause).await;
        }
        open.close().await;
    }

    /// Begins to move a slot to another node, as an operator's resharding does.
    ///
    /// # Panics
    /// A node refuses.
    pub async fn open(&self, slot: u16, to: usize) -> OpenSlot {
        let [source, target] = [self.owner(slot).await, to].map(|node| self.nodes[node].1);
        let open = OpenSlot {
            slot,
            source,
            target,
        };
        let id = async |port| ask::<String>(port, "CLUSTER MYID").await.expect("its name");
        let (importing, migrating) = (id(source).await, id(target).await);
        open.set(target, &format!("IMPORTING {importing}")).await;
        open.set(source, &format!("MIGRATING {migrating}")).await;
        open
    }
}

/// A slot on its way from one node to another; their ports.
#[derive(Debug)]
pub struct OpenSlot {
    slot: u16,
    source: u16,
    target: u16,
}

impl OpenSlot {
    async fn set(&self, port: u16, state: &str) {
        let command = format!("CLUSTER SETSLOT {} {state}", self.slot);
        let done: redis::RedisResult<()> = ask(port, &command).await;
        done.expect("the slot's new state");
    }

    /// Its keys that are still where it comes from.
    ///
    /// # Panics
    /// The node does not answer.
    pub async fn keys(&self) -> Vec<String> {
        let list = format!("CLUSTER GETKEYSINSLOT {} 1000", self.slot);
        ask(self.source, &list).await.expect("its keys")
    }

    /// Carries a key over, if it is still there.
    ///
    /// # Panics
    /// The node refuses.
    pub async fn carry(&self, key: &str) {
        let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 5000", self.target);
        let _: String = ask(self.source, &migrate).await.expect("a key moves");
    }

    /// Carries the rest over and ends the move.
    ///
    /// # Panics
    /// A node refuses.
    pub async fn close(self) {
        while let keys = self.keys().await
            && !keys.is_empty()
        {
            for key in keys {
                self.carry(&key).await;
            }
        }
        let id: String = ask(self.target, "CLUSTER MYID").await.expect("its name");
        for port in [self.target, self.source] {
            self.set(port, &format!("NODE {id}")).await;
        }
    }
}

fn borrowed(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

/// A port whose bus port is free too.
fn port_with_bus() -> u16 {
    loop {
        let port = free_port();
        if std::net::TcpListener::bind(("127.0.0.1", port + BUS)).is_ok() {
            return port;
        }
    }
}
