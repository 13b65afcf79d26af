//! The filter's cache of denials, with answers of several sidecars in any order: nothing is denied from it that was not denied
//! under the newest policy that the sidecar has told of, or after the certificate's end; and every denial is reported once.

use std::collections::BTreeMap;
use std::rc::Rc;

use sluicegate_protocol::{CachedDenials, LimitStatus, MAX_HOLD_MS, PolicyVersion, Verdict};
use sluicegate_rules::{DenialCache, Question, ResolvedCheck, Shadow};

use crate::input::Input;
use crate::{REAL_AND_TRIAL, question_of, times};

/// Sidecars behind one cluster; their instance numbers are from 1.
const SIDECARS: usize = 2;

/// A question on its way, decided when it was sent.
struct Call {
    sent_us: u64,
    version: PolicyVersion,
    question: Question,
    verdicts: Vec<Verdict<'static>>,
}

#[derive(Default)]
struct World {
    cache: DenialCache,
    now_us: u64,
    epochs: [u64; SIDECARS],
    calls: Vec<Call>,
    /// Questions of all calls.
    asked: Vec<Question>,
    /// Of each instance the newest epoch that it has told of.
    told: BTreeMap<u64, u64>,
    /// Decisions that were denied, under which policy, and until when that is exact.
    denied: Vec<(Vec<ResolvedCheck>, PolicyVersion, u64)>,
    /// Denials that were answered from the cache, and those that were reported.
    counted: u64,
    reported: u64,
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World {
        now_us: 1_000_000,
        ..World::default()
    };
    while !input.is_empty() {
        // Shorter than most certificates last.
        world.now_us += 1_000 * u64::from(input.byte());
        match input.byte() % 8 {
            0..=2 => world.send(&mut input),
            3 => world.answer(&mut input),
            4 => world.epochs[input.below(SIDECARS)] += 1,
            5 => world.report(input.flag()),
            _ => world.ask(&mut input),
        }
    }
    world.report(true);
    assert_eq!(world.reported, world.counted);
}

impl World {
    fn send(&mut self, input: &mut Input<'_>) {
        let question = question(input);
        let sidecar = input.below(SIDECARS);
        let version = PolicyVersion {
            instance: sidecar as u64 + 1,
            epoch: self.epochs[sidecar],
        };
        let verdicts = (0..question.decisions()).map(|_| verdict(input));
        self.asked.push(question.clone());
        self.calls.push(Call {
            sent_us: self.now_us,
            version,
            verdicts: verdicts.collect(),
            question,
        });
    }

    /// One of the calls is answered; later ones may have been before.
    fn answer(&mut self, input: &mut Input<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let index = input.below(self.calls.len().min(256));
        let call = self.calls.swap_remove(index);
        let times = times(call.sent_us, self.now_us);
        let decided = decisions(&call.question).into_iter().zip(&call.verdicts);
        for (checks, verdict) in decided {
            if let Verdict::Denied(status) = verdict {
                let hold_us = status.hold_ms.min(MAX_HOLD_MS) * 1_000;
                let until_us = call.sent_us.saturating_add(hold_us);
                self.denied.push((checks, call.version, until_us));
            }
        }
        let told = self.told.entry(call.version.instance).or_default();
        *told = (*told).max(call.version.epoch);
        let most_ms = self.cache.answered(call.version, None, times);
        self.cache
            .learn(&call.question, most_ms, &call.verdicts, times);
    }

    fn ask(&mut self, input: &mut Input<'_>) {
        // Often one that was asked before, or hardly any would be covered.
        let question = match input.byte() {
            known if known & 1 == 1 && !self.asked.is_empty() => {
                let index = usize::from(known >> 1) % self.asked.len();
                self.asked[index].clone()
            }
            _ => question(input),
        };
        let Some(verdicts) = self.cache.covering(&question, self.now_us) else {
            return;
        };
        assert_eq!(verdicts.len(), question.decisions());
        for (checks, verdict) in decisions(&question).into_iter().zip(&verdicts) {
            let Verdict::Denied(status) = verdict else {
                panic!("{verdict:?}");
            };
            assert!(status.retry_after_ms > 0 && status.check < checks.len());
            let is_right = self.denied.iter().any(|(denied, version, until_us)| {
                let newest = self.told[&version.instance];
                *denied == checks && version.epoch >= newest && self.now_us < *until_us
            });
            assert!(is_right, "{checks:?} at {}", self.now_us);
        }
        self.counted += verdicts.len() as u64;
    }

    /// A callout with the report arrives or fails.
    fn report(&mut self, arrives: bool) {
        let report: Vec<CachedDenials<'_>> = self.cache.report();
        assert!(report.len() <= 129);
        assert!(!self.cache.has_report());
        if arrives {
            self.reported += report.iter().map(|denied| denied.count).sum::<u64>();
        } else {
            self.cache.put_back(report);
        }
    }
}

/// The checks of each decision, as rules number them: a shadow rule's are a decision of their own.
fn decisions(question: &Question) -> Vec<Vec<ResolvedCheck>> {
    let enforced = (!question.checks.is_empty()).then(|| question.checks.clone());
    let shadows = question.shadows.iter().map(|shadow| shadow.checks.clone());
    enforced.into_iter().chain(shadows).collect()
}

fn question(input: &mut Input<'_>) -> Question {
    let bits = input.byte();
    let check = |rule: usize, bits: u8| ResolvedCheck {
        reserved: None,
        rule,
        limit: 0,
        key: format!("{}{}", if rule == 1 { "shadow" } else { "k" }, bits & 3),
        cost: 1 + u64::from(bits >> 2 & 1),
        quota: (bits >> 3 & 1 == 1).then_some(5),
    };
    let mut checks = vec![check(0, bits)];
    if bits >> 4 & 1 == 1 {
        checks.push(check(0, input.byte()));
    }
    let shadow = |bits| Shadow {
        rule: 1,
        checks: vec![check(1, bits)],
    };
    if bits >> 5 & 3 == 3 {
        checks.clear();
    }
    let shadow = (bits >> 5 & 1 == 1).then(|| shadow(bits));
    question_of(
        REAL_AND_TRIAL.with(Rc::clone),
        checks,
        shadow.into_iter().collect(),
    )
}

fn verdict(input: &mut Input<'_>) -> Verdict<'static> {
    let kind = input.byte();
    let status = LimitStatus {
        check: usize::from(kind >> 6 & 1),
        limit: "l".into(),
        quota: 5,
        window_ms: 60_000,
        remaining: 0,
        over: 0,
        reset_ms: 60_000,
        retry_after_ms: 60_000,
        until_changed: false,
        at_once: false,
        calendar: None,
        hold_ms: 500 * u64::from(input.byte()),
        unknown: Vec::new(),
        receipt: Vec::new(),
    };
    match kind % 8 {
        0 => Verdict::Admitted(status),
        1 => Verdict::Unavailable { then: None },
        _ => Verdict::Denied(status),
    }
}
