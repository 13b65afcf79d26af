//! What is found in a history.

use std::fmt;

use crate::record::Span;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// More units than allowed in one window, or in a token bucket.
    Over {
        /// Units that were certainly admitted in it.
        units: u64,
        /// Units that may be.
        allowed: u64,
    },
    /// Denied, although every window had room.
    WronglyDenied,
    /// Denied, although every window had room; only what denied decisions asked for would have filled one.
    DenialsTook,
    /// A peek found more units taken than were asked for.
    LessLeft {
        /// Units that the store counts.
        taken: u64,
        /// The most that can have been taken.
        at_most: u64,
    },
    /// A peek found fewer units taken than were admitted.
    MoreLeft {
        /// Units that the store counts.
        taken: u64,
        /// The fewest that must have been taken.
        at_least: u64,
    },
    /// A settle was told other than what was reserved and not used, or used and not reserved.
    Settled {
        /// Units that came back, or were charged.
        units: u64,
        /// The fewest that it must have been,
        least: u64,
        /// and the most that it may.
        most: u64,
    },
    /// What a stream has used was not settled, and nothing excuses that.
    Unsettled,
    /// A stream that lives was not renewed in time, and nothing excuses that.
    NotRenewed,
    /// Slots of a stream that has ended were not freed soon, and nothing excuses that.
    NotFreed,
    /// More slots were freed than a request has taken.
    FreedTwice,
    /// At the promised time there was no room, although nobody else used the key.
    TooEarly {
        /// How much later there would certainly have been room.
        by_us: u64,
    },
    /// There was room before the promised time.
    TooLate {
        /// How much earlier there was certainly room.
        by_us: u64,
    },
    /// Who came back when Retry-After said was denied again, with nobody else there and nothing changed.
    DeniedAgain,
    /// A blocked key was admitted.
    Blocked,
    /// A request of a fleet's filter had no verdict, and nothing excuses that.
    Unmetered,
    /// A request had no verdict when everything was healed.
    Unhealed,
}

impl Wrong {
    /// Which promise is broken: the same for all findings of a kind.
    #[must_use]
    pub fn kind(&self) -> String {
        let text = format!("{self:?}");
        text.split(' ').next().unwrap_or_default().to_owned()
    }
}

/// One finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The limit's number.
    pub limit: usize,
    /// Whose.
    pub key: usize,
    /// The decision's time; for [`Wrong::Over`] the window.
    pub when: Span,
    /// What.
    pub what: Wrong,
}

impl fmt::Display for Violation {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (from, until) = (self.when.from as f64 / 1e6, self.when.to as f64 / 1e6);
        let (limit, key, what) = (self.limit, self.key, self.what);
        write!(to, "l{limit} k{key} at {from:.3} to {until:.3} s: {what:?}")
    }
}

/// The fullest window of a limit for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peak {
    /// Number of the limit.
    pub limit: usize,
    /// Units that were certainly admitted in one window.
    pub units: u64,
    /// Its quota.
    pub quota: u64,
}

impl Peak {
    /// Units over the quota.
    #[must_use]
    pub const fn excess(&self) -> u64 {
        self.units.saturating_sub(self.quota)
    }
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// What is wrong; empty if every promise was kept.
    pub violations: Vec<Violation>,
    /// The fullest window of each limit, key and window length.
    pub peaks: Vec<Peak>,
    /// Denials that were checked: a history without any proves little.
    pub denials: u64,
    /// Those of them that are right only because leases may hold units elsewhere.
    pub idle: u64,
}

impl Report {
    /// The largest excess over a quota, whether allowed or not.
    #[must_use]
    pub fn largest_excess(&self) -> Option<Peak> {
        let over = self.peaks.iter().filter(|peak| peak.excess() > 0);
        over.max_by_key(|peak| peak.excess()).copied()
    }

    pub(crate) fn add(
        &mut self,
        (limit, key): (usize, usize),
        (from, to): (u64, u64),
        what: Wrong,
    ) {
        let when = Span { from, to };
        self.violations.push(Violation {
            limit,
            key,
            when,
            what,
        });
    }
}
