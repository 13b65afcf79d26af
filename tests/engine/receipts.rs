//! Units are given back once, and only with the receipt: on both stores, for every algorithm.

use sluicegate_engine::script::{Operation, Reply};
use sluicegate_engine::{
    Algorithm, Batch, Bucket, Memory, Outcome, Receipt, Return, Returns, receipt_key, script,
};

use super::lua::Lua;
use super::made::{self, SECOND, START_US, batch, sliding};

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingLog,
    sliding(SECOND, false),
    Algorithm::FixedWindow,
    Algorithm::TokenBucket { burst: 10 },
];

/// Both stores, which must agree.
pub struct Stores {
    lua: Lua,
    memory: Memory,
}

impl Stores {
    pub fn start() -> Self {
        Self {
            lua: Lua::start(),
            memory: Memory::default(),
        }
    }

    /// Forgets everything.
    pub fn start_again(&mut self) {
        self.memory = Memory::default();
        self.lua.forget_everything();
    }

    /// The outcomes of both stores.
    pub fn decide(&mut self, now_us: u64, batch: &Batch) -> Vec<Outcome> {
        let rust = self.memory.decide(now_us, batch);
        let rust: Vec<_> = rust.into_iter().map(Result::unwrap).collect();
        assert_eq!(self.lua.decide(Some(now_us), batch), rust);
        rust
    }

    /// The units that both stores return.
    pub fn give(&mut self, now_us: u64, returns: &Returns) -> Vec<u64> {
        let rust = self.memory.return_units(now_us, returns);
        assert_eq!(self.lua.return_units(Some(now_us), returns), rust);
        rust
    }

    /// Takes with a receipt.
    fn take(&mut self, now_us: u64, limit: &Limit, cost: u64, secret: u128) -> bool {
        let batch = limit.batch(cost, Some(secret), false);
        self.decide(now_us, &batch)[0].admitted
    }

    fn back(&mut self, now_us: u64, limit: &Limit, units: u64, secret: u128) -> u64 {
        self.give(now_us, &limit.returns(&[(secret, units)]))[0]
    }

    fn remaining(&mut self, now_us: u64, limit: &Limit) -> u64 {
        let batch = limit.batch(0, None, true);
        self.decide(now_us, &batch)[0].remaining
    }
}

/// A limit for a key, with one window or two.
#[derive(Clone)]
struct Limit {
    subject: String,
    name: &'static str,
    buckets: Vec<Bucket>,
}

impl Limit {
    /// 10 units in 100 s and in 200 s.
    fn new(subject: &str, algorithm: Algorithm) -> Self {
        let bucket = |window_us: u64| {
            let key = format!("sg:{{{subject}}}:l:{algorithm:?}:{window_us}").replace(' ', "");
            made::bucket(&key, algorithm, 10, window_us)
        };
        Self {
            subject: subject.to_owned(),
            name: "l",
            buckets: vec![bucket(100 * SECOND), bucket(200 * SECOND)],
        }
    }

    fn receipt(&self, secret: u128) -> String {
        receipt_key(&self.subject, self.name, secret)
    }

    fn batch(&self, cost: u64, secret: Option<u128>, peek: bool) -> Batch {
        let lifetime = |bucket: &Bucket| bucket.spec.held_for_us(cost);
        let receipt = secret.map(|secret| Receipt {
            key: self.receipt(secret),
            units: cost,
            lifetime_us: self.buckets.iter().map(lifetime).max().unwrap_or(0),
            taken_at_us: Vec::new(),
        });
        let mut batch = batch(&self.buckets, cost, peek);
        batch.decisions[0].receipts.extend(receipt);
        batch
    }

    fn returns(&self, given: &[(u128, u64)]) -> Returns {
        let one = |(secret, units): &(u128, u64)| Return {
            receipt: self.receipt(*secret),
            units: *units,
            buckets: (0..self.buckets.len()).collect(),
        };
        Returns {
            buckets: self.buckets.clone(),
            returns: given.iter().map(one).collect(),
        }
    }
}

fn for_each_algorithm(check: impl Fn(&mut Stores, &Limit, u64)) {
    let mut stores = Stores::start();
    for algorithm in ALGORITHMS {
        check(&mut stores, &Limit::new("mine", algorithm), START_US);
        stores.start_again();
    }
}

#[test]
fn the_same_receipt_twice_returns_its_units_once_and_a_guessed_one_none() {
    for_each_algorithm(|stores, limit, now| {
        // All in one microsecond, so that the time of a taking identifies nothing.
        assert!(stores.take(now, limit, 3, 1));
        assert!(stores.take(now, limit, 3, 2));
        assert_eq!(stores.back(now, limit, 3, 7), 0);
        assert_eq!(stores.remaining(now, limit), 4);
        assert_eq!(stores.back(now, limit, u64::MAX, 1), 3);
        assert_eq!(stores.back(now, limit, u64::MAX, 1), 0);
        assert_eq!(stores.remaining(now, limit), 7);
        // Also in one call.
        let twice = limit.returns(&[(2, 9), (2, 9), (1, 9)]);
        assert_eq!(stores.give(now, &twice), [3, 0, 0]);
        assert_eq!(stores.remaining(now, limit), 10);
        assert_eq!(stores.lua.ttl_ms(&limit.receipt(1)), -2, "it is gone");
    });
}

/// Or what has long drained, or belongs to others, would be returned: by the clock it was taken a moment ago.
#[test]
fn after_a_step_back_no_receipt_of_before_it_returns_what_was_taken_since() {
    for_each_algorithm(|stores, limit, now| {
        if limit.buckets[0].spec.algorithm == Algorithm::FixedWindow {
            return;
        }
        assert!(stores.take(now + 21 * SECOND, limit, 2, 1));
        // The clock steps back by 20 s.
        assert!(stores.take(now + SECOND, limit, 3, 2));
        assert!(stores.take(now + 21 * SECOND, limit, 2, 3));
        let left = stores.remaining(now + 21 * SECOND, limit);
        assert_eq!(stores.back(now + 21 * SECOND, limit, 2, 1), 0);
        assert_eq!(stores.remaining(now + 21 * SECOND, limit), left);
    });
}

/// It stands for units that were taken later than now, which can be returned again when the clock has caught up.
#[test]
fn a_clock_that_steps_back_uses_up_no_receipt() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now + 2 * SECOND, limit, 3, 1));
        assert_eq!(stores.back(now + SECOND, limit, 3, 1), 0);
        let later = stores.back(now + 3 * SECOND, limit, 3, 1);
        // Only a window's count still knows what it is of: the others hold what is later than now as if it was of now.
        let fixed = limit.buckets[0].spec.algorithm == Algorithm::FixedWindow;
        let expected = if fixed { (3, 10) } else { (0, 7) };
        assert_eq!((later, stores.remaining(now + 3 * SECOND, limit)), expected);
    });
}

#[test]
fn a_script_that_does_not_lower_the_receipt_is_detected() {
    let right = "receipt.level = left - units";
    assert_eq!(script::DECIDE.matches(right).count(), 1);
    let mut lua = Lua::start();
    lua.use_script(&script::DECIDE.replace(right, "receipt.level = left"));
    let limit = Limit::new("mine", Algorithm::TokenBucket { burst: 10 });
    for secret in [1, 2] {
        let taken = lua.decide(Some(START_US), &limit.batch(3, Some(secret), false));
        assert!(taken[0].admitted);
    }
    let twice = limit.returns(&[(1, 3), (1, 3)]);
    assert_eq!(lua.return_units(Some(START_US), &twice), [3, 3]);
}

#[test]
fn a_receipt_is_invalid_for_another_key_or_limit() {
    for_each_algorithm(|stores, limit, now| {
        let mut other_key = Limit::new("other", Algorithm::FixedWindow);
        let mut other_limit = limit.clone();
        other_limit.name = "m";
        assert!(stores.take(now, limit, 3, 1));
        assert!(stores.take(now, &other_key, 3, 9));
        assert_eq!(stores.back(now, &other_limit, 3, 1), 0);
        assert_eq!(stores.back(now, &other_key, 3, 1), 0);
        assert_eq!(stores.back(now, &other_key, 3, 9), 3);
        other_key.subject = "mine".to_owned();
        assert_eq!(stores.back(now, limit, 3, 9), 0);
        assert_eq!(stores.remaining(now, limit), 7);
    });
}

#[test]
fn a_receipt_may_be_returned_in_parts() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 5, 1));
        for (units, returned, left) in [(0, 0, 5), (2, 2, 7), (9, 3, 10), (9, 0, 10)] {
            assert_eq!(stores.back(now, limit, units, 1), returned);
            assert_eq!(stores.remaining(now, limit), left);
            let ends = stores.lua.ttl_ms(&limit.receipt(1)) > 0;
            assert_eq!(ends, left < 10);
        }
    });
}

#[test]
fn parts_returned_later_are_together_what_the_whole_would_be() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 5, 1));
        // A token bucket has drained a part of a unit by then, which is subtracted once and not twice.
        let later = now + SECOND;
        assert_eq!(stores.back(later, limit, 1, 1), 1);
        assert_eq!(stores.remaining(later, limit), 6);
        stores.back(later, limit, 4, 1);
        assert_eq!(stores.remaining(later, limit), 10);
    });
}

/// Of a call for each key, as on a Cluster whose slot is being migrated.
#[test]
fn a_receipt_that_is_left_last_returns_to_each_bucket_what_was_taken_at_its_own_time() {
    for_each_algorithm(|stores, limit, now| {
        let lua = &mut stores.lua;
        let taken_at_us = vec![now, now + 7];
        for (bucket, at_us) in limit.buckets.iter().zip(&taken_at_us) {
            let taken = batch(std::slice::from_ref(bucket), 5, false);
            assert!(lua.decide(Some(*at_us), &taken)[0].admitted);
        }
        let mut left = limit.batch(5, Some(1), false);
        left.buckets.clear();
        left.decisions[0].takes.clear();
        let receipt = &mut left.decisions[0].receipts[0];
        receipt.taken_at_us.clone_from(&taken_at_us);
        lua.decide(Some(now + 9), &left);
        let receipt = limit.receipt(1);
        assert!(lua.ttl_ms(&receipt) > 0);
        let remaining = |lua: &mut Lua, at_us| {
            let look = |bucket| batch(std::slice::from_ref(bucket), 0, true);
            let looks = limit.buckets.iter().map(look);
            let looks = looks.map(|look| lua.decide(Some(at_us), &look)[0].remaining);
            looks.collect::<Vec<_>>()
        };
        assert_eq!(lua.redeem(now + 6, &receipt, 0), (0, taken_at_us.clone()));
        // By one call again, and by a call for each key.
        let returns = limit.returns(&[(1, 2)]);
        assert_eq!(lua.return_units(Some(now + 10), &returns), [2]);
        assert_eq!(remaining(lua, now + 10), [7, 7]);
        assert_eq!(lua.redeem(now + 10, &receipt, 9), (3, taken_at_us.clone()));
        for (bucket, at_us) in limit.buckets.iter().zip(taken_at_us) {
            let returned = lua.try_give_back(Some(now + 10), bucket, 3, at_us);
            assert_eq!(returned, Ok(3), "{bucket:?}");
        }
        assert_eq!(remaining(lua, now + SECOND), [10, 10]);
        assert_eq!(lua.redeem(now + 10, &receipt, 9), (0, vec![]));
    });
}

#[test]
fn denials_and_peeks_leave_no_receipt() {
    for_each_algorithm(|stores, limit, now| {
        let peek = limit.batch(5, Some(1), true);
        assert!(stores.decide(now, &peek)[0].admitted);
        assert!(stores.take(now, limit, 10, 2));
        assert!(!stores.take(now, limit, 1, 3));
        for secret in [1, 3] {
            assert_eq!(stores.lua.ttl_ms(&limit.receipt(secret)), -2);
            assert_eq!(stores.back(now, limit, 5, secret), 0);
        }
        assert_eq!(stores.remaining(now, limit), 0);
    });
}

#[test]
fn receipts_have_a_time_to_live_and_no_more_than_they_need() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 10, 1));
        let most = match limit.buckets[0].spec.algorithm {
            Algorithm::SlidingWindow { .. } => 201_000,
            _ => 200_000,
        };
        let ttl_ms = stores.lua.ttl_ms(&limit.receipt(1));
        assert!((most - 60_000..=most).contains(&ttl_ms), "{ttl_ms}");
        assert_eq!(stores.memory.len(), 3);
        assert!(stores.memory.sweep(now + 250 * SECOND, usize::MAX));
        assert!(stores.memory.is_empty());
    });
}

#[test]
fn concurrent_give_backs_use_a_receipt_exactly_once() {
    let limit = Limit::new("race", Algorithm::SlidingLog);
    let mut lua = Lua::start();
    assert!(lua.decide(None, &limit.batch(8, Some(1), false))[0].admitted);
    let returns = limit.returns(&[(1, 3)]);
    let give = |mut connection: redis::Connection| {
        let program = redis::Script::new(script::DECIDE);
        let mut units = 0;
        for _ in 0..2 {
            let mut call = program.prepare_invoke();
            for key in returns.keys() {
                call.key(key);
            }
            call.arg(returns.request(None));
            let reply: Vec<u8> = call.invoke(&mut connection).unwrap();
            match returns.read(&reply) {
                Ok(Reply {
                    each: Some(each), ..
                }) => units += each[0].unwrap(),
                other => panic!("{other:?}"),
            }
        }
        units
    };
    let returned: u64 = std::thread::scope(|scope| {
        let connections = (0..4).map(|_| lua.another());
        let threads: Vec<_> = connections.map(|one| scope.spawn(|| give(one))).collect();
        let each = threads.into_iter().map(|thread| thread.join().unwrap());
        each.sum()
    });
    assert_eq!(returned, 8);
}
