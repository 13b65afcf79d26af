//! Counts of decisions over the last minutes, by limit: samples of counters, and since when each limit has denied. An
//! engineer who opens the live page after an alert sees what led to it. Pure and bounded; times are milliseconds since
//! 1970.

use std::collections::{BTreeMap, VecDeque};

/// Samples that are kept: five minutes at one per second, longer at a lower rate.
const MAX_SAMPLES: usize = 300;

/// Limits whose counts are kept in the samples, which bounds memory for policies with thousands of limits. The newest
/// counts are kept of every limit.
const MAX_CHARTS: usize = 128;

/// After this long without a denial, a run of denials has ended.
const PAUSE_MS: u64 = 30_000;

/// Decisions so far under one limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admitted.
    pub admitted: u64,
    /// Denied: the client got a 429.
    pub denied: u64,
    /// Not decided, because the store did not answer.
    pub unavailable: u64,
    /// Not decided, because the request for a decision was invalid.
    pub error: u64,
    /// Shadow decisions that would have been denied.
    pub shadow_denied: u64,
}

impl Counts {
    /// Adds what has been counted between two readings.
    fn add_difference(&mut self, before: Self, now: Self) {
        self.admitted += now.admitted.saturating_sub(before.admitted);
        self.denied += now.denied.saturating_sub(before.denied);
        self.unavailable += now.unavailable.saturating_sub(before.unavailable);
        self.error += now.error.saturating_sub(before.error);
        self.shadow_denied += now.shadow_denied.saturating_sub(before.shadow_denied);
    }
}

/// Failed store calls so far, by kind. Kinds that never occurred may be missing.
pub type Failures = BTreeMap<&'static str, u64>;

/// A run of denials without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denying {
    /// The first denial.
    pub since_ms: u64,
    /// The latest denial.
    pub last_ms: u64,
}

impl Denying {
    /// Whether the run has not ended.
    pub const fn goes_on(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.last_ms) <= PAUSE_MS
    }
}

/// A limit that has had decisions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Series {
    /// The newest counts.
    pub counts: Counts,
    /// The newest run of denials since this sidecar started, if any.
    pub denying: Option<Denying>,
    /// The index of its counts in every sample, if they are kept.
    pub chart: Option<usize>,
    /// When the counts last changed.
    changed_ms: u64,
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The moment.
    pub at_ms: u64,
    /// The clock was set back before it, so that earlier samples must not be compared with it.
    pub after_step: bool,
    /// The counts of all limits together.
    pub total: Counts,
    /// Failed store calls.
    pub failures: Failures,
    /// By the indexes of the series; `None` if they were not kept then.
    pub counts: Vec<Option<Counts>>,
}

/// The samples and the limits that they count.
#[derive(Debug, Default)]
pub struct History {
    /// By name; empty for decisions without a limit of the policy. As many as the counters have.
    series: BTreeMap<String, Series>,
    /// The names of the limits whose counts are kept, by index.
    charts: Vec<String>,
    samples: VecDeque<Sample>,
    total: Counts,
}

impl History {
    /// Adds a sample of counters, which only grow.
    pub fn add<'a>(
        &mut self,
        at_ms: u64,
        totals: impl IntoIterator<Item = (&'a str, Counts)>,
        failures: Failures,
    ) {
        let after_step = self.samples.back().is_some_and(|last| last.at_ms > at_ms);
        if after_step {
            self.step_back(at_ms);
        }
        let mut free = self.free_charts();
        for (name, counts) in totals {
            let before = self
                .series
                .get(name)
                .map_or(Counts::default(), |s| s.counts);
            if counts == before {
                continue;
            }
            self.total.add_difference(before, counts);
            let mut series = self.series.remove(name).unwrap_or_default();
            if series.chart.is_none() {
                series.chart = self.new_chart(name, &series, &mut free);
            }
            if counts.denied > before.denied {
                let goes_on = series.denying.filter(|run| run.goes_on(at_ms));
                series.denying = Some(Denying {
                    since_ms: goes_on.map_or(at_ms, |run| run.since_ms),
                    last_ms: at_ms,
                });
            }
            series.counts = counts;
            series.changed_ms = at_ms;
            self.series.insert(name.to_owned(), series);
        }
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        let charts = self.charts.iter();
        self.samples.push_back(Sample {
            at_ms,
            after_step,
            total: self.total,
            failures,
            counts: charts
                .map(|name| Some(self.series.get(name)?.counts))
                .collect(),
        });
    }

    /// The clock was set back to `at_ms`. Nothing is left that would be later.
    fn step_back(&mut self, at_ms: u64) {
        self.samples.retain(|sample| sample.at_ms < at_ms);
        for series in self.series.values_mut() {
            series.changed_ms = series.changed_ms.min(at_ms);
            if let Some(run) = &mut series.denying {
                run.since_ms = run.since_ms.min(at_ms);
                run.last_ms = run.last_ms.min(at_ms);
            }
        }
    }

    /// The indexes that other limits can have, because the counts did not change in the kept samples. None while more
    /// can be added.
    fn free_charts(&self) -> Vec<usize> {
        if self.charts.len() < MAX_CHARTS {
            return Vec::new();
        }
        let names = self.charts.iter().enumerate();
        names
            .filter(|(_, name)| !self.series.get(*name).is_some_and(|s| self.is_recent(s)))
            .map(|(index, _)| index)
            .collect()
    }

    /// Starts to keep the counts of a limit, which are still those of its last change, if there is an index for it.
    fn new_chart(&mut self, name: &str, series: &Series, free: &mut Vec<usize>) -> Option<usize> {
        let index = if self.charts.len() < MAX_CHARTS {
            self.charts.push(name.to_owned());
            self.charts.len() - 1
        } else {
            let index = free.pop()?;
            let before = std::mem::replace(self.charts.get_mut(index)?, name.to_owned());
            if let Some(before) = self.series.get_mut(&before) {
                before.chart = None;
            }
            index
        };
        for sample in &mut self.samples {
            let known = (series.changed_ms <= sample.at_ms).then_some(series.counts);
            match sample.counts.get_mut(index) {
                Some(counts) => *counts = known,
                None => sample.counts.push(known),
            }
        }
        Some(index)
    }

    /// All limits that have had decisions, by name.
    pub fn series(&self) -> impl Iterator<Item = (&str, &Series)> {
        self.series
            .iter()
            .map(|(name, series)| (name.as_str(), series))
    }

    /// Whether the counts of a limit changed in the kept samples.
    pub fn is_recent(&self, series: &Series) -> bool {
        let oldest = self.samples.front();
        oldest.is_none_or(|oldest| oldest.at_ms < series.changed_ms)
    }

    /// The names of the limits whose counts are in the samples, in the same order.
    pub fn charts(&self) -> &[String] {
        &self.charts
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.samples.iter()
    }
}

#[cfg(test)]
mod tests;
