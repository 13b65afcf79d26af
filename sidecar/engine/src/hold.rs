//! Holds and settlements: units that were taken come back, or more are added, later than they were taken.
//!
//! A take may leave a hold beside its buckets, under a key that nobody can guess. It says how many units it stands for, and
//! from which buckets, when and by which rate they were taken. A [`Settlement`] that spends a hold takes units off it in the same
//! step in which it returns them to these buckets. So a hold returns its units once, one that was never left returns nothing,
//! and a bucket that another policy has put in place of its own gets nothing.

use crate::algorithm::TokenRate;
use crate::key::Bucket;
use crate::slot_id::SlotId;

/// What a take may leave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Its full key in the store; see [`crate::hold_key`].
    pub key: String,
    /// Units of each bucket that it stands for; 0 if only what a request cost in fact is to be taken.
    pub units: u64,
    /// Its lifetime in microseconds: what it stands for stays taken if it ends by itself.
    pub lasts_us: u64,
    /// What its units were taken from.
    pub of: Vec<Held>,
    /// Whether it is settled by what was used, as receipts are, of which a bucket has many at a time.
    pub is_receipt: bool,
}

impl Hold {
    /// What it knows of a bucket, if some of its units were taken from that.
    pub fn held(&mut self, bucket: &Bucket) -> Option<&mut Held> {
        let name = name_of(&bucket.key);
        self.of.iter_mut().find(|held| held.name == name)
    }
}

/// Slots that a decision takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TakenSlots {
    /// Index into [`crate::Batch::buckets`].
    pub bucket: usize,
    /// Their name. The decision takes as many from the bucket.
    pub id: SlotId,
}

/// A bucket of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// What its key is called in a hold: all that the bucket's state depends on.
    pub name: u64,
    /// When the units were taken; 0 if they were taken by the decision that leaves the hold.
    pub at_us: u64,
    /// By which rate they drain, of a token bucket.
    pub rate: TokenRate,
}

impl Held {
    /// Whether they are units of this bucket, taken by the decision that leaves the hold.
    pub(crate) fn is_of(&self, bucket: &Bucket) -> bool {
        self.at_us == 0 && self.name == name_of(&bucket.key)
    }

    /// Units of a bucket that are taken by the decision that leaves the hold.
    #[must_use]
    pub fn of(bucket: &Bucket) -> Self {
        let spec = &bucket.spec;
        Self {
            name: name_of(&bucket.key),
            at_us: 0,
            rate: match spec.is_level() {
                true => spec.token_rate(),
                false => TokenRate::NONE,
            },
        }
    }
}

/// A key as a hold names it: 56 bits of its FNV-1a hash, which is the same in every version.
pub(crate) fn name_of(key: &str) -> u64 {
    let hash = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    key.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, hash) >> 8
}

/// What makes a settlement harmless when it is sent twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Guard {
    /// Nothing: it must be sent once.
    None,
    /// It takes units off a hold, and settles those.
    Spend {
        /// The hold's key.
        hold: String,
        /// No more than so many; [`ALL`] that it has, if it is sent twice.
        units: u64,
        /// As many stay in it.
        keeps: u64,
    },
    /// It ends a hold of which so many units were used: the others come back, or what was used beyond it is added.
    Settle {
        /// The hold's key.
        hold: String,
        /// Units that were used.
        used: u64,
    },
    /// Of all settlements with this guard only the first has an effect, for as long as it lasts.
    Once {
        /// Its key in the store, in the slot of the buckets.
        key: String,
        /// How long it lasts, in microseconds.
        lasts_us: u64,
    },
    /// It frees the slots of this name, of the only entry's bucket.
    Free(SlotId),
    /// It renews them; those that had ended by themselves are in use nevertheless, whatever the limit.
    Renew(SlotId),
}

impl Guard {
    /// Its key in the store.
    #[must_use]
    pub fn key(&self) -> Option<&str> {
        match self {
            Self::None | Self::Free(_) | Self::Renew(_) => None,
            Self::Spend { hold: key, .. }
            | Self::Settle { hold: key, .. }
            | Self::Once { key, .. } => Some(key),
        }
    }
}

/// More units than any hold has.
pub const ALL: u64 = u64::MAX;

/// A change of one bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index into [`Settlements::buckets`].
    pub bucket: usize,
    /// When the units were taken. `None`: as the hold says that the guard spends or settles.
    pub at_us: Option<u64>,
    /// Negative: so many units come back at most, as far as they have not come back by themselves (or, of a hold that is settled,
    /// what was used beyond it is added). Otherwise so many were taken elsewhere, and are added whatever the limit.
    pub units: i64,
}

impl Entry {
    /// Units that come back.
    #[must_use]
    pub fn back(bucket: usize, at_us: Option<u64>, units: u64) -> Self {
        Self {
            bucket,
            at_us,
            units: -i64::try_from(units).unwrap_or(i64::MAX),
        }
    }
}

/// Changes of buckets that are made together, or not at all if the guard says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// What makes it harmless when it is sent twice.
    pub guard: Guard,
    /// The changes. Those that add to one bucket follow each other, oldest first, at most [`crate::MAX_RECORDS`].
    pub entries: Vec<Entry>,
}

impl Settlement {
    /// Index of the first entry's bucket.
    pub(crate) fn first_bucket(&self) -> usize {
        self.entries
            .first()
            .map_or(usize::MAX, |entry| entry.bucket)
    }
}

/// Settlements, in order, each seeing what those before it did. In one call, each bucket and each guard's key is named once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settlements {
    /// Every bucket that is named.
    pub buckets: Vec<Bucket>,
    /// What is to be settled.
    pub each: Vec<Settlement>,
}

impl Settlements {
    /// One alone.
    #[must_use]
    pub fn one(guard: Guard, buckets: Vec<Bucket>, entries: Vec<Entry>) -> Self {
        let each = vec![Settlement { guard, entries }];
        Self { buckets, each }
    }

    /// Adds one: what it spends of a hold comes back to these buckets, as far as the hold is of them.
    pub fn return_to(&mut self, guard: Guard, buckets: impl IntoIterator<Item = Bucket>) {
        let first = self.buckets.len();
        self.buckets.extend(buckets);
        let back = |bucket| Entry::back(bucket, None, ALL);
        self.each.push(Settlement {
            guard,
            entries: (first..self.buckets.len()).map(back).collect(),
        });
    }

    /// Adds these after its own.
    pub fn append(&mut self, more: Self) {
        let first = self.buckets.len();
        self.buckets.extend(more.buckets);
        self.each.extend(more.each.into_iter().map(|mut one| {
            let entries = one.entries.iter_mut();
            entries.for_each(|entry| entry.bucket += first);
            one
        }));
    }

    /// Whether it may be sent again if its answer was lost.
    #[must_use]
    pub fn is_repeatable(&self) -> bool {
        self.each.iter().all(|one| match one.guard {
            Guard::None => false,
            Guard::Spend { units, .. } => units == ALL,
            Guard::Settle { .. } | Guard::Once { .. } | Guard::Free(_) | Guard::Renew(_) => true,
        })
    }
}

/// What became of a settlement. Where units of several buckets changed, the most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Done {
    /// Nothing: the guard had let it pass before, or its hold has ended or never was.
    #[default]
    Nothing,
    /// So many units came back; without entries, so many were taken off the hold.
    Returned(u64),
    /// So many units were added; without entries, so many were used beyond the hold.
    Added(u64),
}

impl Done {
    /// Units that changed.
    #[must_use]
    pub const fn units(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Returned(units) | Self::Added(units) => units,
        }
    }
}
