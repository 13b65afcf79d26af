//! Clients at the published port, and exact counts of their answers.

use std::ops::Add;
use std::time::Duration;

use futures_util::future::join_all;
use sluicegate_tests::client::{client, status_for};
use sluicegate_tests::process::POLL;

use crate::config::{CLOSED, OPEN};

/// Where docker-compose.yml publishes Envoy.
const INGRESS: &str = "http://127.0.0.1:10000";

/// Of the shorter of the policy's windows, in which a burst ends on any machine.
const QUOTA: u64 = 5;

/// Longer than the cluster's `connect_timeout`. An attempt to connect that began before the sidecar was back may fail until then, and
/// Envoy then gives up all requests that wait for a connection.
const ATTEMPT_ENDS: Duration = Duration::from_millis(1_200);
/// Envoy resolves a container's new address every 5 s.
const BACK_WITHIN: Duration = Duration::from_secs(60);

/// Requests of a burst.
const BURST: u64 = 12;

/// Counts of answers, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub ok: u64,
    pub denied: u64,
    pub unavailable: u64,
}

impl Counts {
    fn count(&mut self, status: u16) {
        match status {
            200 => self.ok += 1,
            429 => self.denied += 1,
            503 => self.unavailable += 1,
            other => panic!("status {other}"),
        }
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            ok: self.ok + other.ok,
            denied: self.denied + other.denied,
            unavailable: self.unavailable + other.unavailable,
        }
    }
}

/// Sends requests and counts the answers.
#[derive(Debug)]
pub struct Clients {
    client: reqwest::Client,
    /// Since the last call of [`Clients::take`].
    counts: Counts,
    keys: u64,
}

impl Clients {
    pub fn new() -> Self {
        Self {
            client: client(),
            counts: Counts::default(),
            keys: 0,
        }
    }

    /// Takes the counts since the last call.
    pub fn take(&mut self) -> Counts {
        std::mem::take(&mut self.counts)
    }

    /// Checks that the limit holds for fresh keys: exactly the quota of each burst is admitted.
    pub async fn check_that_limits_hold(&mut self, keys: usize) {
        for _ in 0..keys {
            let key = self.new_key();
            let exact = Counts {
                ok: QUOTA,
                denied: BURST - QUOTA,
                unavailable: 0,
            };
            let burst = self.burst(OPEN, &key).await;
            assert_eq!(burst, exact, "a burst of {BURST} with one key");
        }
        // The filter reports its cached denials with its next callout, so this makes one.
        let key = self.new_key();
        assert_eq!(self.ask(OPEN, &key).await, 200);
    }

    /// Checks that without verdicts each rule gives its own answer, in the time for which a client waits.
    pub async fn check_answers_without_verdicts(&mut self) {
        let key = self.new_key();
        let allowed = Counts {
            ok: BURST,
            ..Counts::default()
        };
        let refused = Counts {
            unavailable: BURST,
            ..Counts::default()
        };
        // Twice: the first answers must not change the next.
        for _ in 0..2 {
            for (path, expected) in [(OPEN, allowed), (CLOSED, refused)] {
                assert_eq!(self.burst(path, &key).await, expected, "{path}");
            }
        }
    }

    /// Waits for a verdict, on the path where its absence is a 503.
    pub async fn wait_for_a_verdict(&mut self) {
        let within = tokio::time::timeout(BACK_WITHIN, async {
            loop {
                let key = self.new_key();
                if self.ask(CLOSED, &key).await != 503 {
                    tokio::time::sleep(ATTEMPT_ENDS).await;
                    return;
                }
                tokio::time::sleep(POLL).await;
            }
        });
        within.await.expect("a verdict again in time");
    }

    async fn burst(&mut self, path: &'static str, key: &str) -> Counts {
        let asked = (0..BURST).map(|_| ask(&self.client, path, key));
        let mut burst = Counts::default();
        for status in join_all(asked).await {
            burst.count(status);
            self.counts.count(status);
        }
        burst
    }

    async fn ask(&mut self, path: &str, key: &str) -> u16 {
        let status = ask(&self.client, path, key).await;
        self.counts.count(status);
        status
    }

    fn new_key(&mut self) -> String {
        self.keys += 1;
        format!("key-{}", self.keys)
    }
}

async fn ask(client: &reqwest::Client, path: &str, key: &str) -> u16 {
    let status = status_for(client, &format!("{INGRESS}{path}"), key).await;
    status.expect("an answer of Envoy's")
}
