//! The clients of `docs/clients` against the real chain: they wait as long as a 429 says, and are then admitted.

use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::policy::policy;
use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream;
use tokio::process::Command;

/// The slowest, building the Go client for the first time, takes some tens of seconds.
const PATIENCE: Duration = Duration::from_secs(240);

#[derive(Clone, Copy)]
enum Language {
    Python,
    Go,
}

impl Language {
    /// The client, ready to run.
    async fn client(self, folder: &Path) -> Command {
        match self {
            Self::Python => {
                let mut command = Command::new("python3");
                command.arg(repository("docs/clients/python/client.py"));
                command
            }
            Self::Go => Command::new(build_go(folder).await),
        }
    }
}

async fn build_go(folder: &Path) -> PathBuf {
    let program = folder.join("client");
    let target = repository("target").canonicalize().unwrap();
    let mut command = Command::new("go");
    command
        .args(["build", "-o"])
        .arg(&program)
        .current_dir(repository("docs/clients/go"))
        // Neither the network nor C is needed; the standard library is compiled once.
        .envs([
            ("GOPROXY", "off"),
            ("GOTOOLCHAIN", "local"),
            ("CGO_ENABLED", "0"),
        ])
        .env("GOCACHE", target.join("go"));
    let (output, _) = run(command).await;
    assert!(output.status.success(), "{}", text(&output.stderr));
    program
}

async fn run(mut command: Command) -> (Output, Duration) {
    let started = Instant::now();
    let output = tokio::time::timeout(PATIENCE, command.kill_on_drop(true).output()).await;
    let output = output.expect("it ends in time").unwrap_or_else(|error| {
        let program = command.as_std().get_program().display();
        panic!("cannot start {program}: {error}; install it: tests/setup")
    });
    (output, started.elapsed())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn allows(quota: u64, per: &str) -> String {
    policy("memory", "sliding_log", quota, per)
}

/// So many calls through Envoy, under the policy; what the client prints, its exit status and the time it took.
async fn call(language: Language, calls: u32, policy: &str) -> (Output, Duration) {
    let folder = tempfile::tempdir().unwrap();
    let mut client = language.client(folder.path()).await;
    let sidecar = Sidecar::start(policy, folder.path()).await;
    let envoy = Envoy::asking(sidecar.port).start(folder.path()).await;
    client.args([
        format!("-calls={calls}"),
        "-key=k".to_owned(),
        envoy.url("/"),
    ]);
    run(client).await
}

/// Two calls in five seconds: five take ten seconds at least. A machine that stalls makes the client wait less often.
async fn waits(language: Language) {
    let (output, took) = call(language, 5, &allows(2, "5s")).await;
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(text(&output.stdout).lines().count(), 5);
    assert!(took >= Duration::from_secs(10), "{took:?}: {errors}");
    let waits = errors.matches("denied: waiting").count();
    assert!((1..=4).contains(&waits), "{errors}");
}

/// There is room again in an hour, and the client does not sleep until then.
async fn gives_up(language: Language) {
    let (output, _) = call(language, 2, &allows(1, "1h")).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout).lines().count(), 1);
    let errors = text(&output.stderr);
    assert!(errors.contains("try again in"), "{errors}");
    assert!(!errors.contains("waiting"), "{errors}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_wait_as_long_as_a_429_says() {
    waits(Language::Python).await;
    waits(Language::Go).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clients_give_up_where_waiting_takes_too_long() {
    gives_up(Language::Python).await;
    gives_up(Language::Go).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_asks_the_sidecar_before_it_calls() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::alone(&allows(2, "5s")).await;
    let mut client = Language::Python.client(folder.path()).await;
    let url = format!("http://127.0.0.1:{}/", upstream::start().await);
    let asked = sidecar.url("");
    client.args(["--calls=3", "--limit=per-key", "--sidecar", &asked, &url]);
    let (output, took) = run(client).await;
    let errors = text(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(took >= Duration::from_secs(5), "{took:?}");
    assert_eq!(errors.matches("denied: waiting").count(), 1, "{errors}");
}
