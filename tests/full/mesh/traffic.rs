//! Clients, and exact counts of what they get.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use reqwest::{Client, Response};
use serde::Serialize;
use tokio::task::{JoinHandle, JoinSet};

/// Longest wait for an answer: anything slower counts as lost.
const DEADLINE: Duration = Duration::from_secs(20);

/// Requests of a burst that wait at the same time.
pub const CLIENTS: u64 = 4;

/// Pause between two requests of a stream.
const PACE: Duration = Duration::from_millis(50);

/// The longest truthful Retry-After: the window of manifests/rules.yaml.
const WINDOW: u64 = 3_600;

/// A path whose requests are let through without a verdict.
pub const OPEN: &str = "/open";
/// A path whose requests get a 503 without a verdict.
pub const CLOSED: &str = "/closed";
/// A path whose route chooses the rules in docs/install.
pub const PARTNERS: &str = "/partners";
/// A path to which no rule applies until the policy is changed.
pub const CHANGED: &str = "/changed";

/// Counts of answers, by status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// 200.
    pub ok: u64,
    /// 429 with a truthful Retry-After.
    pub denied: u64,
    /// 503.
    pub unavailable: u64,
    /// Any other status, and a 429 without a truthful Retry-After.
    pub other: u64,
    /// Requests without an answer.
    pub lost: u64,
}

impl Counts {
    /// All requests.
    pub fn requests(&self) -> u64 {
        self.ok + self.denied + self.unavailable + self.other + self.lost
    }

    /// Exactly `quota` of `requests` are admitted, and the others denied.
    pub fn exact(requests: u64, quota: u64) -> Self {
        Self {
            ok: quota,
            denied: requests - quota,
            ..Self::default()
        }
    }

    /// These counts.
    ///
    /// # Panics
    /// One of them is not a 200.
    pub fn all_ok(self, when: &str) -> Self {
        assert_eq!(self.ok, self.requests(), "{when}: {self:?}");
        self
    }

    /// These counts.
    ///
    /// # Panics
    /// One of them is neither a 200 nor a 503.
    pub fn ok_or_unavailable(self, when: &str) -> Self {
        let expected = self.ok + self.unavailable;
        assert_eq!(expected, self.requests(), "{when}: {self:?}");
        self
    }

    /// One of them.
    fn one(field: fn(&mut Self) -> &mut u64) -> Self {
        let mut one = Self::default();
        *field(&mut one) = 1;
        one
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.ok += other.ok;
        self.denied += other.denied;
        self.unavailable += other.unavailable;
        self.other += other.other;
        self.lost += other.lost;
    }
}

/// Whom a request is counted for.
#[derive(Clone, Debug)]
pub enum Key {
    /// Everybody with this key.
    Shared(String),
    /// Nobody else: each request has a key of its own.
    Own,
}

/// A new key.
pub fn new_key() -> Key {
    Key::Shared(next_name())
}

fn next_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("key-{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Clients of one gateway.
#[derive(Clone, Debug)]
pub struct Clients {
    client: Client,
    url: String,
}

impl Clients {
    /// Clients of the service at this address.
    pub fn of(address: &str) -> Self {
        // A connection for each request: kube-proxy chooses a pod for each connection.
        let client = Client::builder()
            .timeout(DEADLINE)
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()
            .expect("a client");
        Self {
            client,
            url: format!("http://{address}"),
        }
    }

    /// Sends this many requests, a few at a time.
    pub async fn burst(&self, path: &'static str, key: &Key, requests: u64) -> Counts {
        let mut clients = JoinSet::new();
        for index in 0..CLIENTS {
            let (own, key) = (self.clone(), key.clone());
            let share = requests / CLIENTS + u64::from(index < requests % CLIENTS);
            clients.spawn(async move {
                let mut counts = Counts::default();
                for _ in 0..share {
                    counts += own.ask(path, &key).await;
                }
                counts
            });
        }
        let mut sum = Counts::default();
        for counts in clients.join_all().await {
            sum += counts;
        }
        sum
    }

    /// Whether one request is answered with 200.
    pub async fn is_served(&self, path: &'static str) -> bool {
        self.ask(path, &Key::Own).await.ok == 1
    }

    /// Sends requests at a steady pace until [`Stream::stop`].
    pub fn stream(&self, path: &'static str, key: Key) -> Stream {
        let (own, stop) = (self.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut answers = Vec::new();
            let mut waiting = JoinSet::new();
            let mut ticks = tokio::time::interval(PACE);
            while !stopped.load(Ordering::Relaxed) {
                ticks.tick().await;
                let (own, key) = (own.clone(), key.clone());
                let sent = Instant::now();
                waiting.spawn(async move {
                    let answer = own.ask(path, &key).await;
                    (sent, sent.elapsed(), answer)
                });
                while let Some(answer) = waiting.try_join_next() {
                    answers.push(answer.expect("a request does not panic"));
                }
            }
            answers.extend(waiting.join_all().await);
            answers
        });
        Stream { stop, task }
    }

    /// The status of one request; `None` if there is no answer.
    pub async fn status(&self, path: &str) -> Option<u16> {
        let answer = self.send(path, &Key::Own).await.ok()?;
        Some(answer.status().as_u16())
    }

    async fn send(&self, path: &str, key: &Key) -> reqwest::Result<Response> {
        let key = match key {
            Key::Shared(name) => name.clone(),
            Key::Own => next_name(),
        };
        let request = self.client.get(format!("{}{path}", self.url));
        request.header("x-api-key", key).send().await
    }

    /// Counts one request.
    async fn ask(&self, path: &str, key: &Key) -> Counts {
        let answer = match self.send(path, key).await {
            Ok(answer) => answer,
            Err(error) => {
                eprintln!("mesh: a request is lost: {error:?}");
                return Counts::one(|counts| &mut counts.lost);
            }
        };
        let after = answer.headers().get("retry-after");
        let after = after.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
        match (answer.status().as_u16(), after) {
            (200, _) => Counts::one(|counts| &mut counts.ok),
            (429, Some(1..=WINDOW)) => Counts::one(|counts| &mut counts.denied),
            (503, _) => Counts::one(|counts| &mut counts.unavailable),
            _ => Counts::one(|counts| &mut counts.other),
        }
    }
}

/// Requests at a steady pace.
#[derive(Debug)]
pub struct Stream {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<(Instant, Duration, Counts)>>,
}

impl Stream {
    /// Stops it and waits for the last answer.
    pub async fn stop(self) -> Streamed {
        self.stop.store(true, Ordering::Relaxed);
        let answers = self.task.await.expect("a stream does not panic");
        let mut streamed = Streamed::default();
        let mut failed = Vec::new();
        for (sent, took, answer) in answers {
            streamed.counts += answer;
            streamed.slowest = streamed.slowest.max(took);
            if answer.ok + answer.denied == 0 {
                failed.push(sent);
            }
        }
        if let (Some(first), Some(last)) = (failed.iter().min(), failed.iter().max()) {
            streamed.gap = *last - *first;
        }
        streamed
    }
}

/// What a stream got.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streamed {
    /// All answers.
    pub counts: Counts,
    /// The longest time that a client waited.
    pub slowest: Duration,
    /// From the first answer that was neither 200 nor 429 to the last one.
    pub gap: Duration,
}
