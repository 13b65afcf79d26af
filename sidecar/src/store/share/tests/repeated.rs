//! Several outages in one window.

use super::*;
use proptest::prelude::*;

proptest! {
    /// A token bucket of one sidecar, which admits during outages alone: whatever it has admitted and however much has drained,
    /// the store holds as much as its share does after each write-back, and no more but for parts of a unit.
    #[test]
    fn a_level_is_written_back_once_and_drains_once(
        outages in prop::collection::vec((0_u64..30_000_000, 1_u64..40, 0_u64..5_000_000), 1..12),
    ) {
        // A unit a second.
        let [.., whole] = one_of_each(60, MINUTE_US);
        let (mut share, mut store, mut now_us) = (Share::new(1 << 20), Memory::default(), START_US);
        let key = std::slice::from_ref(&whole);
        let mut parts = 0;
        for (pause_us, times, lasts_us) in outages {
            now_us += pause_us;
            admitted(&mut share, now_us, one_of(1), key, times);
            now_us += lasts_us;
            write_back(&mut share, &mut store, now_us);
            parts += 1;
            let held = left(&mut share.engine, now_us, &whole);
            let counted = left(&mut store, now_us, &whole);
            prop_assert!((counted..=counted + parts).contains(&held), "{held} left of the share, {counted} in the store");
        }
    }
}
