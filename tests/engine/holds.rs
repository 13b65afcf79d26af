//! Units come back once, only with their hold, and only to what they were taken from: on both stores, for every algorithm.

use sluicegate_engine::script::{BrokenState, Operation, Reply, Settled};
use sluicegate_engine::{
    ALL, Algorithm, Batch, Bucket, Done, Entry, Guard, Held, Hold, Memory, Outcome, Record,
    Settlement, Settlements, hold_key, script,
};

use super::lua::Lua;
use super::made::{self, SECOND, START_US, batch, one, sliding};
use super::settled;

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

    /// What becomes of settlements in both stores.
    pub fn settle_all(&mut self, now_us: u64, settlements: &Settlements) -> Vec<Done> {
        let rust = self.memory.settle(now_us, settlements);
        assert_eq!(self.lua.settle(Some(now_us), settlements), Ok(rust.clone()));
        rust
    }

    /// The units that both stores settle.
    pub fn settle(&mut self, now_us: u64, settlements: &Settlements) -> Vec<u64> {
        let done = self.settle_all(now_us, settlements).into_iter();
        done.map(Done::units).collect()
    }

    /// Takes with a hold.
    fn take(&mut self, now_us: u64, limit: &Limit, cost: u64, secret: u128) -> bool {
        let batch = limit.batch(cost, Some(secret), false);
        self.decide(now_us, &batch)[0].admitted
    }

    fn back(&mut self, now_us: u64, limit: &Limit, units: u64, secret: u128) -> u64 {
        self.settle(now_us, &limit.returns(&[(secret, units)]))[0]
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

    fn hold(&self, secret: u128) -> String {
        hold_key(&self.subject, self.name, secret)
    }

    fn batch(&self, cost: u64, secret: Option<u128>, peek: bool) -> Batch {
        let lasts = |bucket: &Bucket| match cost {
            0 => 300 * SECOND,
            cost => bucket.spec.held_for_us(cost),
        };
        let hold = secret.map(|secret| Hold {
            key: self.hold(secret),
            units: cost,
            lasts_us: self.buckets.iter().map(lasts).max().unwrap_or(0),
            of: self.buckets.iter().map(Held::of).collect(),
            is_receipt: true,
        });
        let mut batch = batch(&self.buckets, cost, peek);
        batch.decisions[0].holds.extend(hold);
        batch
    }

    fn spend(&self, secret: u128, units: u64) -> Guard {
        Guard::Spend {
            hold: self.hold(secret),
            units,
            keeps: 0,
        }
    }

    fn returns(&self, given: &[(u128, u64)]) -> Settlements {
        let one = |(secret, units): &(u128, u64)| {
            let back = |bucket| Entry::back(bucket, None, *units);
            Settlement {
                guard: self.spend(*secret, *units),
                entries: (0..self.buckets.len()).map(back).collect(),
            }
        };
        Settlements {
            buckets: self.buckets.clone(),
            each: given.iter().map(one).collect(),
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
fn the_same_hold_twice_returns_its_units_once_and_a_guessed_one_none() {
    for_each_algorithm(|stores, limit, now| {
        // All in one microsecond, so that the time of a taking identifies nothing.
        assert!(stores.take(now, limit, 3, 1));
        assert!(stores.take(now, limit, 3, 2));
        assert_eq!(stores.back(now, limit, 3, 7), 0);
        assert_eq!(stores.remaining(now, limit), 4);
        assert_eq!(stores.back(now, limit, u64::MAX, 1), 3);
        assert_eq!(stores.back(now, limit, u64::MAX, 1), 0);
        assert_eq!(stores.remaining(now, limit), 7);
        // Also in one call with others.
        let both = limit.returns(&[(2, 9), (1, 9)]);
        assert_eq!(stores.settle(now, &both), [3, 0]);
        assert_eq!(stores.remaining(now, limit), 10);
        assert_eq!(stores.lua.ttl_ms(&limit.hold(1)), -2, "it is gone");
    });
}

/// Or what has long drained, or belongs to others, would be returned: by the clock it was taken a moment ago.
#[test]
fn after_a_step_back_no_hold_of_before_it_returns_what_was_taken_since() {
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
fn a_clock_that_steps_back_uses_up_no_hold() {
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

/// Takes, leaves and spends holds in every way, on a store of its own and in the script; what differs.
pub fn holds_agree(lua: &mut Lua) -> Result<(), String> {
    for algorithm in ALGORITHMS {
        lua.forget_everything();
        let (mut memory, limit) = (Memory::default(), Limit::new("mine", algorithm));
        let mut other = limit.clone();
        other.buckets[1].key += ":other";
        let mut slower = limit.clone();
        for bucket in &mut slower.buckets {
            bucket.spec.quota = 7;
        }
        let spend = |limit: &Limit, secret, units, keeps| {
            let mut settlements = Settlements::default();
            let hold = limit.hold(secret);
            let guard = Guard::Spend { hold, units, keeps };
            settlements.return_to(guard, limit.buckets.iter().cloned());
            settlements
        };
        let more = |name: &str| {
            let key = format!("{}:{name}", limit.hold(0));
            let lasts_us = 60 * SECOND;
            let record = Record {
                at_us: START_US,
                units: 1,
            };
            settled::more(&limit.buckets[0], Guard::Once { key, lasts_us }, &[record])
        };
        let asks = |buckets: &[Bucket]| {
            let mut asks = batch(buckets, 0, false);
            asks.decisions[0].asks = true;
            asks
        };
        let asked = [
            (0, limit.batch(4, Some(1), false)),
            (0, other.batch(2, Some(2), false)),
            (0, limit.batch(9, Some(3), false)),
            (1, limit.batch(1, Some(4), false)),
            (2, limit.batch(1, Some(5), false)),
            (3, limit.batch(0, Some(6), false)),
            (4, asks(&limit.buckets[..1])),
            (5, limit.batch(2, None, false)),
            (6, asks(&limit.buckets[..1])),
            (7, asks(&limit.buckets)),
            (20, slower.batch(1, None, false)),
        ];
        for (after, batch) in asked {
            let now = START_US + after * SECOND;
            let rust: Vec<_> = memory.decide(now, &batch).into_iter().flatten().collect();
            let said = lua.try_decide(Some(now), &batch)?;
            if said != rust {
                return Err(format!("{algorithm:?}: {said:?}, not {rust:?}"));
            }
        }
        // By itself, for calls that return its units one by one.
        let alone = Settlements::one(limit.spend(1, 1), Vec::new(), Vec::new());
        let told = lua.try_settle(Some(START_US), None, &alone)?.each;
        let told = told.and_then(|each| each.into_iter().next()?.ok());
        let told = told.ok_or("a hold that cannot be read")?;
        let names = told.of.iter().map(|held| (held.name, held.at_us));
        let names_of_limit = limit
            .buckets
            .iter()
            .map(|bucket| (Held::of(bucket).name, START_US));
        if told.done != Done::Returned(1) || !names.eq(names_of_limit) {
            return Err(format!("{algorithm:?}: {told:?}"));
        }
        let key = limit.hold(1);
        memory.settle(
            START_US,
            &Settlements::one(limit.spend(1, 1), Vec::new(), Vec::new()),
        );
        assert!(lua.ttl_ms(&key) > 0);
        let settle = |limit: &Limit, secret, used| {
            let mut settlements = Settlements::default();
            let hold = limit.hold(secret);
            let guard = Guard::Settle { hold, used };
            settlements.return_to(guard, limit.buckets.iter().cloned());
            settlements
        };
        let settled = [
            settle(&limit, 4, 3),
            settle(&limit, 4, 3),
            settle(&other, 5, 4),
            settle(&limit, 6, 0),
            spend(&limit, 3, ALL, 0),
            spend(&limit, 1, 1, 0),
            spend(&other, 1, ALL, 2),
            spend(&other, 1, ALL, 2),
            spend(&limit, 1, ALL, 0),
            spend(&limit, 1, ALL, 0),
            spend(&limit, 2, ALL, 0),
            more("one"),
            more("one"),
            more("two"),
        ];
        for settlements in settled {
            let now = START_US + 20 * SECOND;
            let rust = memory.settle(now, &settlements);
            let said = lua.settle(Some(now), &settlements)?;
            // A look by the faster one would store it by that.
            let looks = [slower.batch(1, None, true), one(&other.buckets[1], 1, true)];
            let (mut left, mut expected) = (Vec::new(), Vec::new());
            for look in &looks {
                left.extend(lua.try_decide(Some(now), look)?);
                expected.extend(memory.decide(now, look).into_iter().flatten());
            }
            if said != rust || left != expected {
                return Err(format!(
                    "{algorithm:?}: {settlements:?}: {said:?}, not {rust:?}"
                ));
            }
        }
    }
    Ok(())
}

#[test]
fn the_script_and_the_embedded_store_agree_about_holds() {
    assert_eq!(holds_agree(&mut Lua::start()), Ok(()));
}

#[test]
fn a_hold_is_invalid_for_another_key_or_limit() {
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
fn a_hold_may_be_returned_in_parts() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 5, 1));
        for (units, returned, left) in [(0, 0, 5), (2, 2, 7), (9, 3, 10), (9, 0, 10)] {
            assert_eq!(stores.back(now, limit, units, 1), returned);
            assert_eq!(stores.remaining(now, limit), left);
            let ends = stores.lua.ttl_ms(&limit.hold(1)) > 0;
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

/// What is told is what stays, so that a call whose answer was lost can be repeated.
#[test]
fn what_stays_in_a_hold_stays_however_often_the_rest_is_returned() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 8, 1));
        for (keeps, returned) in [(5, 3), (5, 0), (7, 0), (1, 4), (0, 1)] {
            let mut settlements = Settlements::default();
            let guard = Guard::Spend {
                hold: limit.hold(1),
                units: ALL,
                keeps,
            };
            settlements.return_to(guard, limit.buckets.iter().cloned());
            assert!(settlements.is_repeatable());
            assert_eq!(stores.settle(now, &settlements), [returned], "{keeps}");
        }
        assert_eq!(stores.remaining(now, limit), 10);
    });
}

/// E2: a policy may put other buckets in place of those that a hold is of, and put them back.
#[test]
fn a_bucket_that_a_hold_is_not_of_gets_nothing() {
    for_each_algorithm(|stores, limit, now| {
        let mut other = limit.clone();
        other.buckets[1].key += ":other";
        for limit in [limit, &other] {
            let only_second = one(&limit.buckets[1], 2, false);
            assert!(stores.decide(now, &only_second)[0].admitted);
        }
        assert!(stores.take(now, limit, 3, 1));
        // The window that both have gets its units back.
        assert_eq!(stores.back(now, &other, 3, 1), 3);
        let left =
            |stores: &mut Stores, bucket| stores.decide(now, &one(bucket, 0, true))[0].remaining;
        assert_eq!(left(stores, &limit.buckets[0]), 10);
        assert_eq!(left(stores, &limit.buckets[1]), 5);
        assert_eq!(left(stores, &other.buckets[1]), 8);
    });
}

/// E3: of ten units that were taken when ten drained in 100 s, two have drained after 20 s, whatever drains since.
#[test]
fn what_has_drained_by_the_rate_of_the_taking_does_not_come_back_by_a_slower_one() {
    let token = |quota, burst| {
        let key = "sg:{mine}:l:token";
        made::bucket(key, Algorithm::TokenBucket { burst }, quota, 100 * SECOND)
    };
    let (fast, slow) = (token(10, 20), token(1, 20));
    let mut stores = Stores::start();
    for (first, then, returned) in [
        (&fast, &slow, 8),
        (&slow, &fast, 8),
        (&fast, &fast, 8),
        (&slow, &slow, 10),
    ] {
        let mut taken = one(first, 10, false);
        taken.decisions[0].holds.push(Hold {
            key: "sg:{mine}:hold".to_owned(),
            units: 10,
            lasts_us: 1_000 * SECOND,
            of: vec![Held::of(first)],
            is_receipt: false,
        });
        assert!(stores.decide(START_US, &taken)[0].admitted);
        // From here on the rate is the other.
        let now = START_US + 20 * SECOND;
        assert!(stores.decide(now, &one(then, 5, false))[0].admitted);
        let mut settlements = Settlements::default();
        let guard = Guard::Spend {
            hold: "sg:{mine}:hold".to_owned(),
            units: ALL,
            keeps: 0,
        };
        settlements.return_to(guard, [then.clone()]);
        assert_eq!(
            stores.settle(now, &settlements),
            [returned],
            "{first:?}, {then:?}"
        );
        stores.start_again();
    }
}

/// What a request cost in fact: fewer units than it had reserved, or more, or some where it had reserved none.
#[test]
fn a_hold_is_settled_once_by_what_was_used() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 6, 1));
        assert!(stores.take(now, limit, 2, 2));
        assert!(stores.take(now, limit, 0, 3));
        let settles = |secret, used| {
            let hold = limit.hold(secret);
            let mut settlements = Settlements::default();
            let guard = Guard::Settle { hold, used };
            settlements.return_to(guard, limit.buckets.iter().cloned());
            assert!(settlements.is_repeatable());
            settlements
        };
        let of_six = stores.settle_all(now, &settles(1, 1));
        assert_eq!(of_six, [Done::Returned(5)]);
        assert_eq!(stores.settle_all(now, &settles(1, 9)), [Done::Nothing]);
        assert_eq!(stores.settle_all(now, &settles(4, 0)), [Done::Nothing]);
        assert_eq!(stores.remaining(now, limit), 7);
        let later = now + 10 * SECOND;
        let mut left = stores.remaining(later, limit);
        assert_eq!(
            stores.settle_all(later, &settles(2, 2)),
            [Done::Returned(0)]
        );
        assert_eq!(stores.remaining(later, limit), left);
        assert_eq!(stores.settle_all(later, &settles(3, 4)), [Done::Added(4)]);
        left -= 4;
        assert_eq!(stores.remaining(later, limit), left);
        // Whatever the limit; and the wait after it is true.
        assert!(stores.take(later, limit, 1, 5));
        assert_eq!(stores.settle_all(later, &settles(5, 12)), [Done::Added(11)]);
        let denied = stores.decide(later, &limit.batch(1, None, false))[0];
        assert!(!denied.admitted);
        let then = later + denied.retry_after_us;
        let before = stores.decide(then - 1, &limit.batch(1, None, true));
        assert!(!before[0].admitted);
        assert!(stores.decide(then, &limit.batch(1, None, false))[0].admitted);
    });
}

/// Where nothing is reserved it is asked whether anything is left.
#[test]
fn what_asks_takes_nothing_and_is_denied_like_a_take_of_one() {
    for_each_algorithm(|stores, limit, now| {
        let mut asks = limit.batch(0, Some(1), false);
        asks.decisions[0].asks = true;
        assert!(stores.take(now, limit, 9, 2));
        let admitted = stores.decide(now, &asks)[0];
        assert_eq!((admitted.admitted, admitted.remaining), (true, 1));
        assert!(stores.lua.ttl_ms(&limit.hold(1)) > 0);
        assert!(stores.take(now, limit, 1, 3));
        let denied = stores.decide(now, &asks);
        assert_eq!(denied, stores.decide(now, &limit.batch(1, None, false)));
        asks.decisions[0].peek = true;
        assert_eq!(denied, stores.decide(now, &asks), "also a look");
        // One that only reads is not.
        assert!(stores.decide(now, &limit.batch(0, None, false))[0].admitted);
    });
}

/// Although every request reserves nothing, and the bucket is never empty.
#[test]
fn what_is_charged_after_a_change_of_the_rate_is_not_cut() {
    let mut stores = Stores::start();
    let slow = made::bucket(
        "sg:{mine}:l",
        Algorithm::TokenBucket { burst: 10 },
        10,
        100 * SECOND,
    );
    let mut fast = slow.clone();
    fast.spec.quota = 1_000;
    let mut asks = one(&fast, 0, false);
    asks.decisions[0].asks = true;
    assert!(stores.decide(START_US, &one(&slow, 10, false))[0].admitted);
    // Drains from here on.
    assert!(!stores.decide(START_US, &asks)[0].admitted);
    let later = START_US + SECOND;
    assert!(stores.decide(later, &asks)[0].admitted);
    let charged = Record {
        at_us: later,
        units: 40,
    };
    stores.settle(later, &settled::more(&fast, Guard::None, &[charged]));
    // 30 of them are left a second later, and 10 may be.
    let denied = stores.decide(later + SECOND, &asks)[0];
    assert_eq!((denied.admitted, denied.retry_after_us), (false, 2_100_000));
    assert_eq!((denied.remaining, denied.over), (0, 20));
}

/// What goes beyond a reserve is charged whatever the quota, and each answer says by how much the bucket is over.
#[test]
fn a_debt_is_told_until_it_has_gone() {
    for_each_algorithm(|stores, limit, now| {
        let bucket = &limit.buckets[0];
        let left = |stores: &mut Stores, at: u64, cost| {
            let outcome = stores.decide(at, &one(bucket, cost, true))[0];
            (outcome.admitted, outcome.remaining, outcome.over)
        };
        assert_eq!(left(stores, now, 1), (true, 10, 0));
        let charged = Record {
            at_us: now,
            units: 34,
        };
        let settled = settled::more(bucket, Guard::None, &[charged]);
        assert_eq!(stores.settle(now, &settled), [34]);
        assert_eq!(left(stores, now, 1), (false, 0, 24));
        assert_eq!(left(stores, now, 0), (true, 0, 24));
        // A part of a unit is one.
        if bucket.spec.is_level() {
            assert_eq!(left(stores, now + 15 * SECOND, 1), (false, 0, 23));
        }
        assert_eq!(left(stores, now + 340 * SECOND, 1), (true, 10, 0));
    });
}

/// A change of the rate cuts what is in a bucket to a full one, but not what is owed beyond it; and whoever settles by a
/// changed policy has no say in which of the two it is.
#[test]
fn a_debt_outlives_a_change_of_the_rate_and_of_the_burst() {
    let mut stores = Stores::start();
    let of = |burst, quota| {
        let algorithm = Algorithm::TokenBucket { burst };
        made::bucket("sg:{mine}:l", algorithm, quota, 100 * SECOND)
    };
    assert!(stores.decide(START_US, &one(&of(10, 10), 10, false))[0].admitted);
    let charged = Record {
        at_us: START_US,
        units: 24,
    };
    let settled = settled::more(&of(5, 10), Guard::None, &[charged]);
    assert_eq!(stores.settle(START_US, &settled), [24]);
    for (burst, quota, over) in [
        (10, 1_000, 24),
        (5, 1_000, 24),
        (20, 1, 14),
        (100, 1_000, 0),
    ] {
        let outcome = stores.decide(START_US, &one(&of(burst, quota), 1, true))[0];
        assert_eq!(outcome.over, over, "burst {burst}, quota {quota}");
    }
    // A raised rate drains from the first look on: nothing says when it was raised.
    stores.start_again();
    assert!(stores.decide(START_US, &one(&of(10, 10), 10, false))[0].admitted);
    stores.settle(START_US, &settled);
    let (raised, later) = (of(10, 1_000), START_US + 12 * SECOND);
    let seen = stores.decide(later, &one(&raised, 1, true))[0];
    assert_eq!((seen.over, seen.retry_after_us), (23, 2_380_000));
    let then = later + seen.retry_after_us;
    let denied = stores.decide(then - 10, &one(&raised, 1, false))[0];
    assert_eq!((denied.admitted, denied.retry_after_us), (false, 10));
    assert!(!stores.decide(then - 1, &one(&raised, 1, true))[0].admitted);
    assert!(stores.decide(then, &one(&raised, 1, false))[0].admitted);
}

/// Lowered, a burst leaves a full bucket at most, whatever the larger one had let in.
#[test]
fn a_lowered_burst_does_not_lock_a_key_until_the_larger_one_has_drained() {
    let mut stores = Stores::start();
    let of = |burst| {
        let algorithm = Algorithm::TokenBucket { burst };
        made::bucket("sg:{mine}:l", algorithm, 10, 100 * SECOND)
    };
    assert!(stores.decide(START_US, &one(&of(90), 90, false))[0].admitted);
    let denied = stores.decide(START_US, &one(&of(2), 1, false))[0];
    assert_eq!((denied.over, denied.retry_after_us), (0, 10 * SECOND));
    let later = START_US + 10 * SECOND;
    assert!(stores.decide(later, &one(&of(2), 1, false))[0].admitted);
    // The larger one, which comes back, finds all.
    let left = stores.decide(later, &one(&of(90), 0, true))[0].remaining;
    assert_eq!(left, 0);
}

#[test]
fn a_key_that_cannot_be_read_keeps_only_itself_from_being_settled() {
    let mut lua = Lua::start();
    let limit = Limit::new("mine", Algorithm::SlidingLog);
    assert!(lua.decide(Some(START_US), &limit.batch(3, Some(1), false))[0].admitted);
    let broken = &limit.buckets[0].key;
    let _: String = lua.ask(&["SET", broken, "of somebody else"]);
    let back = limit.returns(&[(1, 3)]);
    let reply = lua.try_settle(Some(START_US), None, &back).unwrap();
    assert_eq!(reply.each, Some(vec![Err(BrokenState)]));
    let text: String = lua.ask(&["GET", broken]);
    assert_eq!(text, "of somebody else");
    let second = lua.decide(Some(START_US), &one(&limit.buckets[1], 0, true));
    assert_eq!(second[0].remaining, 10);
}

/// Of a call for each key, as on a Cluster whose slot is being migrated.
#[test]
fn a_hold_that_is_left_last_returns_to_each_bucket_what_was_taken_at_its_own_time() {
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
        let of = &mut left.decisions[0].holds[0].of;
        for (held, at_us) in of.iter_mut().zip(&taken_at_us) {
            held.at_us = *at_us;
        }
        let of = of.clone();
        lua.decide(Some(now + 9), &left);
        assert!(lua.ttl_ms(&limit.hold(1)) > 0);
        let redeem = |lua: &mut Lua, now, units| {
            let spend = Settlements {
                buckets: Vec::new(),
                each: vec![Settlement {
                    guard: limit.spend(1, units),
                    entries: Vec::new(),
                }],
            };
            let reply = lua.try_settle(Some(now), None, &spend).unwrap();
            reply.each.unwrap().remove(0).unwrap()
        };
        let remaining = |lua: &mut Lua, at_us| {
            let look = |bucket| batch(std::slice::from_ref(bucket), 0, true);
            let looks = limit.buckets.iter().map(look);
            let looks = looks.map(|look| lua.decide(Some(at_us), &look)[0].remaining);
            looks.collect::<Vec<_>>()
        };
        // By one call again, and by a call for each key.
        let returns = limit.returns(&[(1, 2)]);
        let returned = |units| Ok(vec![Done::Returned(units)]);
        assert_eq!(lua.settle(Some(now + 10), &returns), returned(2));
        assert_eq!(remaining(lua, now + 10), [7, 7]);
        let done = Done::Returned(3);
        assert_eq!(redeem(lua, now + 10, 9), Settled { done, of });
        for (bucket, at_us) in limit.buckets.iter().zip(taken_at_us) {
            let back = lua.settle(Some(now + 10), &settled::back(bucket, 3, at_us));
            assert_eq!(back, returned(3), "{bucket:?}");
        }
        assert_eq!(remaining(lua, now + SECOND), [10, 10]);
        assert_eq!(redeem(lua, now + 10, 9), Settled::default());
    });
}

#[test]
fn denials_and_peeks_leave_no_hold() {
    for_each_algorithm(|stores, limit, now| {
        let peek = limit.batch(5, Some(1), true);
        assert!(stores.decide(now, &peek)[0].admitted);
        assert!(stores.take(now, limit, 10, 2));
        assert!(!stores.take(now, limit, 1, 3));
        for secret in [1, 3] {
            assert_eq!(stores.lua.ttl_ms(&limit.hold(secret)), -2);
            assert_eq!(stores.back(now, limit, 5, secret), 0);
        }
        assert_eq!(stores.remaining(now, limit), 0);
    });
}

#[test]
fn holds_have_a_time_to_live_and_no_more_than_they_need() {
    for_each_algorithm(|stores, limit, now| {
        assert!(stores.take(now, limit, 10, 1));
        let most = match limit.buckets[0].spec.algorithm {
            Algorithm::SlidingWindow { .. } => 201_000,
            _ => 200_000,
        };
        let ttl_ms = stores.lua.ttl_ms(&limit.hold(1));
        assert!((most - 60_000..=most).contains(&ttl_ms), "{ttl_ms}");
        assert_eq!(stores.memory.len(), 3);
        assert!(stores.memory.sweep(now + 250 * SECOND, usize::MAX));
        assert!(stores.memory.is_empty());
    });
}

#[test]
fn concurrent_settlements_use_a_hold_exactly_once() {
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
                }) => units += each[0].as_ref().unwrap().done.units(),
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
