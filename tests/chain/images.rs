//! What Docker's images are built from.

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
