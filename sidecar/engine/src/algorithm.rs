//! What is known of each algorithm is asked of it, in a file of its own.
//!
//! | file | for |
//! |---|---|
//! | `algorithm/log.rs` | `sliding_log` and `sliding_window`: the times of admissions |
//! | `algorithm/fixed.rs` | `fixed_window` and calendar windows: a counter |
//! | `algorithm/token.rs`, `algorithm/rate.rs` | `token_bucket`: a backlog that drains |
//! | `algorithm/returns.rs` | what receipts of a token bucket may return |
//! | `algorithm/slots.rs` | `concurrency`: slots that are in use at once |
//! | `algorithm/records.rs` | what they share: units that are settled later |
//!
//! Each has [`Rules`], which answer all questions about a bucket, and a state, which the embedded store keeps of one. A new
//! algorithm is such a file, a variant of [`Algorithm`] and of [`Stored`], and a line where these are matched: nothing else in
//! this crate tells algorithms apart, and no answer has a default.

mod fixed;
mod log;
mod rate;
mod records;
mod returns;
mod slots;
mod token;

use std::fmt;

use crate::calendar::Calendar;
use crate::check::{MAX_WINDOW_US, MIN_WINDOW_US, SpecError, refuse, units};
use fixed::Fixed;
use log::Log;
pub use rate::TokenRate;
pub(crate) use records::Back;
pub use records::{MAX_RECORDS, Record};
pub(crate) use slots::Slots;
use token::Token;

/// How a bucket counts. docs/policy.md says what each one promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Exact: keeps the time of each admission to the microsecond.
    SlidingLog,
    /// Like `SlidingLog`, with the times of admissions rounded up to the next multiple of `precision_us`:
    /// bounded memory, never over the limit, and a unit may return up to one precision later.
    SlidingWindow {
        /// Width of one step, in microseconds; at least 1, at most the window.
        precision_us: u64,
        /// Units may be spent until the end of the step in which they were taken (a lease). So a clock that stepped back
        /// restamps what it holds one step later than otherwise.
        leased: bool,
    },
    /// One counter per window aligned to the store's clock; up to twice the limit around an edge.
    FixedWindow,
    /// Like `FixedWindow`, over the days, weeks or months of a time zone. `window_us` is the longest that one can be.
    CalendarWindow(Calendar),
    /// GCRA: `quota` units return evenly over each window; at most `burst` can be taken at once.
    TokenBucket {
        /// Capacity of the bucket in units; at least 1.
        burst: u64,
    },
    /// At most `quota` slots are in use at once. Each ends when it is freed, or `window_us` after it was taken or renewed last.
    Slots,
}

/// One window of a limit: its quota, length and algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSpec {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Units per window; at least 1.
    pub quota: u64,
    /// Length of the window in microseconds; at least 1.
    pub window_us: u64,
}

/// Declares [`Rules`], and for each of its questions the method of [`BucketSpec`] that asks its algorithm.
macro_rules! rules {
    ($($(#[$doc:meta])* $vis:vis fn $ask:ident($($arg:ident: $type:ty),*) -> $answer:ty;)*) => {
        /// What is known of an algorithm: it is asked about a bucket that counts by it.
        struct Rules {
            $($(#[$doc])* $ask: fn(&BucketSpec, $($type),*) -> $answer,)*
        }

        impl BucketSpec {
            $($(#[$doc])* $vis fn $ask(&self, $($arg: $type),*) -> $answer {
                (self.rules().$ask)(self, $($arg),*)
            })*
        }
    };
}

rules! {
    /// The algorithm's name in a policy.
    pub fn name() -> &'static str;

    /// The last part of a bucket's key: all that the stored state depends on, the version of its layout included. That is to be
    /// counted up with each change of it in lua/algorithms: the states of another version are then left to expire, and
    /// sidecars of both can run beside each other, each counting by itself.
    pub(crate) fn tag(key: &mut String) -> fmt::Result;

    /// What the script is told of it if it runs at `not_after_us` at the latest: a kind, two numbers, and two more of some kinds.
    pub(crate) fn operands(not_after_us: u64) -> (u8, [u64; 2], Option<[u64; 2]>);

    /// What the embedded store keeps of a bucket that holds nothing.
    pub(crate) fn empty() -> Stored;

    /// The bounds of the algorithm's own numbers.
    pub(crate) fn check_own() -> Result<(), SpecError>;

    /// Units that can be taken at once from a full bucket: the largest possible cost.
    pub fn most_at_once() -> u64;

    /// The longest time, in microseconds, for which units that are taken at once can come back.
    pub fn held_for_us(units: u64) -> u64;

    /// The window that holds an instant: when it begins, and when the next one does. `None`: windows have no edges.
    pub fn window_at(at_us: u64) -> Option<(u64, u64)>;

    /// Whether its units are slots, which are in use until they are freed, and not counted by time.
    pub fn has_slots() -> bool;

    /// Which part of time an admission belongs to, none longer than `long_us` unless its units expire together: admissions of one
    /// part may be recorded as one. `None`: the level of such a bucket is recorded, and not what was admitted.
    pub fn part(at_us: u64, long_us: u64) -> Option<u64>;

    /// How many windows of this length, one after the other, a window can touch. `None`: there is no such number.
    pub fn touches(length_us: u64) -> Option<u64>;

    /// The algorithm of a limit with leases of up to `longest_us`.
    ///
    /// # Errors
    /// Why it cannot have leases, and the remedy.
    pub fn leased(longest_us: u64) -> Result<Algorithm, String>;

    /// The time of the store's clock until which units that are taken at `at_us` may be spent: see
    /// [`spend_by_us`](crate::lease::spend_by_us).
    pub(crate) fn spend_by_us(at_us: u64) -> Option<u64>;
}

impl BucketSpec {
    const fn rules(&self) -> &'static Rules {
        match self.algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingWindow { .. } => &log::RULES,
            Algorithm::FixedWindow | Algorithm::CalendarWindow(_) => &fixed::RULES,
            Algorithm::TokenBucket { .. } => &token::RULES,
            Algorithm::Slots => &slots::RULES,
        }
    }

    /// Refuses numbers that a store could not count exactly.
    ///
    /// # Errors
    /// The first field out of range, with acceptable values.
    pub fn check(&self) -> Result<(), SpecError> {
        units("quota", self.quota)?;
        if !(MIN_WINDOW_US..=MAX_WINDOW_US).contains(&self.window_us) {
            return refuse("window", self.window_us, "use 1 ms to 366 days".to_owned());
        }
        self.check_own()
    }

    /// How long the window that holds an instant is, in microseconds: calendar windows differ.
    #[must_use]
    pub fn length_us(&self, now_us: u64) -> u64 {
        let window = self.window_at(now_us);
        window.map_or(self.window_us, |(start_us, end_us)| end_us - start_us)
    }

    /// The time in which the whole quota becomes available again, in microseconds: for a token bucket, its burst at its
    /// rate; for a window, its length.
    #[must_use]
    pub fn refill_us(&self, now_us: u64) -> u64 {
        match self.is_level() {
            true => self.held_for_us(self.most_at_once()),
            false => self.length_us(now_us),
        }
    }

    /// Whether the bucket is a level that drains: its state is in units of its rate, and a share's is recorded as a level.
    #[must_use]
    pub fn is_level(&self) -> bool {
        self.part(0, 1).is_none()
    }
}

/// What the embedded store keeps of a bucket, whichever its algorithm.
#[derive(Debug)]
pub(crate) enum Stored {
    Log(Log),
    Fixed(Fixed),
    Token(Token),
    Slots(Slots),
}

impl Stored {
    /// Its slots, if it counts those.
    pub fn slots(&mut self) -> Option<&mut Slots> {
        match self {
            Self::Slots(slots) => Some(slots),
            Self::Log(_) | Self::Fixed(_) | Self::Token(_) => None,
        }
    }
}

/// Calls a method of the state that a [`Stored`] is: `heal`, which comes first and repairs what is of later than now, and says
/// whether anything was; `look`, after `adopt_faster` if the rate of a token bucket was raised; `take` of what there is room
/// for, and `adopt` of the spec of a request that takes nothing; `restore` of units that come back, `record` of units that
/// were taken elsewhere, and `records`, as [`Memory`](crate::Memory) describes them; `leave` a receipt of units that were
/// taken just now; `ends_us`, when it can be dropped if nobody asks, 0 if it holds nothing; `heap_bytes` that it has
/// allocated, and their `growth` by a take. Each has the spec of the call: another one than before, where the policy has
/// changed.
macro_rules! of_stored {
    ($stored:expr, $method:ident($($arg:expr),*)) => {
        match $stored {
            Stored::Log(state) => state.$method($($arg),*),
            Stored::Fixed(state) => state.$method($($arg),*),
            Stored::Token(state) => state.$method($($arg),*),
            Stored::Slots(state) => state.$method($($arg),*),
        }
    };
}
pub(crate) use of_stored;

/// A length of time in a key: milliseconds where they are whole, since that is what people configure.
fn span(us: u64) -> String {
    if us.is_multiple_of(1_000) {
        format!("{}ms", us / 1_000)
    } else {
        format!("{us}us")
    }
}
