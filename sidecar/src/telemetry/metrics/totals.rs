//! Counts of decisions so far, read from the Prometheus counters. Pure.

use std::collections::BTreeMap;

use prometheus::proto::{Metric, MetricFamily};

use crate::telemetry::history::Counts;
use crate::telemetry::labels::Outcome;

/// The counts of `sluicegate_decisions_total` by limit, summed over sources.
pub fn by_limit(families: &[MetricFamily]) -> BTreeMap<String, Counts> {
    let mut totals = BTreeMap::<String, Counts>::new();
    for metric in families.iter().flat_map(MetricFamily::get_metric) {
        let (Some(limit), Some(verdict)) = (label(metric, "limit"), label(metric, "verdict"))
        else {
            continue;
        };
        let counts = totals.entry(limit.to_owned()).or_default();
        // A whole number; a double is exact up to 2^53, more than a process ever counts.
        let value = metric.get_counter().get_value() as u64;
        let Some(outcome) = Outcome::ALL
            .iter()
            .find(|outcome| outcome.name() == verdict)
        else {
            continue;
        };
        match outcome {
            Outcome::Admitted => counts.admitted += value,
            Outcome::Denied => counts.denied += value,
            Outcome::Unavailable => counts.unavailable += value,
            Outcome::Error => counts.error += value,
            Outcome::ShadowDenied => counts.shadow_denied += value,
            // No client notices them.
            Outcome::ShadowAdmitted | Outcome::ShadowUnavailable | Outcome::ShadowError => {}
        }
    }
    totals
}

fn label<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    let labels = metric.get_label();
    let label = labels.iter().find(|label| label.name() == name)?;
    Some(label.value())
}
