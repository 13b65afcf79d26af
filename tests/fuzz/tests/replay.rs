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
    for target in TARGETS {
        // What is found without Lua goes through all three implementations.
        let corpora = match target.name {
            "script" => vec!["engine", "script"],
            name => vec![name],
        };
        let entries: Vec<_> = corpora.into_iter().flat_map(corpus::read).collect();
        assert!(
            !entries.is_empty() || target.name == "script",
            "{} has no corpus",
            target.name
        );
        for (index, entry) in entries.iter().enumerate() {
            if catch_unwind(AssertUnwindSafe(|| (target.run)(&entry.bytes))).is_err() {
                let bytes = entry.bytes.escape_ascii();
                failed.push(format!(
                    "{}: input {index}: {bytes}\n{}",
                    target.name, entry.story
                ));
            }
        }
        println!("{}: {} inputs", target.name, entries.len());
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
        let known = TARGETS.iter().any(|target| Some(target.name) == name);
        assert!(known, "{} is no target's corpus", path.display());
    }
    assert!(
        bytes <= MAX_BYTES,
        "{bytes} bytes: make fuzz-pack makes them smaller"
    );
}

/// The script that runs them names the targets by itself, so that it can say at once what is misspelt.
#[test]
fn the_script_runs_every_target() {
    let script = std::fs::read_to_string("run").expect("a script");
    let line = script.lines().find_map(|line| line.strip_prefix("all=("));
    let names = line
        .and_then(|line| line.strip_suffix(')'))
        .expect("a list");
    let names: Vec<_> = names.split(' ').collect();
    assert_eq!(names, TARGETS.map(|target| target.name));
}
