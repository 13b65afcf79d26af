//! A process that a test owns: its output goes to a file, the test waits for its readiness, and dropping it kills it.

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longest wait for a process to be ready; generous, because test machines may stall.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// Writes a script that can be run as a program.
///
/// # Panics
/// The file cannot be written.
pub fn write_program(path: &Path, script: &str) {
    std::fs::write(path, script).expect("a file");
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("a file of one's own");
}

/// What a command prints, without white space at its ends; `Err` says how it failed, with all that it printed.
///
/// # Panics
/// The program is not installed; `install` is the command that installs it.
pub fn attempt(command: &mut Command, install: &str) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| {
        let program = command.get_program().display();
        panic!("cannot start {program}: {error}; {install}")
    });
    printed(command, &output)
}

/// Likewise, of a command that has ended.
pub fn printed(command: &Command, output: &Output) -> Result<String, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        return Ok(text.trim().to_owned());
    }
    // Without its environment.
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(OsStr::to_string_lossy).collect();
    let errors = String::from_utf8_lossy(&output.stderr);
    let (words, status) = (words.join(" "), output.status);
    Err(format!("{words}: {status}\n{text}{errors}"))
}

/// What a command prints that has to succeed.
///
/// # Panics
/// It fails; with its output.
pub fn run(command: &mut Command, install: &str) -> String {
    attempt(command, install).unwrap_or_else(|failure| panic!("{failure}"))
}

/// Copies the files of this repository below these paths, or all, into a new folder: those that a clone has, with the changes
/// that are not committed yet.
///
/// # Panics
/// This is not a working tree of git.
pub fn clone_into(folder: &Path, paths: &[&str]) {
    std::fs::create_dir(folder).expect("a new folder");
    let list = "git ls-files -z --cached --others --exclude-standard -- \"${@:2}\"";
    let tar = "tar --create --null --files-from=- --ignore-failed-read 2>/dev/null | tar --extract --directory \"$1\"";
    let mut bash = Command::new("bash");
    bash.args(["-c", &format!("set -e; {list} | {tar}"), "clone"]);
    bash.arg(folder).args(paths).current_dir(repository(""));
    run(&mut bash, "install it: apt-get install git tar");
}

/// A running process, killed when dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `command` with standard output and error in `log`. `install` is the command that installs it.
    ///
    /// # Panics
    /// The program is not installed.
    pub fn start(command: &mut Command, log: &Path, install: &str) -> Self {
        let file = File::options()
            .create(true)
            .append(true)
            .open(log)
            .expect("a log file");
        let errors = file.try_clone().expect("a log file");
        let program = command.get_program().to_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .unwrap_or_else(|error| {
                panic!("cannot start {}: {error}; {install}", program.display())
            });
        Self {
            child,
            log: log.to_owned(),
        }
    }

    /// Waits until `ready` returns true.
    ///
    /// # Panics
    /// The process exits first, or time runs out; the message ends with its log.
    pub async fn wait_until<F: Future<Output = bool>>(
        &mut self,
        what: &str,
        ready: impl FnMut() -> F,
    ) {
        self.wait_within(READY_WITHIN, what, ready).await;
    }

    /// Likewise, for this long.
    ///
    /// # Panics
    /// As above.
    pub async fn wait_within<F: Future<Output = bool>>(
        &mut self,
        limit: Duration,
        what: &str,
        mut ready: impl FnMut() -> F,
    ) {
        let deadline = Instant::now() + limit;
        while !ready().await {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                panic!("{what} ended with {status}:\n{}", self.log());
            }
            assert!(
                Instant::now() < deadline,
                "{what} is not ready:\n{}",
                self.log()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Its output so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, such as `STOP`; after `STOP`, returns when it has stopped.
    ///
    /// # Panics
    /// It has exited.
    pub fn signal(&self, name: &str) {
        // The shell's builtin `kill`: a minimal Debian has no other.
        let command = format!("kill -{name} {}", self.child.id());
        let status = Command::new("sh").args(["-c", &command]).status();
        assert!(status.expect("sh").success(), "{command}");
        // Its threads run on until the kernel schedules one that takes the signal: on a busy machine, long enough to answer.
        let deadline = Instant::now() + READY_WITHIN;
        while name == "STOP" && !is_stopped(self.child.id()) {
            assert!(Instant::now() < deadline, "{command}: it runs on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until it exits by itself.
    ///
    /// # Panics
    /// It does not.
    pub async fn wait(&mut self) {
        let deadline = Instant::now() + READY_WITHIN;
        while self
            .child
            .try_wait()
            .expect("a child can be waited for")
            .is_none()
        {
            assert!(
                Instant::now() < deadline,
                "it does not exit:\n{}",
                self.log()
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        // Fails only if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Whether a signal has stopped every thread of a process.
fn is_stopped(id: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{id}/task")).expect("a process");
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in parentheses.
        stat.rsplit_once(") ")
            .is_none_or(|(_, rest)| rest.starts_with('T'))
    })
}

/// Pause between two checks of a condition.
pub const POLL: Duration = Duration::from_millis(20);

/// A free port of the loopback address.
///
/// Below the ephemeral ports: the system gives those to outgoing connections too, so that one may be taken before the
/// process that is to listen on it binds it. This function returns each port once, and processes begin at different
/// ports.
///
/// # Panics
/// No port is free.
pub fn free_port() -> u16 {
    const FIRST: u32 = 12_000;
    const COUNT: u32 = 20_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(1_009);
    for _ in 0..COUNT {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % COUNT;
        let port = u16::try_from(FIRST + offset).expect("ports fit");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no free port between {FIRST} and {}", FIRST + COUNT)
}

/// Waits until a condition holds.
///
/// # Panics
/// It does not within a minute.
pub async fn eventually<F: Future<Output = bool>>(what: &str, holds: impl FnMut() -> F) {
    eventually_within(READY_WITHIN, what, holds).await;
}

/// Likewise, within this time.
///
/// # Panics
/// It does not.
pub async fn eventually_within<F: Future<Output = bool>>(
    limit: Duration,
    what: &str,
    mut holds: impl FnMut() -> F,
) {
    let deadline = Instant::now() + limit;
    while !holds().await {
        assert!(Instant::now() < deadline, "timed out waiting for: {what}");
        tokio::time::sleep(POLL).await;
    }
}

/// A number of a process's status, by its field in `/proc/PID/status`: kilobytes (`VmRSS`, `VmHWM`) or pieces (`Threads`).
///
/// # Panics
/// There is no such process or field.
pub fn status(id: u32, field: &str) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{id}/status")).expect("a running process");
    let rest = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let number = rest.and_then(|rest| rest.split_whitespace().next()?.parse().ok());
    number.unwrap_or_else(|| panic!("no number {field} in {text}"))
}

/// Sets how many files a running process may have open; what it has open stays.
///
/// # Panics
/// The system allows fewer.
pub fn limit_files(id: u32, files: usize) {
    let limit = format!("--nofile={files}:");
    let status = Command::new("prlimit")
        .args(["--pid", &id.to_string(), &limit])
        .status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "prlimit {limit}: see `ulimit -Hn`"
    );
}

/// The path of a file in the repository, from its path below the root.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}
