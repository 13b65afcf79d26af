//! Images that replace those that `docker compose up` pulls: here packages are available, images are not.
//!
//! | replaces | made from |
//! |---|---|
//! | Debian | `tests/full/compose/images`: debootstrap |
//! | Redis, Prometheus | Debian's packages, by the same script |
//! | Envoy | the Envoy that the other tests run |
//! | Grafana | nothing: a bare Debian runs in its place, see `grafana.rs` |
//! | Rust | Debian's compiler, or this machine's, by the same script; crates are those that cargo has downloaded here, because the engine has no network |

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::repository;

use crate::engine::{Engine, run};

const DEBIAN: &str = "stand-in/debian";
const RUST: &str = "stand-in/rust";
const ENVOY: &str = "stand-in/envoy";
const REDIS: &str = "stand-in/redis";
const PROMETHEUS: &str = "stand-in/prometheus";

/// The environment variables of docker-compose.yml and the Dockerfiles that name images.
pub const SETTINGS: [(&str, &str); 6] = [
    ("DEBIAN_IMAGE", DEBIAN),
    ("RUST_IMAGE", RUST),
    ("ENVOY_IMAGE", ENVOY),
    ("REDIS_IMAGE", REDIS),
    ("PROMETHEUS_IMAGE", PROMETHEUS),
    // No Grafana: a shell runs in its place, see `grafana.rs`.
    ("GRAFANA_IMAGE", DEBIAN),
];

/// Builds the images.
pub fn make(engine: &Engine, folder: &Path) {
    engine.docker(&["import", &text(&packed("debian")), DEBIAN]);
    let on_debian = |image: &str, files: &[PathBuf], lines: &str| {
        let context = folder.join(image);
        std::fs::create_dir_all(&context).expect("a folder of our own");
        for file in files {
            let name = file.file_name().expect("a file");
            std::fs::copy(file, context.join(name)).unwrap_or_else(|error| {
                panic!("{}: {error}; make it: tests/setup compose", file.display())
            });
        }
        std::fs::write(
            context.join("Dockerfile"),
            format!("FROM {DEBIAN}\n{lines}"),
        )
        .expect("a file of our own");
        engine.docker(&["build", "--quiet", "--tag", image, &text(&context)]);
    };
    on_debian(
        RUST,
        &[packed("rust"), crates(folder)],
        "ADD rust.tar /\nADD crates.tar /usr/local/cargo/\nENV CARGO_HOME=/usr/local/cargo CARGO_NET_OFFLINE=true\n",
    );
    on_debian(
        ENVOY,
        &[repository(".tools/envoy")],
        "COPY envoy /usr/local/bin/\n",
    );
    on_debian(REDIS, &[packed("redis")], "ADD redis.tar /\n");
    // As in Prometheus's own image: its user may write there, and it is the entry point.
    on_debian(
        PROMETHEUS,
        &[packed("prometheus")],
        "ADD prometheus.tar /\nRUN install -d -o 65534 -g 65534 /prometheus\nENTRYPOINT [\"prometheus\"]\n",
    );
}

/// What cargo has downloaded on this machine, where every package of Cargo.lock was built before.
fn crates(folder: &Path) -> PathBuf {
    let home = std::env::var("CARGO_HOME");
    let home = home.unwrap_or_else(|_| std::env::var("HOME").expect("a home") + "/.cargo");
    let archive = folder.join("crates.tar");
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(&archive);
    tar.args(["--directory", &home, "registry/cache", "registry/index"]);
    run(&mut tar);
    archive
}

fn packed(name: &str) -> PathBuf {
    let path = repository(&format!(".tools/images/{name}.tar"));
    assert!(
        path.exists(),
        "no {}; make it: tests/setup compose",
        path.display()
    );
    path
}

fn text(path: &Path) -> String {
    path.display().to_string()
}
