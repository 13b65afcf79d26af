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
        let [admitted, denied, unavailable, error, shadow_denied] =
            totals.entry(limit.to_owned()).or_default();
        let outcome = Outcome::ALL
            .iter()
            .find(|outcome| outcome.name() == verdict);
        let counted = match outcome {
            Some(Outcome::Admitted) => admitted,
            Some(Outcome::Denied) => denied,
            Some(Outcome::Unavailable) => unavailable,
            Some(Outcome::Error) => error,
            Some(Outcome::ShadowDenied) => shadow_denied,
            // No client notices the others.
            _ => continue,
        };
        // A whole number; a double is exact up to 2^53, more than a process ever counts.
        *counted += metric.get_counter().get_value() as u64;
    }
    totals
}

fn label<'a>(metric: &'a Metric, name: &str) -> Option<&'a str> {
    let labels = metric.get_label();
    let label = labels.iter().find(|label| label.name() == name)?;
    Some(label.value())
}
