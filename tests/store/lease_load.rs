//! Leases of three real sidecars on one real Redis, under steady, bursty and skewed load, while one is killed and one stopped:
//! nothing is over, what is idle elsewhere at a denial is within the published bound, and no unit is lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, metric_in};

const SIDECARS: usize = 3;
const QUOTA: u64 = 4_000;
const WINDOW: Duration = Duration::from_secs(4);
const PRECISION: Duration = Duration::from_millis(200);
/// L.
const LONGEST: Duration = Duration::from_millis(100);
/// How fast a sidecar's average of a key's rate forgets.
const MEMORY_S: f64 = 0.25;
/// Between two readings of what a sidecar holds.
const READ_EVERY: Duration = Duration::from_millis(5);

/// A time of load: decisions a second for each sidecar, and how many in one request.
struct Phase {
    name: &'static str,
    rates: [u64; SIDECARS],
    at_once: usize,
    length: Duration,
}

const PHASES: [Phase; 5] = [
    // The limit's own rate is 1,000 a second: the first window fills.
    Phase {
        name: "steady",
        rates: [450; 3],
        at_once: 5,
        length: Duration::from_secs(9),
    },
    // Many leases, and then a demand that takes every unit when it comes back: a unit that was spent late would be over.
    Phase {
        name: "below the limit",
        rates: [260; 3],
        at_once: 3,
        length: Duration::from_secs(7),
    },
    Phase {
        name: "flood",
        rates: [1_300; 3],
        at_once: 20,
        length: Duration::from_secs(5),
    },
    Phase {
        name: "skewed",
        rates: [1_200, 60, 20],
        at_once: 5,
        length: Duration::from_secs(4),
    },
    Phase {
        name: "bursty",
        rates: [450; 3],
        at_once: 60,
        length: Duration::from_secs(4),
    },
];

/// A request with its answer.
#[derive(Clone, Copy)]
struct Asked {
    sidecar: usize,
    sent: Instant,
    answered: Instant,
    decisions: u64,
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

/// Where the sidecars listen; a restart keeps the ports.
#[derive(Clone, Copy)]
struct Ports {
    decisions: u16,
    admin: u16,
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

/// Asks one sidecar at the rate of each phase. A sidecar that is away is asked again with the next request.
async fn load(
    (sidecar, ports): (usize, Ports),
    began: Instant,
    phase: Arc<AtomicUsize>,
    log: Arc<Mutex<Vec<Asked>>>,
) {
    let client = client();
    let url = format!("http://127.0.0.1:{}/v1/decide", ports.decisions);
    let mut next = began;
    while let Some(now) = PHASES.get(phase.load(Ordering::Relaxed)) {
        let decision = json!({ "checks": [{ "limit": "hot", "key": "k" }] });
        let body = json!({ "decisions": vec![decision; now.at_once] }).to_string();
        // A clock that fell behind, on a machine that stalls, does not send everything at once.
        next = (next + Duration::from_secs(now.at_once as u64) / now.rates[sidecar] as u32)
            .max(Instant::now() - Duration::from_millis(50));
        tokio::time::sleep_until(next.into()).await;
        let sent = Instant::now();
        let request = client.post(&url).header("content-type", "application/json");
        let Ok(answer) = request.body(body).send().await else {
            continue;
        };
        let Ok(text) = answer.text().await else {
            continue;
        };
        let answered = Instant::now();
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        let verdicts = answer["verdicts"].as_array().expect("verdicts");
        let outcome = |is: &str| {
            verdicts
                .iter()
                .filter(|verdict| verdict["outcome"] == is)
                .count()
        };
        let asked = Asked {
            sidecar,
            sent,
            answered,
            decisions: now.at_once as u64,
            admitted: outcome("admitted") as u64,
            denied: outcome("denied") > 0,
        };
        log.lock().unwrap().push(asked);
    }
}

/// Reads what a sidecar holds, for as long as there is load.
async fn watch(ports: Ports, ended: Arc<AtomicBool>) -> Vec<Held> {
    let client = client();
    let url = format!("http://127.0.0.1:{}/metrics", ports.admin);
    let mut readings = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let from = Instant::now();
        if let Ok(answer) = client.get(&url).send().await
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
        weight = weight * (-age / MEMORY_S).exp() + asked.decisions as f64;
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
async fn three_sidecars_with_leases_are_never_over_and_lose_no_unit() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let policy = policy(&redis);
    let mut sidecars = Vec::new();
    for _ in 0..SIDECARS {
        sidecars.push(Sidecar::start(&policy, folder.path()).await);
    }
    let ports = |sidecar: &Sidecar| Ports {
        decisions: sidecar.port,
        admin: sidecar.admin_port,
    };
    let ports: Vec<_> = sidecars.iter().map(ports).collect();
    let (phase, ended) = (
        Arc::new(AtomicUsize::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let log = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let each = ports.iter().copied().enumerate();
    let loads: Vec<_> = each
        .map(|of| tokio::spawn(load(of, began, Arc::clone(&phase), Arc::clone(&log))))
        .collect();
    let watches = ports.iter().copied();
    let watches: Vec<_> = watches
        .map(|ports| tokio::spawn(watch(ports, Arc::clone(&ended))))
        .collect();
    for (index, one) in PHASES.iter().enumerate() {
        phase.store(index, Ordering::Relaxed);
        tokio::time::sleep(one.length / 2).await;
        match index {
            // Killed, with what it holds, while the limit is used up and while it is not.
            1 | 4 => sidecars[1].restart().await,
            3 => {
                sidecars[2].signal("TERM");
                sidecars[2].wait().await;
                sidecars[2].restart().await;
            }
            _ => {}
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
        (asked + one.decisions, admitted + one.admitted)
    });
    let bound = 2.0 * highest_rate(&log) * LONGEST.as_secs_f64();
    let idle = most_idle_elsewhere(&log, &readings);
    let (mut spent, mut calls) = (0, 0);
    for (index, ports) in ports.iter().enumerate() {
        let url = format!("http://127.0.0.1:{}/metrics", ports.admin);
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let (_, text) = get(&url).await;
            let units = |event: &str| {
                value(
                    &text,
                    &format!("sluicegate_lease_units_total{{event=\"{event}\",limit=\"hot\"}}"),
                )
            };
            let held = value(&text, "sluicegate_lease_units_held{limit=\"hot\"}");
            if held == 0 {
                let (granted, returned) = (units("granted"), units("returned"));
                assert_eq!(
                    granted,
                    units("spent") + returned,
                    "sidecar {index}: units are lost"
                );
                spent += units("spent");
                calls += value(&text, "sluicegate_store_duration_seconds_count");
                break;
            }
            assert!(Instant::now() < deadline, "sidecar {index} holds {held}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
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
