//! The program `fuzz`: libFuzzer has the command line, so what is ours is in the environment.
//!
//! | variable | for |
//! |---|---|
//! | `SLUICEGATE_FUZZ_TARGET` | the target's name |
//! | `SLUICEGATE_FUZZ_REDIS` | the URL of a Redis, for the targets that need one |
//! | `SLUICEGATE_FUZZ_UNPACK` | do nothing but write the target's corpus into this folder, a file for each input |
//! | `SLUICEGATE_FUZZ_PACK` | do nothing but make the target's corpus of the files in this folder |
//! | `SLUICEGATE_FUZZ_KEEP`, `SLUICEGATE_FUZZ_STORY` | do nothing but add this file to the target's corpus, with what happened |

use std::env;
use std::path::PathBuf;
use std::process::exit;
use std::sync::OnceLock;

use crate::{TARGETS, Target, corpus, use_redis};

static TARGET: OnceLock<Target> = OnceLock::new();

/// Runs the target that the environment names.
pub fn run(data: &[u8]) {
    if let Some((_, run)) = TARGET.get() {
        run(data);
    }
}

/// Reads the environment, and exits if there is nothing to run.
pub fn prepare() {
    let name = env::var("SLUICEGATE_FUZZ_TARGET").unwrap_or_default();
    let Some(target) = TARGETS.into_iter().find(|(target, _)| *target == name) else {
        let names = TARGETS.map(|(target, _)| target);
        eprintln!("fuzz: SLUICEGATE_FUZZ_TARGET must be one of {names:?}");
        exit(64);
    };
    let path = |variable| env::var_os(variable).map(PathBuf::from);
    if let Some(folder) = path("SLUICEGATE_FUZZ_UNPACK") {
        corpus::unpack(&name, &folder);
        exit(0);
    }
    if let Some(folder) = path("SLUICEGATE_FUZZ_PACK") {
        corpus::pack(&name, &folder);
        exit(0);
    }
    if let Some(file) = path("SLUICEGATE_FUZZ_KEEP") {
        let story = env::var("SLUICEGATE_FUZZ_STORY").unwrap_or_default();
        corpus::keep(&name, &file, &story);
        exit(0);
    }
    if let Ok(url) = env::var("SLUICEGATE_FUZZ_REDIS") {
        use_redis(url);
    }
    // The first one stays.
    let _ = TARGET.set(target);
}
