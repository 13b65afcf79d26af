//! The images: pushed to a registry and pulled back; user, entrypoint, size, and the program on the image's files alone.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::policy::Policy;
use sluicegate_tests::process::{Process, free_port, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests_full::identity::Identities;

use super::artifacts::*;

/// The largest compressed size of a sidecar's image.
const LARGEST: u64 = 20_000_000;

/// Debian's registry with the release in it.
struct Registry {
    address: String,
    _process: Process,
    _folder: tempfile::TempDir,
}

impl Registry {
    async fn with_the_release() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let config = json!({
            "version": 0.1,
            "storage": { "filesystem": { "rootdirectory": folder.path().join("data") } },
            "http": { "addr": address },
        });
        let file = folder.path().join("registry.yml");
        std::fs::write(&file, config.to_string()).unwrap();
        let mut process = Process::start(
            Command::new("docker-registry").arg("serve").arg(&file),
            &folder.path().join("log"),
            "install it: tests/setup release",
        );
        process
            .wait_until("the registry", || async {
                tokio::net::TcpStream::connect(&address).await.is_ok()
            })
            .await;
        artifact("SHA256SUMS");
        run(Command::new(repository("deploy/release/publish")).arg(&address));
        Self {
            address,
            _process: process,
            _folder: folder,
        }
    }

    fn crane(&self, arguments: &[&str], image: &str) -> String {
        let reference = format!("{}/{image}:{VERSION}", self.address);
        run(tool("crane").args(arguments).arg(reference))
    }

    fn json(&self, arguments: &[&str], image: &str) -> Value {
        serde_json::from_str(&self.crane(arguments, image)).unwrap()
    }

    /// The files of an image, in a folder.
    fn export(&self, platform: &str, image: &str, folder: &Path) {
        let archive = folder.with_extension("tar");
        let reference = format!("{}/{image}:{VERSION}", self.address);
        run(tool("crane")
            .args(["export", "--platform", platform, &reference])
            .arg(&archive));
        unpack(&archive, folder);
    }
}

#[tokio::test]
async fn the_sidecars_image_is_small_and_runs_as_nobody_in_particular() {
    let registry = Registry::with_the_release().await;
    let index = registry.json(&["manifest"], "sluicegate");
    assert_eq!(index["manifests"].as_array().unwrap().len(), 2, "{index}");
    for (architecture, machine) in ARCHITECTURES {
        let platform = format!("linux/{architecture}");
        let all = registry.json(&["config", "--platform", &platform], "sluicegate");
        let config = &all["config"];
        assert_eq!(all["architecture"], *architecture);
        assert_eq!(config["User"], "65532:65532");
        assert_eq!(config["Entrypoint"], json!(["/usr/local/bin/sluicegate"]));
        let label = |name: &str| &config["Labels"][format!("org.opencontainers.image.{name}")];
        assert_eq!(*label("version"), VERSION);
        for name in ["source", "revision", "licenses", "created", "title"] {
            assert!(label(name).is_string(), "{name}");
        }
        let manifest = registry.json(&["manifest", "--platform", &platform], "sluicegate");
        let layers = manifest["layers"].as_array().unwrap().iter();
        let sizes = layers.map(|layer| layer["size"].as_u64().unwrap());
        let size: u64 = sizes.sum();
        println!("{platform}: {size} bytes");
        assert!(size < LARGEST, "{size}");

        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        registry.export(&platform, "sluicegate", &root);
        only_root_writes(&root);
        let program = root.join("usr/local/bin/sluicegate");
        is_of_this_version(&emulated(machine, &program, "--version"));
    }
}

/// No file has another owner, more rights than it needs, or a name that a shell or a package manager has.
fn only_root_writes(folder: &Path) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let metadata = path.symlink_metadata().unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (0, 0), "{path:?}");
        let mode = metadata.permissions().mode() & 0o7777;
        assert_eq!(mode & 0o7022, 0, "{path:?}: {mode:o}");
        if metadata.is_dir() {
            only_root_writes(&path);
        } else if mode & 0o111 != 0 {
            assert!(path.ends_with("usr/local/bin/sluicegate"), "{path:?}");
        }
    }
}

#[tokio::test]
async fn the_image_has_what_the_sidecar_needs_of_a_system() {
    let registry = Registry::with_the_release().await;
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    let mut all = ARCHITECTURES.iter();
    let own = all.find(|(_, machine)| *machine == std::env::consts::ARCH);
    let platform = format!("linux/{}", own.unwrap().0);
    registry.export(&platform, "sluicegate", &root);
    // What a container's runtime adds.
    let name = "redis.example";
    let hosts = format!("127.0.0.1 {name} localhost\n");
    std::fs::write(root.join("etc/hosts"), hosts).unwrap();
    let policy = Policy::on("redis://overridden").window("jobs", "fixed_window", 9, "1h");
    std::fs::write(root.join("policy.yaml"), policy.text()).unwrap();
    let decide = |store: String| {
        let mut command = Command::new("chroot");
        command
            .args(["--userspec=65532:65532"])
            .arg(&root)
            .args(["/usr/local/bin/sluicegate", "decide", "--limit=jobs"])
            .args(["--key=k", "--policy=/policy.yaml", "--store", &store])
            .output()
            .unwrap()
    };

    // A name: the C library resolves it without the files of another system.
    let redis = Redis::start().await;
    let answer = decide(format!("redis://{name}:{}", redis.port()));
    assert!(answer.status.success(), "{answer:?}");

    // TLS: the authorities are in the file that the image has, and no others.
    let tls = free_port().to_string();
    let identities = tempfile::tempdir().unwrap();
    Identities::new(identities.path(), "spiffe://unused", "unused", "unused");
    let file = |name: &str| identities.path().join(name).display().to_string();
    let (certificate, key) = (file("server.pem"), file("server.key"));
    let port = ["--tls-port", &tls, "--tls-auth-clients", "no"];
    let own = ["--tls-cert-file", &certificate, "--tls-key-file", &key];
    let _server = Redis::start_with(&[port, own].concat()).await;
    let store = format!("rediss://localhost:{tls}");
    let refused = decide(store.clone());
    let text = String::from_utf8_lossy(&refused.stderr);
    let unknown = text.contains("UnknownIssuer");
    assert!(!refused.status.success() && unknown, "{refused:?}");
    let authorities = root.join("etc/ssl/certs/ca-certificates.crt");
    let public = std::fs::read_to_string(&authorities).unwrap();
    assert!(public.matches("BEGIN CERTIFICATE").count() > 100);
    let own = std::fs::read_to_string(identities.path().join("authority.pem")).unwrap();
    std::fs::write(&authorities, format!("{public}\n{own}")).unwrap();
    let answer = decide(store);
    assert!(answer.status.success(), "{answer:?}");
}

#[tokio::test]
async fn the_filters_image_is_what_istio_and_envoy_gateway_pull() {
    let registry = Registry::with_the_release().await;
    let manifest = registry.json(&["manifest"], "sluicegate-filter");
    let oci = "application/vnd.oci.image";
    assert_eq!(manifest["mediaType"], format!("{oci}.manifest.v1+json"));
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 1, "{manifest}");
    assert_eq!(layers[0]["mediaType"], format!("{oci}.layer.v1.tar+gzip"));
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root");
    registry.export("all", "sluicegate-filter", &root);
    let (pulled, released) = (
        root.join("plugin.wasm"),
        artifact("sluicegate-VERSION.wasm"),
    );
    same_bytes(&pulled, &released);
}

fn same_bytes(one: &Path, other: &Path) {
    assert_eq!(std::fs::read(one).unwrap(), std::fs::read(other).unwrap());
}

#[tokio::test]
async fn the_chart_comes_from_the_registry() {
    let registry = Registry::with_the_release().await;
    let folder = tempfile::tempdir().unwrap();
    run(tool("helm")
        .args(["pull", "--plain-http", "--version", VERSION])
        .arg(format!("oci://{}/charts/sluicegate", registry.address))
        .arg("--destination")
        .arg(folder.path()));
    let pulled = folder.path().join(format!("sluicegate-{VERSION}.tgz"));
    same_bytes(&pulled, &artifact("sluicegate-VERSION.tgz"));
}
