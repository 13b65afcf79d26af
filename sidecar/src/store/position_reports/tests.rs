//! Which share is in force: more sidecars count at once, fewer after five seconds of reports, none before the fleet is known.

use super::*;

const OLD: Duration = Duration::from_secs(60);

fn of(number: u64) -> FleetPosition {
    FleetPosition {
        rank: 0,
        of: number,
    }
}

/// What is in force after each of these reports of a list that is old: at how many milliseconds, rank and number of sidecars.
/// The first position has been reported for two seconds.
fn in_force(reports: &[(u64, u64, u64)]) -> Vec<(u64, u64)> {
    let (mut position, start) = (PositionReports::default(), Instant::now());
    let mut report = |after_ms: u64, rank, of| {
        let now = start + Duration::from_millis(after_ms);
        position.report(now, FleetPosition { rank, of }, OLD);
        position.in_force().map(|now| (now.rank, now.of))
    };
    let (rank, of) = (reports[0].1, reports[0].2);
    assert_eq!(report(0, rank, of), None);
    assert_eq!(report(1_000, rank, of), None);
    let reports = reports.iter();
    let later = reports.map(|(after_ms, rank, of)| report(2_000 + after_ms, *rank, *of).unwrap());
    later.collect()
}

/// A report each second from this one on.
fn each_second(from_s: u64, numbers: &[u64]) -> Vec<(u64, u64, u64)> {
    let reports = numbers.iter().zip(from_s..);
    reports
        .map(|(of, second)| (second * 1_000, 0, *of))
        .collect()
}

fn numbers_in_force(reports: &[(u64, u64, u64)]) -> Vec<u64> {
    in_force(reports).into_iter().map(|(_, of)| of).collect()
}

#[test]
fn more_sidecars_and_another_rank_among_as_many_count_at_once() {
    let reports = [(0, 0, 1), (1_000, 1, 2), (2_000, 0, 3), (3_000, 2, 3)];
    assert_eq!(in_force(&reports), [(0, 1), (1, 2), (0, 3), (2, 3)]);
}

#[test]
fn fewer_sidecars_count_when_they_have_been_reported_for_five_seconds() {
    let reports = each_second(0, &[3, 2, 2, 2, 2, 2, 2]);
    assert_eq!(numbers_in_force(&reports), [3, 3, 3, 3, 3, 3, 2]);
    // The sixth report came one millisecond sooner after the first: the seventh would have been needed.
    let last = (5_999, 0, 2);
    let early = [&each_second(0, &[3, 2, 2, 2, 2, 2])[..], &[last]].concat();
    assert_eq!(numbers_in_force(&early), [3, 3, 3, 3, 3, 3, 2]);
}

#[test]
fn a_list_that_fills_again_after_an_outage_changes_nothing() {
    let reports = [(0, 1, 3), (10_000, 0, 1), (11_000, 0, 2), (12_000, 1, 3)];
    assert_eq!(in_force(&reports), [(1, 3); 4]);
    // Two at first, and four later: it is not three that have been reported since the beginning.
    let later = each_second(0, &[9, 2, 2, 4, 4, 4, 4]);
    assert_eq!(numbers_in_force(&later), [9, 9, 9, 9, 9, 9, 4]);
}

/// A fleet that loses one after another would otherwise keep the smallest shares until the last of them has gone.
#[test]
fn each_of_several_that_leave_counts_as_gone_five_seconds_later() {
    let reports = each_second(0, &[5, 4, 3, 3, 2, 2, 2, 2, 2, 2]);
    assert_eq!(numbers_in_force(&reports), [5, 5, 5, 5, 5, 5, 4, 3, 3, 2]);
}

#[test]
fn one_that_comes_and_goes_again_begins_the_time_anew() {
    let reports = each_second(0, &[2, 1, 1, 1, 2, 1, 1, 1, 1, 1, 1]);
    let expected = [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 1];
    assert_eq!(numbers_in_force(&reports), expected);
}

/// Another outage in the middle: nobody else could report, either.
#[test]
fn a_missed_report_begins_the_time_anew() {
    let mut reports = each_second(0, &[3, 1, 1, 1]);
    reports.extend(each_second(5, &[1, 1, 1, 1, 1, 1]));
    let expected = [3, 3, 3, 3, 3, 3, 3, 3, 3, 1];
    assert_eq!(numbers_in_force(&reports), expected);
}

/// D2: a Redis that was there for a moment told each of ten sidecars that it was one of those that had come first.
#[test]
fn shares_add_up_to_one_quota_however_many_start_at_a_time() {
    let start = Instant::now();
    for begins_every_ms in [0, 100, 700] {
        // Each reports every 0.7 s from when it starts, to a list that is new; then the store is gone.
        for gone_ms in (0..9_000).step_by(50) {
            let mut positions: Vec<_> = (0..10).map(|_| PositionReports::default()).collect();
            let mut reports: Vec<_> = (0..10_usize)
                .flat_map(|one| {
                    let first_ms = one as u64 * begins_every_ms;
                    (first_ms..=gone_ms).step_by(700).map(move |at| (at, one))
                })
                .collect();
            reports.sort_unstable();
            let mut known = Vec::new();
            for (at_ms, one) in reports {
                if !known.contains(&one) {
                    known.push(one);
                }
                let now = start + Duration::from_millis(at_ms);
                let list_age = Duration::from_millis(at_ms);
                positions[one].report(now, of(known.len() as u64), list_age);
            }
            let shares = positions.iter().filter_map(PositionReports::in_force);
            let sum: f64 = shares.map(|share| 1.0 / share.of as f64).sum();
            assert!(sum < 1.001, "{sum} quotas at {gone_ms} ms");
            assert!(gone_ms < 8_400 || sum > 0.999, "{sum} at {gone_ms} ms");
        }
    }
}

/// R4: the list was evicted once a second, and each sidecar found those alone who had reported since.
#[test]
fn a_list_that_is_evicted_again_and_again_lowers_no_number() {
    let (mut position, start) = (PositionReports::default(), Instant::now());
    let at = |second: u64| start + Duration::from_secs(second);
    (0..4).for_each(|second| position.report(at(second), of(5), OLD));
    for second in 4..20 {
        position.report(at(second), of(1), Duration::from_millis(300));
    }
    assert_eq!(position.in_force(), Some(of(5)));
    // From now on it stays: who is alive is on it after its first five seconds, and fewer count after five more.
    let grown = |second: u64| Duration::from_secs(second - 20);
    (20..30).for_each(|second| position.report(at(second), of(1), grown(second)));
    assert_eq!(position.in_force(), Some(of(5)));
    position.report(at(30), of(1), grown(30));
    assert_eq!(position.in_force(), Some(of(1)));
    // One that starts meanwhile has no share: nobody knows how many there are.
    let mut new = PositionReports::default();
    (4..20).for_each(|second| new.report(at(second), of(1), Duration::from_millis(300)));
    assert_eq!(new.in_force(), None);
}
