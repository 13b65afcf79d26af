//! What the processes hold, second by second, and whether it is flat.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use sluicegate_tests::process::status;

use super::super::chain::Chain;
use super::super::faults::redis::used_memory;
use super::super::stalls::{STOOD_STILL, Stalls};

/// How long after a restart requests may lack verdicts, until Envoy's counters show all of them.
const DISTURBED: Duration = Duration::from_secs(4);
/// By how much it may grow. Redis holds the keys of the last seconds: they follow the rate of
/// requests, which a busy machine changes.
const FLAT: f64 = 1.1;
const BY_RATE: f64 = 1.5;

/// What is sampled: a name, the hundredths of the run from which it counts, and by how much it may grow: a factor, and where a
/// tenth is less than one or two pieces, so many of them. The sidecar lives from 45 on. A thread of its pool for files ends
/// ten seconds after a reload; a connection that is replaced is there twice for a moment, with a task and a file.
const KINDS: [(&str, u64, f64, f64); 8] = [
    ("sidecar: memory, MB", 55, FLAT, 0.0),
    ("sidecar: file descriptors", 55, FLAT, 2.0),
    ("sidecar: threads", 55, FLAT, 1.0),
    ("sidecar: tasks", 55, FLAT, 2.0),
    ("Envoy: memory, MB", 25, FLAT, 0.0),
    ("Envoy: file descriptors", 25, FLAT, 0.0),
    ("Redis: memory, MB", 25, BY_RATE, 0.0),
    ("Redis: keys", 25, BY_RATE, 0.0),
];

/// The filter's counters of requests without a verdict: each after `error_`.
const ERRORS: &str = "no_answer unreachable status body store full decision unknown_cluster";

struct Sample {
    at: Duration,
    /// How long the machine stood still since the last one.
    stalled: Duration,
    /// Requests that the filter had no verdict for, so far.
    without_verdict: u64,
    values: [f64; KINDS.len()],
}

pub struct Samples {
    length: Duration,
    all: Vec<Sample>,
    disturbed: Vec<Duration>,
    stalls: Stalls,
}

impl Samples {
    pub fn new(seconds: u64) -> Self {
        Self {
            length: Duration::from_secs(seconds),
            all: Vec::new(),
            disturbed: Vec::new(),
            stalls: Stalls::watch(),
        }
    }

    /// A restart ended at this time.
    pub fn disturbed(&mut self, at: Duration) {
        self.disturbed.push(at);
    }

    pub async fn take(&mut self, chain: &mut Chain, at: Duration) {
        let mut without_verdict = 0;
        for name in ERRORS.split(' ') {
            without_verdict += chain.envoy.counted(&format!("error_{name}")).await;
        }
        let (sidecar, envoy) = (chain.sidecar.id(), chain.envoy.id());
        let used = used_memory(chain.redis()).await as f64;
        let keys: f64 = chain.redis().command("DBSIZE").await;
        let values = [
            status(sidecar, "VmRSS") as f64 / 1024.0,
            descriptors(sidecar),
            status(sidecar, "Threads") as f64,
            chain.sidecar.metric("sluicegate_tasks").await,
            status(envoy, "VmRSS") as f64 / 1024.0,
            descriptors(envoy),
            used / f64::from(1 << 20),
            keys,
        ];
        let stalled = self.stalls.longest();
        self.all.push(Sample {
            at,
            stalled,
            without_verdict,
            values,
        });
    }

    /// Whether the machine stood still for so long at least.
    pub fn stood_still(&self, time: Duration) -> bool {
        self.all.iter().any(|one| one.stalled >= time)
    }

    /// What is not flat.
    pub fn failures(&self) -> Vec<String> {
        let mut failures = Vec::new();
        for (kind, (name, _, factor, pieces)) in KINDS.iter().enumerate() {
            let (early, late) = self.early_and_late(kind);
            if late > (early * factor).max(early + pieces) {
                failures.push(format!("{name}: {early:.1} and later {late:.1}"));
            }
        }
        let lost = self.without_verdict(false);
        failures.extend(lost.map(|(at, requests)| {
            format!("{requests} requests got no verdict at {at:?}, and nothing was restarted")
        }));
        failures
    }

    /// Medians of a tenth of the run: the first that counts, and the last.
    fn early_and_late(&self, kind: usize) -> (f64, f64) {
        let median = |from: u64| {
            let [from, to] = [from, from + 10].map(|at| self.length * at as u32 / 100);
            let within = self.all.iter().filter(|one| (from..to).contains(&one.at));
            let mut values: Vec<_> = within.map(|one| one.values[kind]).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or_default()
        };
        (median(KINDS[kind].1), median(90))
    }

    /// When requests got no verdict while nothing was restarted, and how many: while the machine stood still, or not.
    fn without_verdict(&self, stalled: bool) -> impl Iterator<Item = (Duration, u64)> {
        let pairs = self.all.windows(2).filter(move |pair| {
            let (from, to) = (pair[0].at, pair[1].at);
            let mut restarts = self.disturbed.iter();
            let restarted = restarts.any(|at| from < *at + DISTURBED && to >= *at);
            // Counters are a second late.
            let stood_still = pair.iter().any(|one| one.stalled >= STOOD_STILL);
            !restarted && stood_still == stalled
        });
        let lost = pairs.map(|pair| {
            let requests = pair[1].without_verdict - pair[0].without_verdict;
            (pair[1].at, requests)
        });
        lost.filter(|(_, requests)| *requests > 0)
    }
}

impl Display for Samples {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "| | in the beginning | at the end | most |")?;
        writeln!(f, "|---|---|---|---|")?;
        for (kind, (name, ..)) in KINDS.iter().enumerate() {
            let (early, late) = self.early_and_late(kind);
            let most = self.all.iter().map(|one| one.values[kind]);
            let most = most.fold(0.0, f64::max);
            writeln!(f, "| {name} | {early:.1} | {late:.1} | {most:.1} |")?;
        }
        let all = self.all.last().map_or(0, |one| one.without_verdict);
        let sum = |stalled| -> u64 {
            let lost = self.without_verdict(stalled);
            lost.map(|(_, requests)| requests).sum()
        };
        let stalls = self.all.iter().filter(|one| one.stalled >= STOOD_STILL);
        writeln!(
            f,
            "\nRequests without a verdict: {all}. All but {} of them while the sidecar restarted, or in the {} seconds in which \
             the machine stood still for {STOOD_STILL:?} or longer ({}).",
            sum(false),
            stalls.count(),
            sum(true)
        )
    }
}

fn descriptors(process: u32) -> f64 {
    let all = std::fs::read_dir(format!("/proc/{process}/fd")).expect("a process");
    all.count() as f64
}
