//! The metrics of one limit's slots: what became of them, how long they were in use, and who waited for one.

use std::sync::Arc;

use prometheus::{Histogram, IntCounter};

use super::PolicyMetrics;
use super::families::Families;

/// The metrics of one limit's slots.
#[derive(Debug)]
pub struct SlotMetrics {
    /// Slots that decisions took.
    pub granted: IntCounter,
    freed: IntCounter,
    /// Slots that had ended before anybody freed them.
    pub expired: IntCounter,
    /// Of these, slots that a renewal put in use again.
    pub revived: IntCounter,
    seconds: Histogram,
    waits: [IntCounter; 2],
}

impl SlotMetrics {
    /// Registers all series, at 0.
    pub(super) fn new(families: &Families, limit: &str) -> Self {
        let slots = |event| families.slots.with_label_values(&[limit, event]);
        Self {
            granted: slots("granted"),
            freed: slots("freed"),
            expired: slots("expired"),
            revived: slots("revived"),
            seconds: families.slot_seconds.with_label_values(&[limit]),
            waits: ["denied", "admitted"]
                .map(|verdict| families.slot_waits.with_label_values(&[limit, verdict])),
        }
    }

    /// Slots that were taken together, for so long, were freed.
    pub fn count_freed(&self, units: u64, for_us: u64) {
        self.freed.inc_by(units);
        self.seconds.observe(for_us as f64 / 1e6);
    }

    /// A decision has waited for a slot.
    pub fn count_wait(&self, was_admitted: bool) {
        let [denied, admitted] = &self.waits;
        if was_admitted { admitted } else { denied }.inc();
    }
}

impl PolicyMetrics {
    /// The metrics of a limit's slots, if its units are slots.
    pub fn slots(&self, limit: &str) -> Option<&Arc<SlotMetrics>> {
        self.limits.get(limit)?.slots.get()
    }
}
