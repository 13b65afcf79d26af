//! What a bucket takes in Redis: arithmetic for planning, from the layouts of lua/decide.lua.
//!
//! Compared with MEMORY USAGE of Redis 7.0 with jemalloc in tests/engine/sizes.rs, and within a quarter of it.

use crate::batch::{Algorithm, BucketSpec};

/// Key object, its entry in the keyspace, and the allocator's rounding.
const KEY: u64 = 56;
/// How many bytes more the state of a token bucket takes than that of a fixed window.
const TOKEN: u64 = 16;
/// Bytes of a record of a log, and how many a block has.
const RECORD: u64 = 10;
const BLOCK: u64 = 18;
/// A log's head, with the copy of its oldest record.
const LOG_HEAD: u64 = 43;
/// Redis keeps a hash in one piece while its values are no longer than this.
const IN_ONE_PIECE: u64 = 64;
/// A hash's table before its first field, and each field's entry, name and value headers.
const TABLE: u64 = 140;
const FIELD: u64 = 44;

impl BucketSpec {
    /// The most entries that a log of this bucket can have, if each admission costs one unit; 1 for counters.
    #[must_use]
    pub fn most_entries(&self) -> u64 {
        match self.algorithm {
            Algorithm::SlidingLog => self.quota,
            // A step begun before the window may still be held, and the one to come is already used.
            Algorithm::SlidingWindow { precision_us, .. } => {
                self.quota.min(self.window_us / precision_us.max(1) + 2)
            }
            Algorithm::FixedWindow
            | Algorithm::CalendarWindow(_)
            | Algorithm::TokenBucket { .. } => 1,
        }
    }

    /// Bytes that a bucket takes in Redis, given the length of its key and its number of entries. A log has an entry for each
    /// admission in the window, or, with a precision, for each step that has admissions. A counter has none.
    #[must_use]
    pub fn redis_bytes(&self, key_length: usize, entries: u64) -> u64 {
        let key = KEY + (key_length as u64 + 4).next_multiple_of(8);
        match self.algorithm {
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => key,
            Algorithm::TokenBucket { .. } => key + TOKEN,
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => key + log_bytes(entries),
        }
    }
}

fn log_bytes(entries: u64) -> u64 {
    let entries = entries.max(1);
    let closed = (entries - 1) / BLOCK;
    let head = LOG_HEAD + (entries - closed * BLOCK) * RECORD;
    if closed == 0 && head <= IN_ONE_PIECE {
        return head;
    }
    let fields = closed + 1;
    TABLE + head + fields.next_power_of_two() * 8 + fields * FIELD + closed * (BLOCK * RECORD + 8)
}
