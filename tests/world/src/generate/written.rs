//! Sequences that chance alone makes too seldom: each is a few events in an order that matters, in a world with little else.

use super::{LIMITS, Maker};
use crate::script::{Algorithm, Check, Event, Grant, KEYS, Limit, Link, Window};

/// What a world is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sequence {
    /// A token bucket holds more than the policy's burst, by an override with another rate; then something that does not know
    /// of it is given back.
    LargerThenGivenBack,
    /// The same, and a sidecar that was cut off writes back.
    LargerThenWrittenBack,
    /// What a share has admitted is reset; then the store is away again.
    ResetThenAway,
    /// The clock steps over an edge while units of the window are leased.
    LeasedThenStepped,
    /// Time goes on over an edge while units of the window are leased.
    LeasedOverAnEdge,
    /// A receipt is given back after a reset of its key, which others have used since.
    ResetThenGivenBack,
    /// A receipt is given back twice, with others' use in between.
    GivenBackTwice,
    /// A sidecar starts, far from a store that has a block, and is asked at once.
    BlockedThenStarted,
    /// The store loses the overrides, a block among them.
    BlockedThenLost,
    /// A share admits a busy key for some seconds; a window later, what it admitted first is free again.
    BusyWhileAway,
    /// A token bucket drains while units of it lie idle in a lease.
    LeasedThenIdle,
    /// A receipt is older than a window of its limit.
    OlderThanAWindow,
    /// A receipt is older than a lower quota.
    OlderThanALowerQuota,
    /// A block ends while nothing is left of what it hides.
    FullThenBlocked,
}

use Sequence::*;

impl Sequence {
    /// All of them.
    pub const ALL: [Self; 14] = [
        LargerThenGivenBack,
        LargerThenWrittenBack,
        ResetThenAway,
        LeasedThenStepped,
        LeasedOverAnEdge,
        ResetThenGivenBack,
        GivenBackTwice,
        BlockedThenStarted,
        BlockedThenLost,
        BusyWhileAway,
        LeasedThenIdle,
        OlderThanAWindow,
        OlderThanALowerQuota,
        FullThenBlocked,
    ];

    /// The features that it needs, by their number in [`FEATURES`](super::FEATURES).
    pub fn features(self) -> &'static [usize] {
        match self {
            LargerThenGivenBack | OlderThanALowerQuota => &[1, 3],
            LargerThenWrittenBack => &[1, 7],
            ResetThenAway => &[2, 7],
            LeasedThenIdle | LeasedOverAnEdge | LeasedThenStepped => &[4],
            ResetThenGivenBack => &[2, 3],
            GivenBackTwice => &[3],
            BlockedThenStarted => &[1, 9, 11],
            BlockedThenLost => &[1],
            BusyWhileAway => &[7],
            OlderThanAWindow => &[0, 3],
            FullThenBlocked => &[],
        }
    }

    fn limit(self) -> Limit {
        let (algorithm, quota, per_ms, lease_ms) = match self {
            LargerThenGivenBack | LargerThenWrittenBack | OlderThanALowerQuota => {
                (Algorithm::Token(300), 10, 1_000, None)
            }
            ResetThenAway => (Algorithm::Sliding(100), 60, 30_000, None),
            BusyWhileAway | FullThenBlocked => (Algorithm::Log, 600, 30_000, None),
            ResetThenGivenBack | GivenBackTwice | BlockedThenStarted | BlockedThenLost => {
                (Algorithm::Fixed, 60, 30_000, None)
            }
            LeasedOverAnEdge => (Algorithm::Fixed, 1_200, 60_000, Some(5_000)),
            LeasedThenStepped => (Algorithm::Fixed, 12_000, 60_000, Some(5_000)),
            LeasedThenIdle => (Algorithm::Token(1_000), 50, 1_000, Some(2_000)),
            OlderThanAWindow => (Algorithm::Fixed, 50, 5_000, None),
        };
        Limit {
            algorithm,
            windows: vec![Window { quota, per_ms }],
            requests_up_to: None,
            lease_ms,
            blocked: None,
        }
    }
}

/// Requests for a key of a limit: so many, each so many milliseconds.
pub fn asks(
    (limit, key): (usize, usize),
    sidecar: usize,
    cost: u64,
    (times, every_ms): (u64, u64),
) -> Event {
    Event::Ask {
        sidecar,
        filter: false,
        checks: vec![Check::new(limit, key, cost)],
        peek: false,
        receipt: false,
        times,
        every_ms,
        again: false,
    }
}

impl Maker {
    /// A limit that little else is about, and a key of it.
    fn aside(&self) -> (usize, usize) {
        (
            (self.busy.0 + 1) % LIMITS as usize,
            (self.busy.1 + 1) % KEYS,
        )
    }

    /// The events of a sequence, and its limit in each policy.
    pub(super) fn is_about(&mut self, sequence: Sequence) {
        let (limit, key) = self.aside();
        let of = sequence.limit();
        let Window { quota, per_ms } = of.windows[0];
        for policy in &mut self.policies {
            policy[limit] = Some(of.clone());
        }
        let (edge_ms, other) = (self.anchors[0], self.sidecars - 1);
        let at_ms = match sequence {
            LeasedOverAnEdge => edge_ms - 2_000,
            // The share is known.
            _ => self.at() + 2_500,
        };
        let ask = |sidecar, cost, how_often| asks((limit, key), sidecar, cost, how_often);
        let take = |sidecar, cost| ask(sidecar, cost, (1, 0));
        let with_receipt = |mut event| {
            if let Event::Ask { receipt, .. } = &mut event {
                *receipt = true;
            }
            event
        };
        let give_back = |units| Event::GiveBack {
            sidecar: 0,
            back: 0,
            units,
        };
        let overridden = |grant, for_ms| Event::Override {
            sidecar: other,
            limit,
            key,
            grant,
            for_ms,
        };
        let grants = |quota, burst| overridden(Grant::Quota(quota, Some(burst)), None);
        let link = |link| Event::Link { sidecar: 0, link };
        let reset = Event::Reset {
            sidecar: 0,
            limit,
            key,
        };
        let events = match sequence {
            LargerThenGivenBack => vec![
                (0, grants(quota - 1, 6_000)),
                (2_500, take(other, 5_700)),
                (2_600, with_receipt(take(0, 150))),
                (
                    2_700,
                    Event::RemoveOverride {
                        sidecar: other,
                        limit,
                        key,
                    },
                ),
                (5_200, give_back(1)),
                (5_300, grants(quota - 1, 6_000)),
                (7_800, take(other, 3_000)),
            ],
            LargerThenWrittenBack => vec![
                (0, link(Link::Cut)),
                (500, ask(0, 75, (3, 10))),
                (600, grants(quota - 1, 6_000)),
                (3_100, take(other, 5_700)),
                (3_500, link(Link::Good)),
                (8_000, take(other, 3_000)),
            ],
            ResetThenAway => {
                let share = quota / self.sidecars as u64;
                vec![
                    (0, link(Link::Cut)),
                    (500, ask(0, share, (2, 10))),
                    (1_000, link(Link::Good)),
                    (5_000, reset),
                    (5_500, link(Link::Cut)),
                    (8_000, take(0, share)),
                    (8_500, link(Link::Good)),
                ]
            }
            LeasedThenStepped => vec![
                (0, ask(0, 1, (1_600, 5))),
                (2_000, Event::Clock { by_ms: 60_000 }),
                // When all have been told.
                (4_000, ask(other, quota / 40, (50, 5))),
            ],
            LeasedOverAnEdge => vec![
                (0, ask(0, 1, (400, 20))),
                (2_600, ask(other, quota / 40, (50, 5))),
            ],
            ResetThenGivenBack => vec![
                (0, with_receipt(take(0, quota))),
                (500, reset),
                (1_000, take(other, quota)),
                (1_500, give_back(quota)),
                (3_000, take(other, quota)),
            ],
            BlockedThenStarted => vec![
                (0, overridden(Grant::Blocked, None)),
                (2_900, link(Link::Slow(20, 20))),
                (
                    3_000,
                    Event::Kill {
                        sidecar: 0,
                        for_ms: 100,
                    },
                ),
                (3_100, ask(0, 1, (60, 5))),
                (5_000, link(Link::Good)),
            ],
            BlockedThenLost => vec![
                (0, overridden(Grant::Blocked, None)),
                (1_500, Event::LoseOverrides),
                (4_000, ask(0, 1, (20, 50))),
                (4_000, ask(other, 1, (20, 50))),
            ],
            BusyWhileAway => vec![
                (0, link(Link::Cut)),
                (500, ask(0, 1, (150, 50))),
                (9_000, link(Link::Good)),
                (35_000, take(other, quota - 75)),
            ],
            FullThenBlocked => {
                let mut returns = take(0, quota / 20);
                if let Event::Ask { again, .. } = &mut returns {
                    *again = true;
                }
                vec![
                    (0, ask(0, quota / 20, (60, 1))),
                    (500, overridden(Grant::Blocked, Some(10_000))),
                    (5_000, returns),
                ]
            }
            // A unit of another stays: a bucket that has been empty gets nothing back of what was before.
            GivenBackTwice => vec![
                (0, take(other, 1)),
                (100, with_receipt(take(0, quota - 1))),
                (300, give_back(quota)),
                (600, take(other, quota - 1)),
                (900, give_back(quota)),
                (1_200, take(other, quota / 2)),
            ],
            LeasedThenIdle => vec![
                (0, ask(0, 1, (100, 5))),
                (2_200, ask(other, 20, (60, 1))),
                (2_270, ask(0, 1, (400, 0))),
            ],
            OlderThanALowerQuota => vec![
                (0, with_receipt(take(0, 300))),
                (24_000, take(0, 239)),
                (24_100, grants(1, 300)),
                // The lower quota is what the bucket is kept by from here on.
                (24_700, take(0, 1)),
                (24_800, give_back(1_000_000)),
                (24_900, take(0, 270)),
            ],
            OlderThanAWindow => {
                // The longer window of the next policy is there for the other sidecar first.
                let policy = |sidecar, version| Event::Policy { sidecar, version };
                let longer = Window {
                    quota,
                    per_ms: per_ms * 4,
                };
                if let Some(Some(of)) = self.policies.get_mut(1).map(|next| &mut next[limit]) {
                    of.windows.push(longer);
                }
                vec![
                    (0, policy(0, 0)),
                    (100, policy(other, 1)),
                    (2_400, take(other, 1)),
                    (2_500, with_receipt(take(0, quota - 1))),
                    (2_600 + per_ms, take(other, quota - 1)),
                    (2_700 + per_ms, policy(0, 1)),
                    (2_800 + per_ms, give_back(1_000_000)),
                    (2_900 + 2 * per_ms, take(other, quota - 1)),
                ]
            }
        };
        let events = events
            .into_iter()
            .map(|(after_ms, event)| (at_ms + after_ms, event));
        self.events.extend(events);
    }
}
