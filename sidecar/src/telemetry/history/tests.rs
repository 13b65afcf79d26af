//! Runs of denials, the bound on samples and charts, and steps of the clock.

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

const fn run(since_ms: u64, last_ms: u64) -> Denying {
    Denying { since_ms, last_ms }
}

impl History {
    fn count<const N: usize>(&mut self, at_ms: u64, totals: [(&str, Counts); N]) {
        self.add(at_ms, totals, Failures::new());
    }

    fn denying(&self, name: &str) -> Option<Denying> {
        self.series.get(name).and_then(|series| series.denying)
    }

    /// The kept counts of a limit.
    fn chart(&self, name: &str) -> Option<Vec<Option<Counts>>> {
        let index = self.series.get(name)?.chart?;
        Some(self.samples().map(|s| s.counts[index]).collect())
    }
}

#[test]
fn denials_without_a_pause_are_one_run_since_the_first() {
    let mut history = History::default();
    history.count(0, [("a", admitted(1)), ("b", admitted(1))]);
    assert_eq!(history.denying("a"), None);
    history.count(1_000, [("a", denied(3)), ("b", admitted(1))]);
    history.count(1_000 + PAUSE_MS, [("a", denied(4)), ("b", admitted(1))]);
    history.count(2_000 + PAUSE_MS, [("a", denied(4)), ("b", admitted(1))]);
    let run = run(1_000, 1_000 + PAUSE_MS);
    assert_eq!(history.denying("a"), Some(run));
    assert!(run.goes_on(1_000 + 2 * PAUSE_MS) && !run.goes_on(1_001 + 2 * PAUSE_MS));
    assert_eq!(history.denying("b"), None);
    history.count(1_001 + 2 * PAUSE_MS, [("a", denied(5)), ("b", admitted(1))]);
    let new = 1_001 + 2 * PAUSE_MS;
    assert_eq!(history.denying("a"), Some(self::run(new, new)));
}

#[test]
fn a_later_limit_gets_the_next_index_and_has_had_no_decision_before() {
    let mut history = History::default();
    history.count(0, [("b", denied(1))]);
    history.count(1, [("a", denied(2)), ("b", denied(1))]);
    // Removed by a reload: its index stays.
    history.count(2, [("a", denied(2))]);
    assert_eq!(history.charts(), ["b", "a"]);
    let counts: Vec<_> = history.samples().map(|s| s.counts.clone()).collect();
    let [first, second] = [Some(denied(1)), Some(denied(2))];
    let before = vec![first, Some(denied(0))];
    assert_eq!(counts, [before, vec![first, second], vec![first, second]]);
}

#[test]
fn memory_is_bounded_over_time_and_for_thousands_of_limits() {
    let mut history = History::default();
    let names: Vec<_> = (0..1_000).map(|n| format!("limit-{n}")).collect();
    for now in 1..=1_000 {
        let totals = names.iter().map(|name| (name.as_str(), denied(now)));
        history.add(now, totals, Failures::new());
    }
    assert_eq!(history.samples().count(), MAX_SAMPLES);
    let newest = history.samples().next_back().unwrap();
    assert_eq!(newest.counts.len(), MAX_CHARTS);
    // No count is lost: all limits are in the total, and of each the newest counts and its run of denials are known.
    assert_eq!(newest.total, denied(1_000 * 1_000));
    assert_eq!(history.series().count(), 1_000);
    for (name, series) in history.series() {
        assert_eq!(series.counts, denied(1_000), "{name}");
        assert_eq!(series.denying.map(|run| run.last_ms), Some(1_000), "{name}");
    }
}

#[test]
fn a_limit_without_recent_decisions_makes_room_for_another() {
    let mut history = History::default();
    let names: Vec<_> = (0..MAX_CHARTS + 2).map(|n| format!("{n:03}")).collect();
    let mut counts = vec![0; names.len()];
    let add = |history: &mut History, at_ms: u64, counts: &[u64]| {
        let counts = counts.iter().map(|n| denied(*n));
        let totals = names.iter().map(String::as_str).zip(counts);
        history.add(at_ms, totals, Failures::new());
    };
    add(&mut history, 0, &counts);
    // Each has one decision; the last two find no room.
    counts.fill(1);
    add(&mut history, 1, &counts);
    let [late, later] = [MAX_CHARTS, MAX_CHARTS + 1].map(|n| names[n].clone());
    assert_eq!(history.chart(&late), None);
    // The first limits go on, so that only the others make room.
    let end = u64::try_from(MAX_SAMPLES).unwrap() + 1;
    for at_ms in 2..=end {
        counts[0] += 1;
        add(&mut history, at_ms, &counts);
    }
    counts[MAX_CHARTS] = 7;
    add(&mut history, end + 1, &counts);
    let chart = history.chart(&late).unwrap();
    // It had one decision throughout the kept samples.
    let mut expected = vec![Some(denied(1)); MAX_SAMPLES];
    expected[MAX_SAMPLES - 1] = Some(denied(7));
    assert_eq!(chart, expected);
    assert!(history.chart("000").is_some());
    assert_eq!(history.chart(&later), None);
    assert_eq!(history.charts().len(), MAX_CHARTS);
}

#[test]
fn counts_that_were_not_kept_are_unknown_not_zero() {
    let mut history = History::default();
    let names: Vec<_> = (0..=MAX_CHARTS).map(|n| format!("{n:03}")).collect();
    let end = 2 * u64::try_from(MAX_SAMPLES).unwrap();
    for at_ms in 0..=end {
        // All but the last limit stop halfway; the last one grows throughout, and gets an index when one is free.
        let totals = names.iter().enumerate().map(|(n, name)| {
            let grows = n == MAX_CHARTS || at_ms < end / 2;
            (name.as_str(), denied(if grows { at_ms } else { end / 2 }))
        });
        history.add(at_ms, totals, Failures::new());
    }
    let chart = history.chart(&names[MAX_CHARTS]).unwrap();
    let kept = end + 1 - u64::try_from(MAX_SAMPLES).unwrap();
    assert!(chart.contains(&None));
    for (at_ms, count) in (kept..).zip(chart) {
        let is_true = count.is_none_or(|count| count == denied(at_ms));
        assert!(is_true, "{at_ms}: {count:?}");
    }
}

#[test]
fn after_a_step_back_of_the_clock_nothing_lies_in_the_future() {
    let mut history = History::default();
    history.count(1_000, [("a", denied(0))]);
    history.count(50_000, [("a", denied(1))]);
    history.count(51_000, [("a", denied(2))]);
    history.count(20_000, [("a", denied(2))]);
    let kept: Vec<_> = history.samples().map(|s| (s.at_ms, s.after_step)).collect();
    assert_eq!(kept, [(1_000, false), (20_000, true)]);
    assert_eq!(history.denying("a"), Some(run(20_000, 20_000)));
    history.count(21_000, [("a", denied(3))]);
    assert_eq!(history.denying("a"), Some(run(20_000, 21_000)));
}
