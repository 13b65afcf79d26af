//! schemathesis makes requests from the document that the sidecar serves, valid and invalid ones, and checks that the
//! answers are what the document says: statuses, media types, headers, schemas; unsupported methods; the token.

use std::path::Path;
use std::time::Duration;

use serde_json::json;
use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::Sidecar;
use tokio::process::Command;

const POLICY: &str = "store: memory\nlimits:\n\
     \x20 per-key: { algorithm: sliding_log, windows: [{ quota: 5, per: 2s }, { quota: 100000, per: 1h }] }\n\
     \x20 everyone: { algorithm: token_bucket, windows: [{ quota: 1000, per: 1s, burst: 2000 }] }\n";

const TOKEN: &str = "t0ken";

/// It takes about 20 s.
const PATIENCE: Duration = Duration::from_secs(240);

/// Runs it against the operations of a port that have these tags; fails with its report.
async fn check(port: u16, tags: &[&str], folder: &Path) {
    let base = format!("http://127.0.0.1:{port}");
    let hooks = repository("tests/full/http/hooks.py")
        .canonicalize()
        .unwrap();
    let mut command = Command::new(repository(".tools/schemathesis/bin/schemathesis"));
    command
        .arg("--config-file")
        .arg(repository("tests/full/http/schemathesis.toml"))
        .args(["run", &format!("{base}/v1/openapi.json"), "--url", &base])
        // In this spelling: schemathesis has to find it, to leave it out now and then.
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        // urllib3 sends none then: a GET with one is a browser's.
        .args(["--header", "Accept-Encoding: @@@SKIP_HEADER@@@"])
        .args(tags.iter().flat_map(|tag| ["--include-tag", tag]))
        .env("SCHEMATHESIS_HOOKS", hooks)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .env("NO_PROXY", "127.0.0.1")
        // Where it leaves its files.
        .current_dir(folder)
        .kill_on_drop(true);
    let output = tokio::time::timeout(PATIENCE, command.output()).await;
    let output = output
        .expect("schemathesis ends in time")
        .unwrap_or_else(|error| {
            panic!("cannot start schemathesis: {error}; install it: tests/setup")
        });
    let report = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{report}\n{errors}");
    // A selection of nothing would succeed too.
    assert!(report.contains("No issues found"), "{report}");
}

async fn sidecar(folder: &Path) -> Sidecar {
    let token = ("SLUICEGATE_ADMIN_TOKEN", TOKEN.to_owned());
    Sidecar::with(POLICY)
        .environment(&[token])
        .start(folder)
        .await
}

#[tokio::test]
async fn the_port_for_decisions_answers_as_its_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = sidecar(folder.path()).await;
    check(sidecar.port, &["decisions"], folder.path()).await;
}

#[tokio::test]
async fn the_admin_port_answers_as_its_document_says() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = sidecar(folder.path()).await;
    // The document's example of a subject.
    let known = json!({ "limit": "everyone", "key": "worker-7" });
    sidecar.answer(json!([{ "checks": [known] }])).await;
    let tags = ["admin", "probes"];
    check(sidecar.admin_port, &tags, folder.path()).await;
}
