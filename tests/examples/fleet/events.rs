//! What happens to a fleet and its store: one function for each row.

use std::fs::write;
use std::time::{Duration, Instant};

use sluicegate_tests::process::eventually;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Fleet, HOT_QUOTA};

impl Fleet {
    /// So many sidecars start; returns the load on them.
    pub async fn starts(&mut self, count: u64) -> JoinHandle<()> {
        let before = self.before().await;
        self.join(count).await;
        let listening = Instant::now();
        self.each_has_a_verdict().await;
        let first = listening.elapsed();
        let (needed, load) = (self.needed_by(count), self.load());
        let what = format!("all start, first verdicts after {first:.1?}");
        self.row(&what, needed, before, listening).await;
        load
    }

    pub async fn is_stopped(&mut self) {
        let before = self.before().await;
        self.store.pause();
        sleep(Duration::from_millis(1_500)).await;
        self.store.resume();
        let what = "a primary stopped for 1.5 s";
        self.row(what, 0, before, Instant::now()).await;
    }

    pub async fn is_killed(&mut self, what: &str, has_saved: bool) {
        if has_saved && let Some(redis) = self.store.one() {
            let _: String = redis.command("SAVE").await;
        }
        self.store.kill();
        // When the dead one has no part in it: it will count from zero.
        let before = self.before().await;
        sleep(Duration::from_secs(8)).await;
        self.store.restart(has_saved).await;
        self.row(what, self.to_a_primary(), before, Instant::now())
            .await;
    }

    /// A primary is killed, its replica promoted, and then it is back.
    pub async fn fails_over(&mut self) {
        self.store.kill_for_good().await;
        let (before, killed) = (self.before().await, Instant::now());
        eventually("the replica is promoted", async || {
            self.store.look().await.primaries == self.store.primaries()
        })
        .await;
        let after = killed.elapsed();
        let what = format!("a primary killed, its replica promoted after {after:.1?}");
        self.row(&what, self.to_a_primary(), before, Instant::now())
            .await;
        let before = self.before().await;
        self.store.restart(false).await;
        let what = "the old primary is back, as a replica";
        self.row(what, 0, before, Instant::now()).await;
    }

    /// A tenth of the sidecars is replaced; returns the load on all.
    pub async fn others_start(&mut self, load: JoinHandle<()>) -> JoinHandle<()> {
        let before = self.before().await;
        let some = self.sidecars.len() / 10;
        drop(self.sidecars.drain(..some));
        self.join(some as u64).await;
        load.abort();
        let load = self.load();
        let needed = self.needed_by(some as u64);
        let what = "a tenth killed, and others start";
        self.row(what, needed, before, Instant::now()).await;
        load
    }

    pub async fn gets_another_policy(&mut self) {
        let before = self.before().await;
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
        self.row(&what, 0, before, changed).await;
    }
}
