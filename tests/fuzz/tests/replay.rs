//! The corpus of every target, without libFuzzer: what once failed does not fail again, and what the fuzzer reached is reached.

use std::panic::{AssertUnwindSafe, catch_unwind};

use redis::Redis;
use sluicegate_fuzz::{TARGETS, corpus, use_redis};

// By path: the package of the end-to-end tests would be compiled whole.
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../src/process.rs"]
mod process;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../../src/redis.rs"]
mod redis;

/// Most bytes of all files: they are cloned and read with every `make test`.
const MAX_BYTES: u64 = 400 * 1_024;

#[test]
fn every_input_of_the_corpus_passes() {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let redis = runtime.block_on(Redis::start());
    use_redis(redis.url());
    let mut failed = Vec::new();
    for (name, run) in TARGETS {
        let mut entries = corpus::read(name);
        // What is found without Lua goes through all three implementations.
        if name == "script" {
            entries.extend(corpus::read("engine"));
        }
        assert!(!entries.is_empty(), "{name} has no corpus");
        for (index, entry) in entries.iter().enumerate() {
            if catch_unwind(AssertUnwindSafe(|| run(&entry.bytes))).is_err() {
                let (bytes, story) = (entry.bytes.escape_ascii(), &entry.story);
                failed.push(format!("{name}: input {index}: {bytes}\n{story}"));
            }
        }
        println!("{name}: {} inputs", entries.len());
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn the_corpus_is_small_and_each_file_has_a_target() {
    let mut bytes = 0;
    for file in std::fs::read_dir("corpus").expect("a folder") {
        let file = file.expect("a file");
        bytes += file.metadata().expect("a file").len();
        let path = file.path();
        let name = path.file_stem().and_then(|name| name.to_str());
        let known = TARGETS.iter().any(|(target, _)| Some(*target) == name);
        assert!(known, "{} is no target's corpus", path.display());
    }
    let small = bytes <= MAX_BYTES;
    assert!(small, "{bytes} bytes: make fuzz-pack makes them smaller");
}

/// The script that runs them names the targets by itself, so that it can say at once what is misspelt.
#[test]
fn the_script_runs_every_target() {
    let script = std::fs::read_to_string("run").expect("a script");
    let names = TARGETS.map(|(name, _)| name).join(" ");
    assert!(script.contains(&format!("\nall=({names})\n")), "{names}");
}
