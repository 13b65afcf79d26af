//! A fault: what it is called, where it happens, and what is allowed while it lasts.

use std::time::Duration;

use super::chain::Place;

/// What clients notice of a fault: requests without a verdict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// Some: a run without any has not felt the fault.
    Some,
    /// Some or none: it depends on the moment.
    Perhaps,
    /// None.
    Never,
    /// None of those that are answered within this time of its beginning.
    NotBefore(Duration),
}

/// A fault, with what the documents promise about it.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub name: &'static str,
    pub place: Place,
    /// It is part of the short form.
    pub short: bool,
    /// A window that includes some of it may hold the quota once more.
    pub once_more: bool,
    /// The store may forget what it counted.
    pub forgets: bool,
    /// Denials while it lasts are not checked, because they are about another clock, or a part of the limit.
    pub unchecked: bool,
    /// Nothing is promised about counts, because the store's answers are lies.
    pub lies: bool,
    pub noticed: Noticed,
    /// No store decides while it lasts: a run in which the rule `shut` admits something then has not had the fault.
    pub away: bool,
    /// How often calls that are under way lose their answers. What a call takes then is lost for a window. `None`: any call
    /// may, while it lasts.
    pub cuts: Option<u64>,
    /// Connections of clients break, because the process that has them is replaced.
    pub breaks_connections: bool,
    /// How long it lasts; faults that end by themselves have zero.
    pub lasts: Duration,
}

/// Methods that make these fields true.
macro_rules! flags {
    ($($method:ident $field:ident,)*) => { $(
        pub const fn $method(mut self) -> Self {
            self.$field = true;
            self
        }
    )* };
}

impl Fault {
    flags! {
        in_short_form short,
        once_more once_more,
        unchecked unchecked,
        lies lies,
        away away,
        breaks_connections breaks_connections,
    }

    /// One that clients feel, of a single Redis, under which nothing is over.
    pub const fn new(name: &'static str) -> Self {
        Self {
            name,
            place: Place::Redis,
            short: false,
            once_more: false,
            forgets: false,
            unchecked: false,
            lies: false,
            noticed: Noticed::Some,
            away: false,
            cuts: Some(1),
            breaks_connections: false,
            lasts: Duration::from_millis(2_500),
        }
    }

    pub const fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    pub const fn forgets(mut self) -> Self {
        self.forgets = true;
        self.once_more()
    }

    /// Nobody is without a verdict, and so nothing is lost.
    pub const fn unnoticed(self) -> Self {
        self.noticed(Noticed::Never).cuts(0)
    }

    pub const fn noticed(mut self, what: Noticed) -> Self {
        self.noticed = what;
        self
    }

    pub const fn cuts(mut self, times: u64) -> Self {
        self.cuts = Some(times);
        self
    }

    /// Answers come too late or never, all the time.
    pub const fn loses_answers(mut self) -> Self {
        self.cuts = None;
        self
    }

    /// It ends by itself.
    pub const fn at_once(self) -> Self {
        self.lasts(Duration::ZERO)
    }

    pub const fn lasts(mut self, time: Duration) -> Self {
        self.lasts = time;
        self
    }
}
