//! Leases of three real sidecars on one real Redis, each with a real Envoy of two workers and so two filters, under steady, bursty
//! and skewed load, while a sidecar is killed, one is stopped, and an Envoy is killed: nothing is over, what is idle elsewhere at
//! a denial is within the published bound, and no unit is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;
use sluicegate_tests::client::{client, get};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::eventually_within;
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, metric_in};
use sluicegate_tests::upstream;

use super::support::plugin;

const SIDECARS: usize = 3;
const QUOTA: u64 = 2_000;
const WINDOW: Duration = Duration::from_secs(4);
const PRECISION: Duration = Duration::from_millis(200);
/// L.
const LONGEST: Duration = Duration::from_millis(100);
/// How fast a sidecar's average of a key's rate forgets.
const MEMORY_S: f64 = 0.25;
/// Between two readings of what a sidecar holds.
const READ_EVERY: Duration = Duration::from_millis(5);

/// A time of load: requests a second for each Envoy, and how many at once.
struct Phase {
    name: &'static str,
    rates: [u64; SIDECARS],
    at_once: usize,
    length: Duration,
}

const PHASES: [Phase; 5] = [
    // The limit's own rate is 500 a second: the first window fills.
    Phase {
        name: "steady",
        rates: [230; 3],
        at_once: 2,
        length: Duration::from_secs(9),
    },
    // Many leases, and then a demand that takes every unit when it comes back: a unit that was spent late would be over.
    Phase {
        name: "below the limit",
        rates: [130; 3],
        at_once: 1,
        length: Duration::from_secs(7),
    },
    Phase {
        name: "flood",
        rates: [500; 3],
        at_once: 10,
        length: Duration::from_secs(5),
    },
    Phase {
        name: "skewed",
        rates: [10, 450, 30],
        at_once: 3,
        length: Duration::from_secs(4),
    },
    Phase {
        name: "bursty",
        rates: [230; 3],
        at_once: 40,
        length: Duration::from_secs(4),
    },
];

/// A request with its answer.
#[derive(Clone, Copy)]
struct Asked {
    sidecar: usize,
    sent: Instant,
    answered: Instant,
    admitted: u64,
    denied: bool,
}

/// A reading of what a sidecar holds.
#[derive(Clone, Copy)]
struct Held {
    from: Instant,
    to: Instant,
    units: u64,
}

/// Where requests go, and where the sidecar says what it holds; a restart keeps the ports.
#[derive(Clone)]
struct Target {
    url: String,
    metrics: String,
}

fn policy(redis: &Redis) -> String {
    format!(
        "store: {}
store_timeout: 1s
limits:
  hot:
    algorithm: sliding_window
    when_store_is_down: deny
    windows: [{{ quota: {QUOTA}, per: {}ms, precision: {}ms }}]
    lease: {{ longest: {}ms, from: 10/s }}
",
        redis.url(),
        WINDOW.as_millis(),
        PRECISION.as_millis(),
        LONGEST.as_millis()
    )
}

/// Asks through one Envoy at the rate of each phase. While it is away, or its sidecar, nothing is admitted.
async fn load(
    (sidecar, target): (usize, Target),
    began: Instant,
    phase: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<Asked>>>,
) {
    let client = client();
    let mut next = began;
    while let Some(now) = PHASES.get(phase.load(Ordering::Relaxed)) {
        // A clock that fell behind, on a machine that stalls, does not send everything at once.
        next = (next + Duration::from_secs(now.at_once as u64) / now.rates[sidecar] as u32)
            .max(Instant::now() - Duration::from_millis(50));
        tokio::time::sleep_until(next.into()).await;
        for _ in 0..now.at_once {
            let request = client.get(&target.url);
            let log = Arc::clone(&log);
            tokio::spawn(async move {
                let sent = Instant::now();
                let Ok(answer) = request.send().await else {
                    return;
                };
                let asked = Asked {
                    sidecar,
                    sent,
                    answered: Instant::now(),
                    admitted: u64::from(answer.status() == 200),
                    denied: answer.status() == 429,
                };
                log.lock().unwrap().push(asked);
            });
        }
    }
}

/// Reads what a sidecar holds, for as long as there is load.
async fn watch(target: Target, ended: Arc<AtomicBool>) -> Vec<Held> {
    let client = client();
    let mut readings = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let from = Instant::now();
        if let Ok(answer) = client.get(&target.metrics).send().await
            && let Ok(text) = answer.text().await
        {
            readings.push(Held {
                from,
                to: Instant::now(),
                units: value(&text, "sluicegate_lease_units_held{limit=\"hot\"}"),
            });
        }
        tokio::time::sleep(READ_EVERY).await;
    }
    readings
}

fn value(metrics: &str, name: &str) -> u64 {
    metric_in(metrics, name) as u64
}

/// The most units that were admitted in one trailing window for certain: sent and answered in it.
fn most_in_a_window(log: &[Asked]) -> u64 {
    let ends = log.iter().map(|asked| asked.answered);
    let in_window = |end: Instant| {
        let inside = log
            .iter()
            .filter(|asked| asked.answered <= end && end.duration_since(asked.sent) < WINDOW);
        inside.map(|asked| asked.admitted).sum()
    };
    ends.map(in_window).max().unwrap_or(0)
}

/// D: the highest rate of the fleet on the key, averaged as the sidecars do.
fn highest_rate(log: &[Asked]) -> f64 {
    let (mut weight, mut last, mut highest) = (0.0, None, 0.0_f64);
    for asked in log {
        let age = last.map_or(0.0, |last| asked.sent.duration_since(last).as_secs_f64());
        weight = weight * (-age / MEMORY_S).exp() + 1.0;
        highest = highest.max(weight / MEMORY_S);
        last = Some(asked.sent);
    }
    highest
}

/// The most units that others held around the time of a denial.
fn most_idle_elsewhere(log: &[Asked], readings: &[Vec<Held>]) -> u64 {
    let denials = log.iter().filter(|asked| asked.denied);
    let idle = |denial: &Asked| {
        let others = (0..SIDECARS).filter(|other| *other != denial.sidecar);
        let held = |other: usize| {
            let (from, to) = (
                denial.sent - 2 * READ_EVERY,
                denial.answered + 2 * READ_EVERY,
            );
            let first = readings[other].partition_point(|held| held.to < from);
            let around = readings[other][first..].iter();
            let around = around.take_while(|held| held.from < to);
            around.map(|held| held.units).max().unwrap_or(0)
        };
        others.map(held).sum()
    };
    denials.map(idle).max().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_sidecars_of_two_filters_each_are_never_over_and_lose_no_unit() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let policy = policy(&redis);
    let upstream = upstream::start().await;
    let mut chains = Vec::new();
    for _ in 0..SIDECARS {
        let sidecar = Sidecar::start(&policy, folder.path()).await;
        let rules = json!([{
            "name": "hot",
            "checks": [{ "limit": "hot", "key": [{ "constant": "k" }] }],
            "when_unavailable": "deny",
        }]);
        let plugin = Some(plugin(rules));
        let of_its_own = tempfile::tempdir().unwrap();
        let envoy = Envoy::asking(sidecar.port)
            .upstream(upstream)
            .plugin(plugin)
            .workers(2)
            .start(of_its_own.path())
            .await;
        chains.push((sidecar, envoy, of_its_own));
    }
    let target = |(sidecar, envoy, _): &(Sidecar, Envoy, _)| Target {
        url: envoy.url("/"),
        metrics: format!("http://127.0.0.1:{}/metrics", sidecar.admin_port),
    };
    let targets: Vec<_> = chains.iter().map(target).collect();
    let (phase, ended) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let log = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let each = targets.iter().cloned().enumerate();
    let loads: Vec<_> = each
        .map(|of| tokio::spawn(load(of, began, Arc::clone(&phase), Arc::clone(&log))))
        .collect();
    let watches = targets.iter().cloned();
    let watches: Vec<_> = watches
        .map(|target| tokio::spawn(watch(target, Arc::clone(&ended))))
        .collect();
    for (index, one) in PHASES.iter().enumerate() {
        phase.store(index, Ordering::Relaxed);
        tokio::time::sleep(one.length / 2).await;
        let sidecars = chains.iter_mut().map(|(sidecar, ..)| sidecar);
        match (index, sidecars.skip(1).collect::<Vec<_>>().as_mut_slice()) {
            // Killed, with what it holds, while the limit is used up and while it is not.
            (1 | 4, [second, _]) => second.restart().await,
            (3, [_, third]) => {
                third.signal("TERM");
                third.wait().await;
                third.restart().await;
            }
            _ => {}
        }
        if index == 2 {
            // With what its filters hold. Its sidecar is not asked any more.
            chains[0].1.kill();
        }
        tokio::time::sleep(one.length / 2).await;
    }
    phase.store(PHASES.len(), Ordering::Relaxed);
    for load in loads {
        load.await.unwrap();
    }
    ended.store(true, Ordering::Relaxed);
    let mut readings = Vec::new();
    for watch in watches {
        readings.push(watch.await.unwrap());
    }
    let mut log = std::mem::take(&mut *log.lock().unwrap());
    log.sort_by_key(|asked| asked.sent);

    let most = most_in_a_window(&log);
    let (asked, admitted) = log.iter().fold((0, 0), |(asked, admitted), one| {
        (asked + 1, admitted + one.admitted)
    });
    let bound = 2.0 * highest_rate(&log) * LONGEST.as_secs_f64();
    let idle = most_idle_elsewhere(&log, &readings);
    let (mut spent, mut calls) = (0, 0);
    for (index, target) in targets.iter().enumerate() {
        let what = format!("sidecar {index} holds no units");
        eventually_within(Duration::from_secs(30), &what, async || {
            let (_, text) = get(&target.metrics).await;
            value(&text, "sluicegate_lease_units_held{limit=\"hot\"}") == 0
        })
        .await;
        let (_, text) = get(&target.metrics).await;
        let units = |event: &str| {
            let name = format!("sluicegate_lease_units_total{{event=\"{event}\",limit=\"hot\"}}");
            value(&text, &name)
        };
        assert_eq!(
            units("granted"),
            units("spent") + units("returned"),
            "sidecar {index}: units are lost"
        );
        spent += units("spent");
        calls += value(&text, "sluicegate_store_duration_seconds_count");
    }
    // While the limit is used up, the whole quota returns in a window and a step.
    let full = &log[..log.partition_point(|asked| asked.sent < began + PHASES[0].length)];
    let from = began + WINDOW;
    let late = full.iter().filter(|asked| asked.sent >= from);
    let in_steady: u64 = late.map(|asked| asked.admitted).sum();
    let of = QUOTA as f64 * (PHASES[0].length - WINDOW).as_secs_f64() / WINDOW.as_secs_f64();
    println!(
        "measured: {asked} asked, {admitted} admitted, {spent} of them by leases of sidecars that lived on; at most {most} of {QUOTA} in a window; \
         at most {idle} idle elsewhere at a denial (bound {bound:.0}); {:.3} of the quota admitted while it was used up; {calls} calls of decisions",
        in_steady as f64 / of
    );
    for phase in &PHASES {
        println!("  phase {}: {:?} a second", phase.name, phase.rates);
    }
    assert!(most <= QUOTA, "{most} of {QUOTA} in a window");
    assert!(most > QUOTA / 2, "too little load for a conclusion: {most}");
    assert!(log.iter().any(|one| one.denied), "nothing was denied");
    assert!(spent > admitted / 50, "few leases: {spent} of {admitted}");
    assert!(
        idle as f64 <= bound,
        "{idle} units idle elsewhere, over {bound}"
    );
}
