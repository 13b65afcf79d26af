//! The calls that a world made of its store, once more: the script in a real Redis gives each the same answer.

use std::collections::BTreeMap;

use sluicegate::store::simulated::Call;
use sluicegate_engine::Guard;

use super::generate::generate;
use super::lua::Lua;
use super::run::run;

/// Sends each call at its time; what differs.
fn replay(lua: &mut Lua, calls: &[Call]) -> Option<String> {
    lua.forget_everything();
    // When holds end: Redis has not waited for that.
    let mut ends: BTreeMap<&str, u64> = BTreeMap::new();
    for (number, call) in calls.iter().enumerate() {
        let differs = match call {
            Call::Decide(now_us, batch, outcomes) => {
                let holds = batch.decisions.iter().flat_map(|one| &one.holds);
                ends.extend(holds.map(|hold| (hold.key.as_str(), now_us + hold.lasts_us)));
                lua.decide(Some(*now_us), batch) != *outcomes
            }
            Call::Settle(now_us, settlements, units) => {
                for one in &settlements.each {
                    if let Guard::Settle { hold, .. } = &one.guard
                        && ends.get(hold.as_str()).is_some_and(|ends| ends <= now_us)
                    {
                        lua.reset(hold);
                    }
                }
                lua.settle(Some(*now_us), settlements).as_ref() != Ok(units)
            }
            Call::Renew(now_us, holds, renewed) => {
                let lives = holds.iter().zip(renewed).filter(|(_, renewed)| **renewed);
                let mut failed = false;
                for ((hold, for_ms), _) in lives {
                    ends.insert(hold, now_us + for_ms * 1_000);
                    // In real time it is for longer, so that none ends too soon.
                    let renewed: i64 = lua.ask(&["PEXPIRE", hold, "600000"]);
                    failed |= renewed == 0;
                }
                failed
            }
            Call::Reset(keys) => {
                keys.iter().for_each(|key| lua.reset(key));
                false
            }
            Call::Lost => {
                lua.forget_everything();
                false
            }
        };
        if differs {
            return Some(format!("call {number}: {call:?}"));
        }
    }
    let keys: Vec<String> = lua.ask(&["KEYS", "*"]);
    let endless = keys.into_iter().find(|key| lua.ttl_ms(key) == -1);
    endless.map(|key| format!("{key} has no end"))
}

#[test]
fn the_script_answers_every_call_of_a_world_as_the_engine_did() {
    let mut lua = Lua::start();
    let seeds = std::env::var("SEEDS").map_or(60, |text| text.parse().expect("a number"));
    let mut replayed = 0;
    for seed in 1..=seeds {
        let calls = run(&generate(seed), true).calls;
        let differs = replay(&mut lua, &calls);
        assert_eq!(differs, None, "seed {seed}");
        replayed += calls.len();
    }
    println!("{replayed} calls of {seeds} worlds");
}
