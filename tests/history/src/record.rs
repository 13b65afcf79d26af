//! What a run records. Times are microseconds from any beginning; only limits with edges need to know the clock at that time.

use std::collections::BTreeMap;

/// When something happened: at one instant from `from` to `to`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The earliest possible instant.
    pub from: u64,
    /// The latest.
    pub to: u64,
}

impl Span {
    /// A time that is known.
    #[must_use]
    pub const fn exact(at: u64) -> Self {
        Self { from: at, to: at }
    }
}

/// How a limit's windows count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Algorithm {
    /// Every trailing window.
    Log,
    /// The same, but a unit may be held this many milliseconds longer.
    Sliding(u64),
    /// Windows that begin at a multiple of their length.
    Fixed,
    /// A day in this time zone.
    Day(&'static str),
    /// Tokens, with the burst.
    Token(u64),
    /// Slots that are in use at once: the only window has how many, and how long one lasts without a sign. With how long its stream
    /// renews it at most, in milliseconds.
    Slots(u64),
}

/// A window of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Units.
    pub quota: u64,
    /// Its length in milliseconds.
    pub per_ms: u64,
}

/// A limit of a policy: a request needs room in all of its windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// How its windows count.
    pub algorithm: Algorithm,
    /// Its windows.
    pub windows: Vec<Window>,
    /// Requests may have quotas of their own, up to this.
    pub requests_up_to: Option<u64>,
    /// How long leases are at most, if it has any.
    pub lease_ms: Option<u64>,
    /// A key that the policy's file blocks: its number.
    pub blocked: Option<usize>,
}

impl Limit {
    /// With one window and nothing else.
    #[must_use]
    pub fn new(algorithm: Algorithm, quota: u64, per_ms: u64) -> Self {
        Self {
            algorithm,
            windows: vec![Window { quota, per_ms }],
            requests_up_to: None,
            lease_ms: None,
            blocked: None,
        }
    }
}

/// A policy: limits by their number; one that is missing was removed.
pub type Policy = Vec<Option<Limit>>;

/// A check of a request: units of a limit for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Number of the limit.
    pub limit: usize,
    /// Number of the key.
    pub key: usize,
    /// Units.
    pub cost: u64,
    /// The request's own quota.
    pub quota: Option<u64>,
    /// The units are reserved, to be settled: at most so many percent of the quota, and at least one if the cost is not 0.
    pub most: Option<u64>,
}

impl Check {
    /// One without a quota of its own, whose units are not settled.
    #[must_use]
    pub const fn new(limit: usize, key: usize, cost: u64) -> Self {
        Self {
            limit,
            key,
            cost,
            quota: None,
            most: None,
        }
    }

    /// The same, reserved.
    #[must_use]
    pub const fn reserves(self, most: u64) -> Self {
        Self {
            most: Some(most),
            ..self
        }
    }

    pub(crate) const fn is_of(&self, limit: usize, key: usize) -> bool {
        self.limit == limit && self.key == key
    }
}

/// What an override says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grant {
    /// A quota; with the burst, if it has one of its own.
    Quota(u64, Option<u64>),
    /// No limit.
    Unlimited,
    /// Nothing.
    Blocked,
}

/// What is done to the link of a sidecar to its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Nothing.
    Good,
    /// Nothing passes.
    Cut,
    /// Calls pass, and no answers.
    LosesAnswers,
    /// Half of all keys are refused.
    RefusesHalf,
    /// Milliseconds there, and back.
    Slow(u64, u64),
}

/// What a request gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// All checks are admitted.
    Admitted,
    /// With Retry-After, if it was told.
    Denied {
        /// Milliseconds.
        retry_ms: Option<u64>,
    },
    /// No verdict, or the answer was lost: its units may have been taken.
    Unknown,
    /// The decision is not valid: nothing is taken.
    Refused,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A sidecar.
    Sidecar,
    /// A filter's cache of denials.
    Cache,
    /// A filter's part of a lease.
    Lease,
}

/// What happened.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The earliest time at which it can have happened.
    pub from: u64,
    /// The latest.
    pub to: u64,
    /// To which sidecar.
    pub sidecar: usize,
    /// What.
    pub what: What,
}

impl Entry {
    /// A request to the only sidecar.
    #[must_use]
    pub const fn asked(when: Span, checks: Vec<Check>, said: Said) -> Self {
        let request = Request {
            checks,
            peek: false,
            said,
            by: By::Sidecar,
            remaining: None,
            again: false,
        };
        Self {
            from: when.from,
            to: when.to,
            sidecar: 0,
            what: What::Asked(request),
        }
    }

    /// A look that found so many units left, in the window with the least room.
    #[must_use]
    pub fn looked(when: Span, checks: Vec<Check>, left: u64) -> Self {
        let mut one = Self::asked(when, checks, Said::Admitted);
        if let What::Asked(request) = &mut one.what {
            (request.peek, request.remaining) = (true, Some(left));
        }
        one
    }

    /// The request that it is.
    #[must_use]
    pub const fn request(&self) -> Option<&Request> {
        match &self.what {
            What::Asked(request) => Some(request),
            _ => None,
        }
    }

    pub(crate) const fn when(&self) -> (u64, u64) {
        (self.from, self.to)
    }
}

/// A request and its answer.
#[derive(Clone, Debug)]
pub struct Request {
    /// Each limit and key once.
    pub checks: Vec<Check>,
    /// It takes nothing.
    pub peek: bool,
    /// What it was told.
    pub said: Said,
    /// By whom.
    pub by: By,
    /// How much was left, in the window with the least room.
    pub remaining: Option<u64>,
    /// It came when the Retry-After of a denial said.
    pub again: bool,
}

impl Request {
    /// It takes units.
    #[must_use]
    pub fn is_admitted(&self) -> bool {
        !self.peek && self.said == Said::Admitted
    }

    /// It was denied.
    #[must_use]
    pub const fn is_denied(&self) -> bool {
        matches!(self.said, Said::Denied { .. })
    }

    /// Whether it takes units, or may have.
    pub(crate) fn may_take(&self) -> bool {
        let takes = matches!(self.said, Said::Admitted | Said::Unknown);
        takes && !self.peek && self.by != By::Cache
    }

    pub(crate) fn is_of(&self, limit: usize, key: usize) -> bool {
        self.checks.iter().any(|check| check.is_of(limit, key))
    }

    /// Limit and key of its first check.
    pub(crate) fn first(&self) -> (usize, usize) {
        (self.checks[0].limit, self.checks[0].key)
    }
}

/// A step of the settlement of a check.
#[derive(Clone, Copy, Debug)]
pub struct Settled {
    /// The request's number in the log.
    pub entry: usize,
    /// The limit that counted it.
    pub limit: usize,
    /// And its key.
    pub key: usize,
    /// What was used in fact; none if all that was reserved stays taken.
    pub used: Option<u64>,
    /// What was told of it.
    pub told: Told,
}

/// What a settle is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Told {
    /// Nothing yet: the stream has ended. From now on a filter asks until it is told something.
    Ended,
    /// Nothing: the answer was lost, or the call.
    Nothing,
    /// So many units came back.
    Returned(u64),
    /// So many were taken besides.
    Charged(u64),
    /// There is no such receipt, or no longer.
    Unknown,
}

/// A step of the life of a check's slots.
#[derive(Clone, Copy, Debug)]
pub struct Held {
    /// The number in the log of the request that has taken them.
    pub entry: usize,
    /// The limit whose slots they are now,
    pub limit: usize,
    /// and its key.
    pub key: usize,
    /// What happened to them.
    pub sign: Sign,
}

/// What happens to slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The stream has ended. From now on a filter frees them until it is told that they are free.
    Ended,
    /// They are free: so many were in use.
    Freed(u64),
    /// They may be free: the answer was lost, or the call.
    FreeLost,
    /// They last from now on.
    Renewed,
    /// They may.
    RenewalLost,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum What {
    /// A request.
    Asked(Request),
    /// A request at the filter of a fleet had no verdict on this limit.
    Unmetered {
        /// Its number.
        limit: usize,
    },
    /// What a request has taken is settled.
    Settled(Settled),
    /// A step of the life of slots that a request has taken.
    Held(Held),
    /// The sidecar has this policy from now on.
    Policy(usize),
    /// An override was set or removed.
    Override {
        /// Of this limit,
        limit: usize,
        /// and key.
        key: usize,
        /// What it says; none if it was removed.
        grant: Option<Grant>,
        /// Its end.
        until: Option<u64>,
        /// It was confirmed.
        done: bool,
    },
    /// A key was reset.
    Reset {
        /// Of this limit.
        limit: usize,
        /// Its number.
        key: usize,
        /// It was confirmed.
        done: bool,
    },
    /// A link has changed.
    Link(Link),
    /// The store's clock has stepped by so many milliseconds.
    Clock(i64),
    /// The store has lost its data.
    Lost,
    /// The store has lost the overrides.
    OverridesLost,
    /// The sidecar's state folder cannot be written, or can again.
    StateFull(bool),
    /// A VM before the sidecar has ended, or its callouts did not come through.
    Envoy,
    /// A VM has ended, with all that it knew.
    VmEnded,
    /// The sidecar has ended.
    Down,
    /// The sidecar has started.
    Up,
}

/// A time in which the documents promise less, besides what follows from the log.
#[derive(Clone, Copy, Debug)]
pub struct Disturbance {
    /// When.
    pub when: Span,
    /// A window that includes some of this time may hold the quota once more.
    pub once_more: bool,
    /// What was admitted before its end may be forgotten, so that it is not counted when it ends.
    pub forgets: bool,
    /// Denials in this time are not checked: others may hold units, or the clock may be behind.
    pub denials: bool,
}

/// Everything that a run knows.
#[derive(Clone, Debug)]
pub struct History {
    /// By version; all sidecars begin with the first.
    pub policies: Vec<Policy>,
    /// How many sidecars there are.
    pub sidecars: usize,
    /// Sidecars have state folders.
    pub keeps_state: bool,
    /// One filter asks several sidecars, so that units of leases can be lost until their window ends.
    pub fleet: bool,
    /// The store's clock when it begins.
    pub start_us: u64,
    /// By time zone: when days begin, by the store's clock.
    pub days: Vec<(&'static str, Vec<u64>)>,
    /// What happened, in order of its end.
    pub log: Vec<Entry>,
    /// For each step of the clock: when an answer had told the last sidecar of it.
    pub told: Vec<u64>,
    /// From when on all faults were healed.
    pub healed: u64,
    /// When the documents promise less.
    pub disturbances: Vec<Disturbance>,
    /// For how long a denial may be given again from a cache, to exactly the same checks. It was true when it was made, so
    /// what others took since then does not count against its retry-after; and what is left of that counts from the
    /// arrival of the answer that brought it, so that it may be told too long by the time that this answer travelled.
    pub cached_us: u64,
    /// By how much a retry-after may be told too long besides: the unit to which it is rounded up. At least 1, since it is
    /// an exact time otherwise.
    pub retry_late_us: u64,
    /// Units of each limit that may be idle elsewhere when a request is denied.
    pub idle: u64,
    /// By the key of a consumer: the limits that count it, each by a policy.
    pub tiers: BTreeMap<usize, Vec<usize>>,
}

impl History {
    /// Of one sidecar with one policy, and nothing that disturbs it.
    #[must_use]
    pub fn new(limits: Vec<Limit>, log: Vec<Entry>) -> Self {
        Self {
            policies: vec![limits.into_iter().map(Some).collect()],
            sidecars: 1,
            keeps_state: false,
            fleet: false,
            start_us: 0,
            days: Vec::new(),
            log,
            told: Vec::new(),
            healed: u64::MAX,
            disturbances: Vec::new(),
            cached_us: 0,
            retry_late_us: 1,
            idle: 0,
            tiers: BTreeMap::new(),
        }
    }
}
