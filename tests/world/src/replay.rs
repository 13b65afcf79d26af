//! The calls that a world made of its store, once more: the script in a real Redis gives each the same answer.

use sluicegate::store::simulated::Call;

use super::generate::generate;
use super::lua::Lua;
use super::run::run;

/// Sends each call at its time; what differs.
fn replay(lua: &mut Lua, calls: &[Call]) -> Option<String> {
    lua.forget_everything();
    for (number, call) in calls.iter().enumerate() {
        let differs = match call {
            Call::Decide(now_us, batch, outcomes) => lua.decide(Some(*now_us), batch) != *outcomes,
            Call::Settle(now_us, settlements, units) => {
                lua.settle(Some(*now_us), settlements).as_ref() != Ok(units)
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
