//! How what is owed of a busy key becomes few records.

use super::*;
use proptest::prelude::*;
use sluicegate_engine::MAX_RECORDS;

proptest! {
    /// However many records: no more than fit, in order, and each unit is held as long as it was taken for, and at most a
    /// sixtieth of the window longer.
    #[test]
    fn merged_records_are_held_a_sixtieth_of_the_window_longer_at_most(
        steps in prop::collection::vec((0_u64..600_000, 1_u64..5), 1..200),
        precision_us in 0..MINUTE_US / 30,
        leased in any::<bool>(),
    ) {
        let mut spec = bucket("k", 10).spec;
        if precision_us > 0 {
            spec.algorithm = Algorithm::SlidingWindow { precision_us, leased };
        }
        let mut pending = Pending { spec, position: one_of(1), records: Vec::new() };
        let (mut now_us, mut taken) = (START_US, Vec::new());
        for (step_us, units) in steps {
            now_us += step_us;
            let record = Record { at_us: now_us, units };
            pending.add(record);
            prop_assert!(pending.records.len() <= MAX_RECORDS);
            taken.push(record);
        }
        let records = &pending.records;
        prop_assert!(records.is_sorted_by_key(|record| record.at_us));
        let stamp = |at_us: u64| at_us.next_multiple_of(precision_us.max(1));
        let since = |list: &[Record], stamp_us: u64| {
            let held = list.iter().filter(|record| stamp(record.at_us) >= stamp_us);
            held.map(|record| record.units).sum::<u64>()
        };
        let held = taken.iter().filter(|record| is_held(&spec, record, now_us));
        for stamp_us in held.map(|record| stamp(record.at_us)) {
            let units = since(&taken, stamp_us);
            prop_assert!(since(records, stamp_us) >= units, "never less");
            prop_assert!(since(records, stamp_us + MINUTE_US / 60) <= units);
        }
    }
}

/// Units came back up to 0.2 s late after a long outage (tests/chaos): records were merged although most had expired.
#[test]
fn records_that_have_left_their_window_are_dropped_before_others_are_merged() {
    let spec = bucket("k", 10).spec;
    let mut pending = Pending {
        spec,
        position: one_of(1),
        records: Vec::new(),
    };
    // Forty in a window.
    let times: Vec<_> = (0..400).map(|n| n * MINUTE_US / 40).collect();
    for after_us in &times {
        pending.add(at(*after_us, 1));
    }
    let last = pending.records.iter().rev().take(40);
    let expected = times.iter().rev().take(40).map(|after_us| at(*after_us, 1));
    assert!(last.copied().eq(expected), "{:?}", pending.records);
}

/// Above 64 records all pairs were merged, also across an edge: of 500 units before it and 200 after it, 700 or so were charged
/// to the window after it, until its end.
#[test]
fn what_a_window_admitted_is_not_charged_to_the_next() {
    for whole in one_of_each(1_000, HOUR_US).into_iter().skip(2).take(2) {
        let (mut share, mut store) = (Share::new(1 << 20), Memory::new());
        let key = std::slice::from_ref(&whole);
        // Midnight.
        let edge_us = 24 * HOUR_US;
        let mut admit = |from_us: u64, times: u64| {
            let times = (0..times).map(|n| from_us + n * 10_000);
            let admitted = times.map(|now_us| admitted(&mut share, now_us, one_of(1), key, 1));
            admitted.sum::<usize>()
        };
        assert_eq!(admit(edge_us - 6_000_000, 500), 500);
        assert_eq!(admit(edge_us, 200), 200);
        let now_us = edge_us + 3_000_000;
        write_back(&mut share, &mut store, now_us);
        let left = left(&mut store, now_us, &whole);
        assert_eq!(left, 800, "{:?}", whole.spec.algorithm);
    }
}

/// All but the newest 160 admissions became one record with a later time: units were held almost as long again as the outage
/// had lasted.
#[test]
fn a_unit_of_a_busy_key_is_held_a_sixtieth_of_the_window_too_long_at_most() {
    let window_us = MINUTE_US / 2;
    // An even load of 12 s.
    let times: Vec<_> = (0..800).map(|n| START_US + n * 15_000).collect();
    let late_by = |precision_us: u64, algorithm| {
        let mut whole = [bucket("k", 800)];
        (whole[0].spec.algorithm, whole[0].spec.window_us) = (algorithm, window_us);
        let mut share = Share::new(1 << 20);
        for now_us in &times {
            assert_eq!(admitted(&mut share, *now_us, one_of(1), &whole, 1), 1);
        }
        let debts = share.start_write_back(9, |_| Some(START_US + window_us / 2));
        let records = &debts[0].records;
        assert!(records.len() <= MAX_RECORDS);
        let units = records
            .iter()
            .flat_map(|record| (0..record.units).map(|_| record.at_us));
        let stamps = units.zip(&times).map(|(recorded_us, taken_us)| {
            recorded_us.next_multiple_of(precision_us) - taken_us.next_multiple_of(precision_us)
        });
        let late: Vec<_> = stamps.collect();
        assert_eq!(late.len(), 800);
        late.into_iter().max().unwrap()
    };
    let sliding = |precision_us| Algorithm::SlidingWindow {
        precision_us,
        leased: false,
    };
    let late = [
        late_by(1, Algorithm::SlidingLog),
        late_by(window_us / 300, sliding(window_us / 300)),
        // A step of the precision or more: what is merged would have expired at once.
        late_by(window_us / 60, sliding(window_us / 60)),
    ];
    // The last admission of a half of a second, which the bound allows, is 0.495 s after the first.
    assert_eq!(late, [495_000, 400_000, 0]);
}
