//! Commands that the test runs, and the cache in which tests/full/mesh/build puts them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use sluicegate_tests::process::{self, repository};

/// What installs everything that is missing.
pub const INSTALL: &str = "install it: tests/setup mesh";

/// The folder that tests/full/mesh/build fills.
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("SLUICEGATE_MESH_CACHE")
        .map_or_else(|| repository(".tools/mesh"), PathBuf::from);
    // Absolute: processes start in other folders.
    cache
        .canonicalize()
        .unwrap_or_else(|error| panic!("{}: {error}; {INSTALL}", cache.display()))
}

/// A program that tests/full/mesh/build builds.
pub fn program(name: &str) -> Command {
    Command::new(cache().join("bin").join(name))
}

/// What a command prints.
///
/// # Panics
/// The command fails; with its output.
pub fn run(command: &mut Command) -> String {
    process::run(command.stdin(Stdio::null()), INSTALL)
}

/// What a command prints, or what it says when it fails.
pub fn attempt(command: &mut Command) -> Result<String, String> {
    process::attempt(command.stdin(Stdio::null()), INSTALL)
}

/// Likewise, with `input` as its standard input.
pub fn attempt_with(command: &mut Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}; {INSTALL}"));
    // A command that fails before it has read everything says why on its own.
    let _ = child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(input.as_bytes());
    let output = child.wait_with_output().expect("a child can be waited for");
    process::printed(command, &output)
}

/// kubectl and helm, as the cluster's administrator.
#[derive(Clone, Debug)]
pub struct Tools {
    kubeconfig: PathBuf,
}

impl Tools {
    /// Tools that use this kubeconfig.
    pub fn new(kubeconfig: &Path) -> Self {
        Self {
            kubeconfig: kubeconfig.to_owned(),
        }
    }

    fn command(&self, name: &str, arguments: &[&str]) -> Command {
        let mut command = program(name);
        self.prepare(command.args(arguments));
        command
    }

    /// Lets a command find the cluster, and kubectl and helm.
    pub fn prepare(&self, command: &mut Command) {
        command.env("KUBECONFIG", &self.kubeconfig);
        // Where they keep caches; / is not the test's own.
        let home = self.kubeconfig.parent().expect("a file in a folder");
        command.env("HOME", home);
        let paths = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{paths}", cache().join("bin").display()));
    }

    /// What `kubectl ARGUMENTS` prints.
    ///
    /// # Panics
    /// It fails.
    pub fn kubectl(&self, arguments: &[&str]) -> String {
        run(&mut self.command("kubectl", arguments))
    }

    /// Likewise, without a panic.
    pub fn try_kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        attempt(&mut self.command("kubectl", arguments))
    }

    /// An object, or a list of objects, as JSON.
    pub fn get(&self, arguments: &[&str]) -> Value {
        let text = self.kubectl(&[&["get", "--output=json"], arguments].concat());
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// Applies a manifest of this namespace, checked strictly by the API server.
    pub fn apply(&self, namespace: &str, manifest: &str) {
        let arguments = [
            "apply",
            "--server-side",
            "--validate=strict",
            "--filename=-",
            "--namespace",
            namespace,
        ];
        attempt_with(&mut self.command("kubectl", &arguments), manifest)
            .unwrap_or_else(|failure| panic!("{failure}\n{manifest}"));
    }

    /// What `helm ARGUMENTS` prints.
    ///
    /// # Panics
    /// It fails.
    pub fn helm(&self, arguments: &[&str]) -> String {
        run(&mut self.command("helm", arguments))
    }

    /// Likewise, without a panic.
    pub fn try_helm(&self, arguments: &[&str]) -> Result<String, String> {
        attempt(&mut self.command("helm", arguments))
    }
}
