//! A Docker engine of the test's own, and the commands that speak to it.

use std::path::{Path, PathBuf};
use std::process::Command;

use sluicegate_tests::process::{Process, repository};

/// Under /run, which is the test's own in there.
const SOCKET: &str = "unix:///run/docker.sock";
const INSTALL: &str = "install it: tests/setup compose";

/// A running engine.
#[derive(Debug)]
pub struct Engine {
    _process: Process,
    settings: Vec<(&'static str, String)>,
    /// How it stores layers: `overlay2` where the file system can, else `vfs`.
    pub driver: &'static str,
}

impl Engine {
    /// Starts one that keeps its files in `folder` and its containers in the control group `group`; `settings` are
    /// what docker-compose.yml is to find in its environment.
    pub async fn start(
        folder: &Path,
        group: &str,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Self {
        // All that Docker writes elsewhere than it is told: sockets, locks and a key.
        for place in ["/run", "/etc/docker"] {
            run(Command::new("mount").args(["-t", "tmpfs", "sluicegate-compose", place]));
        }
        run(Command::new("ip").args(["link", "set", "lo", "up"]));
        let driver = driver(folder);
        let mut command = Command::new("dockerd");
        command.arg("--data-root").arg(folder.join("engine"));
        command.args(["--exec-root", "/run/docker", "--pidfile", "/run/docker.pid"]);
        command.args(["--host", SOCKET, "--storage-driver", driver]);
        // Not systemd's: it does not see into these namespaces.
        command.args(["--exec-opt", "native.cgroupdriver=cgroupfs"]);
        command.args(["--cgroup-parent", &format!("/{group}")]);
        let mut process = Process::start(&mut command, &folder.join("dockerd.log"), INSTALL);
        let mut own: Vec<_> = settings.into_iter().collect();
        own.extend([
            ("DOCKER_HOST", SOCKET.to_owned()),
            ("DOCKER_CONFIG", folder.join("client").display().to_string()),
            // Debian's engine has the old builder only.
            ("DOCKER_BUILDKIT", "0".to_owned()),
            ("COMPOSE_PROJECT_NAME", "sluicegate".to_owned()),
        ]);
        let client = |arguments: &[&str]| prepared(&own, "docker", arguments);
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
            driver,
        }
    }

    /// What `docker ARGUMENTS` prints.
    ///
    /// # Panics
    /// It fails; with what it has said.
    pub fn docker(&self, arguments: &[&str]) -> String {
        run(&mut prepared(&self.settings, "docker", arguments))
    }

    /// Whether `docker ARGUMENTS` succeeds.
    pub fn succeeds(&self, arguments: &[&str]) -> bool {
        let output = prepared(&self.settings, "docker", arguments).output();
        output.is_ok_and(|output| output.status.success())
    }

    /// What `docker-compose ARGUMENTS` prints.
    ///
    /// # Panics
    /// It fails; with what it has said.
    pub fn compose(&self, arguments: &[&str]) -> String {
        run(&mut prepared(&self.settings, "docker-compose", arguments))
    }

    /// The container of a service.
    pub fn container(&self, service: &str) -> String {
        // Compose could tell too, but takes half a second for it.
        let label = format!("label=com.docker.compose.service={service}");
        let id = self.docker(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &label]);
        assert!(!id.is_empty(), "{service} has no container");
        id
    }

    /// Ends a service at once, as a crash would.
    pub fn kill(&self, service: &str) {
        self.docker(&["kill", &self.container(service)]);
    }

    /// Starts it again.
    pub fn restart(&self, service: &str) {
        self.docker(&["start", &self.container(service)]);
    }

    /// What the health checks of all containers have said last.
    pub fn health_checks(&self) -> String {
        let format = "{{.Name}} {{with .State.Health}}{{json .Log}}{{end}}";
        let containers = self.docker(&["ps", "--all", "--quiet"]);
        let said = containers
            .lines()
            .map(|id| self.docker(&["inspect", "--format", format, id]));
        said.collect::<Vec<_>>().join("\n")
    }

    /// What a service's health check says: `healthy`, `unhealthy` or `starting`.
    pub fn health(&self, service: &str) -> String {
        let format = "{{.State.Health.Status}}";
        self.docker(&["inspect", "--format", format, &self.container(service)])
    }
}

fn prepared(settings: &[(&str, String)], program: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .envs(settings.iter().map(|(name, value)| (name, value)))
        .current_dir(repository(""));
    command
}

/// What a command prints.
///
/// # Panics
/// It fails; with what it has said.
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        let program = command.get_program().display();
        panic!("cannot start {program}: {error}; {INSTALL}")
    });
    // Not the command as it is: its environment says nothing new.
    let arguments: Vec<_> = command
        .get_args()
        .map(|part| part.to_string_lossy())
        .collect();
    assert!(
        output.status.success(),
        "{} {}: {}\n{}{}",
        command.get_program().display(),
        arguments.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Found by trying: an overlay cannot lie on another, which is what a container's own root is. `vfs` copies every
/// layer, and works everywhere.
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
