//! Ratios within the run, compared with the goals, each with its spread over the rounds.

use sluicegate_tests::process::repository;
use sluicegate_tests_full::report::Report;

use crate::load::{Pick, Sample, median};
use crate::{MANY, Samples, variant};

/// Median, minimum, maximum.
type Spread = (f64, f64, f64);

/// Adds all goals to a report.
pub fn judge(report: &mut Report, samples: &Samples) {
    use variant::*;
    let of = |name| &samples[&(name, MANY)];
    let over = |a, b| ratio(of(a), of(b), |s| s.per_second);
    let alone = |name| median(samples[&(name, 1)].iter().map(|s| s.median_us));
    let added = |name| alone(name) - alone(NONE);
    let mut at_least = vec![
        ("admitting over no filter", ADMITTING, NONE, 0.75),
        ("admitting over a callout each", ADMITTING, EACH, 1.7),
        ("denying over local_ratelimit", DENYING, LOCAL, 0.70),
        ("from leases over no filter", LEASED, NONE, 0.85),
    ];
    let name = "from leases over a wasm filter that does nothing";
    at_least.push((name, LEASED, NOTHING, 0.93));
    let leased = added(LEASED) / added(EACH);
    let at_most = [
        ("a callout each", added(ADMITTING) / added(EACH), 1.3),
        ("a callout each, from leases", leased, 1.0 / 3.0),
    ];
    for (name, a, b, goal) in at_least {
        let (value, name) = named(name, over(a, b));
        report.at_least(&name, value, goal);
    }
    let name = "denying over a wasm filter that always denies";
    let (value, name) = named(name, over(DENYING, FLOOR));
    report.figure(&name, value, "");
    for (name, value, goal) in at_most {
        let name = format!("added latency over {name}, 1 connection");
        report.at_most(&name, value, goal);
    }
    let (callouts, redis): (Pick, Pick) = (|s| s.callouts, |s| s.redis_calls);
    let counts = [
        ("callouts per 1,000 from leases", LEASED, callouts, 5.0),
        ("Redis calls per 1,000 from leases", LEASED, redis, 5.0),
        ("callouts per 1,000 denials", DENYING, callouts, 1.0),
        ("Redis calls per 1,000 admitted", ADMITTING, redis, 150.0),
    ];
    for (name, variant, pick, goal) in counts {
        let (value, name) = named(name, spread(of(variant), pick));
        report.at_most(&name, value, goal);
    }
    let wasm = std::fs::metadata(repository("target/filter/sluicegate.wasm"));
    let bytes = wasm.expect("the filter is built").len();
    report.at_most("the filter's wasm, KB", bytes as f64 / 1_000.0, 400.0);
}

fn named(name: &str, (value, least, most): Spread) -> (f64, String) {
    (value, format!("{name} ({least:.2} to {most:.2})"))
}

/// Round by round, so that both were measured under the same load of the machine.
fn ratio(a: &[Sample], b: &[Sample], pick: Pick) -> Spread {
    of(a.iter().zip(b).map(|(a, b)| pick(a) / pick(b)).collect())
}

fn spread(samples: &[Sample], pick: Pick) -> Spread {
    of(samples.iter().map(pick).collect())
}

fn of(values: Vec<f64>) -> Spread {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    (median(values.into_iter()), least, most)
}
