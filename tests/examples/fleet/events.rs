//! What happens to a fleet and its store: a row for each.

use std::fs::write;
use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::stores::Kind;
use super::{Fleet, HOT_QUOTA};

impl Fleet {
    /// So many sidecars start; returns the load on them.
    pub async fn starts(&mut self, count: u64) -> JoinHandle<()> {
        let needed = count * self.store.needed(self.connections);
        let before = self.before(needed).await;
        self.join(count).await;
        let listening = Instant::now();
        self.each_has_a_verdict().await;
        let first = listening.elapsed();
        let load = self.load();
        let what = format!("all start, first verdicts after {first:.1?}");
        self.row(&what, before, listening).await;
        load
    }

    /// All that can happen to this store.
    pub async fn store_fails(&mut self) {
        self.is_stopped().await;
        if !matches!(self.store.kind, Kind::Sentinel(..)) {
            let what = "a primary killed for 8 s, empty afterwards";
            self.is_killed(what, false).await;
        }
        match self.store.kind {
            Kind::One(_) => self.is_killed("the same, with its file", true).await,
            Kind::Named(..) => self.falls_silent().await,
            _ => self.fails_over().await,
        }
    }

    async fn is_stopped(&mut self) {
        let before = self.before(0).await;
        self.store.victim().signal("STOP");
        sleep(Duration::from_millis(1_500)).await;
        self.store.victim().signal("CONT");
        let what = "a primary stopped for 1.5 s";
        self.row(what, before, Instant::now()).await;
    }

    async fn is_killed(&mut self, what: &str, has_saved: bool) {
        if has_saved && let Kind::One(redis) = &self.store.kind {
            let _: String = redis.command("SAVE").await;
        }
        self.store.victim().kill();
        // The dead one tells nothing now, and counts from zero when it is back.
        let before = self.before(self.to_a_primary()).await;
        sleep(Duration::from_secs(8)).await;
        self.store.restart(has_saved).await;
        self.row(what, before, Instant::now()).await;
    }

    /// Packets to one Redis are dropped, and its name leads to another: the same, started again, which no sidecar has heard.
    async fn falls_silent(&mut self) {
        let silent = Instant::now();
        self.store.falls_silent();
        self.store.victim().kill();
        let before = self.before(self.to_a_primary()).await;
        self.store.restart(false).await;
        let what = "packets dropped, the name leads to another Redis";
        self.row(what, before, silent).await;
    }

    /// A primary is killed, its replica promoted, and then it is back.
    async fn fails_over(&mut self) {
        self.store.victim().kill();
        let before = self.before(self.to_a_primary()).await;
        let after = self.has_its_primaries().await;
        let what = format!("a primary killed, its replica promoted after {after:.1?}");
        self.row(&what, before, Instant::now()).await;
        let before = self.before(0).await;
        self.store.restart(false).await;
        let after = self.has_its_primaries().await;
        let what = format!("the old primary is back, a replica after {after:.1?}");
        self.row(&what, before, Instant::now()).await;
    }

    /// Waits until there are as many primaries as when all is well; returns how long that took.
    async fn has_its_primaries(&self) -> Duration {
        let since = Instant::now();
        eventually("as many primaries as before", async || {
            self.store.look().await.primaries == self.store.primaries()
        })
        .await;
        since.elapsed()
    }

    /// A tenth of the sidecars is replaced; returns the load on all.
    pub async fn others_start(&mut self, load: JoinHandle<()>) -> JoinHandle<()> {
        let some = self.sidecars.len() / 10;
        let needed = some as u64 * self.store.needed(self.connections);
        let before = self.before(needed).await;
        drop(self.sidecars.drain(..some));
        self.join(some as u64).await;
        load.abort();
        let load = self.load();
        let what = "a tenth killed, and others start";
        self.row(what, before, Instant::now()).await;
        load
    }

    pub async fn gets_another_policy(&mut self) {
        let before = self.before(0).await;
        let (changed, text) = (Instant::now(), self.policy(2 * HOT_QUOTA));
        for sidecar in &self.sidecars {
            write(&sidecar.policy, &text).expect("a policy");
        }
        for sidecar in &self.sidecars {
            while sidecar.metric("sluicegate_policy_epoch").await < 2.0 {
                sleep(Duration::from_millis(20)).await;
            }
        }
        let after = changed.elapsed();
        let what = format!("another policy, everywhere after {after:.1?}");
        self.row(&what, before, changed).await;
    }
}
