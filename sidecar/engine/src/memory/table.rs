//! The embedded store's entries, by key. Drops entries after they have expired, and counts the allocated bytes.
//!
//! A hash table grows and shrinks as a whole. So the entries are spread over shards that are small enough to be resized
//! without a noticeable pause, and one long-lived entry keeps the memory of its own shard only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;

/// A thousand entries in each are a quarter of a million, and 0.1 ms to move.
const SHARDS: usize = 256;
/// Overhead of an allocation in bytes.
const ALLOCATION: usize = 16;
/// Tables with room for fewer entries are not worth shrinking.
const SMALL: usize = 64;

/// A value in a table.
pub(super) trait Ends {
    /// When the value becomes empty.
    fn ends_us(&self) -> u64;
    /// Bytes that it has allocated.
    fn heap_bytes(&self) -> usize;
}

#[derive(Debug)]
pub(super) struct Table<T> {
    shards: Box<[Shard<T>]>,
    /// Randomly seeded: clients influence keys, and must not be able to provoke collisions.
    seed: RandomState,
    bytes: usize,
    /// Where the next sweep continues.
    next: usize,
}

/// The index of the shard for a hash.
const fn shard_of(hash: u64) -> usize {
    // Bits that neither the position in a table of this size nor its tags use.
    (hash >> 40) as usize % SHARDS
}

#[derive(Debug)]
struct Shard<T> {
    table: HashTable<Entry<T>>,
    /// For each entry its due time and its hash; also due times that were lowered since.
    due: BinaryHeap<Reverse<(u64, u64)>>,
    /// What keys and values have allocated.
    contents: usize,
}

#[derive(Debug)]
struct Entry<T> {
    hash: u64,
    key: Box<str>,
    value: T,
    /// A time before which it need not be looked at again.
    due_us: u64,
}

impl<T: Ends> Table<T> {
    pub(super) fn new() -> Self {
        Self {
            shards: std::iter::repeat_with(Shard::new).take(SHARDS).collect(),
            seed: RandomState::new(),
            bytes: 0,
            next: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.table.len()).sum()
    }

    /// Bytes that entries, their keys and the tables take.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, key: &str) -> Option<&T> {
        let hash = self.seed.hash_one(key);
        let shard = self.shards.get(shard_of(hash))?;
        let entry = shard.table.find(hash, |entry| *entry.key == *key)?;
        Some(&entry.value)
    }

    /// Changes an entry in a way that may change what it has allocated.
    pub(super) fn change<R>(&mut self, key: &str, change: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.heal_and_change(key, |_| false, change)
    }

    /// Likewise, after a repair. `heal` says whether there was anything to repair: then the entry may end earlier than it
    /// was due. (So may one that gave units back; it stays until it is due, or the heap would grow with each give-back.)
    pub(super) fn heal_and_change<R>(
        &mut self,
        key: &str,
        heal: impl FnOnce(&mut T) -> bool,
        change: impl FnOnce(&mut T) -> R,
    ) -> Option<R> {
        let hash = self.seed.hash_one(key);
        let shard = self.shards.get_mut(shard_of(hash))?;
        let entry = shard.table.find_mut(hash, |entry| *entry.key == *key)?;
        let before = entry.value.heap_bytes();
        let healed = heal(&mut entry.value);
        let result = change(&mut entry.value);
        let after = entry.value.heap_bytes();
        shard.contents = shard.contents + after - before;
        self.bytes = self.bytes + after - before;
        if healed {
            let ends_us = entry.value.ends_us();
            if ends_us < entry.due_us {
                entry.due_us = ends_us;
                let before = shard.due_bytes();
                shard.due.push(Reverse((ends_us, hash)));
                self.bytes = self.bytes + shard.due_bytes() - before;
            }
        }
        Some(result)
    }

    /// Adds an entry that is not there.
    pub(super) fn insert(&mut self, key: &str, value: T) {
        let hash = self.seed.hash_one(key);
        if let Some(shard) = self.shards.get_mut(shard_of(hash)) {
            let before = shard.bytes();
            shard.insert(hash, key.into(), value);
            self.bytes = self.bytes + shard.bytes() - before;
        }
    }

    /// Drops what has ended among the neighbours of an entry that is to come, looking at a few only.
    pub(super) fn make_room(&mut self, key: &str, now_us: u64, at_most: usize) {
        self.sweep_shard(shard_of(self.seed.hash_one(key)), now_us, at_most);
    }

    /// Drops what has ended, looking at no more than `at_most` entries, and gives back what tables no longer need. Returns
    /// whether nothing else is due.
    pub(super) fn sweep(&mut self, now_us: u64, at_most: usize) -> bool {
        let mut left = at_most;
        while self.next < SHARDS {
            left -= self.sweep_shard(self.next, now_us, left);
            if left == 0 {
                return false;
            }
            self.next += 1;
        }
        self.next = 0;
        true
    }

    /// Returns how many entries were looked at.
    fn sweep_shard(&mut self, index: usize, now_us: u64, at_most: usize) -> usize {
        let Some(shard) = self.shards.get_mut(index) else {
            return 0;
        };
        let before = shard.bytes();
        let looked = shard.sweep(now_us, at_most);
        self.bytes = self.bytes + shard.bytes() - before;
        looked
    }
}

impl<T: Ends> Shard<T> {
    fn new() -> Self {
        Self {
            table: HashTable::new(),
            due: BinaryHeap::new(),
            contents: 0,
        }
    }

    fn bytes(&self) -> usize {
        self.table.allocation_size() + self.due_bytes() + self.contents
    }

    fn due_bytes(&self) -> usize {
        self.due.capacity() * size_of::<Reverse<(u64, u64)>>()
    }

    fn insert(&mut self, hash: u64, key: Box<str>, value: T) {
        let due_us = value.ends_us();
        self.due.push(Reverse((due_us, hash)));
        let entry = Entry {
            hash,
            key,
            value,
            due_us,
        };
        self.contents += entry.contents();
        self.table.insert_unique(hash, entry, |entry| entry.hash);
    }

    fn sweep(&mut self, now_us: u64, at_most: usize) -> usize {
        let (mut looked, entries) = (0, self.table.len());
        while looked < at_most
            && let Some(Reverse((due_us, hash))) = self.due.peek().copied()
            && due_us <= now_us
        {
            looked += 1;
            self.due.pop();
            // None, if its due time was lowered since. Of two entries with the same hash and due time any will do.
            let is_due = |entry: &Entry<T>| entry.hash == hash && entry.due_us == due_us;
            if let Ok(mut entry) = self.table.find_entry(hash, is_due) {
                let ends_us = entry.get().value.ends_us();
                if ends_us <= now_us {
                    let (entry, _) = entry.remove();
                    self.contents -= entry.contents();
                } else {
                    entry.get_mut().due_us = ends_us;
                    self.due.push(Reverse((ends_us, hash)));
                }
            }
        }
        if self.table.len() < entries {
            self.shrink();
        }
        looked
    }

    /// A burst of keys must not leave its tables behind.
    fn shrink(&mut self) {
        let entries = self.table.len();
        if entries == 0 {
            // Small ones too: there are many tables.
            (self.table, self.due) = (HashTable::new(), BinaryHeap::new());
            return;
        }
        if self.table.capacity() > SMALL && entries < self.table.capacity() / 4 {
            self.table.shrink_to(2 * entries, |entry| entry.hash);
        }
        if self.due.capacity() > SMALL && entries < self.due.capacity() / 4 {
            self.due.shrink_to(2 * entries);
        }
    }
}

impl<T: Ends> Entry<T> {
    fn contents(&self) -> usize {
        self.key.len() + ALLOCATION + self.value.heap_bytes()
    }
}
