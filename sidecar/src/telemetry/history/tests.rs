//! Runs of denials, the bound on samples and counts, and steps of the clock.

use super::*;

const fn denied(denied: u64) -> Counts {
    [0, denied, 0, 0, 0, 0]
}

const fn admitted(admitted: u64) -> Counts {
    [admitted, 0, 0, 0, 0, 0]
}

const fn run(since_ms: u64, last_ms: u64, goes_on: bool) -> Denying {
    Denying {
        since_ms,
        last_ms,
        goes_on,
    }
}

impl History {
    fn count<'a>(&mut self, at_ms: u64, totals: impl IntoIterator<Item = (&'a str, Counts)>) {
        let totals = totals.into_iter();
        self.add(Reading {
            at_ms,
            totals: totals
                .map(|(name, total)| (name.to_owned(), total))
                .collect(),
            failures: Failures::new(),
        });
    }

    /// The samples' ends, and what was denied until then under a limit.
    fn denials(&self, name: &str) -> Vec<(u64, Option<u64>)> {
        let of = |sample: &Sample| sample.counts.get(name).map(|[_, denied, ..]| *denied);
        self.samples_after(0).map(|s| (s.at_ms, of(s))).collect()
    }
}

#[test]
fn a_sample_has_what_was_counted_since_the_one_before() {
    let mut history = History::new(0);
    history.count(1_000, [("a", denied(5)), ("b", denied(0))]);
    history.count(2_000, [("a", denied(5)), ("b", denied(2))]);
    // Removed by a reload, and back: its counter began at 0 again.
    history.count(3_000, [("b", denied(2))]);
    history.count(4_000, [("a", denied(1)), ("b", denied(3))]);
    let none = None;
    assert_eq!(
        history.denials("a"),
        [
            (1_000, Some(5)),
            (2_000, none),
            (3_000, none),
            (4_000, Some(1))
        ]
    );
    assert_eq!(
        history.denials("b"),
        [
            (1_000, none),
            (2_000, Some(2)),
            (3_000, none),
            (4_000, Some(1))
        ]
    );
    let from: Vec<_> = history.samples_after(0).map(|s| s.from_ms).collect();
    assert_eq!(from, [0, 1_000, 2_000, 3_000]);
}

#[test]
fn failed_store_calls_are_those_since_the_sample_before() {
    let mut history = History::new(0);
    for (at_ms, timeouts) in [(1, 3), (2, 3), (3, 4)] {
        let failures = Failures::from([("timeout", timeouts), ("connection", 0)]);
        history.add(Reading {
            at_ms,
            failures,
            ..Reading::default()
        });
    }
    let failures: Vec<_> = history.samples_after(0).map(|s| &s.failures).collect();
    let [three, one] = [3, 1].map(|count| Failures::from([("timeout", count)]));
    assert_eq!(failures, [&three, &Failures::new(), &one]);
}

#[test]
fn a_page_gets_the_samples_that_it_does_not_have_yet() {
    let mut history = History::new(0);
    for at_ms in [1_000, 2_000, 3_000] {
        history.count(at_ms, []);
    }
    let after = |after_ms| -> Vec<u64> {
        let samples = history.samples_after(after_ms);
        samples.map(|sample| sample.at_ms).collect()
    };
    assert_eq!(after(0), [1_000, 2_000, 3_000]);
    assert_eq!(after(2_000), [3_000]);
    assert!(after(3_000).is_empty());
    // The clock was set back, or another process ran before: the page's samples are of another time.
    assert_eq!(after(3_001), [1_000, 2_000, 3_000]);
}

#[test]
fn denials_without_a_pause_are_one_run_since_the_first() {
    let mut history = History::new(0);
    let mut denied_at = |at_ms, total| {
        history.count(at_ms, [("a", denied(total)), ("b", admitted(1))]);
        assert_eq!(history.denying().get("b"), None);
        history.denying().get("a").copied()
    };
    assert_eq!(denied_at(500, 0), None);
    assert_eq!(denied_at(1_000, 3), Some(run(1_000, 1_000, true)));
    let last = 1_000 + PAUSE_MS;
    assert_eq!(denied_at(last, 4), Some(run(1_000, last, true)));
    assert_eq!(denied_at(last + PAUSE_MS, 4), Some(run(1_000, last, true)));
    let end = last + PAUSE_MS + 1;
    assert_eq!(denied_at(end, 4), Some(run(1_000, last, false)));
    assert_eq!(denied_at(end + 1, 5), Some(run(end + 1, end + 1, true)));
}

#[test]
fn a_denial_after_a_long_pause_starts_a_new_run() {
    let mut history = History::new(0);
    history.count(1_000, [("a", denied(1))]);
    let new = 1_001 + PAUSE_MS;
    history.count(new, [("a", denied(2))]);
    assert_eq!(history.denying()["a"], run(new, new, true));
}

#[test]
fn samples_are_bounded_and_cover_less_time_with_thousands_of_limits() {
    for (limits, kept) in [(1, MAX_SAMPLES), (128, MAX_SAMPLES), (1_000, 38)] {
        let mut history = History::new(0);
        let names: Vec<_> = (0..limits).map(|n| format!("limit-{n}")).collect();
        for now in 1..=400 {
            history.count(now, names.iter().map(|name| (name.as_str(), denied(now))));
        }
        assert_eq!(history.samples.len(), kept, "{limits} limits");
        let newest = history.samples.back().unwrap();
        assert_eq!((newest.at_ms, newest.counts.len()), (400, limits));
        // Whether a limit denies is known of every one.
        assert_eq!(history.denying().len(), limits);
        assert!(
            history
                .denying()
                .values()
                .all(|one| *one == run(1, 400, true))
        );
    }
}

#[test]
fn after_a_step_back_of_the_clock_the_history_begins_anew() {
    let mut history = History::new(0);
    history.count(50_000, [("a", denied(1))]);
    assert!(history.is_older_than(900, 20_000));
    history.count(20_000, [("a", denied(2))]);
    assert_eq!(history.samples_after(0).count(), 0);
    assert!(history.denying().is_empty());
    history.count(21_000, [("a", denied(5))]);
    assert_eq!(history.denials("a"), [(21_000, Some(3))]);
    assert_eq!(history.denying()["a"], run(21_000, 21_000, true));
}
