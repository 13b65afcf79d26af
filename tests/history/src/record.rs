//! What a run records. All times are microseconds of the clock by which the limits are decided.

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

/// Everything that a run knows.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// The limits, which [`Check::limit`] names by index.
    pub limits: Vec<Limit>,
    /// The decisions, in any order.
    pub records: Vec<Record>,
    /// When the documents promise less.
    pub disturbances: Vec<Disturbance>,
    /// For how long a denial may be given again from a cache, to exactly the same checks. It was true when it was made, so
    /// what others took since then does not count against its retry-after; and what is left of that counts from the
    /// arrival of the answer that brought it, so that it may be told too long by the time that this answer travelled.
    pub cached_us: u64,
    /// By how much a retry-after may be told too long besides: the unit to which it is rounded up. At least 1, since it is
    /// an exact time otherwise.
    pub retry_late_us: u64,
}

/// A limit: a request needs room in all of its windows.
#[derive(Clone, Debug)]
pub struct Limit {
    /// For reports.
    pub name: String,
    /// Its windows.
    pub windows: Vec<Window>,
    /// Units that may be idle elsewhere when a request is denied, such as leases of other sidecars.
    pub idle: u64,
}

/// A quota in a length of time.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    /// Which lengths of time count.
    pub kind: Kind,
    /// Units.
    pub quota: u64,
    /// Its length in microseconds.
    pub per_us: u64,
}

/// Which lengths of time count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every trailing window.
    Trailing,
    /// Likewise, but a unit may be held this much longer (microseconds).
    Steps(u64),
    /// Those that begin at a multiple of the length.
    Aligned,
}

impl Window {
    /// How long a unit may be held after it was taken, at most.
    pub(crate) const fn held_us(&self) -> u64 {
        match self.kind {
            Kind::Steps(precision_us) => self.per_us + precision_us,
            Kind::Trailing | Kind::Aligned => self.per_us,
        }
    }
}

/// A decision as its client saw it.
#[derive(Clone, Debug)]
pub struct Record {
    /// When it was made.
    pub when: Span,
    /// What it asked for; each limit and subject once.
    pub checks: Vec<Check>,
    /// What it was told.
    pub verdict: Verdict,
}

/// Units of a limit for a subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Check {
    /// Index of the limit.
    pub limit: usize,
    /// Who asks.
    pub subject: u32,
    /// Units.
    pub cost: u64,
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All checks were admitted.
    Admitted,
    /// Denied; retry-after in microseconds, as told, or `None` if that was not told.
    Denied(Option<u64>),
    /// There was no verdict, or the answer was lost: the units may have been taken.
    Unknown,
    /// A peek: so many units are left, in the window with the least room.
    Left(u64),
}

/// A time in which the documents promise less.
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

impl History {
    /// Whether any of these disturbances touches this time.
    pub(crate) fn disturbed(&self, when: Span, which: impl Fn(&Disturbance) -> bool) -> bool {
        self.disturbing(when).any(which)
    }

    /// Those that touch this time.
    pub(crate) fn disturbing(&self, when: Span) -> impl Iterator<Item = &Disturbance> {
        let each = self.disturbances.iter();
        each.filter(move |one| one.when.from <= when.to && one.when.to >= when.from)
    }
}
