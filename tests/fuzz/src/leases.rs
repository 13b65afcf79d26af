//! Leases in the filter: whatever a sidecar lends and in whatever order answers, failures and clients that hang up come, the
//! filter spends no unit that is not lent, none after its end or under another policy, and tells the sidecar of each one
//! that it spent, once.

use std::collections::BTreeMap;
use std::rc::Rc;

use sluicegate_protocol::{LeasePart, MAX_COST, MAX_PARTS, PolicyVersion, read_decisions};
use sluicegate_rules::{
    LeaseReport, Leases, Question, ResolvedCheck, Shadow, Taken, question_body,
};

use crate::input::Input;
use crate::{REAL_AND_TRIAL, question_of, times};

const KEYS: [&str; 3] = ["a", "b", "c"];
/// The longest `lease.longest` that a policy may have.
const LONGEST_US: u64 = 10_000_000;

/// A part, as the sidecar knows it.
struct Lent {
    key: usize,
    units: u64,
    ends_us: u64,
    version: PolicyVersion,
    /// The newest total that it was told.
    told: u64,
    /// How often it was told of its end by callouts that were answered.
    ended: u32,
}

/// A callout on its way.
struct Call {
    sent_us: u64,
    version: PolicyVersion,
    report: LeaseReport,
}

#[derive(Default)]
struct World {
    leases: Leases,
    now_us: u64,
    version: PolicyVersion,
    lent: BTreeMap<u64, Lent>,
    calls: Vec<Call>,
    /// Requests that wait for the rest of their verdict.
    waiting: Vec<(Question, Taken)>,
    /// Units spent, by key.
    spent: [u128; KEYS.len()],
}

pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut world = World {
        now_us: 1_000_000,
        ..World::default()
    };
    for _ in 0..300 {
        if input.is_empty() {
            break;
        }
        world.now_us += input.microseconds();
        match input.byte() % 12 {
            0..=3 => world.request(&mut input),
            4 => world.conclude(&mut input),
            5 | 6 => world.call(input.flag()),
            7..=9 => world.answer(&mut input),
            10 => world.fail(&mut input),
            _ => match input.byte() % 8 {
                0 => world.version.instance += 1,
                _ => world.version.epoch += 1,
            },
        }
    }
    world.end(&mut input);
}

impl World {
    fn request(&mut self, input: &mut Input<'_>) {
        let question = question(input);
        let (now_us, stay_us) = (self.now_us, input.microseconds());
        let leases = &mut self.leases;
        let taken = leases.take(&question, now_us, stay_us);
        let checks = taken_checks(&question, &taken);
        for check in &checks {
            let key = key_index(check);
            let live = self.lent.values().filter(|part| part.key == key);
            let mut live = live.filter(|part| self.now_us < part.ends_us);
            assert!(
                live.any(|part| check.cost <= part.units),
                "{check:?} is not lent"
            );
            assert!(check.quota.is_none() && check.cost > 0);
        }
        assert_eq!(taken.is_empty(), checks.is_empty());
        if taken.covers_enforced(&question) {
            self.spend(&question, &taken);
        } else {
            self.waiting.push((question, taken));
        }
    }

    /// A request's verdict arrives or does not, or its client hangs up.
    fn conclude(&mut self, input: &mut Input<'_>) {
        if self.waiting.is_empty() {
            return;
        }
        let index = input.below(self.waiting.len());
        let (question, taken) = self.waiting.swap_remove(index);
        let (now_us, leases) = (self.now_us, &mut self.leases);
        let live = leases.is_live(&question, &taken, now_us);
        if input.flag() && live {
            self.spend(&question, &taken);
        } else {
            self.leases.put_back(&question, &taken);
        }
    }

    fn spend(&mut self, question: &Question, taken: &Taken) {
        let (now_us, leases) = (self.now_us, &mut self.leases);
        let live = leases.is_live(question, taken, now_us);
        assert!(live, "it is spent after its end");
        self.leases.spend(question, taken);
        for check in taken_checks(question, taken) {
            let key = key_index(check);
            self.spent[key] += u128::from(check.cost);
            let lent = self.lent.values().filter(|part| part.key == key);
            let lent: u128 = lent.map(|part| u128::from(part.units)).sum();
            assert!(self.spent[key] <= lent, "more is spent than was lent");
            // Whatever took it: some part of the newest policy that this sidecar has told of.
            let newest = self.newest(key);
            let live = |part: &&Lent| part.key == key && now_us < part.ends_us;
            let mut live = self.lent.values().filter(live);
            assert!(live.any(newest), "of an earlier policy, or ended");
        }
    }

    /// Whether a part's policy has not been replaced by a later one of the same sidecar.
    fn newest(&self, key: usize) -> impl Fn(&Lent) -> bool {
        let of_key = self.lent.values().filter(move |part| part.key == key);
        let versions: Vec<_> = of_key.map(|part| part.version).collect();
        move |part| {
            let PolicyVersion { instance, epoch } = part.version;
            let mut same = versions.iter().filter(|v| v.instance == instance);
            same.all(|v| v.epoch <= epoch)
        }
    }

    fn call(&mut self, renew: bool) {
        let report = self.leases.report(self.now_us, renew);
        assert!(report.parts.len() <= MAX_PARTS);
        assert!(renew || !report.asks());
        self.calls.push(Call {
            sent_us: self.now_us,
            version: self.version,
            report,
        });
    }

    fn answer(&mut self, input: &mut Input<'_>) {
        if self.calls.is_empty() {
            self.call(input.flag());
        }
        let call = self.calls.swap_remove(input.below(self.calls.len()));
        self.told(&call.report);
        let mut parts = Vec::new();
        for _ in 0..input.below(4) {
            let key = input.below(KEYS.len());
            let part = part(self.lent.len() as u64 + 1, key, input);
            let lent = Lent {
                key,
                units: part.units.min(MAX_COST),
                ends_us: call.sent_us.saturating_add(part.lasts_us.min(LONGEST_US)),
                version: call.version,
                told: 0,
                ended: 0,
            };
            self.lent.insert(part.id, lent);
            parts.push(part);
        }
        let (times, version) = (times(call.sent_us, self.now_us), call.version);
        self.leases.answered(call.report, version, &parts, times);
    }

    /// What the sidecar reads in a callout.
    fn told(&mut self, report: &LeaseReport) {
        for part in &report.parts {
            let lent = self.lent.get_mut(&part.id).expect("a part that was lent");
            assert!(part.spent <= lent.units, "{part:?}");
            assert!(part.decisions <= part.spent, "{part:?}");
            lent.told = lent.told.max(part.spent);
            lent.ended += u32::from(part.ended);
            assert!(lent.ended <= 1, "{part:?} ends twice");
        }
    }

    fn fail(&mut self, input: &mut Input<'_>) {
        if self.calls.is_empty() {
            return;
        }
        let call = self.calls.swap_remove(input.below(self.calls.len()));
        self.leases.failed(call.report, self.now_us);
    }

    /// Everything ends, and the sidecar hears of it.
    fn end(mut self, input: &mut Input<'_>) {
        while !self.waiting.is_empty() {
            self.conclude(input);
        }
        while let Some(call) = self.calls.pop() {
            self.leases.failed(call.report, self.now_us);
        }
        self.now_us += LONGEST_US;
        let mut rounds = 0;
        while self.leases.has_report(self.now_us) || !self.leases.is_empty() {
            self.now_us += LONGEST_US;
            rounds += 1;
            let leases = &self.leases;
            assert!(
                rounds < 100,
                "the timer looks at leases for ever: {leases:?}"
            );
            let report = self.leases.report(self.now_us, false);
            self.told(&report);
            let times = times(self.now_us, self.now_us);
            self.leases.answered(report, self.version, &[], times);
        }
        let mut told = [0; KEYS.len()];
        for part in self.lent.values() {
            assert_eq!(part.ended, 1, "the sidecar would count all of it as spent");
            told[part.key] += u128::from(part.told);
        }
        assert_eq!(told, self.spent);
    }
}

fn key_index(check: &ResolvedCheck) -> usize {
    let index = KEYS.iter().position(|key| *key == check.key);
    index.expect("one of the keys")
}

/// The checks that the sidecar is not asked for.
fn taken_checks<'q>(question: &'q Question, taken: &Taken) -> Vec<&'q ResolvedCheck> {
    let body = question_body([(question, taken)], &[], Vec::new(), None);
    let read = read_decisions(&body).expect("a body");
    assert_eq!(read.decisions.len(), taken.decisions_to_ask(question));
    let is_asked = !question.checks.is_empty() && !taken.covers_enforced(question);
    let enforced = read.decisions.first().filter(|_| is_asked);
    let asked = enforced.map(|one| one.as_ref().expect("a decision"));
    let mut asked = asked.iter().flat_map(|one| &one.checks).peekable();
    // Both are in the question's order.
    let mut taken: Vec<_> = question.checks.iter().collect();
    taken.retain(|check| {
        let check = (check.key.as_str(), check.cost, check.quota);
        let same = asked.next_if(|one| (&*one.key, one.cost, one.quota) == check);
        same.is_none()
    });
    assert!(asked.next().is_none(), "another check is asked for");
    taken
}

fn question(input: &mut Input<'_>) -> Question {
    let of = |rule, key: &str, cost, quota| ResolvedCheck {
        reserved: None,
        rule,
        limit: 0,
        key: key.to_owned(),
        cost,
        quota,
    };
    let check = |input: &mut Input<'_>| {
        let (key, cost) = (input.pick(&KEYS), input.up_to(MAX_COST));
        of(0, key, cost, (input.byte() % 8 == 7).then_some(5))
    };
    let first = check(input);
    let mut checks = input.list(3, check);
    checks.push(first);
    // A question names a limit and key once.
    let mut known = Vec::new();
    checks.retain(|check| {
        let new = !known.contains(&check.key);
        known.push(check.key.clone());
        new
    });
    let shadow = (input.byte() % 8 == 7).then(|| Shadow {
        rule: 1,
        checks: vec![of(1, "shadow", 1, None)],
    });
    question_of(
        REAL_AND_TRIAL.with(Rc::clone),
        checks,
        shadow.into_iter().collect(),
    )
}

fn part(id: u64, key: usize, input: &mut Input<'_>) -> LeasePart<'static> {
    LeasePart {
        id,
        limit: "l".into(),
        key: KEYS[key].into(),
        units: input.number(),
        lasts_us: match input.byte() % 8 {
            7 => input.number(),
            _ => 1_000 * u64::from(input.byte()),
        },
        quota: input.number(),
        window_ms: input.number(),
        remaining: input.number(),
        reset_ms: input.number(),
    }
}
