//! `install.sh` with a release on a server of this machine: what it installs, and what it refuses.

use std::path::{Path, PathBuf};
use std::process::Command;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use sluicegate_tests::process::{attempt, repository, run, write_program};
use sluicegate_tests::{sidecar, upstream};
use sluicegate_tests_full::documents::with_path;
use tempfile::TempDir;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// A release's archive, its checksums, and where they are served.
struct Release {
    folder: TempDir,
    address: String,
}

fn archive() -> String {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        _ => "arm64",
    };
    format!("sluicegate-{VERSION}-linux-{architecture}")
}

impl Release {
    /// Laid out and summed as `make release` does it, with the sidecar of these tests.
    async fn serve() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path();
        let name = archive();
        let mut layout = Command::new(repository("deploy/host/layout"));
        layout.arg(at.join(&name)).arg(sidecar::binary());
        run(
            layout.arg(repository("target/filter/sluicegate.wasm")),
            "make debug filter",
        );
        let pack = format!("tar -cf - {name} | gzip -1 >{name}.tar.gz && rm -r {name}");
        shell(at, &format!("{pack} && sha256sum -- *.tar.gz >SHA256SUMS"));
        std::fs::write(
            at.join(format!("sluicegate-{VERSION}-attestation.json")),
            "{}",
        )
        .unwrap();
        let files = async |State(folder): State<PathBuf>, uri: Uri| {
            let name = uri.path().trim_start_matches('/').to_owned();
            std::fs::read(folder.join(name)).map_err(|_| StatusCode::NOT_FOUND)
        };
        let router = Router::new().fallback(files).with_state(at.to_owned());
        let address = format!("http://127.0.0.1:{}", upstream::serve(router).await);
        Self { folder, address }
    }

    /// Runs the script with this program as `gh`.
    async fn install(&self, gh: &str) -> (TempDir, Result<String, String>) {
        let prefix = tempfile::tempdir().unwrap();
        let programs = tempfile::tempdir().unwrap();
        write_program(&programs.path().join("gh"), gh);
        let mut command = Command::new(repository("deploy/release/install.sh"));
        command.args([VERSION, &self.address]);
        command.env("PREFIX", prefix.path().join("new"));
        with_path(&mut command, programs.path().display());
        // The server of this test answers meanwhile.
        let said = tokio::task::spawn_blocking(move || attempt(&mut command, "it is there"));
        (prefix, said.await.unwrap())
    }
}

fn shell(folder: &Path, script: &str) {
    let mut shell = Command::new("sh");
    run(shell.args(["-euc", script]).current_dir(folder), "sh");
}

fn nothing_is_in(prefix: &TempDir) -> bool {
    std::fs::read_dir(prefix.path()).unwrap().next().is_none()
}

/// In place of GitHub's, which asks GitHub: it is content with a file, a bundle and the repository.
const VERIFIES: &str = "#!/bin/sh\n\
    [ \"$1 $2 $4 $6 $7\" = 'attestation verify --bundle --repo sluicegate/sluicegate' ] && [ -s \"$3\" ] && [ -s \"$5\" ]\n";
const REFUSES: &str = "#!/bin/sh\nexit 1\n";

#[tokio::test(flavor = "multi_thread")]
async fn a_release_is_verified_and_its_sidecar_and_filter_installed() {
    let release = Release::serve().await;
    let (prefix, said) = release.install(VERIFIES).await;
    let said = said.unwrap();
    assert!(
        said.contains(&format!("sluicegate {VERSION} in ")),
        "{said}"
    );
    let new = prefix.path().join("new");
    let version = run(
        Command::new(new.join("bin/sluicegate")).arg("--version"),
        "installed",
    );
    assert_eq!(version.trim(), format!("sluicegate {VERSION}"));
    let read = |path: PathBuf| std::fs::read(path).unwrap();
    let filter = read(new.join("lib/sluicegate/sluicegate.wasm"));
    assert!(filter == read(repository("target/filter/sluicegate.wasm")));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_installed_of_a_release_that_is_not_as_it_was_built() {
    let release = Release::serve().await;
    let (prefix, said) = release.install(REFUSES).await;
    let said = said.expect_err("no attestation");
    assert!(said.contains("has no valid attestation"), "{said}");
    assert!(nothing_is_in(&prefix), "{said}");

    let name = archive();
    let at = release.folder.path();
    for (change, expected) in [
        (
            format!("printf x >>{name}.tar.gz"),
            "does not match SHA256SUMS",
        ),
        (
            "sed -i 's/linux/other/' SHA256SUMS".to_owned(),
            "SHA256SUMS has no sluicegate-",
        ),
        ("rm SHA256SUMS".to_owned(), "cannot download "),
    ] {
        shell(at, &change);
        let (prefix, said) = release.install(VERIFIES).await;
        let said = said.expect_err(&change);
        assert!(said.contains(expected), "{change}: {said}");
        assert!(nothing_is_in(&prefix), "{change}: {said}");
    }
}
