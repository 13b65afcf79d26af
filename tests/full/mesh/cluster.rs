//! A Kubernetes made of processes of this machine: etcd, API server, controller manager, scheduler, kube-proxy, CoreDNS,
//! a registry, and one node with containerd and kubelet.
//!
//! It runs in namespaces of the test's own, so everything may use its usual ports, and files that have a fixed place
//! (/run, /var/lib, /var/log, /etc/hosts) are the test's own too.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sluicegate_tests::process::{Process, repository};

use crate::tools::{INSTALL, Tools, cache, program, run};

/// The node's address, and that of everything on it that is not a pod.
pub const ADDRESS: &str = "10.99.0.1";
/// The registry. Both meshes use plain HTTP for private addresses.
pub const REGISTRY: &str = "10.99.0.1:5000";
const NODE: &str = "node1";
const ETCD: &str = "http://127.0.0.1:2379";
const SERVICES: &str = "10.96.0.0/16";
const PODS: &str = "10.244.0.0/16";
/// The bridge of all pods; node/cni.conflist names it too.
const BRIDGE: &str = "cni0";

/// Containerd's socket; node/kubelet.yaml names it too.
const CONTAINERD: &str = "/run/containerd/containerd.sock";

/// How long a part may take to start on a busy machine.
const STARTS_WITHIN: Duration = Duration::from_secs(120);

/// Lines of each part's log to show after a failure.
const LOG_LINES: usize = 5;

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// In the order in which they were started.
    processes: Vec<(&'static str, Process)>,
    folder: PathBuf,
    /// kubectl and helm.
    pub tools: Tools,
}

impl Cluster {
    /// Starts the registry and the control plane, with files in `folder`.
    pub async fn start(folder: &Path, group: &str) -> Self {
        own_places(folder);
        network();
        keys(folder);
        let filled = |name: &str| fill(folder, group, name);
        let kubeconfig = filled("kubeconfig");
        let mut cluster = Self {
            processes: Vec::new(),
            folder: folder.to_owned(),
            tools: Tools::new(&kubeconfig),
        };
        let mut registry = Command::new(cache().join("deb/usr/bin/docker-registry"));
        cluster.spawn(
            "registry",
            registry.arg("serve").arg(filled("registry.yml")),
        );
        let mut etcd = Command::new(cache().join("deb/usr/bin/etcd"));
        etcd.arg("--data-dir").arg(folder.join("etcd")).args([
            "--listen-client-urls",
            ETCD,
            "--advertise-client-urls",
            ETCD,
            "--listen-peer-urls",
            "http://127.0.0.1:2380",
            // The cluster ends with the test, and the disk is not only the test's.
            "--unsafe-no-fsync",
        ]);
        cluster.spawn("etcd", &mut etcd);
        cluster.spawn("kube-apiserver", &mut api_server(folder));
        cluster
            .ready("kube-apiserver", &["get", "--raw=/readyz"])
            .await;
        cluster.control_plane(&kubeconfig);
        let mut coredns = program("coredns");
        cluster.spawn("coredns", coredns.arg("-conf").arg(filled("Corefile")));
        cluster
            .node(
                &filled("containerd.toml"),
                &filled("kubelet.yaml"),
                group,
                &kubeconfig,
            )
            .await;
        filled("cni.conflist");
        cluster
    }

    /// Waits for the node. Its first pod needs the image `pause:1` in the registry.
    pub async fn wait_for_node(&mut self) {
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let tools = self.tools.clone();
        self.until("kubelet", || {
            let status = tools.try_kubectl(&["get", "node", NODE, "--output", ready]);
            status.is_ok_and(|status| status == "True")
        })
        .await;
    }

    fn control_plane(&mut self, kubeconfig: &Path) {
        let folder = self.folder.clone();
        let config = kubeconfig.display().to_string();
        let mut manager = program("kube-controller-manager");
        manager
            .args(["--kubeconfig", &config, "--leader-elect=false"])
            .arg("--service-account-private-key-file")
            .arg(folder.join("accounts.key"))
            .arg("--root-ca-file")
            .arg(folder.join("certificates/apiserver.crt"))
            .arg("--cert-dir")
            .arg(folder.join("certificates/manager"));
        self.spawn("kube-controller-manager", &mut manager);
        let mut scheduler = program("kube-scheduler");
        scheduler
            .args([
                "--kubeconfig",
                &config,
                "--leader-elect=false",
                "--cert-dir",
            ])
            .arg(folder.join("certificates/scheduler"));
        self.spawn("kube-scheduler", &mut scheduler);
        let mut proxy = program("kube-proxy");
        proxy.args(["--kubeconfig", &config, "--hostname-override", NODE]);
        // The machine's table of connections is not the test's to size.
        proxy.args(["--proxy-mode=iptables", "--cluster-cidr", PODS]);
        proxy.args(["--conntrack-max-per-core=0"]);
        self.spawn("kube-proxy", &mut proxy);
    }

    async fn node(&mut self, containerd: &Path, kubelet: &Path, group: &str, kubeconfig: &Path) {
        groups(group);
        self.spawn(
            "containerd",
            Command::new("containerd").arg("--config").arg(containerd),
        );
        // The kubelet ends if it cannot reach containerd at once.
        self.until("containerd", || UnixStream::connect(CONTAINERD).is_ok())
            .await;
        let mut command = program("kubelet");
        command.arg("--config").arg(kubelet).arg("--kubeconfig");
        command.arg(kubeconfig);
        command.args(["--hostname-override", NODE, "--node-ip", ADDRESS]);
        self.spawn("kubelet", &mut command);
    }

    fn spawn(&mut self, name: &'static str, command: &mut Command) {
        let log = self.folder.join(format!("{name}.log"));
        let paths = std::env::var("PATH").unwrap_or_default();
        // kube-proxy needs conntrack.
        let tools = cache().join("deb/usr/sbin").display().to_string();
        command.env("PATH", format!("{tools}:{paths}"));
        command.current_dir(&self.folder);
        self.processes
            .push((name, Process::start(command, &log, INSTALL)));
    }

    async fn ready(&mut self, name: &str, kubectl: &[&str]) {
        let tools = self.tools.clone();
        self.until(name, || tools.try_kubectl(kubectl).is_ok())
            .await;
    }

    async fn until(&mut self, name: &str, mut holds: impl FnMut() -> bool) {
        let part = self.processes.iter_mut().find(|(part, _)| *part == name);
        let (_, process) = part.expect("a part that was started");
        process
            .wait_within(STARTS_WITHIN, name, || std::future::ready(holds()))
            .await;
    }

    /// The last lines of every part's log.
    pub fn logs(&self) -> String {
        let last = |text: String| {
            let lines: Vec<_> = text.lines().collect();
            lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
        };
        let logs = self.processes.iter();
        let logs = logs.map(|(name, process)| format!("--- {name}\n{}", last(process.log())));
        logs.collect::<Vec<_>>().join("\n")
    }
}

/// Puts files of the test's own in the fixed places that these programs write to.
fn own_places(folder: &Path) {
    for (name, place) in [("lib", "/var/lib"), ("log", "/var/log")] {
        assert!(
            !repository("")
                .canonicalize()
                .expect("a repository")
                .starts_with(place),
            "the repository is below {place}, which this test covers"
        );
        let own = folder.join(name);
        std::fs::create_dir_all(&own).expect("a folder of our own");
        run(Command::new("mount").arg("--bind").arg(&own).arg(place));
    }
    std::fs::create_dir_all("/var/lib/kubelet").expect("a folder of our own");
    // What the kubelet mounts in there, containers have to see.
    run(Command::new("mount").args(["--bind", "/var/lib/kubelet", "/var/lib/kubelet"]));
    run(Command::new("mount").args(["--make-rshared", "/var/lib/kubelet"]));
    run(Command::new("mount").args(["-t", "tmpfs", "sluicegate-mesh", "/run"]));
    for (name, text) in [
        ("hosts", format!("127.0.0.1 localhost\n{ADDRESS} {NODE}\n")),
        ("resolv.conf", format!("nameserver {ADDRESS}\n")),
    ] {
        let own = folder.join(name);
        std::fs::write(&own, text).expect("a file of our own");
        // A link would lead to a file that other programs share.
        let place = Path::new("/etc").join(name).canonicalize().expect(name);
        run(Command::new("mount").arg("--bind").arg(own).arg(place));
    }
}

fn network() {
    for arguments in [
        "link set lo up",
        "addr add {address}/24 dev lo",
        "link add {bridge} type bridge",
        "addr add 10.244.0.1/16 dev {bridge}",
        "link set {bridge} up",
        // There is nothing outside; programs refuse to start without a default route.
        "route add default dev {bridge}",
    ] {
        let arguments = arguments
            .replace("{address}", ADDRESS)
            .replace("{bridge}", BRIDGE);
        run(Command::new("ip").args(arguments.split(' ')));
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a network of our own");
}

/// Keys for service accounts, and the administrator's token.
fn keys(folder: &Path) {
    let private = folder.join("accounts.key");
    run(Command::new("openssl")
        .args(["genrsa", "-out"])
        .arg(&private)
        .arg("2048"));
    run(Command::new("openssl")
        .args(["rsa", "-pubout", "-in"])
        .arg(&private)
        .arg("-out")
        .arg(folder.join("accounts.pub")));
    std::fs::write(
        folder.join("token"),
        run(Command::new("openssl").args(["rand", "-hex", "16"])),
    )
    .expect("a file of our own");
    std::fs::write(
        folder.join("tokens.csv"),
        format!("{},admin,admin,system:masters\n", token(folder)),
    )
    .expect("a file of our own");
}

fn token(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("token")).expect("the administrator's token")
}

fn api_server(folder: &Path) -> Command {
    let mut command = program("kube-apiserver");
    for (option, file) in [
        ("--cert-dir", "certificates"),
        ("--service-account-key-file", "accounts.pub"),
        ("--service-account-signing-key-file", "accounts.key"),
        ("--token-auth-file", "tokens.csv"),
    ] {
        command.arg(option).arg(folder.join(file));
    }
    command.args([
        "--etcd-servers",
        ETCD,
        "--service-cluster-ip-range",
        SERVICES,
    ]);
    command.args(["--bind-address", ADDRESS, "--advertise-address", ADDRESS]);
    command.args(["--secure-port=6443", "--authorization-mode=RBAC"]);
    command.args(["--service-account-issuer=https://kubernetes.default.svc"]);
    // istio-init changes its pod's firewall.
    command.arg("--allow-privileged=true");
    command
}

/// Makes the control groups that the kubelet puts its pods in.
fn groups(group: &str) {
    let controllers = std::fs::read_dir("/sys/fs/cgroup").expect("control groups");
    for controller in controllers.flatten().map(|entry| entry.path()) {
        // On a machine with version 2 only, these are files and groups of the one hierarchy.
        if controller.join("cgroup.procs").exists() {
            std::fs::create_dir_all(controller.join(group)).expect("a control group");
        }
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let (all, own) = (controller.join(file), controller.join(group).join(file));
            if controller.ends_with("cpuset") {
                let text = std::fs::read_to_string(all).expect("a control group's file");
                std::fs::write(own, text).expect("a control group's file");
            }
        }
    }
}

/// Fills in a file of node/; returns where it is now.
fn fill(folder: &Path, group: &str, name: &str) -> PathBuf {
    let text = std::fs::read_to_string(repository("tests/full/mesh/node").join(name)).expect(name);
    let mut filled = text
        .replace("{address}", ADDRESS)
        .replace("{registry}", REGISTRY)
        .replace("{group}", group)
        .replace("{folder}", &folder.display().to_string())
        .replace("{cache}", &cache().display().to_string());
    if filled.contains("{token}") {
        filled = filled.replace("{token}", &token(folder));
    }
    let target = folder.join("node");
    std::fs::create_dir_all(&target).expect("a folder of our own");
    std::fs::write(target.join(name), filled).expect("a file of our own");
    target.join(name)
}
