//! What the sidecar must learn of streams that have ended or still live: sent together, and again until it has confirmed them. To
//! send one twice is harmless, since a receipt is settled once. Those that free slots are sent at once, the others gather. Pure.

use std::collections::VecDeque;
use std::rc::Rc;

use serde_json::Value;
use sluicegate_protocol::{Settle, Settles};

use crate::config;
use crate::settle::{Hold, Reserves};
use crate::stats::OfSettle;

/// Most that wait; then the oldest is dropped, and what it was about stays reserved.
const MAX_WAITING: usize = 4_096;
/// Most of one callout.
const MAX_SENT: usize = 256;
/// How long they wait for each other: whatever the traffic, a worker makes 25 calls a second at most.
const GATHER_US: u64 = 40_000;
/// How long after a callout that failed the next is sent: twice as long each time, up to this. Slots may live for three seconds only,
/// and their signs go to each of several sidecars in turn.
const RETRY_US: (u64, u64) = (100_000, 400_000);
/// How often units are settled again whose limit the sidecar does not know: during a roll-out, another one may know it.
const MAX_UNKNOWN: u8 = 20;

/// One receipt, and what became of its stream.
#[derive(Debug)]
pub struct Fact {
    pub(crate) of: Rc<Reserves>,
    /// The index of the hold with the receipt.
    pub(crate) hold: usize,
    pub(crate) what: What,
    /// An earlier callout with it was not answered: it may have been settled.
    pub(crate) in_doubt: bool,
    /// How many sidecars did not know the limit.
    pub(crate) unknown_to: u8,
}

/// What became of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum What {
    /// It has ended, and used this much of what it had reserved.
    Settle { units: u64, reserved: u64 },
    /// It has ended, and all that it had reserved stays. The hold ends, which would live for minutes.
    Keep,
    /// It has ended, and its slots are free.
    Free,
    /// It lives.
    Live { within_ms: u64 },
}

/// Facts that wait for the sidecar.
#[derive(Debug, Default)]
pub struct Facts {
    waiting: VecDeque<Fact>,
    /// Those of the callout in flight.
    sent: Vec<Fact>,
    /// When the next callout may be sent, if it is not 0.
    due_us: u64,
    retry_us: u64,
    /// One that waits frees slots.
    is_urgent: bool,
}

impl Facts {
    /// Adds facts. Whether a callout should be sent at once, and none was before.
    pub fn add(&mut self, facts: Vec<Fact>, now_us: u64) -> bool {
        let was_urgent = self.is_urgent;
        for fact in facts {
            self.is_urgent |= matches!(fact.what, What::Free);
            if self.waiting.len() >= MAX_WAITING
                && let Some(oldest) = self.waiting.pop_front()
            {
                oldest.count_lost();
            }
            self.waiting.push_back(fact);
        }
        if self.is_urgent && self.retry_us == 0 {
            self.due_us = now_us.max(1);
        } else if self.due_us == 0 && !self.waiting.is_empty() {
            self.due_us = now_us.saturating_add(GATHER_US);
        }
        self.is_urgent && !was_urgent && self.retry_us == 0 && self.sent.is_empty()
    }

    /// How many signs of living streams may be added: half of the places are for what has ended.
    pub fn room(&self) -> usize {
        (MAX_WAITING / 2).saturating_sub(self.waiting.len())
    }

    /// Copies of those that free slots of such limits and keys and are not confirmed: for a question about them, so that its client
    /// does not wait for slots that it has given back itself. None whose stream's last sign is on its way: that would renew slots
    /// which are free.
    pub fn releases(&self, is_asked: impl Fn(&str, &str) -> bool) -> Vec<Settle<'_>> {
        let is_renewed = |fact: &Fact| {
            let is_sign = |sent: &&Fact| matches!(sent.what, What::Live { .. });
            let mut signs = self.sent.iter().filter(is_sign);
            signs.any(|sent| Rc::ptr_eq(&sent.of, &fact.of))
        };
        let all = self.sent.iter().chain(&self.waiting);
        let releases = all.filter(|fact| matches!(fact.what, What::Free) && !is_renewed(fact));
        let copies = releases.filter_map(Fact::settle);
        let asked = copies.filter(|settle| is_asked(&settle.limit, &settle.key));
        asked.take(MAX_SENT).collect()
    }

    /// Takes all that is not confirmed, for others to send.
    pub fn take(&mut self) -> Vec<Fact> {
        let sent = self.sent.drain(..).map(|fact| Fact {
            in_doubt: true,
            ..fact
        });
        sent.chain(self.waiting.drain(..)).collect()
    }

    /// Whether nothing waits to be sent.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The body of the next callout, if it may be sent now.
    pub fn next(&mut self, now_us: u64) -> Option<Vec<u8>> {
        if self.waiting.is_empty() || !self.sent.is_empty() || now_us < self.due_us {
            return None;
        }
        while self.sent.len() < MAX_SENT
            && let Some(fact) = self.waiting.pop_front()
        {
            // After a release, a sign of the stream would renew slots that are free.
            if !matches!(fact.what, What::Live { .. }) || fact.of.lives() {
                self.sent.push(fact);
            }
        }
        self.is_urgent &= !self.waiting.is_empty();
        if self.sent.is_empty() {
            self.due_us = 0;
            return None;
        }
        let settles = self.sent.iter().filter_map(Fact::settle).collect();
        serde_json::to_vec(&Settles { settles }).ok()
    }

    /// The callout is over: its facts are confirmed one by one, and the others wait again.
    pub fn answered(&mut self, body: Option<&[u8]>, now_us: u64) {
        // Not as the protocol's type, whose reader would be 20 KB of the VM.
        let listed = body.and_then(|body| config::json(body).ok());
        let outcomes = listed
            .as_ref()
            .and_then(|listed| listed.get("outcomes")?.as_array());
        let (first, most) = RETRY_US;
        let (mut outcomes, mut failed) = (outcomes.into_iter().flatten(), false);
        let mut again = VecDeque::new();
        for fact in self.sent.drain(..) {
            match outcomes.next() {
                Some(outcome) if fact.is_sent_again(outcome) => {
                    let unknown_to = fact.unknown_to + 1;
                    again.push_back(Fact { unknown_to, ..fact });
                }
                Some(outcome) if word(outcome) != "unavailable" => fact.count_outcome(outcome),
                _ => {
                    failed = true;
                    match fact.what {
                        What::Settle { .. } | What::Free => {
                            let in_doubt = true;
                            again.push_back(Fact { in_doubt, ..fact });
                        }
                        // Another sign is as good, and soon.
                        What::Live { .. } => fact.of.renew_soon(),
                        What::Keep => {}
                    }
                }
            }
        }
        let pause_us = if again.is_empty() { GATHER_US } else { first };
        // Before those that came later.
        again.append(&mut self.waiting);
        self.waiting = again;
        self.retry_us = if failed {
            (self.retry_us * 2).clamp(first, most)
        } else {
            0
        };
        self.due_us = if self.waiting.is_empty() {
            0
        } else if failed {
            now_us.saturating_add(self.retry_us)
        } else if self.is_urgent || self.waiting.len() >= MAX_SENT {
            now_us
        } else {
            now_us.saturating_add(pause_us)
        };
    }
}

impl Fact {
    fn hold(&self) -> Option<&Hold> {
        self.of.hold(self.hold)
    }

    /// As the sidecar takes it.
    fn settle(&self) -> Option<Settle<'_>> {
        let hold = self.hold()?;
        let check = hold.check()?;
        let (units, within_ms) = match self.what {
            What::Settle { units, .. } => (Some(units), None),
            What::Free => (Some(0), None),
            What::Keep => (None, Some(1)),
            What::Live { within_ms } => (None, Some(within_ms)),
        };
        Some(Settle {
            limit: self.of.rules.limit_name(check.rule, check.limit).into(),
            key: check.key.as_str().into(),
            receipt: hold.receipt.as_str().into(),
            units,
            within_ms,
        })
    }

    /// Whether the sidecar does not know the limit whose units it settles, and another one may.
    fn is_sent_again(&self, outcome: &Value) -> bool {
        let code = outcome.get("code").and_then(Value::as_str);
        let settles = matches!(self.what, What::Settle { .. });
        settles && code == Some("unknown_limit") && self.unknown_to < MAX_UNKNOWN
    }

    /// It was dropped, or came too late: what it says is not known to the store.
    fn count_lost(&self) {
        if let What::Settle { units, reserved } = self.what {
            self.count(OfSettle::Lost, 1);
            self.count(OfSettle::UnitsLost, units.saturating_sub(reserved));
        }
    }

    fn count(&self, counter: OfSettle, more: u64) {
        if let Some(check) = self.hold().and_then(Hold::check) {
            let counters = &self.of.rules.counters;
            counters.count_settle(check.rule, counter, more);
        }
    }

    fn count_outcome(&self, outcome: &Value) {
        let units = outcome.get("units").and_then(Value::as_u64).unwrap_or(0);
        match word(outcome) {
            // The sidecar counts slots.
            _ if matches!(self.what, What::Free) => {}
            "returned" => self.count(OfSettle::UnitsReturned, units),
            "charged" => self.count(OfSettle::UnitsCharged, units),
            "renewed" => {}
            "unknown" if self.in_doubt => {}
            _ => self.count_lost(),
        }
    }
}

/// Which outcome it is.
fn word(outcome: &Value) -> &str {
    outcome
        .get("outcome")
        .and_then(Value::as_str)
        .unwrap_or_default()
}
