//! Sidecars with leases on one key, in virtual time, on both stores: they have the real pools (`sluicegate_engine::lease`). Their
//! calls take time, are lost, and arrive late; they crash; the store's clock steps, which sidecars notice or not. Each has two
//! filters, which spend parts of its leases (`lease_filters.rs`).

use std::collections::BTreeMap;

use sluicegate_engine::lease::{LeaseTerms, Pool};
use sluicegate_engine::{Bucket, BucketSpec};
use sluicegate_protocol::LeasePart;

use super::lease_filters::{FILTERS, Filter, Lent};
use super::made::numbered;
use super::receipts::Stores;

pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000_000;
/// The store's clock when a world begins; a sidecar's clock has another zero.
pub const START_US: u64 = 1_790_000_000_000_000;
pub const SIDECARS: usize = 3;
/// Ten times what a policy would say, as all times here: a key's real expiry must not come into a world, which takes a second.
pub const TERMS: LeaseTerms = LeaseTerms {
    longest_us: SECOND,
    most: 1_000,
    from_per_s: 5,
};
/// How fast the pools' averages forget.
pub const MEMORY_US: f64 = 250_000.0;

/// What the three sidecars are asked for.
#[derive(Clone, Debug, Default)]
pub struct World {
    pub windows: Vec<BucketSpec>,
    pub phases: Vec<Phase>,
    /// Crashes: a sidecar at a time in percent of the whole.
    pub crashes: Vec<(usize, u64)>,
    /// Steps of the store's clock: how far, at a time in percent of the whole.
    pub steps: Vec<(i64, u64)>,
    /// Whether sidecars end their leases when an answer shows a step, as the real ones do.
    pub noticed: bool,
    pub seed: u64,
}

/// A time of steady load, or of bursts.
#[derive(Clone, Debug)]
pub struct Phase {
    pub for_ms: u64,
    /// Requests a second, for each sidecar.
    pub rates: [u64; SIDECARS],
    /// Requests that arrive at once.
    pub at_once: u64,
    pub cost: u64,
}

/// What happens then. If it is a sidecar's own, with that sidecar and in which of its lives: it is dropped if that has ended.
pub type Planned = (Option<(usize, u32)>, Box<dyn FnOnce(&mut Run<'_>)>);

#[derive(Debug)]
pub struct Sidecar {
    pub pool: Pool<u128>,
    /// Its clock is ahead of real time by this.
    pub zero_us: u64,
    /// Counts its crashes: its own events of an earlier life are dropped.
    pub life: u32,
    pub granted: u64,
    pub spent: u64,
    pub returned: u64,
    /// The steps of the store's clock that it has noticed.
    pub steps: u64,
    /// Units taken for mixed decisions.
    pub tentative: u64,
    pub filters: [Filter; FILTERS],
    /// What it has lent to filters.
    pub parts: BTreeMap<u64, Lent>,
}

/// What a world showed.
#[derive(Debug, Default)]
pub struct Seen {
    pub leased: u64,
    pub by_filters: u64,
    pub by_store: u64,
    pub denials: u64,
    pub most_idle: u64,
    /// The most units held by all, and the largest part of the bound that this was, in percent.
    pub most_held: u64,
    pub most_of_bound: u64,
    /// By how much a window was over, after a step of the store's clock.
    pub most_over: u64,
}

impl Seen {
    pub fn add(&mut self, more: &Seen) {
        self.leased += more.leased;
        self.by_filters += more.by_filters;
        self.by_store += more.by_store;
        self.denials += more.denials;
        self.most_idle = self.most_idle.max(more.most_idle);
        self.most_held = self.most_held.max(more.most_held);
        self.most_of_bound = self.most_of_bound.max(more.most_of_bound);
        self.most_over = self.most_over.max(more.most_over);
    }
}

pub struct Run<'a> {
    pub stores: &'a mut Stores,
    pub world: &'a World,
    pub buckets: Vec<Bucket>,
    pub subject: String,
    pub now: u64,
    /// The store's clock is ahead of real time by this.
    pub store_ahead: u64,
    /// The steps of the store's clock so far, and what was held in leases or on its way to their owners then.
    pub steps: u64,
    pub held_at_steps: u64,
    pub in_flight: u64,
    pub sidecars: Vec<Sidecar>,
    /// By time, and of one time in the order in which they were planned.
    pub queue: BTreeMap<(u64, u64), Planned>,
    pub number: u64,
    pub secrets: u128,
    /// Parts on their way to filters, by callout.
    pub answers: BTreeMap<u64, Vec<LeasePart<'static>>>,
    /// Real time and store's time of each admission, and its units.
    pub admitted: Vec<(u64, u64, u64)>,
    /// Everything that was asked for: real time, units, and the units so far weighted by their age then.
    pub asked: Vec<(u64, u64, f64)>,
    pub seen: Seen,
}

pub fn new_run<'a>(stores: &'a mut Stores, world: &'a World) -> Run<'a> {
    let subject = "hot".to_owned();
    let sidecar = |zero_us| Sidecar {
        pool: Pool::new(TERMS),
        zero_us,
        life: 0,
        granted: 0,
        spent: 0,
        returned: 0,
        steps: 0,
        tentative: 0,
        filters: std::array::from_fn(|_| Filter::new()),
        parts: BTreeMap::new(),
    };
    Run {
        stores,
        buckets: numbered(&subject, world.windows.iter().copied()),
        subject,
        world,
        now: SECOND,
        store_ahead: START_US,
        steps: 0,
        held_at_steps: 0,
        in_flight: 0,
        sidecars: [7, 12_345_678, 3 * SECOND].map(sidecar).into(),
        queue: BTreeMap::new(),
        number: 0,
        secrets: 0,
        answers: BTreeMap::new(),
        admitted: Vec::new(),
        asked: Vec::new(),
        seen: Seen::default(),
    }
}

pub fn run(stores: &mut Stores, world: &World) -> Seen {
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
                    let filter = usize::try_from(run.random(3)).expect("a small number");
                    let (filter, cost) = ((filter < FILTERS).then_some(filter), phase.cost);
                    run.later(at, move |run| run.ask(sidecar, filter, cost, mixed));
                }
                at += step.max(1) / 2 + run.random(step.max(1));
            }
        }
        begins += phase.for_ms * MS;
    }
    for at in (0..begins).step_by(250 * MS as usize) {
        (0..SIDECARS).for_each(|sidecar| run.later(at, move |run| run.tell(sidecar)));
    }
    for &(sidecar, percent) in &world.crashes {
        // At another time one of its filters does.
        let filter = usize::from(percent % 2 == 0);
        run.later(begins / 100 * percent, move |run| run.crash(sidecar));
        let at = begins / 100 * (100 - percent);
        run.later(at, move |run| run.filter_crash(sidecar, filter));
    }
    for &(us, percent) in &world.steps {
        run.later(begins / 100 * percent, move |run| run.step(us));
    }
    while let Some(((at, _), (whose, event))) = run.queue.pop_first() {
        run.now = at;
        if whose.is_none_or(|(sidecar, life)| run.sidecars[sidecar].life == life) {
            event(&mut run);
        }
    }
    run.now += 2 * SECOND;
    for sidecar in 0..SIDECARS {
        run.collect(sidecar);
    }
    run.now += 4 * SECOND;
    for sidecar in 0..SIDECARS {
        run.forget_parts(sidecar);
    }
    run.check_never_over();
    run.check_every_unit();
    run.seen
}
