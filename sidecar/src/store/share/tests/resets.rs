//! A key that is reset.

use super::*;

/// In the next outage of the window the key was denied for the rest of it, and what had not been written back was charged
/// to the whole quota that the reset had given.
#[test]
fn a_reset_empties_the_share_and_what_it_owes() {
    for whole in one_of_each(100, HOUR_US) {
        let (mut share, mut store) = (Share::new(1 << 20), Memory::default());
        let key = std::slice::from_ref(&whole);
        let admitted = |share: &mut Share| admitted(share, LATE_US, one_of(2), key, 60);
        assert_eq!(admitted(&mut share), 50);
        write_back(&mut share, &mut store, LATE_US);
        assert_eq!(admitted(&mut share), 0);
        store.reset("k");
        share.reset("k");
        assert_eq!(admitted(&mut share), 50, "the share is whole again");
        share.reset("k");
        assert!(share.pending() == 0 && share.start_write_back(9, |_| Some(LATE_US)).is_empty());
        assert_eq!(left(&mut store, LATE_US, &whole), 100, "nothing is owed");
    }
}
