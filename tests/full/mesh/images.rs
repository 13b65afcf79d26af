//! Images in the cluster's registry, made from layers without Docker.
//!
//! Ours come from deploy/images/build, as they are released. The others have one layer each, from tests/full/mesh/layers.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::repository;

use crate::cluster::REGISTRY;
use crate::tools::{cache, program, run};

/// The tags of the filter's two versions.
pub const FILTER_TAGS: [&str; 2] = ["v1", "v2"];
/// The tag of every other image.
pub const TAG: &str = "mesh";

/// Images from tests/full/mesh/layers: name and tag, and what a Dockerfile would say.
const OTHERS: &str = "
pause:1 --entrypoint=/pause
redis:mesh --entrypoint=/usr/local/bin/redis-server --user=65532
envoy:mesh --entrypoint=/usr/local/bin/envoy --user=65532
gateway:mesh --entrypoint=/usr/local/bin/envoy-gateway --user=65532:65532
pilot:mesh --entrypoint=/usr/local/bin/pilot-discovery --user=1337:1337
proxyv2:mesh --entrypoint=/usr/local/bin/pilot-agent --env=PATH=/usr/local/bin:/usr/sbin:/usr/bin
";

/// Pushes all images.
pub fn push(folder: &Path) {
    for image in OTHERS.trim().lines() {
        let words: Vec<_> = image.split(' ').collect();
        let (name, _) = image.split_once(':').expect("a name and a tag");
        let layer = cache().join("layers").join(format!("{name}.tgz"));
        assemble(&layer, words[0], &words[1..]);
    }
    let ours = repository("target/images");
    for (name, tag) in [("sluicegate", TAG), ("sluicegate-filter", FILTER_TAGS[0])] {
        let layout = ours.join(name);
        assert!(layout.exists(), "no {layout:?}; build it: make mesh");
        let image = format!("{REGISTRY}/{name}:{tag}");
        run(program("crane").arg("push").arg(layout).arg(image));
    }
    let layer = changed_filter(folder);
    let image = format!("sluicegate-filter:{}", FILTER_TAGS[1]);
    assemble(&layer, &image, &[]);
}

fn assemble(layer: &Path, image: &str, settings: &[&str]) {
    let image = format!("{REGISTRY}/{image}");
    run(program("crane")
        .args(["append", "--oci-empty-base", "--new_tag", &image])
        .arg("--new_layer")
        .arg(layer));
    // Containerd pulls the image of its own platform.
    run(program("crane")
        .args(["mutate", "--set-platform", "linux/amd64"])
        .args(settings)
        .args(["--tag", &image, &image]));
}

/// The layer of the filter's second version: the same code, in a file that differs by a custom section, so that a proxy's
/// configuration shows which version it runs.
fn changed_filter(folder: &Path) -> PathBuf {
    let module = std::fs::read(repository("target/filter/sluicegate.wasm"));
    let mut module = module.expect("the filter; make it: make filter");
    // Section 0, its size, the length of its name, its name.
    module.extend(b"\x00\x05\x04mesh");
    let folder = folder.join("filter");
    std::fs::create_dir(&folder).expect("a folder of our own");
    std::fs::write(folder.join("plugin.wasm"), module).expect("a file of our own");
    run(Command::new("tar")
        .args(["--create", "--gzip", "--file=layer.tgz", "plugin.wasm"])
        .current_dir(&folder));
    folder.join("layer.tgz")
}
