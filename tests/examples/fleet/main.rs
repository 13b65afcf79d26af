//! `make fleet`: many sidecars on one store, and what they make of its faults and of their own. The load counts by its own clock,
//! and what was admitted is judged as a history. Prints a row for each event; `events.rs` has those, `stores.rs` the stores,
//! `costs.rs` what sidecars cost.

mod costs;
mod events;
mod stores;

use std::fs::read_to_string;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::{Value, json};
use sluicegate_history::{Algorithm, Check, Disturbance, Entry, History, Limit, Said, Span};
use sluicegate_tests::client::client;
use sluicegate_tests::policy::Policy;
use sluicegate_tests::sidecar::Sidecar;
use stores::{Kind, Seen, Store};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

/// How many requests a second all sidecars get together: every other one for the one key of the limit `hot`.
const RATE: u64 = 200;
const HOT_KEY: &str = "k";
const HOT_QUOTA: u64 = 300;
const HOT_WINDOW: Duration = Duration::from_secs(5);
/// A fault that is not over by then never is.
const PATIENCE: Duration = Duration::from_secs(60);
/// For how long an event is watched after it is over: what sidecars have admitted by themselves has left its window by then.
const WATCHED: Duration = Duration::from_secs(10);

/// A request that was answered: when, whether for `hot`, and what.
type Asked = (Span, bool, Said);

struct Fleet {
    store: Store,
    sidecars: Vec<Sidecar>,
    connections: u64,
    began: Instant,
    asked: Arc<Mutex<Vec<Asked>>>,
    wrong: Vec<String>,
}

/// How things stood before an event.
struct Before {
    needed: u64,
    seen: Seen,
    planned: f64,
    lines: usize,
    at: Instant,
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[tokio::main]
async fn main() -> ExitCode {
    let (count, connections) = (number("SIDECARS", 50), number("CONNECTIONS", 2));
    let mut fleet = Fleet {
        store: Store::start(HOT_KEY).await,
        sidecars: Vec::new(),
        connections,
        began: Instant::now(),
        asked: Arc::default(),
        wrong: Vec::new(),
    };
    println!(
        "{count} sidecars, {connections} connections to each primary, the default `store_timeout`\n"
    );
    println!(
        "| event | connections made / needed | all connected after | last without a verdict after | without | fullest window / quota | Redis's CPU | lines of log | load |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut load = fleet.starts(count).await;
    if std::env::var_os("COSTS").is_none() {
        fleet.store_fails().await;
        load = fleet.others_start(load).await;
        fleet.gets_another_policy().await;
    }
    load.abort();
    if std::env::var_os("EVENTS").is_none()
        && let Kind::One(redis) = &fleet.store.kind
    {
        fleet.idle(redis).await;
        fleet.leases(redis).await;
    }
    for why in &fleet.wrong {
        eprintln!("{why}");
    }
    ExitCode::from(u8::from(!fleet.wrong.is_empty()))
}

impl Fleet {
    fn policy(&self, hot: u64) -> String {
        let store = format!(
            "{{ url: '{}', connections: {} }}",
            self.store.url(),
            self.connections
        );
        let policy = Policy::on(store).timeout("20ms");
        let per = format!("{}s", HOT_WINDOW.as_secs());
        let policy = policy.window("hot", "sliding_log", hot, &per);
        let warm = "algorithm: sliding_window, windows: [{ quota: 1000000000, per: 1h }]";
        let policy = policy.limit("unleased", warm);
        let policy = policy.limit("leased", &format!("{warm}, lease: {{}}"));
        policy
            .window("per-key", "sliding_log", 1_000_000_000, "1h")
            .text()
    }

    /// So many more start, all at once.
    async fn join(&mut self, count: u64) {
        let text = self.policy(HOT_QUOTA);
        let starts = (0..count).map(|_| self.store.sidecar(&text).alone());
        self.sidecars.extend(join_all(starts).await);
    }

    /// How many connections all sidecars have to each primary.
    fn to_a_primary(&self) -> u64 {
        self.connections * self.sidecars.len() as u64
    }

    async fn each_has_a_verdict(&self) {
        let each = self.sidecars.iter().map(async |sidecar| {
            let check = json!({ "limit": "per-key", "key": "first" });
            let ask = || sidecar.answer(json!([{ "checks": [check] }]));
            while ask().await["verdicts"][0]["outcome"] == "unavailable" {
                sleep(Duration::from_millis(10)).await;
            }
        });
        join_all(each).await;
    }

    /// Asks one sidecar after the other until it is aborted.
    fn load(&self) -> JoinHandle<()> {
        let urls: Vec<_> = self
            .sidecars
            .iter()
            .map(|one| one.url("/v1/decide"))
            .collect();
        let (asked, began) = (Arc::clone(&self.asked), self.began);
        tokio::spawn(async move {
            let client = client();
            let mut ticks = interval(Duration::from_micros(1_000_000 / RATE));
            for (number, url) in urls.into_iter().cycle().enumerate() {
                ticks.tick().await;
                let is_hot = number % 2 == 0;
                let check = if is_hot {
                    json!({ "limit": "hot", "key": HOT_KEY })
                } else {
                    json!({ "limit": "per-key", "key": (number % 100).to_string() })
                };
                let body = json!({ "decisions": [{ "checks": [check] }] }).to_string();
                let (request, asked) = (client.post(url).body(body), Arc::clone(&asked));
                tokio::spawn(async move {
                    let from = micros(began.elapsed());
                    // A sidecar that was killed does not answer.
                    let Ok(answer) = request.send().await else {
                        return;
                    };
                    let Ok(text) = answer.text().await else {
                        return;
                    };
                    let answer: Value = serde_json::from_str(&text).expect("an answer");
                    let verdict = match answer["verdicts"][0]["outcome"].as_str() {
                        Some("admitted") => Said::Admitted,
                        Some("denied") => Said::Denied { retry_ms: None },
                        _ => Said::Unknown,
                    };
                    let to = micros(began.elapsed());
                    let mut asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
                    asked.push((Span { from, to }, is_hot, verdict));
                });
            }
        })
    }

    fn lines(&self) -> usize {
        self.sidecars
            .iter()
            .map(|one| one.log().lines().count())
            .sum()
    }

    /// How many connections the sidecars have made in place of those that had lived for long enough.
    async fn planned(&self) -> f64 {
        let name = "sluicegate_store_connections_total{cause=\"planned\"}";
        let each = self.sidecars.iter().map(|one| one.metric(name));
        join_all(each).await.into_iter().sum()
    }

    /// Before an event after which so many connections are needed.
    async fn before(&self, needed: u64) -> Before {
        let planned = self.planned().await;
        // What was asked while all sidecars told their metrics says nothing of the event.
        self.asked
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
        Before {
            needed,
            planned,
            lines: self.lines(),
            at: Instant::now(),
            seen: self.store.look().await,
        }
    }

    /// What has happened since then, when all have been connected for some time; `over`: when the event was.
    async fn row(&mut self, what: &str, before: Before, over: Instant) {
        let all = async {
            let open = self.to_a_primary() * self.store.primaries();
            while self.store.look().await.open < open {
                sleep(Duration::from_millis(50)).await;
            }
        };
        let connected = timeout(PATIENCE, all).await.map(|()| over.elapsed());
        sleep(WATCHED).await;
        let seen = self.store.look().await;
        // Before all sidecars are asked for their metrics, which takes their time.
        let asked = std::mem::take(&mut *self.asked.lock().unwrap_or_else(PoisonError::into_inner));
        let planned = (self.planned().await - before.planned).max(0.0);
        let made = seen.made - before.seen.made - planned;
        let cpu = (seen.cpu - before.seen.cpu) / before.at.elapsed().as_secs_f64();
        if connected.is_err() {
            self.wrong
                .push(format!("{what}: not all are connected again"));
        }
        let connected = connected.map_or("never".to_owned(), |after| format!("{after:.1?}"));
        let without = asked
            .iter()
            .filter(|(_, _, verdict)| *verdict == Said::Unknown);
        let last_us = without.clone().map(|(when, ..)| when.to).max().unwrap_or(0);
        let last_ms = last_us.saturating_sub(micros(over - self.began)) / 1_000;
        let lines = self.lines().saturating_sub(before.lines);
        let load = read_to_string("/proc/loadavg").expect("the load of the machine");
        let load = load.split(' ').next().unwrap_or_default();
        let (without, all) = (without.count(), asked.len());
        let fullest = self.fullest(asked);
        if fullest > 2.0 {
            self.wrong.push(format!(
                "{what}: {fullest} of the quota, and 2 are documented"
            ));
        }
        println!(
            "| {what} | {made} / {} | {connected} | {last_ms} ms | {without} of {all} | {fullest:.2} | {:.0} % | {lines} | {load} |",
            before.needed,
            cpu * 100.0
        );
    }

    /// The fullest window of the limit `hot`, by its quota. An outage may let the quota through once more.
    fn fullest(&self, asked: Vec<Asked>) -> f64 {
        let record = |(when, is_hot, said): Asked| {
            Entry::asked(when, vec![Check::new(usize::from(!is_hot), 0, 1)], said)
        };
        let limit = |quota| Limit::new(Algorithm::Log, quota, micros(HOT_WINDOW) / 1_000);
        let limits = vec![limit(HOT_QUOTA), limit(1_000_000_000)];
        let report = sluicegate_history::check(&History {
            disturbances: vec![Disturbance {
                when: Span {
                    from: 0,
                    to: u64::MAX,
                },
                once_more: true,
                forgets: true,
                denials: true,
            }],
            ..History::new(limits, asked.into_iter().map(record).collect())
        });
        let peak = report.peaks.iter().find(|peak| peak.limit == 0);
        peak.map_or(0.0, |peak| peak.units as f64 / HOT_QUOTA as f64)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
