//! Steady traffic: clients that ask for more than the limits allow, and record what they see.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant, SystemTime};

use sluicegate_tests::client::client;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::rules::{MOST, RULES};

/// Clients of each rule: some share a subject, one is alone and stays below the quota most of the time.
const CLIENTS: [(u32, Duration); 3] = [
    (1, Duration::from_millis(20)),
    (1, Duration::from_millis(20)),
    (2, Duration::from_millis(130)),
];
pub const CLIENTS_OF_A_RULE: u64 = CLIENTS.len() as u64;
/// Units that all clients can be waiting for at one instant: each waits for one answer.
pub const UNDER_WAY: u64 = CLIENTS_OF_A_RULE * RULES.len() as u64 * MOST;

/// Microseconds since 1970 that never step, so that a record's times are in order.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    began: Instant,
    at_us: u64,
}

impl Clock {
    pub fn start() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let at_us = now.expect("a clock after 1970").as_micros() as u64;
        let began = Instant::now();
        Self { began, at_us }
    }

    pub fn now_us(&self) -> u64 {
        self.us_of(Instant::now())
    }

    /// This clock's time at an instant.
    pub fn us_of(&self, at: Instant) -> u64 {
        self.at_us + at.saturating_duration_since(self.began).as_micros() as u64
    }
}

/// A request and its answer.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub rule: usize,
    pub client: u32,
    pub cost: u64,
    pub sent_us: u64,
    pub answered_us: u64,
    pub answer: Answer,
}

/// Units that a rule has admitted.
pub fn admitted(seen: &[Seen], rule: usize) -> u64 {
    let of_rule = seen.iter().filter(|one| one.rule == rule);
    let admitted = of_rule.filter(|one| one.answer == Answer::Admitted);
    admitted.map(|one| one.cost).sum()
}

/// What a client saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200, by a verdict.
    Admitted,
    /// 429, with its retry-after in microseconds.
    Denied(u64),
    /// 200 without a verdict.
    Unmetered,
    /// 503: no verdict.
    Refused,
    /// Any other status.
    Other(u16),
    /// The connection broke.
    Lost,
    /// No answer within the client's ten seconds, ten times the filter's own deadline.
    Hung,
}

impl Answer {
    pub const fn is_verdict(self) -> bool {
        matches!(self, Self::Admitted | Self::Denied(_))
    }

    /// Answered by the rule's `when_unavailable`.
    pub const fn lacks_verdict(self) -> bool {
        matches!(self, Self::Unmetered | Self::Refused)
    }
}

/// Clients that run until they are stopped.
#[derive(Debug)]
pub struct Load {
    pub clock: Clock,
    stop: watch::Sender<bool>,
    clients: JoinSet<Vec<Seen>>,
}

impl Load {
    /// Starts the clients of the Envoys at these ports, in turns.
    pub fn start(targets: &[Arc<AtomicU16>]) -> Self {
        let (clock, stop) = (Clock::start(), watch::Sender::new(false));
        let mut clients = JoinSet::new();
        for rule in 0..RULES.len() {
            for ((number, every), target) in CLIENTS.into_iter().zip(targets.iter().cycle()) {
                let (target, stop) = (Arc::clone(target), stop.subscribe());
                clients.spawn(one(rule, number, every, clock, target, stop));
            }
        }
        Self {
            clock,
            stop,
            clients,
        }
    }

    /// Stops the clients when their last answers are there; returns everything that they saw.
    pub async fn stop(self) -> Vec<Seen> {
        self.stop.send_replace(true);
        self.clients.join_all().await.concat()
    }
}

async fn one(
    rule: usize,
    number: u32,
    every: Duration,
    clock: Clock,
    target: Arc<AtomicU16>,
    stop: watch::Receiver<bool>,
) -> Vec<Seen> {
    let (client, mut seen) = (client(), Vec::new());
    while !*stop.borrow() {
        let cost = seen.len() as u64 % MOST + 1;
        let port = target.load(Ordering::Relaxed);
        let request = client
            .get(format!("http://127.0.0.1:{port}/{}", RULES[rule]))
            .header("x-client", number)
            .header("x-cost", cost);
        let sent_us = clock.now_us();
        let answer = ask(request).await;
        seen.push(Seen {
            rule,
            client: number,
            cost,
            sent_us,
            answered_us: clock.now_us(),
            answer: answer.unwrap_or_else(|error| {
                let hung = error.is_timeout();
                if hung { Answer::Hung } else { Answer::Lost }
            }),
        });
        tokio::time::sleep(every).await;
    }
    seen
}

async fn ask(request: reqwest::RequestBuilder) -> reqwest::Result<Answer> {
    let answer = request.send().await?;
    let (status, headers) = (answer.status().as_u16(), answer.headers().clone());
    // The connection is used again only after the whole answer.
    let body = answer.text().await?;
    let answer = match status {
        200 if headers.contains_key("ratelimit") => Answer::Admitted,
        200 => Answer::Unmetered,
        429 => {
            let after = headers.get("retry-after-ms");
            let after = after.and_then(|ms| ms.to_str().ok()?.parse::<u64>().ok());
            Answer::Denied(after.expect("a retry-after") * 1_000)
        }
        503 if body.contains("rate limiter") => Answer::Refused,
        other => Answer::Other(other),
    };
    Ok(answer)
}
