//! Leases of several sidecars on one key, in virtual time, on both stores: nothing is ever over, what lies idle elsewhere when
//! the store denies is within the published bound, and every unit is accounted for.
//!
//! The sidecars here have the real pools (`sluicegate_engine::lease`); their calls take time, are lost, and arrive late; they
//! crash; the store's clock steps back, and no sidecar notices.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use sluicegate_engine::lease::{Grant, LeaseTerms, Pool, reserve};
use sluicegate_engine::{
    Algorithm, Batch, Bucket, BucketSpec, Decision, Outcome, Receipt, Return, Returns, Take,
    receipt_key,
};

use crate::receipts::Stores;

const MS: u64 = 1_000;
const SECOND: u64 = 1_000_000;
/// The store's clock when a world begins; a sidecar's clock has another zero.
const START_US: u64 = 1_790_000_000_000_000;
const SIDECARS: usize = 3;
/// Ten times what a policy would say, as all times here: a key's real expiry must not come into a world, which takes a second.
const TERMS: LeaseTerms = LeaseTerms {
    longest_us: SECOND,
    most: 1_000,
    from_per_s: 5,
};
/// How fast the pools' averages forget.
const MEMORY_US: f64 = 250_000.0;

/// What the three sidecars are asked for.
#[derive(Clone, Debug)]
struct World {
    windows: Vec<BucketSpec>,
    phases: Vec<Phase>,
    /// Crashes: a sidecar at a time in percent of the whole.
    crashes: Vec<(usize, u64)>,
    /// Steps back of the store's clock: how far, at a time in percent of the whole.
    steps: Vec<(u64, u64)>,
    seed: u64,
}

/// A time of steady load, or of bursts.
#[derive(Clone, Debug)]
struct Phase {
    for_ms: u64,
    /// Requests a second, for each sidecar.
    rates: [u64; SIDECARS],
    /// Requests that arrive at once.
    at_once: u64,
    cost: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A request. A mixed one waits for the store's answer about another check.
    Request {
        cost: u64,
        mixed: bool,
    },
    /// That answer: the units of this lease are spent or put back.
    Resolve {
        lease: u64,
        ends_us: u64,
        units: u64,
        secret: u128,
        admitted: bool,
    },
    /// The keeper decides what to ask for.
    Plan,
    /// Its call runs in the store.
    Run {
        units: u64,
        sent_us: u64,
    },
    /// Its answer arrives.
    Granted {
        units: u64,
        sent_us: u64,
        secret: u128,
        outcome: (bool, u64, u64),
    },
    /// The keeper returns what has ended.
    Collect,
    Crash,
    Back {
        us: u64,
    },
}

/// When an event happens, its number among those of that time, whose it is, and in which of its lives.
type Planned = (u64, u64, usize, u32, Event);

#[derive(Debug)]
struct Sidecar {
    pool: Pool<u128>,
    /// Its clock is ahead of real time by this.
    zero_us: u64,
    /// Counts its crashes: events of an earlier life are dropped.
    life: u32,
    granted: u64,
    spent: u64,
    returned: u64,
    /// Units taken for mixed decisions.
    tentative: u64,
}

/// What a world showed.
#[derive(Debug, Default)]
struct Seen {
    leased: u64,
    by_store: u64,
    denials: u64,
    most_idle: u64,
    /// The most units held by all, and the largest part of the bound that this was, in percent.
    most_held: u64,
    most_of_bound: u64,
}

struct Run<'a> {
    stores: &'a mut Stores,
    world: &'a World,
    buckets: Vec<Bucket>,
    subject: String,
    now: u64,
    /// The store's clock is ahead of real time by this.
    store_ahead: u64,
    sidecars: Vec<Sidecar>,
    queue: BinaryHeap<Reverse<Planned>>,
    number: u64,
    secrets: u128,
    /// Real time and store's time of each admission, and its units.
    admitted: Vec<(u64, u64, u64)>,
    /// Everything that was asked for: real time, units, and the units so far weighted by their age then.
    asked: Vec<(u64, u64, f64)>,
    seen: Seen,
}

impl Run<'_> {
    fn random(&mut self, below: u64) -> u64 {
        // xorshift: the world's seed decides all of it.
        self.number += 1;
        let mut x = self.world.seed ^ self.number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        x ^= x >> 30;
        x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x ^= x >> 27;
        x % below
    }

    fn after(&mut self, sidecar: usize, in_us: u64, event: Event) {
        self.number += 1;
        let life = self.sidecars[sidecar].life;
        let at = self.now + in_us;
        self.queue
            .push(Reverse((at, self.number, sidecar, life, event)));
    }

    /// A sidecar's clock.
    fn clock(&self, sidecar: usize) -> u64 {
        self.now + self.sidecars[sidecar].zero_us
    }

    fn store_us(&self) -> u64 {
        self.now + self.store_ahead
    }

    fn decide(&mut self, cost: u64, secret: Option<u128>) -> Outcome {
        let takes = 0..self.buckets.len();
        let receipt = secret.map(|secret| Receipt {
            key: receipt_key(&self.subject, "l", secret),
            units: cost,
            lifetime_us: 600 * SECOND,
        });
        let batch = Batch {
            buckets: self.buckets.clone(),
            decisions: vec![Decision {
                takes: takes.map(|bucket| Take { bucket, cost }).collect(),
                peek: false,
                receipts: receipt.into_iter().collect(),
            }],
        };
        self.stores.decide(self.store_us(), &batch)[0]
    }

    fn give_back(&mut self, secret: u128, units: u64) {
        let returns = Returns {
            buckets: self.buckets.clone(),
            returns: vec![Return {
                receipt: receipt_key(&self.subject, "l", secret),
                units,
                buckets: (0..self.buckets.len()).collect(),
            }],
        };
        self.stores.give(self.store_us(), &returns);
    }

    fn admit(&mut self, units: u64) {
        self.admitted.push((self.now, self.store_us(), units));
    }

    fn request(&mut self, sidecar: usize, cost: u64, mixed: bool) {
        let now_us = self.clock(sidecar);
        let weight = self.weight_at(self.asked.len(), self.now) + cost as f64;
        self.asked.push((self.now, cost, weight));
        let stay_us = if mixed { 20 * MS } else { 0 };
        let one = &mut self.sidecars[sidecar];
        let taken = one.pool.take(now_us, cost, stay_us);
        let taken = taken.map(|taken| (taken.lease, taken.ends_us, *taken.tag));
        match taken {
            Some((lease, ends_us, secret)) if mixed => {
                one.tentative += cost;
                let (in_us, admitted) = (self.random(60 * MS), self.random(4) > 0);
                let units = cost;
                let event = Event::Resolve {
                    lease,
                    ends_us,
                    units,
                    secret,
                    admitted,
                };
                self.after(sidecar, in_us, event);
            }
            Some(_) => {
                one.spent += cost;
                self.seen.leased += cost;
                self.admit(cost);
            }
            None => self.ask_store(sidecar, cost),
        }
        self.wish(sidecar);
    }

    fn ask_store(&mut self, sidecar: usize, cost: u64) {
        let outcome = self.decide(cost, None);
        let pool = &mut self.sidecars[sidecar].pool;
        pool.note_remaining(outcome.remaining);
        if outcome.admitted {
            self.seen.by_store += cost;
            self.admit(cost);
            return;
        }
        self.seen.denials += 1;
        self.check_idle(sidecar, cost);
        let now_us = self.clock(sidecar);
        let pool = &mut self.sidecars[sidecar].pool;
        if pool.held() > 0 && outcome.remaining + pool.held() >= cost {
            pool.end_all();
            pool.refused(now_us);
            self.after(sidecar, 0, Event::Collect);
        }
    }

    /// 2 x D x L: D is how many units a second the fleet was asked for, on the average of a quarter of a second, at some time
    /// in the last L.
    fn bound(&self) -> u64 {
        let since = self.now.saturating_sub(TERMS.longest_us);
        let first = self.first_asked(since);
        let weights = self.asked[first..].iter().map(|(.., weight)| *weight);
        let rate = weights.fold(self.weight_at(first, since), f64::max) * 1e6 / MEMORY_US;
        (2.0 * rate * TERMS.longest_us as f64 / 1e6) as u64
    }

    /// The first request since a time.
    fn first_asked(&self, since: u64) -> usize {
        self.asked.partition_point(|(at, ..)| *at < since)
    }

    /// Units that sidecars hold.
    fn held(&self, sidecars: impl Iterator<Item = usize>) -> u64 {
        let of = |sidecar: usize| {
            let one = &self.sidecars[sidecar];
            one.pool.held() + one.tentative
        };
        sidecars.map(of).sum()
    }

    /// When the store denies, what is idle elsewhere is within the bound. And unless demand is more than twice the limit's own
    /// rate, every lease has ended.
    fn check_idle(&mut self, denied: usize, cost: u64) {
        let others = (0..SIDECARS).filter(|other| *other != denied);
        let (idle, bound) = (self.held(others.clone()), self.bound());
        assert!(
            idle <= bound,
            "{idle} units are idle elsewhere, over {bound}"
        );
        self.seen.most_idle = self.seen.most_idle.max(idle);
        let since = self.now.saturating_sub(TERMS.longest_us);
        let recent = &self.asked[self.first_asked(since)..];
        let asked: u64 = recent.iter().map(|(_, units, _)| units).sum();
        let of_rate = |spec: &BucketSpec| 2 * TERMS.longest_us * spec.quota / spec.window_us;
        let twice_the_rate = self.world.windows.iter().map(of_rate).max().unwrap_or(0);
        if asked.max(cost) <= twice_the_rate && self.world.steps.is_empty() {
            for other in others {
                let dry = self.sidecars[other].pool.is_dry(self.clock(other));
                assert!(dry, "sidecar {other} still holds a lease at a denial");
            }
        }
    }

    /// The units of the first so many requests, weighted by their age at a time.
    fn weight_at(&self, requests: usize, at: u64) -> f64 {
        let last = requests.checked_sub(1).map(|last| self.asked[last]);
        last.map_or(0.0, |(asked, _, weight)| {
            weight * (-((at - asked) as f64) / MEMORY_US).exp()
        })
    }

    fn wish(&mut self, sidecar: usize) {
        let now_us = self.clock(sidecar);
        let pool = &mut self.sidecars[sidecar].pool;
        if pool.wants_lease(now_us) {
            pool.asked();
            let in_us = self.random(20 * MS);
            self.after(sidecar, in_us, Event::Plan);
        }
    }

    fn handle(&mut self, sidecar: usize, event: Event) {
        let now_us = self.clock(sidecar);
        let one = &mut self.sidecars[sidecar];
        match event {
            Event::Request { cost, mixed } => self.request(sidecar, cost, mixed),
            Event::Resolve {
                lease,
                ends_us,
                units,
                secret,
                admitted,
            } => {
                one.tentative -= units;
                if admitted && now_us < ends_us {
                    one.spent += units;
                    self.seen.leased += units;
                    self.admit(units);
                } else if !one.pool.put_back(lease, units) {
                    one.returned += units;
                    self.give_back(secret, units);
                }
            }
            Event::Plan => {
                // What a sidecar knows of the store's clock may be early.
                let late_us = self.random(5 * MS);
                let store_us = Some(self.store_us() - late_us);
                let pool = &mut self.sidecars[sidecar].pool;
                match pool.ask(&self.world.windows, now_us, store_us) {
                    Ok(units) => {
                        let in_us = self.random(15 * MS);
                        self.after(
                            sidecar,
                            in_us,
                            Event::Run {
                                units,
                                sent_us: now_us,
                            },
                        );
                    }
                    Err(_) => pool.refused(now_us),
                }
            }
            Event::Run { units, sent_us } => {
                self.secrets += 1;
                let secret = self.secrets;
                let outcome = self.decide(units, Some(secret));
                if self.random(20) == 0 {
                    // The answer is lost: its units are for nobody.
                    self.sidecars[sidecar].pool.refused(now_us);
                    return;
                }
                let in_us = self.random(15 * MS);
                let outcome = (outcome.admitted, outcome.remaining, outcome.at_us);
                self.after(
                    sidecar,
                    in_us,
                    Event::Granted {
                        units,
                        sent_us,
                        secret,
                        outcome,
                    },
                );
            }
            Event::Granted {
                units,
                sent_us,
                secret,
                outcome: (admitted, remaining, at_us),
            } => {
                let length_us = TERMS.length_us(&self.world.windows, at_us);
                let ends_us = sent_us + length_us;
                if !admitted {
                    one.pool.refused(now_us);
                    one.pool.note_remaining(remaining);
                    return;
                }
                one.granted += units;
                if now_us >= ends_us || remaining < reserve(&TERMS, &self.world.windows) {
                    one.pool.refused(now_us);
                    one.pool.note_remaining(remaining);
                    one.returned += units;
                    self.give_back(secret, units);
                    return;
                }
                one.pool.granted(Grant {
                    units,
                    ends_us,
                    remaining,
                    tag: secret,
                });
                let (held, bound) = (self.held(0..SIDECARS), self.bound());
                assert!(held <= bound, "{held} units are held, over {bound}");
                self.seen.most_held = self.seen.most_held.max(held);
                self.seen.most_of_bound = self.seen.most_of_bound.max(100 * held / bound.max(1));
                let more_us = self.random(20 * MS);
                self.after(sidecar, ends_us - now_us + more_us, Event::Collect);
            }
            Event::Collect => {
                for ended in one.pool.ended(now_us) {
                    self.sidecars[sidecar].returned += ended.units;
                    if ended.units > 0 {
                        self.give_back(ended.tag, ended.units);
                    }
                }
            }
            Event::Crash => {
                one.life += 1;
                one.pool = Pool::new(TERMS);
                (one.granted, one.spent, one.returned, one.tentative) = (0, 0, 0, 0);
            }
            Event::Back { us } => self.store_ahead -= us,
        }
    }

    fn check_never_over(&self) {
        for spec in &self.world.windows {
            let mut sums: BTreeMap<u64, u64> = BTreeMap::new();
            let (mut first, mut sum) = (0, 0);
            for &(at, store_us, units) in &self.admitted {
                if spec.algorithm == Algorithm::FixedWindow {
                    *sums.entry(store_us / spec.window_us).or_default() += units;
                    continue;
                }
                sum += units;
                while self.admitted[first].0 + spec.window_us <= at {
                    sum -= self.admitted[first].2;
                    first += 1;
                }
                assert!(sum <= spec.quota, "{sum} of {} until {at}", spec.quota);
            }
            for (window, sum) in sums {
                assert!(
                    sum <= spec.quota,
                    "{sum} of {} in window {window}",
                    spec.quota
                );
            }
        }
    }

    fn check_every_unit(&self) {
        for (index, one) in self.sidecars.iter().enumerate() {
            let held = one.pool.held() + one.tentative;
            assert_eq!(
                one.granted,
                one.spent + one.returned + held,
                "sidecar {index}: {one:?}"
            );
            assert_eq!(held, 0, "sidecar {index} holds units after the end");
        }
    }
}

fn new_run<'a>(stores: &'a mut Stores, world: &'a World) -> Run<'a> {
    let subject = "hot".to_owned();
    let bucket = |(index, spec): (usize, &BucketSpec)| Bucket {
        key: format!("sg:{{{subject}}}:l:{index}"),
        spec: *spec,
    };
    let sidecar = |zero_us| Sidecar {
        pool: Pool::new(TERMS),
        zero_us,
        life: 0,
        granted: 0,
        spent: 0,
        returned: 0,
        tentative: 0,
    };
    Run {
        stores,
        buckets: world.windows.iter().enumerate().map(bucket).collect(),
        subject,
        world,
        now: SECOND,
        store_ahead: START_US,
        sidecars: [7, 12_345_678, 3 * SECOND].map(sidecar).into(),
        queue: BinaryHeap::new(),
        number: 0,
        secrets: 0,
        admitted: Vec::new(),
        asked: Vec::new(),
        seen: Seen::default(),
    }
}

fn run(stores: &mut Stores, world: &World) -> Seen {
    stores.start_again();
    let mut run = new_run(stores, world);
    let mut begins = 0;
    for phase in &world.phases {
        for (sidecar, rate) in phase.rates.into_iter().enumerate() {
            let step = SECOND * phase.at_once / rate.max(1);
            let mut at = begins + run.random(step.max(1));
            while at < begins + phase.for_ms * MS && rate > 0 {
                for _ in 0..phase.at_once {
                    let mixed = run.random(5) == 0;
                    let cost = phase.cost;
                    run.after(sidecar, at, Event::Request { cost, mixed });
                }
                at += step.max(1) / 2 + run.random(step.max(1));
            }
        }
        begins += phase.for_ms * MS;
    }
    for (sidecar, percent) in &world.crashes {
        run.after(*sidecar, begins / 100 * percent, Event::Crash);
    }
    for (us, percent) in &world.steps {
        run.after(0, begins / 100 * percent, Event::Back { us: *us });
    }
    while let Some(Reverse((at, _, sidecar, life, event))) = run.queue.pop() {
        run.now = at;
        // Requests, crashes and the clock are not a sidecar's own.
        let of_world = matches!(
            event,
            Event::Request { .. } | Event::Crash | Event::Back { .. }
        );
        if of_world || life == run.sidecars[sidecar].life {
            run.handle(sidecar, event);
        }
    }
    run.now += 2 * SECOND;
    for sidecar in 0..SIDECARS {
        run.handle(sidecar, Event::Collect);
    }
    run.check_never_over();
    run.check_every_unit();
    run.seen
}

fn sliding(quota: u64, window_us: u64, precision_us: u64) -> BucketSpec {
    BucketSpec {
        algorithm: Algorithm::SlidingWindow {
            precision_us,
            leased: true,
        },
        quota,
        window_us,
    }
}

fn windows(fixed: bool) -> impl Strategy<Value = Vec<BucketSpec>> {
    let quota = prop_oneof![100u64..300, 300u64..1_000];
    let sliding_one = (
        quota.clone(),
        15 * SECOND..40 * SECOND,
        900 * MS..7 * SECOND,
    )
        .prop_map(|(quota, window_us, precision_us)| sliding(quota, window_us, precision_us));
    let fixed_one = (quota, 4 * SECOND..12 * SECOND).prop_map(|(quota, window_us)| BucketSpec {
        algorithm: Algorithm::FixedWindow,
        quota,
        window_us,
    });
    if fixed {
        prop::collection::vec(fixed_one, 1..3).boxed()
    } else {
        prop::collection::vec(sliding_one, 1..3).boxed()
    }
}

fn phases() -> impl Strategy<Value = Vec<Phase>> {
    let rate = prop_oneof![1 => Just(0u64), 2 => 1u64..8, 5 => 8u64..60, 2 => 60u64..250];
    let rates = [rate.clone(), rate.clone(), rate];
    let at_once = prop_oneof![3 => Just(1u64), 1 => 2u64..40];
    let cost = prop_oneof![4 => Just(1u64), 1 => 2u64..9];
    let phase = (2_000u64..15_000, rates, at_once, cost);
    let phase = phase.prop_map(|(for_ms, rates, at_once, cost)| Phase {
        for_ms,
        rates,
        at_once,
        cost,
    });
    prop::collection::vec(phase, 2..5)
}

fn worlds(fixed: bool, steps_back: bool) -> impl Strategy<Value = World> {
    let steps = prop::collection::vec((1u64..5 * SECOND, 5u64..95), 1..4);
    let crashes = prop::collection::vec((0..SIDECARS, 5u64..95), 0..3);
    (windows(fixed), phases(), crashes, steps, any::<u64>()).prop_map(
        move |(windows, phases, crashes, steps, seed)| World {
            windows,
            phases,
            crashes,
            steps: if steps_back { steps } else { Vec::new() },
            seed,
        },
    )
}

/// Runs generated worlds; together they must have leased, asked the store, and met denials with units idle elsewhere.
fn run_all(worlds: impl Strategy<Value = World>) {
    let stores = std::cell::RefCell::new(Stores::start());
    let total = std::cell::RefCell::new(Seen::default());
    let config = Config {
        cases: 25,
        failure_persistence: None,
        max_shrink_iters: 30,
        ..Config::default()
    };
    let ran = TestRunner::new(config).run(&worlds, |world| {
        let seen = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run(&mut stores.borrow_mut(), &world)
        }));
        let seen = seen.map_err(|why| TestCaseError::fail(panic_text(&why)))?;
        let mut total = total.borrow_mut();
        total.leased += seen.leased;
        total.by_store += seen.by_store;
        total.denials += seen.denials;
        total.most_idle = total.most_idle.max(seen.most_idle);
        total.most_held = total.most_held.max(seen.most_held);
        total.most_of_bound = total.most_of_bound.max(seen.most_of_bound);
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
    let total = total.into_inner();
    println!("measured: {total:?}");
    assert!(total.leased > total.by_store / 2, "few leases: {total:?}");
    assert!(total.denials > 100 && total.most_idle > 0, "{total:?}");
}

fn panic_text(why: &Box<dyn std::any::Any + Send>) -> String {
    let text = why.downcast_ref::<String>().cloned();
    text.unwrap_or_else(|| "a panic".to_owned())
}

/// A lease that is spent in its last microsecond, in a store that is full all the time.
#[derive(Clone, Debug)]
struct LastMoment {
    precision_us: u64,
    window_us: u64,
    /// When the units are taken, in thousandths of a step.
    taken_at: u64,
    units: u64,
    /// The clock steps back by so much, so many thousandths of the lease's time after it was taken.
    step: Option<(u64, u64)>,
}

fn last_moments(steps_back: bool) -> impl Strategy<Value = LastMoment> {
    let step = (1u64..8 * SECOND, 0u64..1_000);
    (SECOND..3 * SECOND, 4u64..8, 0u64..1_000, 8u64..20, step).prop_map(
        move |(precision_us, steps, taken_at, units, step)| LastMoment {
            precision_us,
            window_us: precision_us * steps + 7,
            taken_at,
            units,
            step: steps_back.then_some(step),
        },
    )
}

fn spend_in_the_last_moment(stores: &mut Stores, moment: &LastMoment) {
    stores.start_again();
    let world = World {
        windows: vec![sliding(40, moment.window_us, moment.precision_us)],
        phases: Vec::new(),
        crashes: Vec::new(),
        steps: Vec::new(),
        seed: 0,
    };
    let mut run = new_run(stores, &world);
    let p = moment.precision_us;
    // The beginning of a step of the store, and a time in it.
    run.now = p - START_US % p + p / 1_000 * moment.taken_at + 1;
    let terms = LeaseTerms {
        longest_us: 10 * SECOND,
        ..TERMS
    };
    let outcome = run.decide(moment.units, Some(1));
    assert!(outcome.admitted);
    let length_us = terms.length_us(&world.windows, outcome.at_us);
    let mut pool = Pool::new(terms);
    pool.granted(Grant {
        units: moment.units,
        ends_us: run.now + length_us,
        remaining: outcome.remaining,
        tag: (),
    });
    let (begin, end) = (run.now, run.now + length_us);
    let step = moment
        .step
        .map(|(us, part)| (begin + length_us / 1_000 * part, us));
    let until = begin + 3 * moment.window_us;
    // Late by up to two steps, in case the pool lets units be spent then.
    let spends = [end.saturating_sub(1), end + 1, end + p / 2, end + 2 * p];
    let mut times: Vec<u64> = (0..)
        .map(|n| begin + n * p / 16)
        .take_while(|at| *at < until)
        .chain(spends.into_iter().filter(|at| *at >= begin))
        .chain(step.iter().map(|(at, _)| *at))
        .collect();
    times.sort_unstable();
    let mut stepped = false;
    for at in times {
        run.now = at;
        if let Some((_, us)) = step.filter(|(step_at, _)| *step_at <= at && !stepped) {
            run.store_ahead -= us;
            stepped = true;
        }
        // Half of it in its last moment. The other half is too late.
        let half = moment.units / 2;
        if spends.contains(&at) && pool.take(at, half, 0).is_some() {
            run.admit(half);
        }
        while run.decide(1, None).admitted {
            run.admit(1);
        }
    }
    run.check_never_over();
    let spent = run.admitted.iter().filter(|(.., units)| *units > 1).count();
    assert_eq!(spent, usize::from(length_us > 0), "the lease was spent");
}

fn check_last_moments(steps_back: bool) {
    let stores = std::cell::RefCell::new(Stores::start());
    let config = Config {
        cases: 40,
        failure_persistence: None,
        ..Config::default()
    };
    let ran = TestRunner::new(config).run(&last_moments(steps_back), |moment| {
        spend_in_the_last_moment(&mut stores.borrow_mut(), &moment);
        Ok(())
    });
    if let Err(failure) = ran {
        panic!("{failure}");
    }
}

#[test]
fn units_that_are_spent_in_the_last_moment_are_in_no_window_over() {
    check_last_moments(false);
}

#[test]
fn units_that_are_spent_after_the_clock_stepped_back_are_in_no_window_over() {
    check_last_moments(true);
}

#[test]
fn leases_are_never_over_and_idle_within_the_bound() {
    run_all(worlds(false, false));
}

#[test]
fn leases_of_fixed_windows_are_never_over() {
    run_all(worlds(true, false));
}

#[test]
fn leases_are_never_over_when_the_clock_steps_back() {
    run_all(worlds(false, true));
}
