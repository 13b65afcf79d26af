//! The Envoy of `sluicegate dev`: a child that ends with this process.

use std::io::{self, BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::sync::mpsc;

/// Lines that wait to be shown.
const MAX_QUEUED_LINES: usize = 1_024;

/// A running Envoy, killed when dropped.
pub struct Envoy {
    shell: Child,
    /// The lines of its log and its access log; they end with it.
    pub lines: mpsc::Receiver<Vec<u8>>,
}

impl Envoy {
    /// Starts this program with this configuration.
    pub fn start(program: &Path, configuration: &str) -> io::Result<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", include_str!("run.sh"), "sh"]);
        command.arg(program).env("CONFIGURATION", configuration);
        // A group of its own: Ctrl-C in a terminal is for this process, which then ends Envoy.
        command.process_group(0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn()?;
        let output = shell.stdout.take().map(BufReader::new);
        let (sender, lines) = mpsc::channel(MAX_QUEUED_LINES);
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| output.split(b'\n'));
            let mut lines = lines.map_while(Result::ok);
            lines.all(|line| sender.blocking_send(line).is_ok())
        });
        Ok(Self { shell, lines })
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
