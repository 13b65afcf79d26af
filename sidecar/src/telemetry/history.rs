//! Counts of decisions over the last minutes, by limit: samples of counters, and since when each limit has denied. An
//! engineer who opens the live page after an alert sees what led to it. Pure and bounded; times are milliseconds since
//! 1970.

use std::collections::VecDeque;

/// Samples that are kept: five minutes at one per second, longer at a lower rate.
const MAX_SAMPLES: usize = 300;

/// Limits with a series of their own: the first that had decisions. Later ones share a series, which bounds memory
/// for policies with thousands of limits.
const MAX_LIMITS: usize = 128;

/// The name of the shared series. No limit can have this name, because it contains a space.
pub const OTHER_LIMITS: &str = "other limits";

/// After this long without a denial, the next denial starts a new run.
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
    fn add(&mut self, more: Self) {
        self.admitted += more.admitted;
        self.denied += more.denied;
        self.unavailable += more.unavailable;
        self.error += more.error;
        self.shadow_denied += more.shadow_denied;
    }
}

/// A run of denials without a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denying {
    /// The first denial.
    pub since_ms: u64,
    /// The latest denial.
    pub last_ms: u64,
}

/// A limit; its index is the same in every sample from its first on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series {
    /// Its name; empty for decisions without a limit of the policy.
    pub name: String,
    /// The newest run of denials since this sidecar started, if any.
    pub denying: Option<Denying>,
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The moment.
    pub at_ms: u64,
    /// In the order of the series. Series that were added later are missing.
    pub counts: Vec<Counts>,
}

/// The samples and the series that they count.
#[derive(Debug, Default)]
pub struct History {
    series: Vec<Series>,
    samples: VecDeque<Sample>,
}

impl History {
    /// Adds a sample of counters, which only grow.
    pub fn add<'a>(&mut self, at_ms: u64, totals: impl IntoIterator<Item = (&'a str, Counts)>) {
        let mut counts = vec![Counts::default(); self.series.len()];
        for (name, total) in totals {
            if total == Counts::default() {
                continue;
            }
            let index = self.index(name);
            if counts.len() <= index {
                counts.resize(index + 1, Counts::default());
            }
            if let Some(count) = counts.get_mut(index) {
                count.add(total);
            }
        }
        let before = self.samples.back();
        for (index, (series, count)) in self.series.iter_mut().zip(&counts).enumerate() {
            let before = before.and_then(|sample| sample.counts.get(index));
            if count.denied > before.map_or(0, |before| before.denied) {
                let goes_on = series
                    .denying
                    .filter(|run| at_ms.saturating_sub(run.last_ms) <= PAUSE_MS);
                series.denying = Some(Denying {
                    since_ms: goes_on.map_or(at_ms, |run| run.since_ms),
                    last_ms: at_ms,
                });
            }
        }
        if self.samples.len() == MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(Sample { at_ms, counts });
    }

    /// The index of a limit in every sample.
    fn index(&mut self, name: &str) -> usize {
        let known = |series: &[Series], name: &str| series.iter().position(|s| s.name == name);
        if let Some(index) = known(&self.series, name) {
            return index;
        }
        let name = if self.series.len() < MAX_LIMITS {
            name
        } else {
            OTHER_LIMITS
        };
        known(&self.series, name).unwrap_or_else(|| {
            self.series.push(Series {
                name: name.to_owned(),
                denying: None,
            });
            self.series.len() - 1
        })
    }

    /// The limits, in the order of the counts in every sample.
    pub fn series(&self) -> &[Series] {
        &self.series
    }

    /// The samples, the oldest first.
    pub fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.samples.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(denied: u64) -> Counts {
        Counts {
            denied,
            ..Counts::default()
        }
    }

    fn admitted(admitted: u64) -> Counts {
        Counts {
            admitted,
            ..Counts::default()
        }
    }

    #[test]
    fn denials_without_a_pause_are_one_run_since_the_first() {
        let mut history = History::default();
        history.add(0, [("a", admitted(1)), ("b", admitted(1))]);
        assert_eq!(history.series()[0].denying, None);
        history.add(1_000, [("a", denied(3)), ("b", denied(0))]);
        history.add(1_000 + PAUSE_MS, [("a", denied(4)), ("b", denied(0))]);
        history.add(2_000 + PAUSE_MS, [("a", denied(4)), ("b", denied(0))]);
        let run = Denying {
            since_ms: 1_000,
            last_ms: 1_000 + PAUSE_MS,
        };
        assert_eq!(history.series()[0].denying, Some(run));
        assert_eq!(history.series()[1].denying, None);
        history.add(1_001 + 2 * PAUSE_MS, [("a", denied(5)), ("b", denied(0))]);
        let new = 1_001 + 2 * PAUSE_MS;
        let run = Denying {
            since_ms: new,
            last_ms: new,
        };
        assert_eq!(history.series()[0].denying, Some(run));
    }

    #[test]
    fn a_later_limit_gets_the_next_index() {
        let mut history = History::default();
        history.add(0, [("b", denied(1))]);
        history.add(1, [("a", denied(2)), ("b", denied(1))]);
        // Removed by a reload: its index stays.
        history.add(2, [("a", denied(2))]);
        let names: Vec<_> = history.series().iter().map(|s| s.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
        let counts: Vec<_> = history.samples().map(|s| s.counts.clone()).collect();
        assert_eq!(
            counts,
            [
                vec![denied(1)],
                vec![denied(1), denied(2)],
                vec![denied(0), denied(2)]
            ]
        );
    }

    #[test]
    fn memory_is_bounded_over_time_and_for_thousands_of_limits() {
        let mut history = History::default();
        let names: Vec<_> = (0..1_000).map(|n| format!("limit-{n}")).collect();
        for now in 1..=1_000 {
            history.add(now, names.iter().map(|name| (name.as_str(), denied(now))));
        }
        assert_eq!(history.samples().count(), MAX_SAMPLES);
        assert_eq!(history.series().len(), MAX_LIMITS + 1);
        let newest = history.samples().next_back().unwrap();
        // No count is lost: the other limits share a series.
        let rest = 1_000 - u64::try_from(MAX_LIMITS).unwrap();
        assert_eq!(newest.counts[MAX_LIMITS], denied(1_000 * rest));
    }
}
