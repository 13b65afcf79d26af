//! A Docker engine for the test, and the commands that control it.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::{self, Process};

/// Under /run, which is private in these namespaces.
const SOCKET: &str = "unix:///run/docker.sock";
const INSTALL: &str = "install it: tests/setup compose";

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    _process: Process,
    settings: Vec<(&'static str, String)>,
    /// The clone of this repository whose docker-compose.yml it runs.
    pub clone: PathBuf,
    /// How it stores layers: `overlay2` where the file system can, else `vfs`.
    pub driver: &'static str,
}

impl Engine {
    /// Starts an engine that keeps its files, and a clone of this repository, in `folder` and its containers in the control
    /// group `group`; `settings` are the environment variables for docker-compose.yml.
    pub async fn start(
        folder: &Path,
        group: &str,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        // Docker writes sockets, locks and a key to fixed places.
        for place in ["/run", "/etc/docker"] {
            run(Command::new("mount").args(["-t", "tmpfs", "sluicegate-compose", place]));
        }
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let driver = driver(folder);
        let clone = folder.join("clone");
        process::clone_into(&clone, &[]);
        let mut command = Command::new("dockerd");
        command.arg("--data-root").arg(folder.join("engine"));
        command.args(["--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"]);
        command.args(["--host", SOCKET, "--storage-driver", driver]);
        // Not systemd, which does not see into these namespaces.
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        command.args(["--cgroup-parent", &format!("/{group}")]);
        let mut process = Process::start(&mut command, &folder.join("dockerd.log"), INSTALL);
        let mut own: Vec<_> = settings.into_iter().collect();
        own.extend([
            ("DOCKER_HOST", SOCKET.to_owned()),
            ("DOCKER_CONFIG", folder.join("client").display().to_string()),
            // Debian's engine has only the old builder.
            ("DOCKER_BUILDKIT", "0".to_owned()),
            ("COMPOSE_PROJECT_NAME", "sluicegate".to_owned()),
        ]);
        let client = |arguments: &[&str]| prepared_command(&own, &clone, "docker", arguments);
        process
            .wait_until("dockerd", async || {
                client(&["version"])
                    .output()
                    .is_ok_and(|out| out.status.success())
            })
            .await;
        Self {
            _process: process,
            settings: own,
            clone,
            driver,
        }
    }

    /// What `docker ARGUMENTS` prints.
    ///
    /// # Panics
    /// The command fails; with its output.
    pub fn docker(&self, arguments: &[&str]) -> String {
        run(&mut self.command("docker", arguments))
    }

    /// Whether `docker ARGUMENTS` succeeds.
    pub fn succeeds(&self, arguments: &[&str]) -> bool {
        let output = self.command("docker", arguments).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// What `docker-compose ARGUMENTS` prints.
    ///
    /// # Panics
    /// The command fails; with its output.
    pub fn compose(&self, arguments: &[&str]) -> String {
        run(&mut self.command("docker-compose", arguments))
    }

    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        prepared_command(&self.settings, &self.clone, program, arguments)
    }

    /// The container of a service.
    pub fn container(&self, service: &str) -> String {
        // Compose knows too, but takes half a second.
        let label = format!("label=com.docker.compose.service={service}");
        let id = self.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &label]);
        assert!(!id.is_empty(), "{service} has no container");
        id
    }

    /// Kills a service, like a crash.
    pub fn kill(&self, service: &str) {
        self.docker(&["kill", &self.container(service)]);
    }

    /// Starts it again.
    pub fn restart(&self, service: &str) {
        self.docker(&["start", &self.container(service)]);
    }

    /// The latest output of all containers' health checks.
    pub fn health_checks(&self) -> String {
        let format = "{{.Name}} {{with .State.Health}}{{json .Log}}{{end}}";
        let containers = self.docker(&["ps", "--all", "--quiet"]);
        let printed = containers
            .lines()
            .map(|id| self.docker(&["inspect", "--format", format, id]));
        printed.collect::<Vec<_>>().join("\n")
    }

    /// A service's health: `healthy`, `unhealthy` or `starting`.
    pub fn health(&self, service: &str) -> String {
        let format = "{{.State.Health.Status}}";
        self.docker(&["inspect", "--format", format, &self.container(service)])
    }
}

fn prepared_command(
    settings: &[(&str, String)],
    folder: &Path,
    program: &str,
    arguments: &[&str],
) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .current_dir(folder);
    command
}

/// What a command prints.
///
/// # Panics
/// The command fails; with its output.
pub fn run(command: &mut Command) -> String {
    process::run(command, INSTALL)
}

/// The storage driver, found by trying: an overlay cannot be mounted on another, such as a container's root. `vfs`
/// copies every layer and works everywhere.
fn driver(folder: &Path) -> &'static str {
    let parts: Vec<PathBuf> = ["lower", "upper", "work", "merged"]
        .iter()
        .map(|part| folder.join("overlay").join(part))
        .collect();
    for part in &parts {
        std::fs::create_dir_all(part).expect("a folder of our own");
    }
    let [lower, upper, work, merged] = parts.as_slice() else {
        unreachable!("four parts");
    };
    let options = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.display(),
        upper.display(),
        work.display()
    );
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "overlay", "-o", &options])
        .arg(merged)
        .output()
        .is_ok_and(|output| output.status.success());
    if mounted {
        run(Command::new("umount").arg(merged));
    }
    if mounted { "overlay2" } else { "vfs" }
}
