//! A world from a seed: which features meet in it, and when.

mod limits;
mod written;

use sluicegate_engine::MAX_UNITS;

use super::determined;
use super::filter::WORKERS;
use super::script::{
    self, Algorithm, CONSUMERS, Check, Event, Grant, KEYS, Link, Policy, RENAMED, Way, World,
};
use super::settling::{Settling, Tells};
use limits::{at_once, changed, count_slots, enlarge, limit};
use written::{Sequence, asks};

/// Features that can meet.
pub const FEATURES: [&str; 21] = [
    "policies",
    "overrides",
    "resets",
    "receipts",
    "leases",
    "filters",
    "requests' quotas",
    "outages",
    "lost answers",
    "slow links",
    "clock steps",
    "restarts",
    "lost data",
    "fleets",
    "sets by route",
    "state folders",
    "refused keys",
    "bad callouts",
    "VMs that end",
    "settled rules",
    "slots",
];

/// How many of them chance chooses by number: a fleet is chosen by itself, so that the other worlds stay as they are.
const CHOSEN: u64 = 13;

/// The features of a world, by their number in [`FEATURES`].
pub fn features(world: &World) -> Vec<usize> {
    let mut has = [false; FEATURES.len()];
    (has[0], has[13]) = (world.policies.len() > 1, world.fleet);
    (has[14], has[15]) = (!world.second_set.is_empty(), world.keeps_state);
    (has[19], has[20]) = (world.settles.is_some(), world.has_slots());
    let mut limits = world.policies.iter().flatten().flatten();
    has[4] = limits.any(|limit| limit.lease_ms.is_some());
    for (_, event) in &world.events {
        match event {
            Event::Override { .. } => has[1] = true,
            Event::Reset { .. } => has[2] = true,
            Event::GiveBack { .. } => has[3] = true,
            Event::Ask { filter, checks, .. } => {
                has[5] |= *filter;
                has[6] |= checks.iter().any(|check| check.quota.is_some());
            }
            Event::Link { link, .. } => match link {
                Link::Cut => has[7] = true,
                Link::LosesAnswers => has[8] = true,
                Link::Slow(..) => has[9] = true,
                Link::RefusesHalf => has[16] = true,
                Link::Good => {}
            },
            Event::Clock { .. } => has[10] = true,
            Event::Restart { .. } | Event::Kill { .. } => has[11] = true,
            Event::LoseData => has[12] = true,
            Event::Callouts { .. } => has[17] = true,
            Event::EndVm { .. } => has[18] = true,
            _ => {}
        }
    }
    (0..FEATURES.len()).filter(|number| has[*number]).collect()
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, most: u64) -> u64 {
        determined::next(&mut self.0) % most.max(1)
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// A world that is being made.
struct Maker {
    seed: u64,
    chance: Chance,
    sidecars: usize,
    fleet: bool,
    policies: Vec<Policy>,
    /// Requests may be those of consumers.
    consumers: bool,
    settles: Option<Settling>,
    /// The filter chooses rule sets by the route.
    by_route: bool,
    keeps_state: bool,
    length_ms: u64,
    /// The key that most is about.
    busy: (usize, usize),
    /// The largest burst of an override.
    burst: u64,
    /// When outages begin.
    outages: Vec<u64>,
    /// When something happens: more does so near it.
    anchors: Vec<u64>,
    events: Vec<(u64, Event)>,
}

const LIMITS: u64 = script::LIMITS as u64;

/// The world of a seed.
pub fn generate(seed: u64) -> World {
    let mut chance = Chance(seed.wrapping_mul(0x5851_F42D_4C95_7F2D));
    // Few features in most worlds: what one excuses does not hide what others show.
    let mut on = [false; FEATURES.len()];
    let sequence = chance.one_in(5).then(|| chance.of(&Sequence::ALL));
    let others: &[u64] = match sequence {
        Some(_) => &[0, 0, 0, 1, 2],
        None => &[2, 2, 3, 3, 4, 5, 8],
    };
    for _ in 0..chance.of(others) {
        on[chance.below(CHOSEN) as usize] = true;
    }
    for feature in sequence.map_or(&[][..], Sequence::features) {
        on[*feature] = true;
    }
    let embedded = sequence.is_none() && chance.one_in(12);
    let fleet = sequence.is_none() && !embedded && Chance(seed ^ 0xF1EE7).one_in(4);
    if fleet {
        (on[0], on[5]) = (true, true);
        on[4] |= Chance(seed ^ 0x1EA5E).one_in(3);
    }
    let settles = sequence.is_none() && Chance(seed ^ 0x5E771E).one_in(4);
    let slots = sequence.is_none() && Chance(seed ^ 0x510_7500).one_in(4);
    on[5] |= settles || slots;
    let sidecars = match (embedded, sequence) {
        (true, _) => 1,
        _ if fleet => chance.between(2, 3) as usize,
        (_, Some(_)) => chance.between(2, 3) as usize,
        _ => chance.between(1, 3) as usize,
    };
    let (policies, overrides, resets, receipts) = (on[0], on[1], on[2], on[3]);
    let (leases, requests) = (on[4] && !embedded, on[6]);
    let busy = (chance.below(LIMITS), chance.below(KEYS as u64));
    let busy = (busy.0 as usize, busy.1 as usize);
    // A level is what the most features write.
    let tokens = (policies || overrides || leases || receipts) && chance.one_in(2);
    let first = (0..LIMITS).map(|number| {
        let tokens = tokens && number as usize == busy.0;
        Some(limit(&mut chance, leases, requests, busy.1, tokens))
    });
    let mut all: Vec<Policy> = vec![first.collect()];
    all[0].push(None);
    for _ in 0..if policies { chance.between(1, 3) } else { 0 } {
        let mut next = all[chance.below(all.len() as u64) as usize].clone();
        let which = if chance.one_in(3) {
            chance.below(LIMITS) as usize
        } else {
            busy.0
        };
        if fleet && chance.one_in(3) {
            next.swap(which, RENAMED);
            all.push(next);
            continue;
        }
        next[which] = match &next[which] {
            Some(before) => changed(&mut chance, before, leases),
            None => all[0][which].clone(),
        };
        all.push(next);
    }
    if sequence.is_none() && !settles && !slots && Chance(seed ^ 0x1A26E).one_in(8) {
        enlarge(&mut all);
    }
    // A few seconds or a minute before an edge of every window, of the day in one of the zones too.
    let midnight = chance.of(&[1_790_035_200, 1_790_089_200]);
    let before_ms = chance.of(&[3_000, 8_000, 25_000, 70_000]);
    let mut maker = Maker {
        seed,
        length_ms: chance.of(&[20_000, 30_000, 60_000, 150_000]),
        chance,
        sidecars,
        fleet,
        policies: all,
        consumers: false,
        settles: None,
        by_route: fleet && Chance(seed ^ 0x5E75).one_in(4),
        keeps_state: fleet && Chance(seed ^ 0x57A7E).one_in(3),
        busy,
        burst: 0,
        outages: Vec::new(),
        anchors: vec![before_ms],
        events: Vec::new(),
    };
    if on[10] {
        maker.clocks();
    }
    if !embedded {
        if on[12] {
            let at_ms = maker.at();
            maker.happens(at_ms, Event::LoseData);
        }
        maker.faults(on[7], on[8], on[9]);
        if on[7] {
            maker.refusals_of_keys();
        }
        if on[11] {
            maker.restarts();
        }
        if on[7] && maker.chance.one_in(4) {
            maker.evictions();
        }
    }
    let mut tiers = Vec::new();
    if fleet && maker.chance.one_in(2) {
        maker.consumers = true;
        // Limits of consumers cannot have leases.
        let limits = maker.policies.iter_mut().flatten().flatten();
        limits.for_each(|limit| limit.lease_ms = None);
        let chance = &mut maker.chance;
        let of = maker.policies.iter();
        tiers.extend(of.map(|_| [(); KEYS].map(|()| chance.one_in(2))));
    }
    if settles {
        maker.settles();
    }
    if slots {
        maker.slots();
    }
    maker.rollouts();
    let mut second_set = Vec::new();
    if maker.by_route {
        let chance = &mut maker.chance;
        let of = maker.policies.iter();
        second_set.extend(of.map(|_| !chance.one_in(4)));
        // Without rules that it can use, a filter takes the first that it gets, whoever can decide by them.
        second_set[0] = true;
    }
    if maker.keeps_state && maker.chance.one_in(2) {
        maker.full_folders();
    }
    if fleet && maker.chance.one_in(3) {
        maker.refusals();
    }
    if overrides {
        maker.overrides();
    }
    if resets {
        maker.resets();
    }
    maker.asks(on[5], requests, receipts);
    if maker.chance.one_in(3) {
        maker.steady(on[5]);
    }
    if receipts {
        maker.give_backs();
    }
    if let Some(sequence) = sequence {
        maker.is_about(sequence);
    }
    let hang_ups = if on[5] { maker.envoys() } else { None };
    maker.events.sort_by_key(|(at_ms, _)| *at_ms);
    World {
        seed,
        start_us: (midnight * 1_000 - before_ms) * 1_000,
        sidecars,
        embedded,
        fleet,
        latency_ms: maker.chance.of(&[(0, 0), (1, 1), (3, 2), (20, 15)]),
        policies: maker.policies,
        tiers,
        second_set,
        keeps_state: maker.keeps_state,
        settles: maker.settles,
        hang_ups,
        events: maker.events,
    }
}

impl Maker {
    fn at(&mut self) -> u64 {
        let at_ms = if !self.chance.one_in(3) {
            let near = self.chance.below(self.anchors.len() as u64) as usize;
            // Before anything else has happened, or a little earlier or later.
            let later = if self.chance.one_in(3) {
                1_500 + self.chance.below(40)
            } else {
                self.chance.below(6_000)
            };
            (self.anchors[near] + later).saturating_sub(1_500)
        } else {
            self.chance.below(self.length_ms)
        };
        at_ms.clamp(600, self.length_ms)
    }

    fn happens(&mut self, at_ms: u64, event: Event) {
        self.anchors.push(at_ms);
        self.events.push((at_ms, event));
    }

    fn sidecar(&mut self) -> usize {
        self.chance.below(self.sidecars as u64) as usize
    }

    fn subject(&mut self) -> (usize, usize) {
        if self.chance.one_in(3) {
            let limit = self.chance.below(LIMITS) as usize;
            (limit, self.chance.below(KEYS as u64) as usize)
        } else {
            self.busy
        }
    }

    /// The same, or a consumer.
    fn asked(&mut self) -> (usize, usize) {
        let (limit, key) = self.subject();
        let is_consumer = self.consumers && self.chance.one_in(2);
        (if is_consumer { CONSUMERS } else { limit }, key)
    }

    /// A limit of the first policy, for a consumer too.
    fn first(&self, limit: usize) -> script::Limit {
        let limit = if limit == CONSUMERS { 0 } else { limit };
        self.policies[0][limit].clone().expect("the first has all")
    }

    fn clocks(&mut self) {
        let forward = [500, 3_000, 12_000, 45_000];
        let back = [-400, -3_000, -12_000, -45_000];
        for _ in 0..self.chance.between(1, 2) {
            let (at_ms, goes_back) = (self.at(), self.chance.one_in(2));
            let steps = if goes_back { back } else { forward };
            let by_ms = self.chance.of(&steps);
            self.happens(at_ms, Event::Clock { by_ms });
        }
    }

    fn faults(&mut self, outages: bool, lost_answers: bool, slow: bool) {
        for (on, link) in [
            (outages, Link::Cut),
            (lost_answers, Link::LosesAnswers),
            (slow, Link::Slow(60, 70)),
            (slow, Link::Slow(5, 60)),
        ] {
            for _ in 0..if on { self.chance.between(1, 4) } else { 0 } {
                let begins = self.at();
                let ends = begins + self.chance.of(&[200, 900, 3_000, 12_000]);
                let whole = self.chance.one_in(3);
                let one = self.sidecar();
                for sidecar in (0..self.sidecars).filter(|sidecar| whole || *sidecar == one) {
                    self.happens(begins, Event::Link { sidecar, link });
                    let link = Link::Good;
                    self.happens(ends, Event::Link { sidecar, link });
                    self.drain(begins, sidecar);
                    self.drain(ends, sidecar);
                }
                self.outages.extend((link == Link::Cut).then_some(begins));
            }
        }
    }

    /// The store refuses half of all keys for a while, by chance of its own.
    fn refusals_of_keys(&mut self) {
        let mut chance = Chance(self.seed ^ 0x5107);
        if !chance.one_in(3) {
            return;
        }
        let begins = chance.below(self.length_ms).max(600);
        let ends = begins + chance.of(&[900, 3_000, 12_000]);
        for sidecar in 0..self.sidecars {
            for (at_ms, link) in [(begins, Link::RefusesHalf), (ends, Link::Good)] {
                self.happens(at_ms, Event::Link { sidecar, link });
            }
            for key in 0..KEYS {
                let load = asks((self.busy.0, key), sidecar, 1, (20, 40));
                self.events.push((begins + 10, load));
            }
        }
    }

    fn restarts(&mut self) {
        for _ in 0..self.chance.between(1, 2) {
            let at_ms = self.at();
            let (sidecar, for_ms) = (self.sidecar(), self.chance.between(100, 8_000));
            let (event, away_ms) = if self.chance.one_in(2) {
                (Event::Restart { sidecar }, 0)
            } else {
                (Event::Kill { sidecar, for_ms }, for_ms)
            };
            self.happens(at_ms, event);
            // Somebody asks it as soon as it is there.
            self.load(at_ms + away_ms, sidecar, false, 1, (60, 5));
        }
    }

    /// Requests for the busy key, so many times, each so many milliseconds.
    fn load(&mut self, at_ms: u64, sidecar: usize, filter: bool, cost: u64, how_often: (u64, u64)) {
        let mut load = asks(self.busy, sidecar, cost, how_often);
        if let Event::Ask { filter: by, .. } = &mut load {
            *by = filter;
        }
        self.events.push((at_ms, load));
    }

    /// All that the busy key has left is taken soon after something has changed it, as often as not.
    fn drain(&mut self, at_ms: u64, sidecar: usize) {
        if self.chance.one_in(2) {
            let cost = self.most(self.busy.0).div_ceil(40);
            let later = self.chance.of(&[10, 500, 2_500]);
            self.load(at_ms + later, sidecar, false, cost, (60, 10));
        }
    }

    /// The most that a key of a limit may ever take at once.
    fn most(&self, limit: usize) -> u64 {
        let limits = self.policies.iter().filter_map(|policy| policy.get(limit));
        limits
            .flatten()
            .map(at_once)
            .max()
            .unwrap_or(1)
            .max(self.burst)
    }

    /// The list of sidecars is evicted again and again, and then the store is away.
    fn evictions(&mut self) {
        let at_ms = self.at();
        for second in 0..9 {
            self.events
                .push((at_ms + second * 1_000, Event::LoseSidecars));
        }
        for sidecar in 0..self.sidecars {
            let link = Link::Cut;
            self.happens(at_ms + 8_500, Event::Link { sidecar, link });
            let link = Link::Good;
            self.happens(at_ms + 20_500, Event::Link { sidecar, link });
        }
    }

    fn rollouts(&mut self) {
        let versions = self.policies.len();
        if versions < 2 {
            return;
        }
        for flip in 0..self.chance.between(1, 3) as usize * versions {
            let version = (flip + 1) % versions;
            let at_ms = self.at();
            // One after the other, as a rollout is.
            let apart = self.chance.of(&[0, 300, 4_000]);
            let (first, never) = if self.fleet {
                (
                    self.sidecar(),
                    self.chance.one_in(4).then(|| self.sidecar()),
                )
            } else {
                (0, None)
            };
            for place in 0..self.sidecars {
                let sidecar = (first + place) % self.sidecars;
                if never == Some(sidecar) {
                    continue;
                }
                let at_ms = at_ms + place as u64 * apart;
                self.happens(at_ms, Event::Policy { sidecar, version });
                self.drain(at_ms, sidecar);
            }
        }
    }

    /// The state folder of a sidecar cannot be written for a while, and the sidecar starts again, or not.
    fn full_folders(&mut self) {
        let (at_ms, sidecar) = (self.at(), self.sidecar());
        for (after_ms, full) in [(0, true), (12_000, false)] {
            self.happens(at_ms + after_ms, Event::StateFull { sidecar, full });
        }
        if self.chance.one_in(2) {
            let at_ms = at_ms + self.chance.below(15_000);
            self.happens(at_ms, Event::Restart { sidecar });
        }
    }

    /// The filter of the fleet cannot use what is new, for a while or for good.
    fn refusals(&mut self) {
        let at_ms = self.chance.below(self.length_ms / 2);
        self.happens(at_ms.max(600), Event::Refuse(true));
        if self.chance.one_in(2) {
            let at_ms = at_ms + self.chance.of(&[5_000, 70_000]);
            self.happens(at_ms, Event::Refuse(false));
        }
    }

    /// What happens to Envoys, by chance of its own: how often clients hang up; what becomes of callouts; VMs that end; and more
    /// requests at once than may wait.
    fn envoys(&mut self) -> Option<u32> {
        let mut chance = Chance(self.seed ^ 0xE4F0);
        let sidecar = chance.below(self.sidecars as u64) as usize;
        if chance.one_in(3) {
            let begins = chance.below(self.length_ms).max(600);
            let ways = [Way::Lost, Way::Late(40), Way::Late(280), Way::Refused];
            let way = chance.of(&ways);
            let ends = begins + chance.of(&[300, 2_000, 6_000]);
            self.happens(begins, Event::Callouts { sidecar, way });
            let way = Way::Good;
            self.happens(ends, Event::Callouts { sidecar, way });
            self.load(begins, sidecar, true, 1, (100, 7));
            if chance.one_in(3) {
                self.load(begins, sidecar, true, 1, (4_000, 0));
            }
        }
        for _ in 0..chance.of(&[0, 0, 0, 1, 2]) {
            let at_ms = chance.below(self.length_ms).max(600);
            let worker = chance.below(WORKERS as u64) as usize;
            self.happens(at_ms, Event::EndVm { sidecar, worker });
            self.load(at_ms - 200, sidecar, true, 1, (100, 4));
        }
        chance.one_in(3).then(|| chance.of(&[2, 5, 30]))
    }

    /// Some rules settle, by chance of their own; of their limits nothing is leased.
    fn settles(&mut self) {
        let mut chance = Chance(self.seed ^ 0x5E77);
        let asked = (0..LIMITS as usize).filter(|limit| *limit == self.busy.0 || chance.one_in(2));
        let mut asked: Vec<_> = asked.collect();
        asked.extend((self.consumers && chance.one_in(2)).then_some(CONSUMERS));
        let tells = [
            Tells::Header,
            Tells::Metadata,
            Tells::Bytes,
            Tells::Milliseconds,
            Tells::Status,
            Tells::Sum,
        ];
        let settles = Settling {
            asked,
            most: chance.of(&[100, 100, 50, 25, 10]),
            tells: chance.of(&tells),
            otherwise: [(); 4].map(|()| chance.of(&[None, None, Some(0), Some(2), Some(40)])),
        };
        for policy in &mut self.policies {
            let limits = policy.iter_mut().enumerate();
            for limit in
                limits.filter_map(|(number, of)| of.as_mut().filter(|_| settles.is_of(number)))
            {
                limit.lease_ms = None;
            }
        }
        self.settles = Some(settles);
    }

    /// Some limits count slots, by chance of their own: not those of rules that settle.
    fn slots(&mut self) {
        let mut chance = Chance(self.seed ^ 0x5_1075);
        let settled = |limit| self.settles.as_ref().is_some_and(|of| of.is_of(limit));
        let numbers = (0..=RENAMED).filter(|number| !settled(*number));
        let numbers: Vec<_> = numbers.collect();
        for number in numbers {
            if [self.busy.0, RENAMED].contains(&number) || chance.one_in(3) {
                count_slots(&mut chance, &mut self.policies, number);
            }
        }
        if chance.one_in(6) {
            let at_ms = chance.below(self.length_ms).max(600);
            self.happens(at_ms, Event::Clock { by_ms: 12_000 });
        }
        // Streams live when slots are forgotten, and others ask.
        let forgets = |event: &Event| match event {
            Event::Clock { by_ms } => *by_ms > 0,
            Event::LoseData => true,
            Event::Link { link, .. } => *link != Link::Good,
            _ => false,
        };
        let events = self.events.iter().filter(|(_, event)| forgets(event));
        let times: Vec<_> = events.map(|(at_ms, _)| *at_ms).collect();
        for at_ms in times {
            let sidecar = chance.below(self.sidecars as u64) as usize;
            self.load(
                at_ms.saturating_sub(600).max(600),
                sidecar,
                true,
                1,
                (60, 10),
            );
            self.load(at_ms + 50, sidecar, true, 1, (60, 15));
            self.load(at_ms + 5_000, sidecar, true, 1, (80, 60));
        }
    }

    fn overrides(&mut self) {
        for _ in 0..self.chance.between(1, 6) {
            let (limit, key) = self.asked();
            let of = self.first(limit);
            let (by, per) = (self.chance.of(&[1, 2, 5]), self.chance.of(&[1, 2, 10]));
            let quota = (of.windows[0].quota * by).div_ceil(per).min(MAX_UNITS);
            let own = match of.algorithm {
                Algorithm::Token(burst) if self.chance.one_in(2) => Some(
                    (burst * self.chance.of(&[1, 3, 20]))
                        .div_ceil(self.chance.of(&[1, 1, 20]))
                        .min(MAX_UNITS),
                ),
                _ => None,
            };
            self.burst = self.burst.max(own.unwrap_or(0));
            let grant = match self.chance.below(6) {
                0 => Grant::Unlimited,
                1 => Grant::Blocked,
                _ => Grant::Quota(quota, own),
            };
            let for_ms = self.chance.of(&[1_500, 4_000, 10_000, 30_000]);
            let (sidecar, endless, at_ms) = (self.sidecar(), self.chance.one_in(3), self.at());
            let event = Event::Override {
                sidecar,
                limit,
                key,
                grant,
                for_ms: (!endless).then_some(for_ms),
            };
            self.happens(at_ms, event);
            self.drain(at_ms, sidecar);
        }
        for _ in 0..self.chance.between(0, 2) {
            let (limit, key) = self.asked();
            let (sidecar, at_ms) = (self.sidecar(), self.at());
            self.happens(
                at_ms,
                Event::RemoveOverride {
                    sidecar,
                    limit,
                    key,
                },
            );
        }
        if self.chance.one_in(2) {
            let at_ms = self.at();
            self.happens(at_ms, Event::LoseOverrides);
        }
    }

    fn resets(&mut self) {
        for _ in 0..self.chance.between(1, 4) {
            let (limit, key) = self.subject();
            let (sidecar, at_ms) = (self.sidecar(), self.at());
            self.happens(
                at_ms,
                Event::Reset {
                    sidecar,
                    limit,
                    key,
                },
            );
        }
    }

    /// Whether something lasts until a stream ends.
    fn on_streams(&self) -> bool {
        let mut limits = self.policies.iter().flatten().flatten();
        self.settles.is_some() || limits.any(|of| matches!(of.algorithm, Algorithm::Slots(_)))
    }

    /// Requests.
    fn asks(&mut self, filters: bool, requests: bool, receipts: bool) {
        for _ in 0..self.chance.between(10, 40) {
            let calm = self.chance.one_in(3);
            let (limit, key) = self.asked();
            let of = self.first(limit);
            let most = self.most(limit);
            let first = at_once(&of);
            let costs = [
                1,
                1,
                1,
                2,
                first.div_ceil(5),
                first,
                most.div_ceil(3),
                most.div_ceil(20),
            ];
            let cost = self.chance.of(&costs);
            let quota = (limit != CONSUMERS
                && requests
                && of.requests_up_to.is_some()
                && self.chance.one_in(2))
            .then(|| {
                let quota = self.chance.between(1, of.windows[0].quota * 4);
                quota.min(MAX_UNITS)
            });
            let mut checks = vec![Check {
                quota,
                ..Check::new(limit, key, cost)
            }];
            let is_renamed = |policy: &Policy| policy[RENAMED].is_some();
            // Two reserves of one limit would be one.
            let apart = self.on_streams() && self.policies.iter().any(is_renamed);
            if self.chance.one_in(6) && !apart {
                let other = self.chance.below(KEYS as u64) as usize;
                // A request has one key, and may be that of a consumer besides.
                let key = if limit == CONSUMERS || !filters {
                    other
                } else {
                    key
                };
                checks.push(Check::new((limit + 1) % LIMITS as usize, key, 1));
            }
            let (times, every_ms) = if calm {
                (1, 0)
            } else {
                (
                    self.chance.of(&[5, 60, 200, 500]),
                    self.chance.of(&[0, 1, 5, 20, 60]),
                )
            };
            let filter = filters && (self.fleet || self.chance.one_in(2));
            let settled = self
                .settles
                .as_ref()
                .is_some_and(|of| of.asked.contains(&limit));
            if filter && settled && self.chance.one_in(12) {
                // It asks whether something is left.
                checks[0].cost = 0;
            }
            let event = Event::Ask {
                sidecar: self.sidecar(),
                filter,
                checks,
                peek: self.chance.one_in(15),
                receipt: limit != CONSUMERS && receipts && self.chance.one_in(3),
                times,
                every_ms,
                again: calm,
            };
            let at_ms = self.at();
            self.events.push((at_ms, event));
        }
    }

    /// A load of the busy key that is a little more than its quota, for a few windows.
    fn steady(&mut self, filters: bool) {
        let of = self.policies[0][self.busy.0]
            .clone()
            .expect("the first has all");
        let window = of.windows[0];
        let cost = window.quota.div_ceil(500);
        let every_ms = (window.per_ms.min(30_000) * cost * 4 / (window.quota * 5)).max(1);
        let every_ms = every_ms * self.sidecars as u64;
        let begins = match self.outages[..] {
            [] => self.at(),
            [first, ..] => first,
        };
        for sidecar in 0..self.sidecars {
            self.load(begins, sidecar, filters, cost, (1_000, every_ms));
        }
    }

    fn give_backs(&mut self) {
        for _ in 0..self.chance.between(1, 10) {
            let (sidecar, back) = (self.sidecar(), self.chance.of(&[0, 1, 3, 20, 200]));
            let units = self.chance.of(&[1, 2, 1_000]);
            let at_ms = self.at();
            self.happens(
                at_ms,
                Event::GiveBack {
                    sidecar,
                    back,
                    units,
                },
            );
            self.drain(at_ms, sidecar);
        }
    }
}
