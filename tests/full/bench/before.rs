//! `bench -- before`: CPU for a request, saturated, of this build and of an earlier one, in turns.
//!
//! The least of all rounds is compared, since other work on the machine can only add to it.

use sluicegate_tests_full::report::Report;

use crate::MANY;
use crate::load::{self, Pick, Sample};
use crate::variant::{ADMITTING, ADMITTING_BEFORE, DENYING, DENYING_BEFORE, Keys, Scale, scale};

/// Prints what each process used for a request, and ratios.
///
/// # Panics
/// Neither `SLUICEGATE_BEFORE` nor `SLUICEGATE_BEFORE_SIDECAR` is set, or something does not start.
pub async fn run(quick: bool) {
    let named = ["SLUICEGATE_BEFORE", "SLUICEGATE_BEFORE_SIDECAR"].map(std::env::var_os);
    let named = named.iter().any(Option::is_some);
    assert!(
        named,
        "set SLUICEGATE_BEFORE=FILE.wasm or SLUICEGATE_BEFORE_SIDECAR=FILE, or both"
    );
    let (rounds, seconds) = if quick { (1, 2) } else { (10, 4) };
    let mut variants = Vec::new();
    for name in [ADMITTING, ADMITTING_BEFORE, DENYING, DENYING_BEFORE] {
        variants.push(scale(name, Scale::of(Keys::Uniform(1_000))).await);
    }
    let mut samples = vec![Vec::new(); variants.len()];
    // The first round warms up: connections, caches, the VM's compiled code.
    for round in 0..=rounds {
        for (variant, samples) in variants.iter().zip(&mut samples) {
            let sample = load::measure(variant, MANY, seconds).await;
            if round > 0 {
                samples.push(sample);
            }
        }
    }
    let parts: [(&str, Pick); 4] = [
        ("Envoy", |s| s.envoy.cpu_us),
        ("sidecar", |s| s.sidecar.cpu_us),
        ("Redis", |s| s.redis.cpu_us),
        ("all", |s| {
            s.envoy.cpu_us + s.sidecar.cpu_us + s.redis.cpu_us
        }),
    ];
    let mut report = Report::default();
    for (variants, samples) in variants.chunks(2).zip(samples.chunks(2)) {
        for (part, pick) in parts {
            let [now, before] = [least(&samples[0], pick), least(&samples[1], pick)];
            let name = format!("{}: {part}", variants[0].name);
            report.figure(&name, now, "CPU us per request");
            report.figure(&format!("{name}, before"), before, "CPU us per request");
            report.figure(&format!("{name}, ratio"), now / before, "");
        }
    }
    report.finish("before");
}

fn least(samples: &[Sample], pick: Pick) -> f64 {
    samples.iter().map(pick).fold(f64::INFINITY, f64::min)
}
