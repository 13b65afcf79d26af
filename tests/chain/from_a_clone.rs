//! What a clone of this repository is enough for: building Docker's images, and each target of the Makefile by itself.

use std::process::Command;

use sluicegate_tests::process::{clone_into, repository, run};

/// Cargo reads the manifests of all members, and looks for the sources of those that name no path.
#[test]
fn the_context_of_the_images_is_a_whole_workspace() {
    let ignored = std::fs::read_to_string(repository(".dockerignore")).unwrap();
    let mut lines = ignored.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"), "it lists what is sent");
    let sent: Vec<_> = lines.map(|line| line.strip_prefix('!').unwrap()).collect();
    let folder = tempfile::tempdir().unwrap();
    let context = folder.path().join("context");
    clone_into(&context, &sent);
    let mut cargo = Command::new("cargo");
    cargo.args(["metadata", "--no-deps", "--locked", "--offline"]);
    cargo.args(["--format-version", "1"]).current_dir(&context);
    run(&mut cargo, "install it: Rust");
}

/// Targets that need Rust alone; `demo` and `test` install in a Make of their own, and fuzzing in its script.
const WITHOUT_SETUP: [&str; 17] = [
    "help",
    "demo",
    "test",
    "build",
    "debug",
    "unit",
    "corpus",
    "fuzz",
    "fuzz-pack",
    "openapi",
    "chart",
    "dashboards",
    "world",
    "world-fresh",
    "world-mutations",
    "release-twice",
    "clean",
];

/// Or a target works only after another one, or compiles for minutes before it says what is missing.
#[test]
fn each_target_installs_what_it_needs_before_it_compiles() {
    let makefile = std::fs::read_to_string(repository("Makefile")).unwrap();
    let targets: Vec<_> = makefile
        .lines()
        .filter_map(|line| line.split_once(" ## ")?.0.split_once(':'))
        .collect();
    assert!(targets.len() > WITHOUT_SETUP.len());
    for (target, prerequisites) in targets {
        let first = prerequisites.split_whitespace().next().unwrap_or_default();
        let is_set_up = first.starts_with("setup-");
        assert_ne!(is_set_up, WITHOUT_SETUP.contains(&target), "{target}");
    }
    let recipes = makefile.lines().filter(|line| line.starts_with('\t'));
    let late: Vec<_> = recipes
        .filter(|line| line.contains("tests/setup"))
        .collect();
    assert_eq!(late, ["\t@tests/setup $*", "\t@tests/setup envoy"]);

    // As README has it. Not other targets: their recipes run Make, which would run them.
    let mut make = Command::new("make");
    // Below `make test` it would print its folder.
    make.args(["--no-print-directory", "--dry-run", "build", "filter"])
        .current_dir(repository(""));
    let printed = run(&mut make, "install it: apt-get install make");
    assert_eq!(
        printed.lines().next(),
        Some("tests/setup filter"),
        "{printed}"
    );
}
