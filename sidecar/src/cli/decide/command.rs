//! Runs the command after `--` if its units are admitted.
//!
//! The command replaces this process (exec), unless it says afterwards what it has used: a child process needs its signals
//! forwarded, outlives a killed parent, and its exit status has to be translated.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind, IsTerminal, Read, Seek, SeekFrom};
use std::num::IntErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::sync::Arc;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};

use crate::cli::exit::Exit;

/// In the environment of a command: the file to which it writes how many units it has used.
const USED_FILE: &str = "SLUICEGATE_USED";
/// How much of that file is read, from its end, in bytes.
const MOST_READ: u64 = 256;
/// Signals for the command. Of the last two, which a terminal sends to both, it gets its own.
const FORWARDED: [(SignalKind, Signal); 6] = [
    (SignalKind::hangup(), Signal::HUP),
    (SignalKind::terminate(), Signal::TERM),
    (SignalKind::user_defined1(), Signal::USR1),
    (SignalKind::user_defined2(), Signal::USR2),
    (SignalKind::interrupt(), Signal::INT),
    (SignalKind::quit(), Signal::QUIT),
];

/// Replaces this process with the command. Returns only on an error: the exit status for it, and what to say.
pub fn replace(program: &OsStr, arguments: &[OsString]) -> (Exit, String) {
    not_started(program, &Command::new(program).args(arguments).exec())
}

fn not_started(program: &OsStr, error: &io::Error) -> (Exit, String) {
    let exit = match error.kind() {
        ErrorKind::NotFound => Exit::NotFound,
        _ => Exit::NotExecutable,
    };
    (exit, format!("{}: {error}", program.display()))
}

/// The process of a command.
#[derive(Clone)]
pub struct Process(Arc<OwnedFd>);

impl Process {
    /// Asks it to end.
    pub fn terminate(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::TERM);
    }

    /// Ends it.
    pub fn kill(&self) {
        let _ = pidfd_send_signal(&self.0, Signal::KILL);
    }
}

/// How a command ended.
pub struct Ended {
    /// What a shell would report: its exit status, or 128 and its signal.
    pub status: i32,
    /// The units that it says it has used; nothing if it says nothing.
    ///
    /// # Errors
    /// What it says is no number.
    pub used: Result<Option<u64>, String>,
}

/// Runs the command as a child, to its end, and something beside it.
///
/// # Errors
/// It was not started: the exit status for that, and what to say.
pub async fn run<F: Future<Output = ()>>(
    program: &OsStr,
    arguments: &[OsString],
    beside: impl FnOnce(Process) -> F,
) -> Result<Ended, (Exit, String)> {
    let system = |error: io::Error| (Exit::System, error.to_string());
    // It is in no folder, so nothing of it stays, however this process ends. Its name is good in all descendants, also in those
    // that inherit no file descriptors.
    let file = memfd_create("sluicegate", MemfdFlags::CLOEXEC);
    let mut file = File::from(file.map_err(|error| system(error.into()))?);
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    // Before it is started, so that no signal is lost.
    let mut caught = Vec::with_capacity(FORWARDED.len());
    for (kind, sent) in FORWARDED {
        caught.push((signal(kind).map_err(system)?, sent));
    }
    let mut command = Command::new(program);
    let mut child = command
        .args(arguments)
        .env(USED_FILE, path)
        .spawn()
        .map_err(|error| not_started(program, &error))?;
    // Not a number, which another process might have by then.
    let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
    let process = Arc::new(process.map_err(|error| system(error.into()))?);
    let by_terminal = io::stdin().is_terminal();
    for (signals, sent) in caught {
        if !(by_terminal && [Signal::INT, Signal::QUIT].contains(&sent)) {
            tokio::spawn(forward(signals, sent, Arc::clone(&process)));
        }
    }
    let mut ended = tokio::task::spawn_blocking(move || child.wait());
    let ended = tokio::select! {
        ended = &mut ended => ended,
        () = beside(Process(process)) => ended.await,
    };
    let ended = ended.map_err(io::Error::from).flatten().map_err(system)?;
    let written = end_of(&mut file);
    Ok(Ended {
        status: status(ended),
        used: written.map_or_else(|error| Err(error.to_string()), |text| used(&text)),
    })
}

/// The end of what was written.
fn end_of(file: &mut File) -> io::Result<String> {
    let written = file.metadata()?.len();
    file.seek(SeekFrom::Start(written.saturating_sub(MOST_READ)))?;
    let mut text = Vec::new();
    file.take(MOST_READ).read_to_end(&mut text)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

async fn forward(mut signals: Signals, sent: Signal, process: Arc<OwnedFd>) {
    while signals.recv().await.is_some() {
        // It has ended, and its units are being settled: the signal is for this process.
        if pidfd_send_signal(&process, sent).is_err() {
            std::process::exit(128 + sent.as_raw());
        }
    }
}

fn status(ended: ExitStatus) -> i32 {
    let by_signal = ended.signal().map(|signal| 128 + signal);
    ended.code().or(by_signal).unwrap_or(1)
}

/// The last word that a command has written, a number.
fn used(text: &str) -> Result<Option<u64>, String> {
    let Some(last) = text.split_whitespace().next_back() else {
        return Ok(None);
    };
    match last.parse::<u64>() {
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => Ok(Some(u64::MAX)),
        Err(_) => {
            let shown: String = last.chars().take(40).collect();
            Err(format!("its last word, `{shown}`, is no number of units"))
        }
        Ok(used) => Ok(Some(used)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_counts_and_nothing_is_nothing() {
        assert_eq!(used(" \n"), Ok(None));
        assert_eq!(used("7\n"), Ok(Some(7)));
        assert_eq!(used("7\n12"), Ok(Some(12)));
        assert_eq!(used("18446744073709551616"), Ok(Some(u64::MAX)));
        assert!(used("-1").unwrap_err().contains("`-1`"));
        assert!(used(&"x".repeat(300)).unwrap_err().len() < 100);
    }
}
