//! Creates the namespaces that a test runs in, and cleans up what outlives them.
//!
//! The test's process runs itself again in new network, mount and process namespaces. When the first process in there ends,
//! however it ends, the kernel kills all others and removes the mounts, bridges and firewall rules. Published ports are
//! free for the same reason: no other process is in that network. Only files and control groups outlive the namespaces,
//! and the test's process removes those.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::process::{POLL, repository};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

/// The argument that tells this program that it runs inside the namespaces.
const INSIDE: &str = "inside";

/// An empty folder that containerd creates wherever it runs.
const CONTAINERD: &str = "/opt/containerd";

const CGROUPS: &str = "/sys/fs/cgroup";

/// Makes this process's root the root of its mount namespace, which in a chroot it is not. `docker exec`, and so every
/// health check, starts at the namespace's root: from a chroot it would run on the machine and not in its container. And
/// the kernel allows no user namespaces in a chroot. So this command joins the namespace anew, checks whether its root
/// differs, and moves our root over it.
pub const OWN_ROOT: [&str; 6] = [
    "nsenter",
    "--mount=/proc/self/ns/mnt",
    "--wd=/",
    "sh",
    "-c",
    r#"if ! [ . -ef / ]; then mount --move . / || exit 1; fi; exec chroot . "$0" "$@""#,
];

/// How long killed processes may take to disappear.
const GONE_WITHIN: Duration = Duration::from_secs(20);

/// Runs the test called `name`: `inside`, in new namespaces, with a folder of the test's own and the name of its control
/// groups. Cleans up after it.
///
/// # Panics
/// The folder cannot be made, or the program cannot be started.
pub fn main(name: &str, inside: impl AsyncFnOnce(&Path, &str) -> ExitCode) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    match arguments.as_slice() {
        [] => runtime.block_on(run(name)),
        [argument, folder, group] if argument == INSIDE => {
            runtime.block_on(inside(Path::new(folder), group))
        }
        _ => {
            eprintln!("{name}: takes no arguments");
            ExitCode::from(64)
        }
    }
}

/// Runs this program with the arguments [`INSIDE`], the folder and the control groups' name, and cleans up after it.
async fn run(name: &str) -> ExitCode {
    let user = std::fs::metadata("/proc/self").expect("/proc").uid();
    if user != 0 {
        eprintln!("{name}: making namespaces requires root: sudo make {name}");
        return ExitCode::FAILURE;
    }
    let parent = repository("target").join(name);
    std::fs::create_dir_all(&parent).expect("a folder under target");
    let parent = parent.canonicalize().expect("a folder that exists");
    clean_up_after_killed_runs(name, &parent).await;
    let id = std::process::id();
    let folder = tempfile::Builder::new()
        .prefix(&format!("{id}-"))
        .tempdir_in(parent)
        .expect("a folder under target");
    let group = group_name(name, &id.to_string());
    let containerd_was_there = Path::new(CONTAINERD).exists();

    let passed = in_namespaces(name, folder.path(), &group).await;

    let mut left = Vec::new();
    left.extend(remove_groups(&group).await);
    if !containerd_was_there {
        // An error means that it does not exist.
        let _ = std::fs::remove_dir_all(CONTAINERD);
    }
    let path = folder.path().to_owned();
    if let Err(error) = folder.close() {
        left.push(format!("{}: {error}", path.display()));
    }
    if left.is_empty() {
        println!(
            "{name}: cleaned up: no process, mount, bridge, rule, control group or file is left"
        );
    } else {
        eprintln!("{name}: left behind: {}", left.join(", "));
    }
    if passed && left.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Runs the test in namespaces; returns whether it passed.
async fn in_namespaces(name: &str, folder: &Path, group: &str) -> bool {
    let myself = std::env::current_exe().expect("this program's own path");
    // On a signal this process ends the test and then cleans up.
    let mut terminate = signal(SignalKind::terminate()).expect("a signal");
    let mut interrupt = signal(SignalKind::interrupt()).expect("a signal");
    // setpriv: if this process is killed, so is everything in the namespaces.
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
    eprintln!("{name}: interrupted");
    // An error means that it has ended already.
    let _ = child.kill().await;
    false
}

/// The name of a run's control groups, from this process's id.
fn group_name(name: &str, id: &str) -> String {
    format!("sluicegate-{name}-{id}")
}

/// Cleans up after earlier runs that were killed.
async fn clean_up_after_killed_runs(test: &str, parent: &Path) {
    for folder in folders(parent) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let Some((id, _)) = name.and_then(|name| name.split_once('-')) else {
            continue;
        };
        if !Path::new("/proc").join(id).exists() {
            remove_groups(&group_name(test, id)).await;
            // The next run retries what cannot be removed now.
            let _ = std::fs::remove_dir_all(&folder);
        }
    }
}

/// Removes a run's control groups; returns those that cannot be removed.
async fn remove_groups(group: &str) -> Vec<String> {
    let deadline = std::time::Instant::now() + GONE_WITHIN;
    loop {
        let mut groups = Vec::new();
        find(Path::new(CGROUPS), group, &mut groups);
        // A group can be removed only after its children and its processes, so this retries.
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

/// Finds the folders named `name`, at any depth.
fn find(folder: &Path, name: &str, found: &mut Vec<PathBuf>) {
    for child in folders(folder) {
        if child.file_name().is_some_and(|own| own == name) {
            found.push(child);
        } else {
            find(&child, name, found);
        }
    }
}

/// Removes a control group and its children: a tree of folders whose files belong to the kernel.
fn remove(group: &Path) -> std::io::Result<()> {
    for child in folders(group) {
        remove(&child)?;
    }
    std::fs::remove_dir(group)
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    // A folder that has disappeared has no entries.
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
