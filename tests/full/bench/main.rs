//! `make bench`: the cost of the whole chain, compared with Envoy without it and with Envoy's own limiter.
//!
//! Real Envoys (one worker each), sidecars, Redis and upstream; wrk sends the requests. Variants are measured several
//! times in turns, so that a slow machine slows them all; figures are medians, goals are ratios within the run.
//!
//! | module | for |
//! |---|---|
//! | `variant.rs` | what is measured: Envoys with and without the filter |
//! | `load.rs` | one measurement: wrk, and what each process used meanwhile |
//! | `goals.rs` | ratios, compared with the goals |
//! | `module.rs` | wasm modules to compare with |
//! | `before.rs` | `bench -- before`: CPU for a request, this build's and an earlier one's |
//! | `scale.rs` | `make bench-scale` |
//! | `fleet.rs` | part of it: many sidecars and one key |
//! | `lone.rs`, `arrivals.rs` | `make bench-fleet`: lone requests, beside envoyproxy/ratelimit |
//! | `slots.rs` | `bench -- slots`: how soon a slot that is freed is in use again |
//! | `chart.rs` | target/bench/end_to_end.svg |

mod arrivals;
mod before;
mod chart;
mod fleet;
mod goals;
mod load;
mod lone;
mod module;
mod scale;
mod slots;
mod variant;

use std::collections::BTreeMap;

use load::{Pick, Sample, median};
use sluicegate_tests_full::report::Report;
use variant::Variant;

/// Rounds, and seconds of each measurement; `SLUICEGATE_BENCH=quick` is for trying the bench out.
const ROUNDS: (usize, u32) = (5, 4);
const QUICK: (usize, u32) = (1, 2);
/// Connections.
const MANY: u32 = 64;
const CONNECTIONS: [u32; 2] = [MANY, 1];

/// The measurements, by variant and connections, round by round.
type Samples = BTreeMap<(&'static str, u32), Vec<Sample>>;

#[tokio::main]
async fn main() {
    let quick = std::env::var("SLUICEGATE_BENCH").is_ok_and(|size| size == "quick");
    // Arguments select variants and those that they are compared with: `cargo run ... --bin bench -- denying`.
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    match wanted.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["scale"] => return scale::run(quick).await,
        ["fleet"] => return lone::run(quick).await,
        ["upstream"] => return lone::upstream().await,
        ["before"] => return before::run(quick).await,
        ["slots"] => {
            let mut report = Report::default();
            slots::run(&mut report, if quick { 2 } else { 8 }).await;
            return report.finish("slots");
        }
        ["leases"] => {
            let mut report = Report::default();
            scale::leases(&mut report, quick).await;
            return report.finish("leases");
        }
        _ => {}
    }
    let (rounds, seconds) = if quick { QUICK } else { ROUNDS };
    println!(
        "bench: {rounds} rounds of {seconds} s for each variant, with 1 and {MANY} connections"
    );
    let variants = variant::started(&wanted).await;
    let mut samples = Samples::new();
    for round in 0..=rounds {
        for variant in &variants {
            for connections in CONNECTIONS {
                let sample = load::measure(variant, connections, seconds).await;
                // The first round warms up: connections, caches, the VM's compiled code.
                if round > 0 {
                    let all = samples.entry((variant.name, connections));
                    all.or_default().push(sample);
                }
            }
        }
        println!("bench: round {round} of {rounds} is over");
    }
    let mut report = Report::default();
    for variant in &variants {
        for connections in CONNECTIONS {
            let samples = &samples[&(variant.name, connections)];
            figures(&mut report, variant, connections, samples);
        }
    }
    if wanted.is_empty() {
        goals::judge(&mut report, &samples);
    }
    report.finish("end_to_end");
    chart::draw(&samples, &variants, MANY);
}

fn figures(report: &mut Report, variant: &Variant, connections: u32, samples: &[Sample]) {
    let name = format!("{}, {connections} connections", variant.name);
    let (sidecar, redis) = (variant.sidecar.is_some(), variant.redis.is_some());
    let cpu = "CPU us per request";
    let all: [(_, _, _, Pick); 10] = [
        (true, "requests", "/s", |s| s.per_second),
        (true, "median latency", "us", |s| s.median_us),
        (true, "Envoy", cpu, |s| s.envoy.cpu_us),
        (true, "Envoy, peak", "MB", |s| s.envoy.peak_mb),
        (sidecar, "sidecar", cpu, |s| s.sidecar.cpu_us),
        (sidecar, "sidecar, peak", "MB", |s| s.sidecar.peak_mb),
        (sidecar, "callouts", "per 1,000", |s| s.callouts),
        (redis, "Redis", cpu, |s| s.redis.cpu_us),
        (redis, "Redis, peak", "MB", |s| s.redis.peak_mb),
        (redis, "calls of Redis", "per 1,000", |s| s.redis_calls),
    ];
    for (_, what, unit, pick) in all.into_iter().filter(|(is_there, ..)| *is_there) {
        let value = median(samples.iter().map(pick));
        report.figure(&format!("{name}: {what}"), value, unit);
    }
}
