//! How the embedded store settles.

use super::Memory;
use super::stored::StoredHold;
use super::table::Ends;
use crate::algorithm::{Back, Record, Stored, TokenRate, of_stored};
use crate::hold::{Entry, Guard, Hold, Settlement, Settlements};
use crate::key::Bucket;

/// A hold's key, and how many units were taken off it.
type Spent<'a> = (&'a str, u64);

impl Memory {
    /// Settles in order. For each settlement: units that were returned to a bucket or added to one; where there are several, the
    /// most. Units come back as far as they have not come back by themselves and the bucket was not reset since. Units that were
    /// taken elsewhere are added whatever the limit. Each counts as if it had been taken here at its time (now, if that is
    /// later), so what had come back since is not added, nor is what would make a bucket hold more than [`crate::MAX_HELD`].
    pub fn settle(&mut self, now_us: u64, settlements: &Settlements) -> Vec<u64> {
        for bucket in &settlements.buckets {
            // Repaired even if nothing is settled, as by every call that names them.
            self.change(now_us, bucket, |_| ());
        }
        let settle = |one: &Settlement| {
            let Some(spent) = self.pass(now_us, &one.guard) else {
                return 0;
            };
            let of_buckets = one.entries.chunk_by(|one, next| one.bucket == next.bucket);
            let settled = of_buckets.filter_map(|entries| {
                let bucket = settlements.buckets.get(entries.first()?.bucket)?;
                self.settle_bucket(now_us, bucket, entries, spent)
            });
            settled.max().unwrap_or(0)
        };
        settlements.each.iter().map(settle).collect()
    }

    /// What a guard has spent, if it spends anything; `None` if there is nothing to settle.
    fn pass<'a>(&mut self, now_us: u64, guard: &'a Guard) -> Option<Option<Spent<'a>>> {
        match guard {
            Guard::None => Some(None),
            Guard::Spend { hold, units, keeps } => {
                let take_off = |left: &mut StoredHold| left.take_off(now_us, *units, *keeps);
                Some(Some((hold, self.holds.change(hold, take_off)??)))
            }
            Guard::Once { key, lasts_us } => {
                let mark = Hold {
                    units: 1,
                    lasts_us: *lasts_us,
                    ..Hold::default()
                };
                let mut mark = StoredHold::new(&mark, now_us);
                match self
                    .holds
                    .change(key, |known| std::mem::swap(known, &mut mark))
                {
                    None => self.holds.insert(key, mark),
                    // The new mark lasts as long again: harmless.
                    Some(()) if mark.ends_us() > now_us => return None,
                    Some(()) => {}
                }
                Some(None)
            }
        }
    }

    /// Settles the entries of one bucket; how many units.
    fn settle_bucket(
        &mut self,
        now_us: u64,
        bucket: &Bucket,
        entries: &[Entry],
        spent: Option<Spent<'_>>,
    ) -> Option<u64> {
        let spec = &bucket.spec;
        let Some(back) = entries.first().filter(|first| first.units < 0) else {
            let records = entries.iter().map(|entry| Record {
                at_us: entry.at_us.unwrap_or(now_us),
                units: entry.units.unsigned_abs(),
            });
            let records: Vec<_> = records.collect();
            return Some(self.change(now_us, bucket, |held| held.record(spec, now_us, &records)));
        };
        let units = back.units.unsigned_abs();
        let back = match back.at_us {
            Some(at_us) => Back {
                units,
                at_us,
                left: units,
                rate: TokenRate::NONE,
            },
            None => {
                let (hold, spent) = spent?;
                self.holds.get(hold)?.back(&bucket.key, spent, units)?
            }
        };
        Some(self.change(now_us, bucket, |held| {
            of_stored!(&mut held.state, restore(spec, now_us, back))
        }))
    }
}
