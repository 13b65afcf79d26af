//! Which share is in force: more sidecars count at once, fewer after five seconds of reports.

use super::*;

/// What is in force after each of these reports: at how many milliseconds, rank and number of sidecars.
fn in_force(reports: &[(u64, u64, u64)]) -> Vec<(u64, u64)> {
    let (mut position, start) = (Position::default(), Instant::now());
    assert_eq!(position.in_force(), None);
    let report = |&(after_ms, rank, of): &(u64, u64, u64)| {
        let now = start + Duration::from_millis(after_ms);
        position.report(now, FleetPosition { rank, of });
        let now = position.in_force().unwrap();
        (now.rank, now.of)
    };
    reports.iter().map(report).collect()
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
