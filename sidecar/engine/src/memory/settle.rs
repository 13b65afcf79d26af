//! How the embedded store settles.

use super::Memory;
use super::stored::StoredHold;
use super::table::Ends;
use crate::algorithm::{Back, Record, Slots, Stored, TokenRate, of_stored};
use crate::hold::{Done, Entry, Guard, Hold, Settlement, Settlements};
use crate::key::Bucket;
use crate::slot_id::SlotId;

/// What a guard lets pass.
enum Passed<'a> {
    /// The entries as they are.
    Entries,
    /// Units of a hold: its key, how many were taken off it, and whether it ends by that.
    Spent(&'a str, u64, bool),
    /// Units that were used beyond a hold.
    Beyond(&'a str, u64),
}

impl Memory {
    /// Settles in order; what became of each settlement. Units come back as far as they have not come back by themselves and the
    /// bucket was not reset since. Units that were taken elsewhere are added whatever the limit. Each counts as if it had been
    /// taken here at its time (now, if that is later), so what had come back since is not added, nor is what would make a bucket
    /// hold more than [`crate::MAX_HELD`].
    pub fn settle(&mut self, now_us: u64, settlements: &Settlements) -> Vec<Done> {
        for bucket in &settlements.buckets {
            // Repaired even if nothing is settled, as by every call that names them.
            self.change(now_us, bucket, |_| ());
        }
        let settle = |one: &Settlement| {
            let bucket = settlements.buckets.get(one.first_bucket());
            match (&one.guard, bucket) {
                (Guard::Free(id), Some(bucket)) => return self.free(now_us, bucket, *id),
                (Guard::Renew(id), Some(bucket)) => return self.renew_slots(now_us, bucket, *id),
                _ => {}
            }
            let Some(passed) = self.pass(now_us, &one.guard) else {
                return Done::Nothing;
            };
            let of_buckets = one.entries.chunk_by(|one, next| one.bucket == next.bucket);
            let settled = of_buckets.filter_map(|entries| {
                let bucket = settlements.buckets.get(entries.first()?.bucket)?;
                self.settle_bucket(now_us, bucket, entries, &passed)
            });
            let units = settled.max().unwrap_or(0);
            let adds = one.entries.iter().any(|entry| entry.units >= 0);
            match passed {
                Passed::Entries if adds => Done::Added(units),
                Passed::Beyond(..) => Done::Added(units),
                Passed::Entries | Passed::Spent(..) => Done::Returned(units),
            }
        };
        settlements.each.iter().map(settle).collect()
    }

    fn free(&mut self, now_us: u64, bucket: &Bucket, id: SlotId) -> Done {
        match self.change_slots(now_us, bucket, |slots| slots.free(now_us, id)) {
            0 => Done::Nothing,
            freed => Done::Returned(freed),
        }
    }

    fn renew_slots(&mut self, now_us: u64, bucket: &Bucket, id: SlotId) -> Done {
        let renew = |slots: &mut Slots| slots.renew(&bucket.spec, now_us, id);
        Done::Added(self.change_slots(now_us, bucket, renew))
    }

    /// What a guard lets pass; `None` if there is nothing to settle.
    fn pass<'a>(&mut self, now_us: u64, guard: &'a Guard) -> Option<Passed<'a>> {
        match guard {
            Guard::None => Some(Passed::Entries),
            Guard::Free(_) | Guard::Renew(_) => None,
            Guard::Spend { hold, units, keeps } => {
                let take_off = |left: &mut StoredHold| left.take_off(now_us, *units, *keeps);
                let units = self.holds.change(hold, take_off);
                Some(Passed::Spent(
                    hold,
                    units.filter(|units| *units > 0)?,
                    false,
                ))
            }
            Guard::Settle { hold, used } => {
                let end = |left: &mut StoredHold| left.end(now_us, *used);
                let left = self.holds.change(hold, end).flatten()?;
                Some(match left.checked_sub(*used) {
                    Some(unused) => Passed::Spent(hold, unused, true),
                    None => Passed::Beyond(hold, used.saturating_sub(left)),
                })
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
                Some(Passed::Entries)
            }
        }
    }

    /// Settles the entries of one bucket; how many units.
    fn settle_bucket(
        &mut self,
        now_us: u64,
        bucket: &Bucket,
        entries: &[Entry],
        passed: &Passed<'_>,
    ) -> Option<u64> {
        let Some(back) = entries.first().filter(|first| first.units < 0) else {
            let records = entries.iter().map(|entry| Record {
                at_us: entry.at_us.unwrap_or(now_us),
                units: entry.units.unsigned_abs(),
            });
            return Some(self.add(now_us, bucket, &records.collect::<Vec<_>>()));
        };
        let units = back.units.unsigned_abs();
        let back = match back.at_us {
            Some(at_us) => Back {
                units,
                at_us,
                left: units,
                rate: TokenRate::NONE,
                settled: 0,
            },
            None => match *passed {
                Passed::Entries => return None,
                Passed::Spent(hold, spent, ends) => {
                    let hold = self.holds.get(hold)?;
                    hold.back(&bucket.key, spent, units, ends)?
                }
                Passed::Beyond(hold, units) => {
                    let back = self.holds.get(hold)?.back(&bucket.key, 0, 0, true)?;
                    self.restore(now_us, bucket, back);
                    let at_us = now_us;
                    return Some(self.add(now_us, bucket, &[Record { at_us, units }]));
                }
            },
        };
        Some(self.restore(now_us, bucket, back))
    }

    fn restore(&mut self, now_us: u64, bucket: &Bucket, back: Back) -> u64 {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| {
            of_stored!(&mut held.state, restore(spec, now_us, back))
        })
    }

    fn add(&mut self, now_us: u64, bucket: &Bucket, records: &[Record]) -> u64 {
        let spec = &bucket.spec;
        self.change(now_us, bucket, |held| held.record(spec, now_us, records))
    }
}
