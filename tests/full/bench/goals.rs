//! Ratios within the run, compared with the goals, each with its spread over the rounds.

use sluicegate_tests::process::repository;
use sluicegate_tests_full::report::Report;

use crate::load::{Sample, median};
use crate::{MANY, Samples, variant};

/// Median, minimum, maximum.
type Spread = (f64, f64, f64);

/// Adds all goals to a report.
pub fn judge(report: &mut Report, samples: &Samples) {
    let speed: fn(&Sample) -> f64 = |s| s.per_second;
    let over = |a, b| ratio(&samples[&(a, MANY)], &samples[&(b, MANY)], speed);
    let (value, name) = named(
        "admitting over no filter",
        over(variant::ADMITTING, variant::NONE),
    );
    report.at_least(&name, value, 0.75);
    let (value, name) = named(
        "admitting over a callout each",
        over(variant::ADMITTING, variant::EACH),
    );
    report.at_least(&name, value, 1.7);
    let (value, name) = named(
        "denying over local_ratelimit",
        over(variant::DENYING, variant::LOCAL),
    );
    report.at_least(&name, value, 0.70);
    let (value, name) = named(
        "denying over a wasm filter that always denies",
        over(variant::DENYING, variant::FLOOR),
    );
    report.figure(&name, value, "");
    let alone = |name| median(samples[&(name, 1)].iter().map(|s| s.median_us));
    let added = |name| alone(name) - alone(variant::NONE);
    let value = added(variant::ADMITTING) / added(variant::EACH);
    report.at_most(
        "added latency over a callout each, 1 connection",
        value,
        1.3,
    );
    for (name, other, least) in [
        ("from leases over no filter", variant::NONE, 0.85),
        (
            "from leases over a wasm filter that does nothing",
            variant::NOTHING,
            0.93,
        ),
    ] {
        let (value, name) = named(name, over(variant::LEASED, other));
        report.at_least(&name, value, least);
    }
    let value = added(variant::LEASED) / added(variant::EACH);
    report.at_most(
        "added latency from leases over a callout each, 1 connection",
        value,
        1.0 / 3.0,
    );
    let leased = &samples[&(variant::LEASED, MANY)];
    let (value, name) = named(
        "callouts per 1,000 from leases",
        spread(leased, |s| s.callouts),
    );
    report.at_most(&name, value, 5.0);
    let calls = spread(leased, |s| s.redis_calls);
    let (value, name) = named("Redis calls per 1,000 from leases", calls);
    report.at_most(&name, value, 5.0);
    if variant::before().is_some() {
        let (value, name) = named(
            "admitting over the filter before",
            over(variant::ADMITTING, variant::ADMITTING_BEFORE),
        );
        report.at_least(&name, value, 0.97);
        let (value, name) = named(
            "denying over the filter before",
            over(variant::DENYING, variant::DENYING_BEFORE),
        );
        report.at_least(&name, value, 0.93);
        report.at_most(
            "added latency over the filter before, 1 connection",
            added(variant::ADMITTING) / added(variant::ADMITTING_BEFORE),
            1.05,
        );
    }
    if variant::sidecar_before().is_some() {
        for (now, before) in [
            (variant::ADMITTING, variant::SIDECAR_BEFORE),
            (variant::EMBEDDED, variant::EMBEDDED_BEFORE),
        ] {
            let (value, name) = named(
                &format!("{now}: over the sidecar before"),
                over(now, before),
            );
            report.at_least(&name, value, 0.97);
        }
    }
    let (value, name) = named(
        "callouts per 1,000 denials",
        spread(&samples[&(variant::DENYING, MANY)], |s| s.callouts),
    );
    report.at_most(&name, value, 1.0);
    let calls = spread(&samples[&(variant::ADMITTING, MANY)], |s| s.redis_calls);
    let (value, name) = named("Redis calls per 1,000 admitted", calls);
    report.at_most(&name, value, 150.0);
    let wasm = std::fs::metadata(repository("target/filter/sluicegate.wasm"))
        .expect("the filter is built");
    report.at_most("the filter's wasm, KB", wasm.len() as f64 / 1_000.0, 400.0);
}

fn named(name: &str, (value, least, most): Spread) -> (f64, String) {
    (value, format!("{name} ({least:.2} to {most:.2})"))
}

/// Round by round, so that both were measured under the same load of the machine.
fn ratio(a: &[Sample], b: &[Sample], pick: fn(&Sample) -> f64) -> Spread {
    of(a.iter().zip(b).map(|(a, b)| pick(a) / pick(b)).collect())
}

fn spread(samples: &[Sample], pick: fn(&Sample) -> f64) -> Spread {
    of(samples.iter().map(pick).collect())
}

fn of(values: Vec<f64>) -> Spread {
    let least = values.iter().copied().fold(f64::MAX, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    (median(values.into_iter()), least, most)
}
