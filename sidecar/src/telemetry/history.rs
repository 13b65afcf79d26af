//! Decisions of the last minutes by limit, and since when each limit has denied. An engineer who opens the live page
//! after an alert sees what led to it. Pure and bounded; times are milliseconds since 1970.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

/// Samples that are kept: five minutes at one per second, longer at a lower rate.
const MAX_SAMPLES: usize = 300;

/// Counts that are kept in all samples together, which bounds memory and the page's messages: as many as 128 limits have
/// that are asked for all the time. With more of them the samples cover less time.
const MAX_COUNTS: usize = 128 * MAX_SAMPLES;

/// After this long without a denial, a run of denials has ended.
const PAUSE_MS: u64 = 30_000;

/// Decisions under one limit: admitted, denied, unavailable, error, shadow denied; and of those admitted, by leases.
pub type Counts = [u64; 6];

/// Failed store calls, by kind. Kinds that did not occur may be missing.
pub type Failures = BTreeMap<&'static str, u64>;

/// The counters at one moment.
#[derive(Debug, Default)]
pub struct Reading {
    /// The moment.
    pub at_ms: u64,
    /// Decisions so far by limit; the name is empty for those without a limit of the policy.
    pub totals: BTreeMap<String, Counts>,
    /// Failed store calls so far.
    pub failures: Failures,
}

/// The counts between two readings.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// When the earlier one was taken.
    pub from_ms: u64,
    /// When the later one was taken.
    pub at_ms: u64,
    /// The limits that had decisions.
    pub counts: BTreeMap<String, Counts>,
    /// Failed store calls.
    pub failures: Failures,
}

/// The newest run of denials without a pause, of one limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Denying {
    /// The first denial.
    pub since_ms: u64,
    /// The latest denial.
    pub last_ms: u64,
    /// Whether the run has not ended.
    pub goes_on: bool,
}

/// The samples and runs of denials.
#[derive(Debug)]
pub struct History {
    newest: Reading,
    samples: VecDeque<Sample>,
    /// Limits that have denied since this sidecar started.
    denying: BTreeMap<String, Denying>,
}

impl History {
    /// The history of a sidecar that has just started and counted nothing.
    pub fn new(now_ms: u64) -> Self {
        Self {
            newest: Reading {
                at_ms: now_ms,
                ..Reading::default()
            },
            samples: VecDeque::new(),
            denying: BTreeMap::new(),
        }
    }

    /// Whether the newest reading was taken so long ago; also if the clock was set back since.
    pub const fn is_older_than(&self, age_ms: u64, now_ms: u64) -> bool {
        now_ms.abs_diff(self.newest.at_ms) >= age_ms
    }

    /// Adds a reading of counters, which only grow. If the clock was set back before it, the history begins anew: earlier
    /// times mean nothing then.
    pub fn add(&mut self, reading: Reading) {
        let before = std::mem::replace(&mut self.newest, reading);
        if self.newest.at_ms < before.at_ms {
            self.samples.clear();
            self.denying.clear();
            return;
        }
        let sample = self.newest.since(&before);
        self.note_denials(&sample);
        self.samples.push_back(sample);
        let mut counts: usize = self.samples.iter().map(|sample| sample.counts.len()).sum();
        while self.samples.len() > MAX_SAMPLES || counts > MAX_COUNTS {
            let oldest = self.samples.pop_front();
            counts -= oldest.map_or(0, |oldest| oldest.counts.len());
        }
    }

    fn note_denials(&mut self, sample: &Sample) {
        let at_ms = sample.at_ms;
        for run in self.denying.values_mut() {
            run.goes_on = at_ms.saturating_sub(run.last_ms) <= PAUSE_MS;
        }
        let denied = sample
            .counts
            .iter()
            .filter(|(_, [_, denied, ..])| *denied > 0);
        for (name, _) in denied {
            let goes_on = self.denying.get(name).filter(|run| run.goes_on);
            let run = Denying {
                since_ms: goes_on.map_or(at_ms, |run| run.since_ms),
                last_ms: at_ms,
                goes_on: true,
            };
            self.denying.insert(name.clone(), run);
        }
    }

    /// The samples after `after_ms`, the oldest first; all of them if no sample is as late, as after the clock was set back.
    pub fn samples_after(&self, after_ms: u64) -> impl Iterator<Item = &Sample> {
        let newest = self.samples.back();
        let is_known = newest.is_some_and(|newest| newest.at_ms >= after_ms);
        let samples = self.samples.iter();
        samples.filter(move |sample| !is_known || sample.at_ms > after_ms)
    }

    /// Runs of denials, by limit.
    pub const fn denying(&self) -> &BTreeMap<String, Denying> {
        &self.denying
    }
}

impl Reading {
    fn since(&self, before: &Self) -> Sample {
        let counts = self.totals.iter().filter_map(|(name, total)| {
            let before = before.totals.get(name).copied().unwrap_or_default();
            let mut more = *total;
            let kinds = more.iter_mut().zip(before);
            kinds.for_each(|(more, before)| *more = more.saturating_sub(before));
            (more != Counts::default()).then(|| (name.clone(), more))
        });
        let failures = self.failures.iter().filter_map(|(kind, total)| {
            let more = total.saturating_sub(before.failures.get(kind).copied().unwrap_or(0));
            (more > 0).then_some((*kind, more))
        });
        Sample {
            from_ms: before.at_ms,
            at_ms: self.at_ms,
            counts: counts.collect(),
            failures: failures.collect(),
        }
    }
}

#[cfg(test)]
mod tests;
