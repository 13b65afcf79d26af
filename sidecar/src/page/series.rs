//! Which limits a snapshot has, and their counts. Pure.

use serde::Serialize;

use crate::telemetry::history::{Counts, History, Series};

/// The limits of a snapshot.
#[derive(Debug, Default)]
pub struct Sent {
    pub series: Vec<SeriesView>,
    /// The newest counts, in the same order.
    pub counts: Vec<Option<Row>>,
    /// A limit that is not in `series` may have had decisions.
    pub left_out: bool,
}

/// Admitted, denied, unavailable, error, shadow denied.
pub type Row = [u64; 5];

#[derive(Debug, Serialize)]
pub struct SeriesView {
    name: String,
    /// Whether the samples of the last minutes have it.
    charted: bool,
    /// The page does not list it: it is not in the policy, and has had no decisions in the last minutes.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    unlisted: bool,
    /// Whether the run of denials goes on.
    denies: bool,
    denying_since_ms: Option<u64>,
    denying_last_ms: Option<u64>,
}

impl Sent {
    /// A limit that may come back is sent with its count even if it is not listed: the page would count its return from
    /// 0. But not every limit that there ever was, only those that have a chart.
    pub fn new(history: &History, in_force: impl Fn(&str) -> bool, now_ms: u64) -> Self {
        let mut sent = Self::default();
        for (name, series) in history.series() {
            let listed = in_force(name) || history.is_recent(series);
            if listed || series.chart.is_some() {
                sent.series
                    .push(SeriesView::new(name, series, listed, now_ms));
                sent.counts.push(Some(row(&series.counts)));
            } else {
                sent.left_out = true;
            }
        }
        sent
    }
}

impl SeriesView {
    fn new(name: &str, series: &Series, listed: bool, now_ms: u64) -> Self {
        Self {
            name: name.to_owned(),
            charted: series.chart.is_some(),
            unlisted: !listed,
            denies: series.denying.is_some_and(|run| run.goes_on(now_ms)),
            denying_since_ms: series.denying.map(|run| run.since_ms),
            denying_last_ms: series.denying.map(|run| run.last_ms),
        }
    }
}

pub const fn row(counts: &Counts) -> Row {
    [
        counts.admitted,
        counts.denied,
        counts.unavailable,
        counts.error,
        counts.shadow_denied,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::history::Failures;

    /// The names that are sent, each with whether the page lists it.
    fn names(sent: &Sent) -> Vec<(&str, bool)> {
        assert_eq!(sent.series.len(), sent.counts.len());
        let names = sent.series.iter();
        names
            .map(|one| (one.name.as_str(), !one.unlisted))
            .collect()
    }

    /// Otherwise the page would take its count for 0, and its return for thousands of decisions per second.
    #[test]
    fn a_limit_without_recent_decisions_keeps_its_count_or_is_said_to_be_left_out() {
        let mut history = History::default();
        let limits: Vec<_> = (0..1_000).map(|n| format!("{n:03}")).collect();
        let add = |history: &mut History, at_ms: u64, limits: &[String]| {
            let denied = Counts {
                denied: 5_000 + at_ms,
                ..Counts::default()
            };
            let totals = limits.iter().map(|name| (name.as_str(), denied));
            history.add(at_ms, totals, Failures::new());
        };
        // A reload removes "001", and nobody asks for it for minutes.
        let in_force = |name: &str| name == "000";
        add(&mut history, 0, &limits[..2]);
        for at_ms in 1..400 {
            add(&mut history, at_ms, &limits[..1]);
        }
        let sent = Sent::new(&history, in_force, 400);
        assert_eq!(names(&sent), [("000", true), ("001", false)]);
        assert_eq!(sent.counts[1], Some([0, 5_000, 0, 0, 0]));
        assert!(!sent.left_out);
        // The snapshots do not grow with all limits that there ever were.
        add(&mut history, 400, &limits);
        for at_ms in 401..800 {
            add(&mut history, at_ms, &limits[..1]);
        }
        let sent = Sent::new(&history, in_force, 800);
        assert_eq!(sent.series.len(), history.charts().len());
        assert!(sent.series.len() < 200);
        assert!(sent.left_out);
        let listed = names(&sent).into_iter().filter(|(_, listed)| *listed);
        assert_eq!(listed.collect::<Vec<_>>(), [("000", true)]);
    }
}
