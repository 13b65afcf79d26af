//! Clients at the published port, and exact counts of their answers.

use std::ops::Add;
use std::time::{Duration, Instant};

use sluicegate_tests::client::client;
use sluicegate_tests::process::POLL;

use crate::config::{CLOSED, OPEN};

/// Where docker-compose.yml publishes Envoy.
const INGRESS: &str = "http://127.0.0.1:10000";

/// The shorter of the policy's windows.
const QUOTA: u64 = 5;
const PER: Duration = Duration::from_secs(2);

/// Requests of a burst.
const BURST: u64 = 12;

/// How many bursts may be slower than the window before the test gives up.
const ATTEMPTS: usize = 10;

/// The filter's timeout, with room for stalls of the machine.
const ANSWERED_WITHIN: Duration = Duration::from_secs(4);

/// Envoy resolves a container's new address every 5 s.
const BACK_WITHIN: Duration = Duration::from_secs(30);

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
        let (mut in_time, mut attempts) = (0, 0);
        while in_time < keys {
            let key = self.new_key();
            let started = Instant::now();
            let burst = self.burst(OPEN, &key).await;
            if started.elapsed() < PER {
                let exact = Counts {
                    ok: QUOTA,
                    denied: BURST - QUOTA,
                    unavailable: 0,
                };
                assert_eq!(burst, exact, "a burst of {BURST} with one key");
                in_time += 1;
            }
            attempts += 1;
            assert!(
                attempts < keys + ATTEMPTS,
                "no burst is faster than {PER:?} on this machine"
            );
        }
        // The filter reports its cached denials with its next callout, so this makes one.
        let key = self.new_key();
        assert_eq!(self.ask(OPEN, &key).await, 200);
    }

    /// Checks that without verdicts each rule gives its own answer, in time.
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
                let started = Instant::now();
                assert_eq!(self.burst(path, &key).await, expected, "{path}");
                let took = started.elapsed();
                assert!(took < ANSWERED_WITHIN, "{path} took {took:?}");
            }
        }
    }

    /// Waits for a verdict, on the path where its absence is a 503.
    pub async fn wait_for_a_verdict(&mut self) {
        let deadline = Instant::now() + BACK_WITHIN;
        loop {
            let key = self.new_key();
            if self.ask(CLOSED, &key).await != 503 {
                return;
            }
            assert!(Instant::now() < deadline, "no verdict again in time");
            tokio::time::sleep(POLL).await;
        }
    }

    async fn burst(&mut self, path: &'static str, key: &str) -> Counts {
        let mut requests = tokio::task::JoinSet::new();
        for _ in 0..BURST {
            let (client, key) = (self.client.clone(), key.to_owned());
            requests.spawn(async move { ask(&client, path, &key).await });
        }
        let mut burst = Counts::default();
        for status in requests.join_all().await {
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
    let request = client
        .get(format!("{INGRESS}{path}"))
        .header("x-api-key", key);
    let answer = request.send().await.expect("an answer of Envoy's");
    answer.status().as_u16()
}
