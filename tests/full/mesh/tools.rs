//! Commands that the test runs, and the cache in which tests/full/mesh/build puts them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use sluicegate_tests::process::{self, repository};
use sluicegate_tests_full::documents::with_path;

/// What installs everything that is missing.
pub const INSTALL: &str = "install it: tests/setup mesh";

/// The folder that tests/full/mesh/build fills.
pub fn cache() -> PathBuf {
    let cache = std::env::var_os("SLUICEGATE_MESH_CACHE")
        .map_or_else(|| repository(".tools/mesh"), PathBuf::from);
    // Absolute: processes start in other folders.
    let absolute = cache.canonicalize();
    absolute.unwrap_or_else(|error| panic!("{}: {error}; {INSTALL}", cache.display()))
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
    let mut pipe = child.stdin.take().expect("a pipe");
    let _ = pipe.write_all(input.as_bytes());
    drop(pipe);
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

    fn command(&self, name: &str, words: &str) -> Command {
        let mut command = program(name);
        self.prepare(command.args(words.split_whitespace()));
        command
    }

    /// Lets a command find the cluster, and kubectl and helm.
    pub fn prepare(&self, command: &mut Command) {
        command.env("KUBECONFIG", &self.kubeconfig);
        // Where they keep caches; / is not the test's own.
        let home = self.kubeconfig.parent().expect("a file in a folder");
        command.env("HOME", home);
        with_path(command, cache().join("bin").display());
    }

    /// What `kubectl WORDS` prints. A space ends a word.
    ///
    /// # Panics
    /// It fails.
    pub fn kubectl(&self, words: &str) -> String {
        run(&mut self.command("kubectl", words))
    }

    /// Likewise, without a panic.
    pub fn try_kubectl(&self, words: &str) -> Result<String, String> {
        attempt(&mut self.command("kubectl", words))
    }

    /// An object, or a list of objects, as JSON.
    pub fn get(&self, words: &str) -> Value {
        let text = self.kubectl(&format!("get --output=json {words}"));
        serde_json::from_str(&text).expect("kubectl prints JSON")
    }

    /// Applies a manifest of this namespace, checked strictly by the API server.
    pub fn apply(&self, namespace: &str, manifest: &str) {
        let apply = "apply --server-side --validate=strict --filename=- --namespace";
        let mut command = self.command("kubectl", &format!("{apply} {namespace}"));
        let applied = attempt_with(&mut command, manifest);
        applied.unwrap_or_else(|failure| panic!("{failure}\n{manifest}"));
    }

    /// What `helm WORDS` prints.
    ///
    /// # Panics
    /// It fails.
    pub fn helm(&self, words: &str) -> String {
        run(&mut self.command("helm", words))
    }

    /// Likewise, with arguments in addition that may have spaces; without a panic.
    pub fn try_helm(&self, words: &str, more: &[&str]) -> Result<String, String> {
        attempt(self.command("helm", words).args(more))
    }
}
