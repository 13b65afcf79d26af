//! Where the files are, and running commands on them.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::{self, repository};

pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Debian's names, and those of qemu and the kernel.
pub const ARCHITECTURES: [(&str, &str); 2] = [("amd64", "x86_64"), ("arm64", "aarch64")];

/// A file of the release; `VERSION` in its name stands for the version.
pub fn artifact(name: &str) -> PathBuf {
    let path = repository("target/release-artifacts").join(name.replace("VERSION", VERSION));
    assert!(path.exists(), "there is no {path:?}; run: make release");
    path
}

/// What `sluicegate --version` prints.
pub fn is_of_this_version(printed: &str) {
    assert_eq!(printed, format!("sluicegate {VERSION}"));
}

/// What a command prints that has to succeed.
pub fn run(command: &mut Command) -> String {
    process::run(command, "install it: tests/setup release")
}

/// A command from `.tools/bin`.
pub fn tool(name: &str) -> Command {
    Command::new(repository(".tools/bin").join(name))
}

/// Unpacks an archive into a folder.
pub fn unpack(archive: &Path, folder: &Path) {
    std::fs::create_dir_all(folder).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-xf").arg(archive).arg("-C").arg(folder);
    run(&mut tar);
}

/// Runs a program for `machine`, with qemu if that is not this machine's.
pub fn emulated(machine: &str, program: &Path, argument: impl AsRef<OsStr>) -> String {
    if machine == std::env::consts::ARCH {
        return run(Command::new(program).arg(argument));
    }
    let mut qemu = Command::new(format!("qemu-{machine}-static"));
    run(qemu.arg(program).arg(argument))
}
