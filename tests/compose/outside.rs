//! The namespaces that the test runs in, and what has to be removed by hand afterwards.
//!
//! This process calls itself again in network, mount and process namespaces of their own. When the first process in
//! there ends, however it ends, the kernel ends all others and takes the mounts, bridges and firewall rules with them.
//! Published ports are free for the same reason: nobody else is in that network. What would stay is files and control
//! groups, and this process removes those.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use sluicegate_tests::process::{POLL, repository};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// The argument by which this program knows that it has been called by itself.
pub const INSIDE: &str = "inside";

/// Made by containerd wherever it runs, and empty.
const CONTAINERD: &str = "/opt/containerd";

const CGROUPS: &str = "/sys/fs/cgroup";

/// Makes this process's root the root of its mount namespace, which in a chroot it is not. `docker exec`, and so every
/// health check, begins at the namespace's root: from a chroot it would not run in its container, but on the machine.
/// So whoever joins the namespace anew looks whether it comes out elsewhere, and lays our root over that place.
const OWN_ROOT: [&str; 6] = [
    "nsenter",
    "--mount=/proc/self/ns/mnt",
    "--wd=/",
    "sh",
    "-c",
    r#"if ! [ . -ef / ]; then mount --move . / || exit 1; fi; exec chroot . "$0" "$@""#,
];

/// How long processes that were killed may take to be gone.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// Runs the test and cleans up after it.
pub async fn run() -> ExitCode {
    let user = std::fs::metadata("/proc/self").expect("/proc").uid();
    if user != 0 {
        eprintln!("compose: a Docker engine of its own takes root: sudo make compose");
        return ExitCode::FAILURE;
    }
    let parent = repository("target/compose");
    std::fs::create_dir_all(&parent).expect("a folder under target");
    let parent = parent.canonicalize().expect("a folder that exists");
    remove_what_the_killed_left(&parent).await;
    let id = std::process::id();
    let folder = tempfile::Builder::new()
        .prefix(&format!("{id}-"))
        .tempdir_in(parent)
        .expect("a folder under target");
    let group = group_of(&id.to_string());
    let containerd_was_there = Path::new(CONTAINERD).exists();

    let passed = in_namespaces(folder.path(), &group).await;

    let mut left = Vec::new();
    left.extend(groups_that_stay(&group).await);
    if !containerd_was_there {
        // Not there at all is as good.
        let _ = std::fs::remove_dir_all(CONTAINERD);
    }
    let path = folder.path().to_owned();
    if let Err(error) = folder.close() {
        left.push(format!("{}: {error}", path.display()));
    }
    if left.is_empty() {
        println!(
            "compose: nothing is left: no process, mount, bridge, rule, control group or file"
        );
    } else {
        eprintln!("compose: left behind: {}", left.join(", "));
    }
    if passed && left.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Whether the test passes.
async fn in_namespaces(folder: &Path, group: &str) -> bool {
    let myself = std::env::current_exe().expect("this program's own path");
    // A signal that asked this process to end would keep it from cleaning up; so it ends the test and goes on.
    let mut terminate = signal(SignalKind::terminate()).expect("a signal");
    let mut interrupt = signal(SignalKind::interrupt()).expect("a signal");
    // setpriv: should this process be killed, nothing in there goes on without it.
    let mut child = Command::new("setpriv")
        .args([
            "--pdeathsig",
            "KILL",
            "unshare",
            "--net",
            "--mount",
            "--pid",
        ])
        .args(["--fork", "--kill-child", "--mount-proc"])
        .args(OWN_ROOT)
        .arg(myself)
        .args([INSIDE.as_ref(), folder.as_os_str(), group.as_ref()])
        .spawn()
        .expect("setpriv and unshare; install them: apt-get install util-linux");
    tokio::select! {
        status = child.wait() => return status.expect("a child can be waited for").success(),
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    eprintln!("compose: interrupted");
    // It may have ended by itself, which is as good.
    let _ = child.kill().await;
    false
}

/// The name of a run's control groups, by the process that this file runs in.
fn group_of(id: &str) -> String {
    format!("sluicegate-compose-{id}")
}

/// A process that was killed could not clean up after itself, so the next one does.
async fn remove_what_the_killed_left(parent: &Path) {
    for folder in folders(parent) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some((id, _)) = name.and_then(|name| name.split_once('-')) else {
            continue;
        };
        if !Path::new("/proc").join(id).exists() {
            groups_that_stay(&group_of(id)).await;
            // What cannot be removed now stays for the next.
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

/// Control groups of a run that cannot be removed.
async fn groups_that_stay(group: &str) -> Vec<String> {
    let deadline = std::time::Instant::now() + GONE_WITHIN;
    loop {
        let mut groups = Vec::new();
        find(Path::new(CGROUPS), group, &mut groups);
        // A group can go when its children and its processes are gone, so the last found goes first.
        groups.retain(|path| !path.exists() || remove(path).is_err());
        if groups.is_empty() || std::time::Instant::now() > deadline {
            return groups
                .iter()
                .map(|path| path.display().to_string())
                .collect();
        }
        tokio::time::sleep(POLL).await;
    }
}

/// The folders named `name`, at any depth.
fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for child in folders(folder) {
        if child.file_name().is_some_and(|own| own == name) {
            found.push(child);
        } else {
            find(&child, name, found);
        }
    }
}

/// Removes a control group with those in it: a tree of folders whose files are the kernel's.
fn remove(group: &Path) -> std::io::Result<()> {
    for child in folders(group) {
        remove(&child)?;
    }
    std::fs::remove_dir(group)
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    // What is gone meanwhile has no folders in it.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
