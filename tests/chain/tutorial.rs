//! docs/tutorial.md, run as it is written: each block of commands prints the lines that the page shows below it.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use sluicegate_tests::documents::{bash, text, with_path};
use sluicegate_tests::process::{self, Process, eventually, free_port, repository};
use sluicegate_tests::sidecar::binary;

/// How the lines begin that depend on the time since the request before.
const VARYING: [&str; 2] = ["retry-after: ", "limit per-key: "];

/// Replaces the addresses of the page by free ones.
struct Places {
    api: u16,
    envoy: u16,
    admin: u16,
}

impl Places {
    fn script(&self, script: &str) -> String {
        script
            .replace("upstream.py 8080", &format!("upstream.py {}", self.api))
            .replace(":8080", &format!(":{}", self.api))
            .replace(":10000", &format!(":{}", self.envoy))
            .replace(":9181", &format!(":{}", self.admin))
    }

    fn shell(&self, script: &str, folder: &Path) -> Command {
        let mut bash = bash(&self.script(script), folder);
        with_path(&mut bash, binary().parent().unwrap().display());
        bash.env(
            "SLUICEGATE_ADMIN",
            format!("http://127.0.0.1:{}", self.admin),
        );
        bash
    }

    /// Starts what the page starts in a terminal of its own, and waits until it says that it serves.
    async fn start(&self, command: &str, folder: &Path) -> Process {
        let (more, says) = if command.starts_with("sluicegate dev ") {
            let listens = [
                ("listen", self.envoy),
                ("admin-listen", self.admin),
                ("sidecar-listen", free_port()),
            ];
            let listens = listens.map(|(name, port)| format!(" --{name} 127.0.0.1:{port}"));
            (listens.concat(), "Ctrl-C ends".to_owned())
        } else {
            (String::new(), self.api.to_string())
        };
        let script = format!("exec {}{more}", command.trim_end());
        let log = folder.join(says.replace(' ', "-"));
        let started = Process::start(&mut self.shell(&script, folder), &log, "make debug filter");
        eventually(command, async || started.log().contains(&says)).await;
        started
    }
}

#[tokio::test]
async fn the_tutorial_prints_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for part in ["docs", "target", ".tools"] {
        symlink(repository(part), folder.join(part)).unwrap();
    }
    let places = Places {
        api: free_port(),
        envoy: free_port(),
        admin: free_port(),
    };
    let page = text("docs/tutorial.md");
    let blocks: Vec<_> = page.split("```").skip(1).step_by(2).collect();
    let mut running = Vec::new();
    let mut compared = 0;
    for (block, next) in blocks.iter().zip(blocks[1..].iter().chain([&""])) {
        let Some(script) = block.strip_prefix("sh\n") else {
            continue;
        };
        // `make` has built it, and `tests/setup` has fetched Envoy.
        if script.starts_with("git clone ") {
            continue;
        }
        if ["python3 ", "sluicegate dev "]
            .iter()
            .any(|start| script.starts_with(start))
        {
            running.push(places.start(script, folder).await);
            continue;
        }
        let printed = process::run(&mut places.shell(script, folder), "bash").replace('\r', "");
        let mut lines = printed.lines();
        let shown = next.strip_prefix('\n').unwrap_or_default();
        for line in shown.lines() {
            let start = VARYING.iter().find(|start| line.starts_with(**start));
            let is_it = |printed: &str| match start {
                Some(start) => printed.starts_with(*start),
                None => printed == line,
            };
            assert!(lines.any(is_it), "{script}\nno `{line}` in\n{printed}");
            compared += 1;
        }
    }
    assert_eq!(running.len(), 2);
    assert!(compared > 20, "{compared}");
}
