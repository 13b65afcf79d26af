//! `sidecar/engine/src/script/assembled.lua` is lua/slow_path.lua and lua/decide.lua, with the sections of each algorithm in the
//! places that they are marked for. `SLUICEGATE_WRITE=1 cargo test -p sluicegate-tests --test core -- engine::assembled` writes it.
//!
//! It is text that is assembled, and not functions that are called: a branch in a function of its own makes a call of the script
//! 3.7 % slower.

use std::path::Path;

/// Those that are asked for most come first.
const ALGORITHMS: [&str; 4] = ["fixed", "token", "log", "slots"];

fn read(path: &str) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::fs::read_to_string(root.join(path)).unwrap()
}

/// The sections of this name, in the order of the algorithms. Not each of them has one.
fn sections(name: &str) -> Vec<String> {
    let section = |algorithm: &&str| {
        let text = read(&format!("lua/algorithms/{algorithm}.lua"));
        let (_, after) = text.split_once(&format!("\n--@{name}\n"))?;
        let section = after.split("\n--@").next()?;
        Some(section.trim_end().to_owned())
    };
    ALGORITHMS.iter().filter_map(section).collect()
}

fn assembled() -> String {
    let skeleton = read("lua/slow_path.lua") + &read("lua/decide.lua");
    let mut lines =
        vec!["-- Assembled from lua/ by tests/engine/assembled.rs: change it there.".to_owned()];
    for line in skeleton.lines() {
        let Some(mark) = line.strip_prefix("--@") else {
            lines.push(line.to_owned());
            continue;
        };
        let (how, name) = mark.split_once(' ').unwrap();
        let sections = sections(name);
        assert!(!sections.is_empty(), "{line}");
        for (index, section) in sections.into_iter().enumerate() {
            lines.push(match how {
                "each" => section + "\n",
                "chain" if index == 0 => section,
                "chain" | "else" => section.replacen("if ", "elseif ", 1),
                _ => panic!("{line}"),
            });
        }
    }
    lines.join("\n") + "\n"
}

#[test]
fn the_committed_script_is_assembled_from_its_parts() {
    let path = "sidecar/engine/src/script/assembled.lua";
    let assembled = assembled();
    if std::env::var_os("SLUICEGATE_WRITE").is_some() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::fs::write(root.join(path), &assembled).unwrap();
    }
    let is = read(path) == assembled;
    assert!(is, "{path} is old: SLUICEGATE_WRITE=1 writes it");
}
