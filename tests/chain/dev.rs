//! `sluicegate dev`: what a newcomer sees, and that nothing is left of it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::client::get_with;
use sluicegate_tests::process::{Process, eventually, free_port, repository};
use sluicegate_tests::sidecar::binary;
use sluicegate_tests::upstream;
use tempfile::TempDir;

const POLICY: &str = "
limits:
  per-key: { algorithm: sliding_log, windows: [{ quota: 2, per: 1h }] }
rules:
  default:
    rules:
      - name: all
        checks: [{ limit: per-key, key: [{ header: x-api-key }], when_missing: deny }]
        when_unavailable: allow
";

/// A `sluicegate dev` with ports of its own, in a folder of its own.
struct Dev {
    folder: TempDir,
    policy: PathBuf,
    port: u16,
    admin_port: u16,
}

impl Dev {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, POLICY).unwrap();
        let (port, admin_port) = (free_port(), free_port());
        Self {
            folder,
            policy,
            port,
            admin_port,
        }
    }

    /// Starts it in a folder, with further arguments.
    fn start(&self, upstream: &str, at: &Path, more: &[&str]) -> Process {
        let listens = |port: u16| format!("127.0.0.1:{port}");
        let mut command = Command::new(binary());
        command.arg("dev").current_dir(at).env_clear();
        // A shell is needed, and where it is there may be an Envoy.
        let path = self.folder.path().join("bin");
        let _ = std::fs::create_dir(&path);
        let _ = std::os::unix::fs::symlink("/bin/sh", path.join("sh"));
        let _ = std::os::unix::fs::symlink("/bin/rm", path.join("rm"));
        command.env("PATH", path).env("TMPDIR", self.folder.path());
        command.args(["--upstream", upstream, "--policy"]);
        command.arg(&self.policy);
        command.args(["--listen", &listens(self.port)]);
        command.args(["--sidecar-listen", &listens(free_port())]);
        command.args(["--admin-listen", &listens(self.admin_port)]);
        let log = self.folder.path().join("log");
        let _ = std::fs::remove_file(&log);
        Process::start(command.args(more), &log, "build it: cargo build")
    }

    /// Starts it where the repository's Envoy and filter are, and waits until it serves.
    async fn serving(&self, upstream: &str) -> Process {
        let dev = self.start(upstream, &repository(""), &[]);
        says(&dev, "Ctrl-C ends").await;
        dev
    }

    async fn ask(&self, key: &str) -> u16 {
        let url = format!("http://127.0.0.1:{}/v1/x?secret=1", self.port);
        let fields = [("x-api-key", key)];
        let fields = if key.is_empty() { &[][..] } else { &fields };
        get_with(&url, fields).await.status().as_u16()
    }

    /// Whether nothing but these files is left of it.
    fn is_gone(&self, parts: &[u32]) -> bool {
        let entries = std::fs::read_dir(self.folder.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        let mut names: Vec<_> = names.collect();
        names.sort();
        let is_gone = |id: &u32| !Path::new(&format!("/proc/{id}")).exists();
        names == ["bin", "log", "policy.yaml"] && parts.iter().all(is_gone)
    }
}

async fn says(dev: &Process, words: &str) {
    let said = async || dev.log().contains(words);
    eventually(&format!("{words}, not {}", dev.log()), said).await;
}

/// The process ids of the shell of a `dev` and of its Envoy.
fn parts(dev: &Process) -> [u32; 2] {
    let shell = child(dev.id());
    [shell, child(shell)]
}

fn child(of: u32) -> u32 {
    let entries = std::fs::read_dir("/proc").unwrap();
    let mut ids = entries.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let found = ids.find(|id: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
        // NUMBER (NAME) STATE PARENT
        let parent = stat
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        parent == Some(of)
    });
    found.unwrap_or_else(|| panic!("{of} has no child"))
}

#[tokio::test]
async fn a_newcomer_sees_denials_and_changes_and_nothing_is_left_at_the_end() {
    let planned = Dev::new();
    let upstream = format!("localhost:{}", upstream::start().await);
    let mut dev = planned.serving(&upstream).await;
    let page = format!("live page: http://127.0.0.1:{}/\n", planned.admin_port);
    let log = dev.log();
    assert!(
        log.contains(&page) && !log.contains("nothing answers"),
        "{log}"
    );
    eventually("rules", async || planned.ask("").await == 403).await;
    for status in [200, 200, 429] {
        assert_eq!(planned.ask("k").await, status);
    }
    says(
        &dev,
        "403 GET /v1/x  missing_part{rule=all,limit=per-key}\n",
    )
    .await;
    // printf %s KEY | sha256sum | cut -c1-20, as `explain` prints it.
    let denial = "429 GET /v1/x  per-key  key fc9530cc1f893fcf0698  retry in 3";
    says(&dev, denial).await;
    assert_eq!(dev.log().matches("\n429 ").count(), 1, "{}", dev.log());

    std::fs::write(&planned.policy, POLICY.replace("quota: 2", "quota: 3")).unwrap();
    says(&dev, "policy reloaded: per-key: quota 2 -> 3").await;
    eventually("the third unit", async || planned.ask("k").await == 200).await;
    std::fs::write(&planned.policy, format!("{POLICY}limit: 1\n")).unwrap();
    says(
        &dev,
        "there is no field `limit`: did you mean `limits`?; the previous policy stays in force\n",
    )
    .await;

    let parts = parts(&dev);
    dev.signal("TERM");
    dev.wait().await;
    assert!(planned.is_gone(&parts), "{parts:?} {}", dev.log());
    let failed = dev
        .log()
        .lines()
        .any(|line| line.starts_with("sluicegate: "));
    assert!(!failed, "{}", dev.log());
}

#[tokio::test]
async fn envoy_ends_with_dev_and_dev_with_envoy() {
    let planned = Dev::new();
    let nobody = format!("127.0.0.1:{}", free_port());
    let mut dev = planned.serving(&nobody).await;
    says(&dev, &format!("nothing answers at {nobody} yet")).await;
    assert_eq!(planned.ask("k").await, 503);
    let left = parts(&dev);
    dev.kill();
    eventually("nothing is left", async || planned.is_gone(&left)).await;

    let mut dev = planned.serving(&nobody).await;
    let left = parts(&dev);
    let kill = format!("kill -SEGV {}", left[1]);
    assert!(
        Command::new("sh")
            .args(["-c", &kill])
            .status()
            .unwrap()
            .success()
    );
    dev.wait().await;
    says(&dev, "sluicegate: Envoy has ended; its log is above\n").await;
    assert!(planned.is_gone(&left));
}

#[tokio::test]
async fn consumers_of_another_pepper_are_told_with_the_remedy() {
    let planned = Dev::new();
    let consumers = "consumers: { partner: { pepper: \"0123456789ab\", keys: {}, limits: { default: per-key } } }\n";
    std::fs::write(&planned.policy, format!("{POLICY}{consumers}")).unwrap();
    let dev = planned.serving(&format!("127.0.0.1:{}", free_port())).await;
    says(&dev, "with `--pepper-file FILE`").await;
}

#[tokio::test]
async fn what_is_missing_is_told_with_the_remedy() {
    let planned = Dev::new();
    let (root, empty) = (repository(""), tempfile::tempdir().unwrap());
    let empty = empty.path();
    let filter = root.join("target/filter/sluicegate.wasm");
    let filter = filter.to_str().unwrap();
    for (at, more, says) in [
        (
            empty,
            &["--filter", filter][..],
            "no Envoy found (PATH): get one with `python3 -m venv",
        ),
        (
            &root,
            &["--envoy", "missing"],
            "no Envoy found (missing): get one",
        ),
        (
            &root,
            &["--filter", "missing"],
            "no filter found (missing): build",
        ),
        (
            &root,
            &["--filter", "README.md"],
            "Plugin sluicegate failed to load",
        ),
        (&root, &["--pepper-file", "missing"], "cannot read missing"),
    ] {
        let mut dev = planned.start("127.0.0.1:1", at, more);
        dev.wait().await;
        assert!(dev.log().contains(says), "{more:?}: {}", dev.log());
    }
    let port = planned.port;
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let mut dev = planned.start("127.0.0.1:1", &root, &[]);
    dev.wait().await;
    let says = format!(
        "--listen 127.0.0.1:{port}: Address already in use (os error 98); choose another address"
    );
    assert!(dev.log().contains(&says), "{}", dev.log());
    assert!(planned.is_gone(&[]));
}
