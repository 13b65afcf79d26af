//! Checksums, the archives' members, the programs, bills of materials, licences.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use sluicegate_tests::process::repository;

use super::artifacts::*;

#[test]
fn every_file_has_a_checksum_and_matches_it() {
    let sums = artifact("SHA256SUMS");
    let folder = sums.parent().unwrap();
    run(Command::new("sha256sum")
        .args(["--check", "--strict", "SHA256SUMS"])
        .current_dir(folder));
    let text = std::fs::read_to_string(&sums).unwrap();
    let listed = text
        .lines()
        .filter_map(|line| Some(line.split_once("  ")?.1));
    let listed: BTreeSet<_> = listed.chain(["SHA256SUMS"]).map(str::to_owned).collect();
    let present = std::fs::read_dir(folder).unwrap();
    let present = present.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert_eq!(listed, present.collect());
}

/// What an archive has beside the program.
const FILES: &str = "LICENSE LGPL-2.1 sidecar-licences.txt filter-licences.txt sluicegate.wasm policy.yaml policy.schema.json envoy.yaml \
    systemd/sluicegate.service completions/sluicegate.bash completions/_sluicegate completions/sluicegate.fish \
    man/sluicegate.1 man/sluicegate-serve.1 man/sluicegate-override.1";

#[test]
fn the_program_of_each_archive_is_static_stripped_and_of_this_version() {
    for (architecture, machine) in ARCHITECTURES {
        let name = format!("sluicegate-{VERSION}-linux-{architecture}");
        let folder = tempfile::tempdir().unwrap();
        unpack(&artifact(&format!("{name}.tar.gz")), folder.path());
        let folder = folder.path().join(name);
        let program = folder.join("sluicegate");
        is_of_this_version(&emulated(machine, &program, "--version"));
        let elf = run(Command::new("readelf")
            .args(["--wide", "--program-headers", "--sections", "--dynamic"])
            .arg(&program)
            .env("LC_ALL", "C"));
        for unwanted in ["INTERP", "(NEEDED)", ".symtab", ".debug_"] {
            assert!(!elf.contains(unwanted), "{architecture}: {unwanted}");
        }
        names_nothing_of_this_machine(&program);
        for file in FILES.split_whitespace() {
            let length = std::fs::metadata(folder.join(file)).map(|file| file.len());
            assert!(length.is_ok_and(|length| length > 0), "{file}");
        }
    }
}

#[test]
fn the_filter_names_nothing_of_this_machine() {
    let filter = artifact("sluicegate-VERSION.wasm");
    assert!(std::fs::read(&filter).unwrap().starts_with(b"\0asm"));
    names_nothing_of_this_machine(&filter);
}

/// A path of the builder's would make the bytes depend on it.
fn names_nothing_of_this_machine(file: &Path) {
    let bytes = std::fs::read(file).unwrap();
    let home = std::env::var("HOME").unwrap();
    let repository = repository("").canonicalize().unwrap();
    for path in [repository.to_str().unwrap(), &format!("{home}/.cargo")] {
        let mut parts = bytes.windows(path.len());
        let found = parts.any(|part| part == path.as_bytes());
        assert!(!found, "{} contains {path}", file.display());
    }
}

#[test]
fn the_bills_of_materials_list_what_cargo_locks() {
    for (file, dependency, others) in [
        ("sluicegate-VERSION.cdx.json", "redis", "proxy-wasm"),
        ("sluicegate-filter-VERSION.cdx.json", "proxy-wasm", "redis"),
    ] {
        let bill = bill(file);
        assert_eq!(bill["bomFormat"], "CycloneDX");
        assert_eq!(bill["metadata"]["component"]["version"], VERSION);
        let names = bill["components"].as_array().unwrap().iter();
        let names: BTreeSet<_> = names.map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(dependency), "{file}: {names:?}");
        assert!(!names.contains(others), "{file}: {names:?}");
        assert!(!names.contains("plotters"), "{file}: a test's dependency");
        names_nothing_of_this_machine(&artifact(file));
    }
}

fn bill(file: &str) -> Value {
    let text = std::fs::read_to_string(artifact(file)).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// The bill may list more: the tool counts what other packages of the workspace enable too.
#[test]
fn every_package_with_a_licence_is_in_the_bill_of_materials() {
    for program in ["sluicegate", "sluicegate-filter"] {
        let bill = bill(&format!("{program}-VERSION.cdx.json"));
        let listed = bill["components"].as_array().unwrap().iter().map(|part| {
            let field = |name: &str| part[name].as_str().unwrap();
            format!("{} {}", field("name"), field("version"))
        });
        let listed: BTreeSet<_> = listed.collect();
        let licences = artifact(&format!("{program}-VERSION-licences.txt"));
        let licences = std::fs::read_to_string(licences).unwrap();
        let mut seen = 0;
        for block in licences.split(", used by:\n").skip(1) {
            for line in block.lines().take_while(|line| !line.is_empty()) {
                let package = line.trim().split(',').next().unwrap_or_default();
                assert!(listed.contains(package), "{program}: {package}");
                seen += 1;
            }
        }
        assert!(seen > 20, "{program}: {seen}");
    }
}

/// Apache-2.0 asks for the NOTICE (4(d)), BSD for its text: jemalloc's is in a folder of a package with another licence.
#[test]
fn the_licences_have_every_notice_and_those_of_code_inside_packages() {
    let metadata = run(Command::new("cargo")
        .args(["metadata", "--format-version", "1", "--locked", "--offline"])
        .current_dir(repository("")));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    let folder = |package: &Value| {
        let manifest = Path::new(package["manifest_path"].as_str().unwrap());
        manifest.parent().unwrap().to_owned()
    };
    let mut seen = BTreeSet::new();
    for program in ["sluicegate", "sluicegate-filter"] {
        let licences = artifact(&format!("{program}-VERSION-licences.txt"));
        let licences = std::fs::read_to_string(licences).unwrap();
        for package in metadata["packages"].as_array().unwrap() {
            let field = |name: &str| package[name].as_str().unwrap();
            if !licences.contains(&format!("\n  {} {}", field("name"), field("version"))) {
                continue;
            }
            for file in [
                "NOTICE",
                "NOTICE.txt",
                "LICENSE-THIRD-PARTY",
                "jemalloc/COPYING",
            ] {
                if let Ok(text) = std::fs::read_to_string(folder(package).join(file)) {
                    assert!(licences.contains(text.trim()), "{}: {file}", field("name"));
                    seen.insert(format!("{} {file}", field("name")));
                }
            }
        }
    }
    for known in ["datasketches NOTICE", "tikv-jemalloc-sys jemalloc/COPYING"] {
        assert!(seen.contains(known), "{known}: {seen:?}");
    }
}

/// With the test's profile, whose packages are compiled already.
#[test]
fn cargo_installs_the_sidecar_from_a_checkout() {
    let root = tempfile::tempdir().unwrap();
    run(Command::new("cargo")
        .args(["install", "--quiet", "--debug", "--locked", "--path"])
        .arg(repository("sidecar"))
        .arg("--root")
        .arg(root.path()));
    let program = root.path().join("bin/sluicegate");
    is_of_this_version(&run(Command::new(program).arg("--version")));
}

#[test]
fn the_chart_is_of_this_version() {
    let chart = run(tool("helm")
        .args(["show", "chart"])
        .arg(artifact("sluicegate-VERSION.tgz")));
    for field in ["version", "appVersion"] {
        let line = format!("{field}: {VERSION}");
        let same = |text: &str| text.replace('"', "") == line;
        assert!(chart.lines().any(same), "{line}\n{chart}");
    }
}

#[test]
fn the_dashboards_are_those_of_the_repository() {
    let root = tempfile::tempdir().unwrap();
    let archive = artifact("sluicegate-dashboards-VERSION.tar.gz");
    unpack(&archive, root.path());
    let name = format!("sluicegate-dashboards-{VERSION}");
    let folder = root.path().join(name);
    for part in ["grafana", "prometheus"] {
        run(Command::new("diff")
            .arg("--recursive")
            .arg(repository("deploy").join(part))
            .arg(folder.join(part)));
    }
}
