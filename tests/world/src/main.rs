//! Worlds in which everything meets: several sidecars and filters with one store, in virtual time, each from a seed. What they
//! show is judged by the promises. `make world`, `make world-mutations`; `make world-fresh` every night and before an issue is closed.
//!
//! | file | for |
//! |---|---|
//! | `determined.rs` | the clocks and the chance of the process come from the seed |
//! | `script.rs` | what happens in a world, as a person reads it |
//! | `generate.rs` | a world from a seed |
//! | `run.rs` | runs it with the sidecar's real service |
//! | `filter.rs`, `host.rs` | an Envoy whose workers run the filter's own code, `filter/vm` |
//! | `asked.rs` | what became of a request there |
//! | `settling.rs` | how its stream ended, and what that costs where rules settle |
//! | `network.rs` | the way from an Envoy to the sidecars, and what it saw of each request |
//! | `judge.rs` | has what it showed judged by `tests/history` |
//! | `reached.rs` | the states that some of the first worlds have to reach |
//! | `slots.rs` | those of slots |
//! | `shrink.rs` | the same fault with fewer events |
//! | `replay.rs` | the script gives each call of a world the same answer |
//!
//! The simulated Redis is `sidecar/tests/simulated.rs`: the embedded engine behind links.

mod asked;
mod determined;
mod filter;
mod generate;
mod host;
mod judge;
#[cfg(test)]
#[path = "../../engine/lua.rs"]
#[allow(dead_code)]
mod lua;
mod network;
#[cfg(test)]
#[path = "../../engine/own_redis.rs"]
mod own_redis;
mod reached;
#[cfg(test)]
mod replay;
mod run;
mod script;
mod settling;
mod shrink;
mod slots;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use generate::{FEATURES, features, generate};
use judge::judge;
use reached::{STATES, reached};
use run::run;

/// What all threads have found.
#[derive(Default)]
struct Found {
    worlds: AtomicU64,
    verdicts: AtomicU64,
    next: AtomicU64,
    failed: AtomicBool,
    pairs: Mutex<BTreeMap<(usize, usize), u64>>,
    /// Of the first [`REACHING`] worlds: how many reached each state.
    reached: Mutex<Vec<u64>>,
}

/// How many worlds have to reach every state, however little time there is.
const REACHING: u64 = 400;

/// Seeds that failed once. They run before all others; `KEEP=FILE` adds those that fail and runs none of these.
const KEPT: &str = include_str!("../seeds");

fn kept() -> Vec<u64> {
    let seeds = KEPT.lines().filter_map(|line| line.split('#').next());
    let seeds = seeds.map(str::trim).filter(|seed| !seed.is_empty());
    seeds.map(|seed| seed.parse().expect("a seed")).collect()
}

/// Adds a seed that fails to a file, if it is to be kept.
fn keep(seed: u64, wrong: &judge::Wrong) {
    let Some(path) = std::env::var_os("KEEP") else {
        return;
    };
    println!("replay it: make world ONE={seed}");
    let file = std::fs::OpenOptions::new().append(true).open(path);
    let added = file.and_then(|mut file| writeln!(file, "{seed} # {}", wrong.kind));
    added.expect("the file of KEEP can be written");
}

/// Whether it goes on after one that fails, without a shrunk one.
fn all() -> bool {
    std::env::var_os("ALL").is_some()
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

fn main() -> ExitCode {
    // One seed: print what it is and what it shows.
    if let Some(seed) = std::env::args().nth(1) {
        return one(seed.parse().expect("a seed"));
    }
    let (first, seeds) = (number("FIRST", 1), number("SEEDS", 1_000));
    let until = Instant::now() + Duration::from_secs(number("SECONDS", 86_400));
    let began = Instant::now();
    let found = Found {
        reached: Mutex::new(vec![0; STATES.len()]),
        ..Found::default()
    };
    if std::env::var_os("KEEP").is_none() {
        for seed in kept() {
            look(seed, &found);
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, |count| count.get());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while all() || !found.failed.load(Ordering::Relaxed) {
                    let seed = found.next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds || seed >= REACHING && Instant::now() >= until {
                        return;
                    }
                    let has = look(first + seed, &found);
                    let mut reached = found.reached.lock().expect("no panic");
                    let counts = reached.iter_mut().zip(has).filter(|_| seed < REACHING);
                    counts.for_each(|(count, has)| *count += u64::from(has));
                }
            });
        }
    });
    let verdicts = found.verdicts.load(Ordering::Relaxed);
    let core_seconds = began.elapsed().as_secs_f64() * threads as f64;
    println!(
        "{} worlds, {verdicts} verdicts, {:.0} a second and core",
        found.worlds.load(Ordering::Relaxed),
        verdicts as f64 / core_seconds
    );
    if std::env::var_os("PAIRS").is_some() {
        print_pairs(&found.pairs.lock().expect("no panic"));
    }
    let reached = found.reached.lock().expect("no panic");
    let mut is_missing = false;
    for (name, count) in STATES.iter().zip(&*reached).filter(|_| seeds >= REACHING) {
        println!("{count:>5} of the first {REACHING}: {name}");
        is_missing |= *count == 0;
    }
    if found.failed.load(Ordering::Relaxed) || is_missing {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs and judges the world of a seed; which states it reached.
fn look(seed: u64, found: &Found) -> [bool; STATES.len()] {
    let world = generate(seed);
    let shown = run(&world, false);
    let verdicts = shown
        .log
        .iter()
        .filter(|entry| entry.request().is_some())
        .count() as u64;
    found.worlds.fetch_add(1, Ordering::Relaxed);
    found.verdicts.fetch_add(verdicts, Ordering::Relaxed);
    let has = features(&world);
    let mut pairs = found.pairs.lock().expect("no panic");
    for one in &has {
        for other in has.iter().filter(|other| *other > one) {
            *pairs.entry((*one, *other)).or_default() += verdicts;
        }
    }
    drop(pairs);
    let (wrong, idle) = judge(&world, &shown);
    if let Some(first) = wrong.first()
        && (!found.failed.swap(true, Ordering::Relaxed) || all())
    {
        println!("seed {seed}: {}: {}", first.kind, first.what);
        keep(seed, first);
        if all() || std::env::var_os("SHRINK").is_some_and(|shrink| shrink == "no") {
            return reached(&world, &shown, idle);
        }
        let small = shrink::shrink(&world, &first.kind);
        let shown = run(&small, false);
        let (wrong, _) = judge(&small, &shown);
        println!("{small}");
        if std::env::var_os("LOG").is_some() {
            print_log(&shown);
        }
        wrong
            .iter()
            .for_each(|one| println!("{}: {}", one.kind, one.what));
    }
    reached(&world, &shown, idle)
}

fn one(seed: u64) -> ExitCode {
    let world = generate(seed);
    println!("{world}");
    let shown = run(&world, true);
    print_log(&shown);
    println!("{} calls of the store", shown.calls.len());
    let (wrong, _) = judge(&world, &shown);
    wrong
        .iter()
        .for_each(|one| println!("{}: {}", one.kind, one.what));
    if wrong.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn print_log(shown: &run::Shown) {
    let mut log: Vec<_> = shown.log.iter().collect();
    log.sort_by_key(|entry| entry.to);
    for entry in log {
        let (from, to) = (entry.from as f64 / 1e6, entry.to as f64 / 1e6);
        println!("{from:>10.4} {to:>10.4} {} {:?}", entry.sidecar, entry.what);
    }
}

fn print_pairs(pairs: &BTreeMap<(usize, usize), u64>) {
    println!("| | {} |", FEATURES.join(" | "));
    println!("|---|{}", "---|".repeat(FEATURES.len()));
    for (row, name) in FEATURES.iter().enumerate() {
        let cell = |column: usize| {
            let pair = (row.min(column), row.max(column));
            pairs.get(&pair).map_or(String::new(), u64::to_string)
        };
        let cells: Vec<_> = (0..FEATURES.len()).map(cell).collect();
        println!("| {name} | {} |", cells.join(" | "));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Request;
    use crate::script::{Algorithm, Check, Event, Grant, Limit, Link, World};

    /// One of sidecars beside their Envoys, with one limit.
    fn world(sidecars: usize, limit: Limit, events: Vec<(u64, Event)>) -> World {
        World {
            seed: 1,
            start_us: 1_790_035_200_000_000,
            sidecars,
            embedded: false,
            fleet: false,
            latency_ms: (1, 1),
            policies: vec![vec![Some(limit)]],
            tiers: Vec::new(),
            second_set: Vec::new(),
            keeps_state: false,
            settles: None,
            hang_ups: None,
            events,
        }
    }

    /// C14: the first sidecars back were decided by a Redis that lacked the others' reports, besides what it had lost.
    #[test]
    fn a_store_that_returns_empty_gives_out_nothing_before_all_have_reported() {
        let limit = Limit::new(Algorithm::Fixed, 500, 10_000);
        let check = Check::new(0, 0, 1);
        let mut events = Vec::new();
        for sidecar in 0..20 {
            let ask = Event::Ask {
                sidecar,
                filter: false,
                checks: vec![check],
                peek: false,
                receipt: false,
                times: 750,
                every_ms: 20,
                again: false,
            };
            let link = |link| Event::Link { sidecar, link };
            events.extend([(10_000, ask), (12_000, link(Link::Cut))]);
            events.push((16_000 + 23 * sidecar as u64, link(Link::Good)));
        }
        events.push((14_000, Event::LoseData));
        events.sort_by_key(|(at_ms, _)| *at_ms);
        let world = world(20, limit, events);
        let log = run(&world, false).log;
        let admitted = |from_s: u64, to_s: u64| {
            let window = log
                .iter()
                .filter(|one| (from_s * 1_000_000..to_s * 1_000_000).contains(&one.to));
            let admitted = window.filter(|one| one.request().is_some_and(Request::is_admitted));
            admitted.count()
        };
        assert_eq!(admitted(10, 12), 500, "by the store");
        assert_eq!(admitted(12, 16), 500, "by shares");
        assert_eq!(admitted(16, 20), 0, "by the store that is back");
        assert_eq!(admitted(20, 25), 500, "in the next window");
    }

    /// A sidecar knew of a change that it had made only once it had read it, and the store had lost it by then.
    #[test]
    fn a_block_that_is_confirmed_holds_although_the_store_loses_it_at_once() {
        for lost_ms in (5_000..5_120).step_by(2) {
            let block = Event::Override {
                sidecar: 0,
                limit: 0,
                key: 0,
                grant: Grant::Blocked,
                for_ms: None,
            };
            let events = vec![(5_000, block), (lost_ms, Event::LoseOverrides)];
            let limit = Limit::new(Algorithm::Log, 50, 1_000);
            let world = World {
                latency_ms: (10, 10),
                ..world(1, limit, events)
            };
            let (wrong, _) = judge(&world, &run(&world, false));
            assert!(wrong.is_empty(), "lost at {lost_ms} ms: {wrong:?}");
        }
    }

    /// Or `make world-mutations` would end at the first that the code has outgrown.
    #[test]
    fn every_mutation_applies() {
        let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let folder = format!("{top}/tests/world/mutations");
        for file in std::fs::read_dir(folder).expect("a folder") {
            let path = file.expect("a file").path();
            if path.extension().is_some_and(|kind| kind == "patch") {
                let mut patch = std::process::Command::new("patch");
                patch.args(["--dry-run", "--force", "--strip=1", "--directory", top]);
                let tried = patch.arg("--input").arg(&path).output().expect("patch");
                assert!(tried.status.success(), "{}: {tried:?}", path.display());
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_transcript_twice() {
        for seed in 1..6 {
            let world = generate(seed);
            let transcript = || format!("{:?}", run(&world, true));
            assert_eq!(transcript(), transcript(), "seed {seed}");
        }
    }
}
