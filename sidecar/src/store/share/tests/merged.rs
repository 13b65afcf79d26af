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
