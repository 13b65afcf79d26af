//! A Debian with a systemd of its own, in mount, process, network, host name, IPC and control group namespaces.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use sluicegate_tests::namespaces::OWN_ROOT;
use sluicegate_tests::process::{POLL, repository, run};

/// Archives of `tests/full/compose/images`, unpacked one over the other.
const IMAGES: [&str; 2] = [".tools/images/debian.tar", ".tools/images/systemd.tar"];
/// What the machine needs to reach package registries as this machine does.
const NETWORK: [&str; 4] = [
    "etc/resolv.conf",
    "etc/hosts",
    "etc/pip.conf",
    "etc/ssl/certs",
];
/// Variables for the same purpose.
const VARIABLES: [&str; 4] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "PIP_CERT",
    "REQUESTS_CA_BUNDLE",
];
/// The environment of scripts.
const ENVIRONMENT: [&str; 5] = [
    "HOME=/root",
    "LANG=C.UTF-8",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PIP_CACHE_DIR=/var/cache/pip",
    "PIP_ROOT_USER_ACTION=ignore",
];
const BOOTED_WITHIN: Duration = Duration::from_secs(180);

/// A running machine; everything in it ends when it is dropped.
pub struct Machine {
    child: Child,
    folder: PathBuf,
    group: String,
}

/// What a script did.
#[derive(Debug)]
pub struct Ran {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl Machine {
    /// Boots one.
    ///
    /// # Panics
    /// This process is not root's, or the machine does not boot.
    pub fn boot() -> Self {
        let user = fs::metadata("/proc/self").expect("/proc").uid();
        assert_eq!(
            user, 0,
            "a machine of its own requires root: sudo make host"
        );
        let parent = repository("target/host");
        clean_up_after_killed_runs(&parent);
        let id = std::process::id();
        let folder = parent.join(id.to_string());
        fs::create_dir_all(&folder).expect("a folder under target");
        let folder = folder.canonicalize().expect("a folder");
        for image in IMAGES {
            assert!(repository(image).exists(), "no {image}: tests/setup test");
            let unpack = ["--extract", "--numeric-owner", "--directory"];
            let mut tar = Command::new("tar");
            tar.args(unpack).arg(&folder).arg("--file");
            done(tar.arg(repository(image)));
        }
        for path in NETWORK {
            let from = Path::new("/").join(path);
            if from.exists() {
                let to = folder.join(path);
                done(Command::new("rm").args(["-rf".as_ref(), to.as_os_str()]));
                done(Command::new("cp").arg("-aL").args([from, to]));
            }
        }
        // systemd makes one at its first start.
        fs::write(folder.join("etc/machine-id"), "").expect("an empty file");
        let cache = repository(".tools/pip");
        fs::create_dir_all(&cache).expect("a folder in .tools");
        let group = group_name(&id.to_string());
        let boot = repository("tests/full/host/boot");
        // setpriv: if this process is killed, so is everything in the namespaces. It asks for the end of the thread that
        // calls this, which is the test.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid"])
            .args(["--net", "--uts", "--ipc"])
            .args(["--fork", "--kill-child", "--mount-proc"])
            .args(OWN_ROOT)
            .arg(boot.canonicalize().expect("the script"))
            .arg(&folder)
            .arg(&group)
            .arg(cache.canonicalize().expect("a folder"))
            .spawn()
            .expect("setpriv and unshare; install them: apt-get install util-linux");
        let machine = Self {
            child,
            folder,
            group,
        };
        let since = Instant::now();
        while machine.first_process().is_none()
            || machine.run("systemctl is-system-running --wait").out.trim() != "running"
        {
            let failed = || machine.run("systemctl --no-pager --failed; journalctl --no-pager -b");
            assert!(
                since.elapsed() < BOOTED_WITHIN,
                "it does not boot: {:?}",
                failed()
            );
            std::thread::sleep(POLL);
        }
        machine
    }

    /// The folder that is its root.
    pub fn root(&self) -> &Path {
        &self.folder
    }

    /// Runs a script in it.
    pub fn run(&self, script: &str) -> Ran {
        self.shell(&["--net"], script)
    }

    /// Runs a script with this machine's network, for downloads.
    pub fn run_online(&self, script: &str) -> Ran {
        self.shell(&[], script)
    }

    /// What a script that must succeed prints.
    ///
    /// # Panics
    /// It fails.
    pub fn must(&self, script: &str) -> String {
        let ran = self.run(script);
        assert!(ran.status.success(), "{script}: {ran:?}");
        ran.out
    }

    /// Waits until a script succeeds.
    ///
    /// # Panics
    /// It does not.
    pub fn eventually(&self, script: &str) {
        let since = Instant::now();
        loop {
            let ran = self.run(script);
            if ran.status.success() {
                return;
            }
            assert!(since.elapsed() < BOOTED_WITHIN, "{script}: {ran:?}");
            std::thread::sleep(POLL);
        }
    }

    fn shell(&self, more: &[&str], script: &str) -> Ran {
        let Some(first) = self.first_process() else {
            panic!("the machine has ended");
        };
        let mut command = Command::new("nsenter");
        command.args(["--target", &first, "--root", "--mount", "--pid"]);
        command.args(["--uts", "--ipc", "--cgroup"]).args(more);
        command.args(["--", "env", "-i"]).args(ENVIRONMENT);
        let set = |name: &&str| Some(format!("{name}={}", std::env::var(name).ok()?));
        command.args(VARIABLES.iter().filter_map(set));
        command.args(["bash", "-euo", "pipefail", "-c", script]);
        let output = command.output().expect("nsenter");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ran {
            status: output.status,
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// The id of its systemd, when there is one: the only child of `unshare`.
    fn first_process(&self) -> Option<String> {
        let id = self.child.id();
        let children = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).ok()?;
        let child = children.split_whitespace().next()?.to_owned();
        let name = fs::read_to_string(format!("/proc/{child}/comm")).ok()?;
        (name.trim() == "systemd").then_some(child)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        clean(&self.folder, &self.group);
    }
}

/// Deletes what outlives the namespaces: the folder and the control group.
fn clean(folder: &Path, group: &str) {
    let since = Instant::now();
    let boot = repository("tests/full/host/boot");
    // Processes that were killed take a moment to leave their control groups.
    while !Command::new(&boot)
        .args(["--clean", group])
        .status()
        .is_ok_and(|status| status.success())
        && since.elapsed() < BOOTED_WITHIN
    {
        std::thread::sleep(POLL);
    }
    let _ = Command::new("rm")
        .args(["-rf", "--one-file-system"])
        .arg(folder)
        .status();
}

fn clean_up_after_killed_runs(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let id = entry.file_name().to_string_lossy().into_owned();
        if !Path::new("/proc").join(&id).exists() {
            clean(&entry.path(), &group_name(&id));
        }
    }
}

fn group_name(id: &str) -> String {
    format!("sluicegate-host-{id}")
}

/// Runs a command that must succeed.
pub fn done(command: &mut Command) {
    run(command, "it is part of every Debian");
}
