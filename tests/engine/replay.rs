//! Sends one history through model, Rust and Lua, and compares every answer. The fuzzer (tests/fuzz) often leaves Lua out, which
//! takes a hundred times longer than the other two.

use super::events::{Ask, Clock, History, Step};
use super::lua::Lua;
use super::model::Model;
use super::settled;
use sluicegate_engine::{
    Algorithm, Batch, Bucket, Decision, Done, Guard, Held, Hold, Memory, Outcome, Record,
    Settlements, Take,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Any time long after the epoch.
const START_US: u64 = 1_790_000_000_123_456;

struct Replay<'a> {
    lua: Option<&'a mut Lua>,
    memory: Memory,
    model: Model,
    world: Vec<Bucket>,
    now: u64,
    promised: u64,
    /// What was admitted.
    taken: Vec<Taken>,
    receipts: usize,
    /// Calls made, each answered by all three.
    calls: u64,
}

#[derive(Clone)]
struct Taken {
    bucket: usize,
    cost: u64,
    at: u64,
    /// Of the limit that admitted it.
    quota: u64,
    receipt: Option<String>,
    settled: bool,
}

/// Longer than any history.
const RECEIPT_LASTS_US: u64 = 1 << 55;

/// Replays it; returns the number of calls that agreed, or the first disagreement.
pub fn replay(lua: &mut Lua, history: &History) -> Result<u64, String> {
    replay_with(Some(lua), history)
}

/// Likewise; without Lua, if there is none.
pub fn replay_with(mut lua: Option<&mut Lua>, history: &History) -> Result<u64, String> {
    static WORLDS: AtomicU64 = AtomicU64::new(0);
    let name = WORLDS.fetch_add(1, Ordering::Relaxed);
    if let Some(lua) = &mut lua {
        lua.use_blocks_of(history.block);
    }
    let bucket = |(index, spec): (usize, _)| Bucket {
        key: format!("sg:{{{name}}}:{index}"),
        spec,
    };
    let world = history
        .world
        .iter()
        .copied()
        .enumerate()
        .map(bucket)
        .collect();
    let mut replay = Replay {
        lua,
        memory: Memory::default(),
        model: Model::default(),
        world,
        now: START_US,
        promised: START_US,
        taken: Vec::new(),
        receipts: 0,
        calls: 0,
    };
    let outcome = replay.run(history);
    if let Some(lua) = replay.lua {
        for bucket in &replay.world {
            lua.reset(&bucket.key);
        }
        let receipts = replay
            .taken
            .iter()
            .filter_map(|taken| taken.receipt.as_ref());
        receipts.for_each(|key| lua.reset(key));
    }
    outcome.map(|()| replay.calls)
}

impl Replay<'_> {
    fn run(&mut self, history: &History) -> Result<(), String> {
        for (index, step) in history.steps.iter().enumerate() {
            self.step(step)
                .map_err(|error| format!("step {index}, {step:?}, at {}: {error}", self.now))?;
        }
        // The final state.
        let peek_each = (0..self.world.len()).map(|bucket| Decision {
            takes: vec![Take { bucket, cost: 1 }],
            peek: true,
            asks: false,
            holds: Vec::new(),
            slots: Vec::new(),
        });
        self.ask(peek_each.collect())
            .map_err(|error| format!("at the end: {error}"))?;
        if let Some(lua) = &mut self.lua {
            for bucket in &self.world {
                if lua.ttl_ms(&bucket.key) == -1 {
                    return Err(format!("{} would stay for ever", bucket.key));
                }
            }
        }
        Ok(())
    }

    fn index(&self, bucket: usize) -> usize {
        bucket % self.world.len()
    }

    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Ask(asks) => {
                let mut decision = |ask: &Ask| self.decision(&ask.takes, ask.peek, ask.receipts);
                let decisions = asks.iter().map(&mut decision).collect();
                self.ask(decisions)
            }
            Step::Run {
                bucket,
                times,
                pause_us,
                cost,
                receipts,
            } => {
                for _ in 0..*times {
                    self.now += pause_us;
                    let decision = self.decision(&[(*bucket, *cost)], false, *receipts);
                    self.ask(vec![decision])?;
                }
                Ok(())
            }
            Step::Clock(clock) => {
                self.now = self.clock(*clock);
                Ok(())
            }
            Step::GiveBack { ago, cost } => self.give_back(*ago, *cost),
            Step::WriteBack { bucket, taken } => self.write_back(self.index(*bucket), taken),
            Step::Reset(bucket) => {
                let key = self.world[self.index(*bucket)].key.clone();
                self.model.reset(&key);
                self.memory.reset(&key);
                if let Some(lua) = &mut self.lua {
                    lua.reset(&key);
                }
                Ok(())
            }
            Step::Relimit { bucket, limit } => {
                let index = self.index(*bucket);
                self.world[index].spec.quota = *limit;
                Ok(())
            }
            Step::Reburst { bucket, burst } => {
                let index = self.index(*bucket);
                let algorithm = &mut self.world[index].spec.algorithm;
                if let Algorithm::TokenBucket { .. } = algorithm {
                    *algorithm = Algorithm::TokenBucket { burst: *burst };
                }
                Ok(())
            }
        }
    }

    fn decision(&mut self, takes: &[(usize, u64)], peek: bool, receipts: bool) -> Decision {
        let mut decision = Decision {
            takes: Vec::new(),
            peek,
            // As rules that settle do.
            asks: receipts,
            holds: Vec::new(),
            slots: Vec::new(),
        };
        for &(bucket, cost) in takes {
            let bucket = self.index(bucket);
            let cost = cost.min(self.world[bucket].spec.most_at_once());
            if decision.takes.iter().all(|take| take.bucket != bucket) {
                decision.takes.push(Take { bucket, cost });
            }
        }
        for take in decision
            .takes
            .iter()
            .filter(|take| receipts && take.cost > 0)
        {
            let bucket = &self.world[take.bucket];
            self.receipts += 1;
            decision.holds.push(Hold {
                key: format!("{}:receipt:{}", bucket.key, self.receipts),
                units: take.cost,
                lasts_us: RECEIPT_LASTS_US,
                of: vec![Held::of(bucket)],
                is_receipt: true,
            });
        }
        decision
    }

    fn clock(&self, clock: Clock) -> u64 {
        let part = |bucket, percent| self.world[self.index(bucket)].spec.window_us / 100 * percent;
        match clock {
            Clock::ForwardUs(us) => self.now + us,
            Clock::Windows { bucket, percent } => self.now + part(bucket, percent),
            Clock::Promised => self.now.max(self.promised),
            Clock::JustBeforePromised => self.now.max(self.promised - 1),
            Clock::BackWindows { bucket, percent } => self.now - part(bucket, percent),
            Clock::BackUs(us) => self.now - us,
        }
    }

    /// The buckets of the decisions, each once, and the decisions with indices into those.
    fn batch(&self, decisions: &[Decision]) -> Batch {
        let mut named: Vec<usize> = Vec::new();
        let mut batch = Batch::default();
        for decision in decisions {
            let mut decision = decision.clone();
            for take in &mut decision.takes {
                let known = named.iter().position(|index| *index == take.bucket);
                let index = known.unwrap_or(named.len());
                if known.is_none() {
                    named.push(take.bucket);
                    batch.buckets.push(self.world[take.bucket].clone());
                }
                take.bucket = index;
            }
            batch.decisions.push(decision);
        }
        batch
    }

    fn ask(&mut self, decisions: Vec<Decision>) -> Result<(), String> {
        self.calls += 1;
        let batch = &self.batch(&decisions);
        let model = self.model.decide(self.now, batch);
        let rust = self.memory.decide(self.now, batch).into_iter();
        let rust: Vec<_> = rust.flatten().collect();
        agree("Rust", &model, &rust)?;
        if let Some(lua) = &mut self.lua {
            agree("Lua", &model, &lua.try_decide(Some(self.now), batch)?)?;
        }
        for (decision, outcome) in decisions.iter().zip(&model) {
            if !outcome.admitted {
                self.promised = self.now + outcome.retry_after_us;
            } else if !decision.peek {
                for take in &decision.takes {
                    let bucket = &self.world[take.bucket];
                    let receipt = |hold: &&Hold| hold.of == [Held::of(bucket)];
                    let receipt = decision.holds.iter().find(receipt);
                    self.taken.push(Taken {
                        bucket: take.bucket,
                        cost: take.cost,
                        at: self.now,
                        quota: bucket.spec.quota,
                        receipt: receipt.map(|hold| hold.key.clone()),
                        settled: false,
                    });
                }
            }
        }
        Ok(())
    }

    fn write_back(&mut self, index: usize, taken: &[(i64, u64)]) -> Result<(), String> {
        self.calls += 1;
        let bucket = &self.world[index];
        // To the microsecond: some coincide with the microsecond of an admission.
        let at_us =
            |percent: i64| match self.taken.iter().rev().nth(percent.unsigned_abs() as usize) {
                Some(taken) if percent % 3 == 0 => taken.at,
                _ => {
                    let part = bucket.spec.window_us / 100 * percent.unsigned_abs();
                    self.now
                        .checked_add_signed(-percent.signum() * part as i64)
                        .expect("a time")
                }
            };
        let most = most_added(bucket);
        let record = |(percent, units): &(i64, u64)| Record {
            at_us: at_us(*percent),
            units: (*units).min(most),
        };
        let mut records: Vec<Record> = taken.iter().map(record).collect();
        records.sort_by_key(|record| record.at_us);
        let model = self.model.write_back(self.now, bucket, &records);
        let settlements = settled::more(bucket, Guard::None, &records);
        self.settle(Done::Added(model), &settlements)
    }

    fn give_back(&mut self, ago: usize, cost: u64) -> Result<(), String> {
        let Some(taken) = self.taken.iter_mut().rev().nth(ago) else {
            return Ok(());
        };
        self.calls += 1;
        let was_settled = std::mem::replace(&mut taken.settled, true);
        let taken = taken.clone();
        let bucket = &self.world[taken.bucket];
        let Some(hold) = taken.receipt.clone() else {
            let cost = cost.min(taken.cost);
            let model = self.model.give_back(self.now, bucket, cost, taken.at);
            let settlements = settled::back(bucket, cost, taken.at);
            return self.settle(Done::Returned(model), &settlements);
        };
        let beyond = taken.cost.saturating_add(most_added(bucket)).min(cost);
        let used = taken.cost.checked_sub(cost).unwrap_or(beyond);
        let model = match was_settled {
            true => {
                // Reads repair, also where there is nothing to settle.
                self.model.give_back(self.now, bucket, 0, taken.at);
                Done::Nothing
            }
            false => {
                let of = (taken.cost, taken.at, taken.quota);
                self.model.settle(self.now, bucket, of, used)
            }
        };
        let mut settlements = Settlements::default();
        settlements.return_to(Guard::Settle { hold, used }, [bucket.clone()]);
        self.settle(model, &settlements)
    }

    fn settle(&mut self, model: Done, settlements: &Settlements) -> Result<(), String> {
        let rust = self.memory.settle(self.now, settlements);
        let lua = match &mut self.lua {
            Some(lua) => lua.settle(Some(self.now), settlements)?,
            None => rust.clone(),
        };
        // Nothing may be added as well as returned, unless there is a receipt.
        let agrees = match settlements.each[0].guard {
            Guard::None => rust.iter().map(|done| done.units()).eq([model.units()]),
            _ => rust == [model],
        };
        if agrees && lua == rust {
            return Ok(());
        }
        Err(format!(
            "of {settlements:?} model settles {model:?}, Rust {rust:?}, Lua {lua:?}"
        ))
    }
}

/// A token bucket with more units would not become empty within the range of a 53-bit clock.
fn most_added(bucket: &Bucket) -> u64 {
    match bucket.spec.algorithm {
        Algorithm::TokenBucket { .. } => 1_000,
        _ => u64::MAX,
    }
}

fn agree(who: &str, model: &[Outcome], other: &[Outcome]) -> Result<(), String> {
    for (index, (model, other)) in model.iter().zip(other).enumerate() {
        if model != other {
            return Err(format!(
                "decision {index}: the model says {model:?}, {who} says {other:?}"
            ));
        }
    }
    if model.len() == other.len() {
        return Ok(());
    }
    Err(format!("{who} sent {} outcomes", other.len()))
}
