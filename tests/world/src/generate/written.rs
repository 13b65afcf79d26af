//! Sequences that chance alone makes too seldom: each is a few events in an order that matters.

use super::Maker;
use crate::script::{Algorithm, Check, Event, Grant, KEYS, Link};

/// One request for a key of a limit.
fn take((limit, key): (usize, usize), sidecar: usize, cost: u64, receipt: bool) -> Event {
    Event::Ask {
        sidecar,
        filter: false,
        checks: vec![Check {
            limit,
            key,
            cost,
            quota: None,
        }],
        peek: false,
        receipt,
        times: 1,
        every_ms: 0,
        again: false,
    }
}

impl Maker {
    /// A key of the busy limit that little else is about.
    fn aside(&self) -> (usize, usize) {
        (self.busy.0, (self.busy.1 + 1) % KEYS)
    }

    /// A token bucket holds more than the policy's burst, by an override; then something that does not know of it is given
    /// back, or written back by a sidecar that was cut off.
    pub(super) fn larger_for_a_while(&mut self, receipts: bool) {
        let (limit, key) = self.aside();
        let of = self.policies[0][limit].clone().expect("the first has all");
        let Algorithm::Token(burst) = of.algorithm else {
            return;
        };
        let (at_ms, by_other, quota) = (self.at(), self.sidecars - 1, of.windows[0].quota);
        let take = |sidecar, cost, receipt| take((limit, key), sidecar, cost, receipt);
        let larger = Event::Override {
            sidecar: by_other,
            limit,
            key,
            grant: Grant::Quota(quota, Some(burst * 20)),
            for_ms: None,
        };
        let all = burst * 19;
        if receipts {
            let remove = Event::RemoveOverride {
                sidecar: by_other,
                limit,
                key,
            };
            let give_back = Event::GiveBack {
                sidecar: 0,
                back: 0,
                units: 1,
            };
            self.events.extend([
                (at_ms, larger.clone()),
                (at_ms + 2_500, take(by_other, all, false)),
                (at_ms + 2_600, take(0, burst.div_ceil(2), true)),
                (at_ms + 2_700, remove),
                (at_ms + 5_200, give_back),
                (at_ms + 5_300, larger),
                (at_ms + 7_800, take(by_other, burst * 10, false)),
            ]);
        } else if self.sidecars > 1 {
            let link = |link| Event::Link { sidecar: 0, link };
            self.events.extend([
                (at_ms, link(Link::Cut)),
                (at_ms + 500, take(0, burst.div_ceil(4), false)),
                (at_ms + 510, take(0, burst.div_ceil(4), false)),
                (at_ms + 520, take(0, burst.div_ceil(4), false)),
                (at_ms + 600, larger),
                (at_ms + 3_100, take(by_other, all, false)),
                (at_ms + 3_500, link(Link::Good)),
                (at_ms + 6_000, take(by_other, burst * 10, false)),
            ]);
        }
    }

    /// What holds are for: a receipt that is older than a window of its limit (E2), or than a lower quota (E3).
    pub(super) fn holds(&mut self) {
        let at_ms = self.at();
        let (limit, key) = self.aside();
        let take = |sidecar, cost, receipt| take((limit, key), sidecar, cost, receipt);
        let give_back = Event::GiveBack {
            sidecar: 0,
            back: 0,
            units: 1_000_000,
        };
        let of = self.policies[0][limit].clone().expect("the first has all");
        let window = of.windows[0];
        let by_other = self.sidecars - 1;
        match of.algorithm {
            Algorithm::Token(burst) if self.open.e3 => {
                let then_ms = at_ms + window.per_ms * burst * 4 / (window.quota * 5);
                let lower = Event::Override {
                    sidecar: by_other,
                    limit,
                    key,
                    grant: Grant::Quota(1, Some(burst)),
                    for_ms: None,
                };
                let drained = (burst * 4 / 5).max(2) - 1;
                self.events.extend([
                    (at_ms, take(0, burst, true)),
                    (then_ms, take(0, drained, false)),
                    (then_ms + 100, lower),
                    // The lower quota is what the bucket is kept by from here on.
                    (then_ms + 700, take(0, 1, false)),
                    (then_ms + 800, give_back),
                    (then_ms + 900, take(0, burst - 1, false)),
                ]);
            }
            Algorithm::Fixed | Algorithm::Sliding(_) if self.open.e2 && self.policies.len() > 1 => {
                // The longer window of the next policy is there for the other sidecar first.
                let policy = |sidecar, version| Event::Policy { sidecar, version };
                let (per, cost) = (window.per_ms, window.quota.max(2) - 1);
                self.events.extend([
                    (at_ms, policy(0, 0)),
                    (at_ms + 100, policy(by_other, 1)),
                    (at_ms + 2_400, take(by_other, 1, false)),
                    (at_ms + 2_500, take(0, cost, true)),
                    (at_ms + 2_600 + per, take(by_other, cost, false)),
                    (at_ms + 2_700 + per, policy(0, 1)),
                    (at_ms + 2_800 + per, give_back),
                    (at_ms + 2_900 + 2 * per, take(by_other, cost, false)),
                ]);
            }
            _ => {}
        }
    }
}
