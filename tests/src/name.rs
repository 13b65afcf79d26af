//! A host name that only one test's sidecars know, and whose address the test changes.
//!
//! Needs root and `unshare`.

use std::fs::write;
use std::path::{Path, PathBuf};

use crate::process::write_program;
use crate::sidecar::binary;

/// The name.
pub const NAME: &str = "moving.test";

/// Gives the name this address from now on: in a file in this folder, which sidecars read in the place of `/etc/hosts`.
///
/// # Panics
/// The file cannot be written.
pub fn leads_to(address: &str, folder: &Path) {
    write(folder.join("hosts"), format!("{address} {NAME}\n")).expect("a file of hosts");
}

/// A program: a sidecar that reads that file, in a mount namespace of its own.
///
/// # Panics
/// It cannot be written.
pub fn program(folder: &Path) -> PathBuf {
    let (path, hosts) = (folder.join("sluicegate"), folder.join("hosts"));
    let script = format!(
        "#!/bin/sh\nexec unshare -m sh -c 'mount --bind {} /etc/hosts && exec \"$@\"' sh {} \"$@\"\n",
        hosts.display(),
        binary().display()
    );
    write_program(&path, &script);
    path
}
