//! The Envoy of `sluicegate dev`: a child that ends with this process.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use crate::cli::Failure;

/// Lines of Envoy's log that are shown when it ends.
const LAST_LINES: usize = 10;

/// Lines of the access log that wait to be shown.
const MAX_QUEUED_LINES: usize = 1_024;

/// Runs the rest of its arguments with `-c` and the first, a file that it removes, until its standard input is closed: by us, or
/// by the system when this process has been killed.
const UNTIL_CLOSED: &str = r#"file=$1; shift; "$@" -c "$file" & exec >&- 2>&-; read -r _; kill -9 $!; rm -f "$file"; wait"#;

/// A running Envoy, killed when dropped.
pub struct Envoy {
    shell: Child,
    /// The lines of its access log; they end with it.
    pub lines: mpsc::Receiver<String>,
    log: Option<JoinHandle<VecDeque<String>>>,
}

impl Envoy {
    /// Starts this program with this configuration.
    pub fn start(program: &Path, configuration: &str) -> io::Result<Self> {
        let name = format!("sluicegate-dev-{}.yaml", std::process::id());
        let file = std::env::temp_dir().join(name);
        // Of a killed process with the same number.
        let _ = std::fs::remove_file(&file);
        let mut options = File::options();
        // It may have the pepper.
        let mut written = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)?;
        written.write_all(configuration.as_bytes())?;
        let mut command = Command::new("sh");
        command
            .args(["-c", UNTIL_CLOSED, "sh"])
            .arg(&file)
            .arg(program);
        // Without hot restart, Envoy leaves nothing in shared memory. The access log is flushed without delay.
        command.args([
            "--disable-hot-restart",
            "--concurrency",
            "1",
            "-l",
            "warning",
        ]);
        command.args(["--file-flush-interval-msec", "50"]);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        // A group of its own: Ctrl-C in a terminal is for this process, which ends Envoy.
        let mut shell = command.process_group(0).spawn()?;
        let (sender, lines) = mpsc::channel(MAX_QUEUED_LINES);
        let (output, errors) = (shell.stdout.take(), shell.stderr.take());
        std::thread::spawn(move || {
            let mut lines = lines_of(output);
            lines.all(|line| sender.blocking_send(line).is_ok())
        });
        let log = std::thread::spawn(move || {
            let mut last = VecDeque::new();
            for line in lines_of(errors) {
                last.truncate(LAST_LINES - 1);
                last.push_front(line);
            }
            last
        });
        Ok(Self {
            shell,
            lines,
            log: Some(log),
        })
    }

    /// Why it has ended, after `lines` have.
    pub fn ended(&mut self) -> Failure {
        let last = self.log.take().and_then(|log| log.join().ok());
        let last: Vec<_> = last.unwrap_or_default().into_iter().rev().collect();
        let last = last.join("\n");
        Failure::system(format_args!("Envoy has ended; the end of its log:\n{last}"))
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// The lines of a pipe, until it is closed.
fn lines_of(pipe: Option<impl Read>) -> impl Iterator<Item = String> {
    let pipe = pipe.map(BufReader::new);
    let lines = pipe.into_iter().flat_map(|pipe| pipe.split(b'\n'));
    let lines = lines.map_while(Result::ok);
    lines.map(|line| String::from_utf8_lossy(&line).into_owned())
}
