//! The sketches, compared with exact counts.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;

const SECOND: u64 = 1_000_000;

fn subject(name: usize) -> Subject {
    Subject::of(&format!("k{name}"))
}

#[test]
fn reserves_starve_a_limit_that_denies_while_little_of_them_is_used() {
    for (reserved, used, denied, expected) in [
        (100, 10, 2, Some((0.1, true))),
        (100, 10, 1, Some((0.1, false))),
        (100, 25, 90, Some((0.25, false))),
        (100, 300, 90, Some((3.0, false))),
        (100, 0, 90, Some((0.0, true))),
        (0, 5, 90, None),
    ] {
        let mut reserves = Reserves::default();
        for _ in 0..100 {
            reserves.count(reserved, used, SECOND);
        }
        let top = reserves.top(denied, SECOND);
        let top = top.map(|top| (top.used_ratio, top.starve));
        assert_eq!(top, expected, "{used} of {reserved}, {denied} denied");
        assert_eq!(reserves.top(denied, 600 * SECOND), None, "forgotten");
    }
}

proptest! {
    /// A few subjects with many denials each and a crowd with few, over up to three halves.
    #[test]
    fn a_count_is_never_too_low_and_at_most_its_error_too_high(
        heavy in prop::collection::vec((0..8_usize, 1..400_u64), 0..30),
        crowd in 0..3_000_usize,
        step_us in 0..200_000_u64,
    ) {
        let mut denied = DenialCounts::default();
        let mut all: Vec<(usize, u64)> = (100..100 + crowd).map(|name| (name, 1)).collect();
        for (index, one) in heavy.into_iter().enumerate() {
            // Spread among the crowd, so that the sketch has to choose while they come.
            all.insert(index * 97 % (all.len() + 1), one);
        }
        let mut now_us = 0;
        let mut halves: Vec<HashMap<Subject, u64>> = vec![HashMap::new()];
        for (name, count) in all {
            now_us += step_us;
            denied.0.rotate(now_us);
            // The sketch decides where its halves begin; the test checks that it drops everything older.
            if denied.0.current.total == 0 && halves.last().is_some_and(|half| !half.is_empty()) {
                halves.push(HashMap::new());
            }
            denied.count(Some(subject(name)), count, now_us);
            *halves.last_mut().unwrap().entry(subject(name)).or_default() += count;
        }
        let kept = if denied.0.previous.is_some() { 2 } else { 1 };
        let mut truth: HashMap<Subject, u64> = HashMap::new();
        for (subject, count) in halves.iter().rev().take(kept).flatten() {
            *truth.entry(*subject).or_default() += count;
        }
        let total: u64 = truth.values().sum();
        prop_assert_eq!(denied.total(now_us), total);
        let most = denied.top(now_us);
        for one in &most {
            let true_count = truth.iter().find(|(subject, _)| subject.to_string() == one.subject);
            let true_count = true_count.map_or(0, |(_, count)| *count);
            prop_assert!(one.count - one.error <= true_count && true_count <= one.count, "{one:?}, truly {true_count}");
            prop_assert!(one.error <= total / CERTAIN_ONE_IN + 1, "{one:?} of {total}");
        }
        let mut sure: Vec<_> = truth.iter().filter(|(_, count)| **count > total / CERTAIN_ONE_IN).collect();
        sure.sort_by_key(|(_, count)| Reverse(**count));
        for (subject, count) in sure {
            // Among the ten that are shown, unless ten others may have more.
            let shown = most.iter().any(|one| one.subject == subject.to_string());
            prop_assert!(shown || most.iter().filter(|one| one.count >= *count).count() == MAX_SHOWN);
        }
    }

    #[test]
    fn the_nearest_are_exactly_those_with_the_highest_ratios(
        notes in prop::collection::vec((0..40_u32, 0..=100_u32), 1..400),
    ) {
        let mut nearest = Nearest::default();
        let mut highest: HashMap<u32, u32> = HashMap::new();
        for (name, percent) in notes {
            let ratio = f64::from(percent) / 100.0;
            nearest.note(&format!("k{name}"), ratio, SECOND);
            let high = highest.entry(name).or_default();
            *high = percent.max(*high);
        }
        let mut ratios: Vec<_> = highest.values().copied().collect();
        ratios.sort_by_key(|ratio| Reverse(*ratio));
        ratios.truncate(MAX_SHOWN);
        let shown = nearest.top(SECOND);
        let shares: Vec<_> = ratios.into_iter().map(|percent| f64::from(percent) / 100.0).collect();
        prop_assert_eq!(shown.iter().map(|near| near.used_ratio).collect::<Vec<_>>(), shares);
        for near in shown {
            let truth = highest.iter().find(|(name, _)| Subject::of(&format!("k{name}")).to_string() == near.subject);
            prop_assert_eq!(truth.map(|(_, percent)| f64::from(*percent) / 100.0), Some(near.used_ratio));
        }
    }
}

#[test]
fn denials_of_two_halves_ago_are_dropped() {
    let mut denied = DenialCounts::default();
    denied.count(Some(subject(1)), 5, SECOND);
    let half = DENIED_HALF_US;
    assert_eq!(denied.top(half)[0].count, 5, "one half ago");
    denied.count(Some(subject(1)), 2, half + SECOND);
    let one = &denied.top(half + SECOND)[0];
    assert_eq!((one.count, one.error), (7, 0), "both halves");
    assert_eq!(denied.span_us(half + SECOND), half + SECOND);
    let second = &denied.top(2 * half)[0];
    assert_eq!(second.count, 2, "the first half is dropped");
    assert!(denied.top(4 * half).is_empty());
    assert_eq!(denied.total(4 * half), 0);
    assert_eq!(denied.span_us(4 * half), 0, "it starts again");
}

#[test]
fn a_ratio_of_a_minute_ago_is_dropped() {
    let mut nearest = Nearest::default();
    nearest.note("k", 0.9, SECOND);
    assert_eq!(nearest.top(NEAREST_HALF_US + SECOND)[0].used_ratio, 0.9);
    nearest.note("k", 0.2, NEAREST_HALF_US + SECOND);
    assert_eq!(nearest.top(NEAREST_HALF_US + SECOND)[0].used_ratio, 0.9);
    assert_eq!(nearest.top(2 * NEAREST_HALF_US)[0].used_ratio, 0.2);
    assert!(nearest.top(4 * NEAREST_HALF_US).is_empty());
}

#[test]
fn only_what_is_among_the_nearest_is_noted_while_there_is_no_room() {
    let mut nearest = Nearest::default();
    for name in 0..MAX_SHOWN {
        assert!(nearest.note(&format!("k{name}"), 0.5, SECOND));
    }
    assert!(!nearest.note("other", 0.5, NEAREST_HALF_US - 1));
    assert!(nearest.note("other", 0.6, SECOND));
    assert!(nearest.note("another", 0.5, NEAREST_HALF_US));
}

#[test]
fn memory_does_not_grow_with_the_number_of_subjects() {
    let mut denied = DenialCounts::default();
    for name in 0..20_000 {
        let half = if name < 10_000 { 0 } else { DENIED_HALF_US };
        denied.count(Some(subject(name)), 1, half);
    }
    let bytes = denied
        .0
        .iter()
        .map(|half| half.items.as_ref().unwrap().estimated_size());
    // docs/top.md states this bound.
    let bytes: usize = bytes.sum();
    assert!(bytes <= 27_000, "{bytes}");
}

#[test]
fn denials_of_unknown_subjects_count_in_the_total() {
    let mut denied = DenialCounts::default();
    denied.count(None, u64::MAX, 0);
    denied.count(Some(subject(1)), u64::MAX, 0);
    // No overflow, whatever count a filter reports.
    assert_eq!(denied.total(0), u64::MAX);
    assert!(denied.top(0).is_empty());
}
