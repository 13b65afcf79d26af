//! `concurrency`: slots that are taken, renewed, freed and end by themselves, in a model, in memory and in the script. Nothing
//! tells the three what became of earlier calls: answers that were lost, repeated and late calls are among the steps.

use super::lua::Lua;
use super::made::{SECOND, START_US, bucket, is_refuted};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::{
    Algorithm, Batch, Bucket, Decision, Done, Guard, Memory, Settlements, SlotId, Take, TakenSlots,
};
use std::cell::{Cell, RefCell};

const EXPIRE: u64 = 30 * SECOND;
const MOST: [u64; 2] = [5, 8];

#[derive(Clone, Debug)]
enum Step {
    Take {
        limit: usize,
        cost: u64,
        peek: bool,
    },
    Both(u64),
    /// What was taken so many takes ago; also if it was denied, freed or has ended.
    Renew(usize),
    Free(usize),
    ForwardUs(u64),
    BackUs(u64),
    ToEnd(i64),
    /// A failover loses the newest slots, or all.
    Lose(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0usize..2, 0u64..4, prop::bool::weighted(0.2))
            .prop_map(|(limit, cost, peek)| Step::Take { limit, cost, peek }),
        2 => (1u64..4).prop_map(Step::Both),
        4 => (0usize..12).prop_map(Step::Renew),
        4 => (0usize..12).prop_map(Step::Free),
        4 => prop_oneof![0u64..3, 0u64..10 * SECOND, 0u64..2 * EXPIRE].prop_map(Step::ForwardUs),
        1 => prop_oneof![0u64..3, 0u64..2 * EXPIRE].prop_map(Step::BackUs),
        2 => (-1i64..2).prop_map(Step::ToEnd),
        1 => (0usize..2).prop_map(Step::Lose),
    ]
}

/// Slots that one id names, of one limit.
#[derive(Clone, Copy, Debug)]
struct Named {
    limit: usize,
    id: SlotId,
    until: u64,
}

#[derive(Default)]
struct Model {
    /// Those that have ended stay until others are stored or somebody frees them.
    slots: Vec<Named>,
}

impl Model {
    fn used(&self, limit: usize, now: u64) -> u64 {
        let live = self.slots.iter();
        let live = live.filter(|named| named.limit == limit && named.until > now);
        live.map(|named| named.id.units()).sum()
    }

    /// A call that reads the limit: nothing ends later than what is renewed now.
    fn heal(&mut self, limit: usize, now: u64) {
        if self.used(limit, now) > 0 {
            let of = self.slots.iter_mut().filter(|named| named.limit == limit);
            of.for_each(|named| named.until = named.until.min(now + EXPIRE));
        }
    }

    /// How many had ended.
    fn store(&mut self, limit: usize, now: u64, id: SlotId) -> u64 {
        let has_ended = |named: &Named| named.limit == limit && named.until <= now;
        let ended = self.slots.iter().filter(|named| has_ended(named));
        let ended = ended.map(|named| named.id.units()).sum();
        self.slots.retain(|named| !has_ended(named));
        self.renew(limit, now, id);
        ended
    }

    fn renew(&mut self, limit: usize, now: u64, id: SlotId) -> Done {
        let before = self.take_out(limit, id);
        let until = now + EXPIRE;
        self.slots.push(Named { limit, id, until });
        match before {
            Some(before) if before.until > now => Done::Added(0),
            _ => Done::Added(id.units()),
        }
    }

    fn free(&mut self, limit: usize, now: u64, id: SlotId) -> Done {
        match self.take_out(limit, id) {
            Some(before) if before.until > now => Done::Returned(id.units()),
            _ => Done::Nothing,
        }
    }

    fn take_out(&mut self, limit: usize, id: SlotId) -> Option<Named> {
        let mut of = self.slots.iter();
        let at = of.position(|named| named.limit == limit && named.id == id)?;
        Some(self.slots.remove(at))
    }
}

struct Stores<'a> {
    lua: &'a mut Lua,
    memory: Memory,
    model: Model,
    limits: Vec<Bucket>,
    now: u64,
    /// What was asked for: a limit and an id.
    asked: Vec<(usize, SlotId)>,
}

impl Stores<'_> {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        let ago = |ago: &usize| self.asked.iter().rev().nth(*ago).copied();
        match step {
            Step::Take { limit, cost, peek } => return self.ask(&[*limit], *cost, *peek),
            Step::Both(cost) => return self.ask(&[0, 1], *cost, false),
            Step::Renew(n) => {
                if let Some((limit, id)) = ago(n) {
                    self.model.heal(limit, self.now);
                    let done = self.model.renew(limit, self.now, id);
                    return self.settle(limit, Guard::Renew(id), done);
                }
            }
            Step::Free(n) => {
                if let Some((limit, id)) = ago(n) {
                    self.model.heal(limit, self.now);
                    let done = self.model.free(limit, self.now, id);
                    return self.settle(limit, Guard::Free(id), done);
                }
            }
            Step::ForwardUs(us) => self.now += us,
            Step::BackUs(us) => self.now -= us,
            Step::ToEnd(more) => {
                let ends = self.model.slots.iter().map(|named| named.until);
                if let Some(end) = ends.filter(|until| *until > self.now).min() {
                    self.now = end.checked_add_signed(*more).unwrap();
                }
            }
            Step::Lose(limit) => {
                let key = &self.limits[*limit].key;
                self.model.slots.retain(|named| named.limit != *limit);
                self.memory.reset(key);
                let unlinked = redis::cmd("UNLINK").arg(key).exec(&mut self.lua.connection);
                unlinked.unwrap();
            }
        }
        Ok(())
    }

    fn ask(&mut self, limits: &[usize], cost: u64, peek: bool) -> Result<(), String> {
        let first = self.asked.len();
        let id = |index: usize| SlotId::new(cost, self.now, 7, EXPIRE, (first + index) as u128);
        let ids: Vec<_> = (0..limits.len()).map(id).collect();
        let taken = |bucket| TakenSlots {
            bucket,
            id: ids[bucket],
        };
        let numbers = 0..limits.len();
        let batch = Batch {
            buckets: limits.iter().map(|n| self.limits[*n].clone()).collect(),
            decisions: vec![Decision {
                takes: numbers
                    .clone()
                    .map(|bucket| Take { bucket, cost })
                    .collect(),
                peek,
                asks: false,
                holds: Vec::new(),
                slots: numbers.filter(|_| cost > 0).map(taken).collect(),
            }],
        };
        let mut ended = 0;
        limits
            .iter()
            .for_each(|limit| self.model.heal(*limit, self.now));
        let has_room =
            |limit: &usize| cost == 0 || self.model.used(*limit, self.now) + cost <= MOST[*limit];
        let admitted = limits.iter().all(has_room);
        if cost > 0 {
            self.asked
                .extend(limits.iter().copied().zip(ids.iter().copied()));
        }
        if admitted && !peek && cost > 0 {
            for (limit, id) in limits.iter().zip(&ids) {
                ended += self.model.store(*limit, self.now, *id);
            }
        }
        let rust = self.memory.decide(self.now, &batch)[0].unwrap();
        let lua = self.lua.try_decide(Some(self.now), &batch)?[0];
        let used = self.model.used(limits[rust.decided_by], self.now);
        let remaining = MOST[limits[rust.decided_by]].saturating_sub(used);
        let expected = (admitted, u64::from(!admitted), remaining, ended);
        let said = (
            rust.admitted,
            rust.retry_after_us,
            rust.remaining,
            rust.ended,
        );
        if rust != lua || said != expected {
            return Err(format!("model {expected:?}, Rust {rust:?}, Lua {lua:?}"));
        }
        Ok(())
    }

    fn settle(&mut self, limit: usize, guard: Guard, expected: Done) -> Result<(), String> {
        let mut settlements = Settlements::default();
        settlements.return_to(guard, [self.limits[limit].clone()]);
        let rust = self.memory.settle(self.now, &settlements);
        let lua = self.lua.settle(Some(self.now), &settlements)?;
        if rust != [expected] || lua != rust {
            return Err(format!(
                "{settlements:?}: model {expected:?}, Rust {rust:?}, Lua {lua:?}"
            ));
        }
        Ok(())
    }
}

#[test]
fn slots_agree_with_their_model() {
    let wanted = std::env::var("SLUICEGATE_STEPS").unwrap_or_else(|_| "10000".to_owned());
    let (wanted, lua) = (wanted.parse().unwrap(), RefCell::new(Lua::start()));
    let (steps, world) = (Cell::new(0_u64), Cell::new(0));
    while steps.get() < wanted {
        super::made::for_all(25, 20_000, &histories(), |history| {
            steps.set(steps.get() + history.len() as u64);
            replay(&mut lua.borrow_mut(), &world, &history)
        });
    }
}

/// Whether so many histories show a difference.
pub fn slots_differ(lua: &mut Lua, histories_of: u32) -> bool {
    let (lua, world) = (RefCell::new(lua), Cell::new(0));
    is_refuted(histories_of, &histories(), |history| {
        replay(&mut lua.borrow_mut(), &world, &history)
    })
}

fn histories() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 1..80)
}

/// A history in three ways, in keys that no other history has.
fn replay(lua: &mut Lua, world: &Cell<u64>, history: &[Step]) -> Result<(), TestCaseError> {
    world.set(world.get() + 1);
    let name = |limit: usize| format!("sg:{{s}}:{}:{limit}", world.get());
    let limits = (0..2).map(|limit| bucket(&name(limit), Algorithm::Slots, MOST[limit], EXPIRE));
    let mut stores = Stores {
        limits: limits.collect(),
        lua,
        memory: Memory::default(),
        model: Model::default(),
        now: START_US,
        asked: Vec::new(),
    };
    for bucket in &stores.limits {
        let unlinked = redis::cmd("UNLINK")
            .arg(&bucket.key)
            .exec(&mut stores.lua.connection);
        unlinked.map_err(|why| TestCaseError::fail(why.to_string()))?;
    }
    for (index, step) in history.iter().enumerate() {
        let agreed = stores.step(step);
        let now = stores.now as i64 - START_US as i64;
        agreed.map_err(|why| {
            TestCaseError::fail(format!("step {index}, {step:?}, at {now}: {why}"))
        })?;
    }
    Ok(())
}
