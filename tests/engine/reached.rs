//! The branches of the slow path of the script, counted in the script: one that no generated history comes to is red, or stands
//! here with the test that does.

use super::history::{Kind, histories};
use super::holds::holds_agree;
use super::kept::cut_buckets;
use super::lua::Lua;
use super::made::for_all;
use super::replay::replay;
use super::slots::slots_differ;
use proptest::test_runner::TestCaseError;
use sluicegate_engine::script;
use std::cell::RefCell;

/// What comes after the slow path.
const REST: &str = "-- Decides a batch:";
/// Rounds of histories of each kind. Three or four suffice; a branch that needs more than all of them is one that no history has.
const ROUNDS: usize = 200;

/// Branches that no history comes to: a word of the line, and what does.
const ELSEWHERE: [(&str, &str); 9] = [
    ("if now < first or", "calendar.rs"),
    ("for i = 0, takes - 1 do", "calls.rs"),
    ("if broken[unpack", "calls.rs"),
    ("if not log.read or", "calls.rs"),
    ("if broken and broken[index] then", "calls.rs"),
    ("else buckets[index], result =", "calls.rs"),
    ("> depth then", "write_back.rs"),
    ("if too_deep", "write_back.rs"),
    ("if result ~= DAMAGED", "nothing: an error of the script"),
];

/// The script with a mark at each branch of its slow path, and how each begins.
fn marked() -> (String, Vec<String>) {
    let (slow, rest) = script::DECIDE.split_once(REST).expect("a slow path");
    let (mut text, mut branches) = (String::new(), Vec::new());
    let is_code = |line: &str| !line.trim_start().starts_with("--");
    for (number, line) in slow.lines().enumerate() {
        for word in line.split_inclusive(' ') {
            text += word;
            if is_code(line) && ["then", "else", "do", "repeat"].contains(&word.trim()) {
                text += &format!(" redis.call('SETBIT', 'reached', {}, 1) ", branches.len());
                let mut next = slow.lines().skip(number + 1).filter(|line| is_code(line));
                let next = next.next().filter(|_| line.trim() == "else");
                branches.push(format!("{} {}", line.trim(), next.unwrap_or("").trim()));
            }
        }
        text += "\n";
    }
    (text + REST + rest, branches)
}

/// Branches that no history has come to, and that nothing else is known to come to.
fn missing<'a>(lua: &mut Lua, branches: &'a [String]) -> Vec<&'a String> {
    let reached: Vec<u8> = lua.ask(&["GET", "reached"]);
    let is_reached = |bit: usize| {
        let byte = reached.get(bit / 8);
        byte.is_some_and(|byte| byte >> (7 - bit % 8) & 1 > 0)
    };
    let missing = branches.iter().enumerate();
    let missing = missing.filter(|(bit, _)| !is_reached(*bit));
    let is_elsewhere = |line: &&String| ELSEWHERE.iter().any(|(word, _)| line.contains(word));
    missing
        .map(|(_, line)| line)
        .filter(|line| !is_elsewhere(line))
        .collect()
}

#[test]
fn histories_come_to_every_branch_of_the_slow_path() {
    let (script, branches) = marked();
    for (word, _) in ELSEWHERE {
        let is_there = branches.iter().any(|line| line.contains(word));
        assert!(is_there, "{word}");
    }
    let mut lua = Lua::start();
    lua.use_script(&script);
    // It comes first because it forgets everything.
    holds_agree(&mut lua).unwrap();
    for history in cut_buckets() {
        replay(&mut lua, &history).unwrap();
    }
    assert!(!slots_differ(&mut lua, 100));
    let lua = RefCell::new(lua);
    for _ in 0..ROUNDS {
        for kind in Kind::ALL {
            for_all(10, 0, &histories(kind), |history| {
                let agreed = replay(&mut lua.borrow_mut(), &history);
                agreed.map(drop).map_err(TestCaseError::fail)
            });
        }
        if missing(&mut lua.borrow_mut(), &branches).is_empty() {
            return;
        }
    }
    let missing = missing(&mut lua.borrow_mut(), &branches);
    panic!("of {} branches these: {missing:#?}", branches.len());
}
