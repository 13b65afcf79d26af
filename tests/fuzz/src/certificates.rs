//! Denial certificates: the table does what a list would do, is bounded, and never answers after a certificate's end; and
//! different decisions have different fingerprints.

use sluicegate_certificates::{CallTimes, Certificates, fingerprint};
use sluicegate_protocol::{LimitStatus, MAX_HOLD_MS};

use crate::input::Input;
use crate::{status_of, times};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    if input.byte() % 4 == 3 {
        return fingerprints(&mut input);
    }
    let capacity = input.below(5);
    let mut table = Certificates::new(capacity);
    let mut list = List {
        capacity,
        held: Vec::new(),
    };
    let mut now_us = input.up_to(10_000_000);
    while !input.is_empty() {
        // The callers' clock does not step.
        now_us = now_us.saturating_add(input.microseconds());
        let name = input.pick(&NAMES);
        match input.byte() % 8 {
            0..=3 => {
                let times = times(now_us.saturating_sub(input.microseconds()), now_us);
                let check = input.below(3);
                let status = status_of(check, 5, &mut input);
                table.hold(name, &status, times);
                list.hold(name, &status, times);
            }
            4 => {
                table.clear();
                list.held.clear();
            }
            5 => {
                list.drop_ended(now_us);
                assert_eq!(table.held(now_us), list.held.len());
            }
            _ => assert_eq!(table.covering(name, now_us), list.covering(name, now_us)),
        }
        assert!(table.len() <= capacity && table.len() == list.held.len());
        assert_eq!(table.is_empty(), list.held.is_empty());
    }
    for name in NAMES {
        assert_eq!(table.covering(name, now_us), list.covering(name, now_us));
        let end_us = now_us.saturating_add(MAX_HOLD_MS * 1_000);
        assert_eq!(table.covering(name, end_us), None, "it outlives the bound");
    }
}

/// What a table has to do, as a list.
struct List {
    capacity: usize,
    held: Vec<(&'static str, u64, u64, LimitStatus<'static>)>,
}

impl List {
    fn hold(&mut self, name: &'static str, status: &LimitStatus<'static>, times: CallTimes) {
        let hold_us = status.hold_ms.min(60_000) * 1_000;
        let ends_us = times.sent_us.saturating_add(hold_us);
        if ends_us <= times.answered_us || self.capacity == 0 {
            return;
        }
        self.drop_ended(times.answered_us);
        self.held.retain(|(held, ..)| *held != name);
        if self.held.len() == self.capacity {
            let ends = self.held.iter().map(|(name, ends, ..)| (*ends, *name));
            let first = ends.min().map(|(_, name)| name);
            self.held.retain(|(name, ..)| Some(*name) != first);
        }
        let held = (name, ends_us, times.answered_us, status.clone());
        self.held.push(held);
    }

    fn drop_ended(&mut self, now_us: u64) {
        self.held.retain(|(_, ends_us, ..)| *ends_us > now_us);
    }

    fn covering(&self, name: &str, now_us: u64) -> Option<LimitStatus<'static>> {
        let (_, ends_us, answered_us, status) =
            self.held.iter().find(|(held, ..)| *held == name)?;
        let passed_ms = (now_us - answered_us) / 1_000;
        // Of slots, nobody knows when they reset: that is 0.
        let after = |ms: u64| ms.saturating_sub(passed_ms).max(ms.min(1));
        (now_us < *ends_us).then(|| LimitStatus {
            limit: "".into(),
            reset_ms: after(status.reset_ms),
            retry_after_ms: after(status.retry_after_ms),
            hold_ms: (ends_us - now_us) / 1_000,
            unknown: Vec::new(),
            receipt: Vec::new(),
            ..status.clone()
        })
    }
}

/// A check's limit, key, cost and requested quota.
type Check = (String, String, u64, Option<u64>);

fn fingerprints(input: &mut Input<'_>) {
    let check = |input: &mut Input<'_>| -> Check {
        let text = |input: &mut Input<'_>| match input.byte() % 4 {
            0 => input.text(12),
            // What looks like a part of a fingerprint.
            1 => format!("{}:a", input.below(12)),
            2 => input
                .pick(&["", "1", ";", "1;1:a", "/", "1:a1:b1;"])
                .to_owned(),
            _ => input.below(1_000).to_string(),
        };
        let quota = |input: &mut Input<'_>| input.maybe(Input::number);
        (text(input), text(input), input.number(), quota(input))
    };
    let one = input.list(4, check);
    let other = if input.byte() % 4 == 3 {
        one.clone()
    } else {
        input.list(4, check)
    };
    let of = |checks: &[Check]| {
        let checks = checks.iter();
        fingerprint(checks.map(|(limit, key, cost, quota)| (&**limit, &**key, *cost, *quota)))
    };
    assert_eq!(of(&one) == of(&other), one == other, "{one:?} {other:?}");
}
