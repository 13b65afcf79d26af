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
use sluicegate_tests_full::documents::{text, with_path};

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
        let deb = |name: &str| Command::new(cache().join("deb/usr/bin").join(name));
        let registry = format!("serve {}", filled("registry.yml").display());
        cluster.spawn("registry", &registry, deb("docker-registry"));
        // Without fsync: the cluster ends with the test, and the disk is not only the test's.
        let etcd = format!(
            "--data-dir {} --listen-client-urls {ETCD} --advertise-client-urls {ETCD}
             --listen-peer-urls http://127.0.0.1:2380 --unsafe-no-fsync",
            folder.join("etcd").display()
        );
        cluster.spawn("etcd", &etcd, deb("etcd"));
        let api_server = api_server(folder);
        cluster.spawn("kube-apiserver", &api_server, program("kube-apiserver"));
        let tools = cluster.tools.clone();
        let ready = || tools.try_kubectl("get --raw=/readyz").is_ok();
        cluster.until("kube-apiserver", ready).await;
        cluster.control_plane(&kubeconfig);
        let coredns = format!("-conf {}", filled("Corefile").display());
        cluster.spawn("coredns", &coredns, program("coredns"));
        let (containerd, kubelet) = (filled("containerd.toml"), filled("kubelet.yaml"));
        let node = cluster.node(&containerd, &kubelet, group, &kubeconfig);
        node.await;
        filled("cni.conflist");
        cluster
    }

    /// Waits for the node. Its first pod needs the image `pause:1` in the registry.
    pub async fn wait_for_node(&mut self) {
        let ready = r#"jsonpath={.status.conditions[?(@.type=="Ready")].status}"#;
        let tools = self.tools.clone();
        let status = || tools.try_kubectl(&format!("get node {NODE} --output {ready}"));
        let is_ready = || status().is_ok_and(|status| status == "True");
        self.until("kubelet", is_ready).await;
    }

    fn control_plane(&mut self, kubeconfig: &Path) {
        let (own, config) = (self.folder.clone(), kubeconfig.display());
        let (own, elect) = (own.display(), "--leader-elect=false");
        let manager = format!(
            "--kubeconfig {config} {elect} --service-account-private-key-file {own}/accounts.key
             --root-ca-file {own}/certificates/apiserver.crt --cert-dir {own}/certificates/manager"
        );
        let name = "kube-controller-manager";
        self.spawn(name, &manager, program(name));
        let certificates = format!("--cert-dir {own}/certificates/scheduler");
        let scheduler = format!("--kubeconfig {config} {elect} {certificates}");
        self.spawn("kube-scheduler", &scheduler, program("kube-scheduler"));
        // The machine's table of connections is not the test's to size.
        let proxy = format!(
            "--kubeconfig {config} --hostname-override {NODE} --proxy-mode=iptables --cluster-cidr {PODS}
             --conntrack-max-per-core=0"
        );
        self.spawn("kube-proxy", &proxy, program("kube-proxy"));
    }

    async fn node(&mut self, containerd: &Path, kubelet: &Path, group: &str, kubeconfig: &Path) {
        groups(group);
        let config = format!("--config {}", containerd.display());
        self.spawn("containerd", &config, Command::new("containerd"));
        // The kubelet ends if it cannot reach containerd at once.
        let listens = || UnixStream::connect(CONTAINERD).is_ok();
        self.until("containerd", listens).await;
        let (config, kubeconfig) = (kubelet.display(), kubeconfig.display());
        let node = format!("--hostname-override {NODE} --node-ip {ADDRESS}");
        let kubelet = format!("--config {config} --kubeconfig {kubeconfig} {node}");
        self.spawn("kubelet", &kubelet, program("kubelet"));
    }

    /// Starts a part with these words as its arguments.
    fn spawn(&mut self, name: &'static str, words: &str, mut command: Command) {
        let log = self.folder.join(format!("{name}.log"));
        command.args(words.split_whitespace());
        // kube-proxy needs conntrack.
        with_path(&mut command, cache().join("deb/usr/sbin").display());
        command.current_dir(&self.folder);
        let process = Process::start(&mut command, &log, INSTALL);
        self.processes.push((name, process));
    }

    async fn until(&mut self, name: &str, mut holds: impl FnMut() -> bool) {
        let part = self.processes.iter_mut().find(|(part, _)| *part == name);
        let (_, process) = part.expect("a part that was started");
        let holds = || std::future::ready(holds());
        process.wait_within(STARTS_WITHIN, name, holds).await;
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
        let repository = repository("").canonicalize().expect("a repository");
        let covered = repository.starts_with(place);
        assert!(!covered, "this test covers {place}, with the repository");
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
        let arguments = arguments.replace("{address}", ADDRESS);
        let arguments = arguments.replace("{bridge}", BRIDGE);
        run(Command::new("ip").args(arguments.split(' ')));
    }
    std::fs::write("/proc/sys/net/ipv4/ip_forward", "1").expect("a network of our own");
}

/// Keys for service accounts, and the administrator's token.
fn keys(folder: &Path) {
    let openssl = |words: &str| {
        let mut command = Command::new("openssl");
        run(command.args(words.split(' ')).current_dir(folder))
    };
    openssl("genrsa -out accounts.key 2048");
    openssl("rsa -pubout -in accounts.key -out accounts.pub");
    let token = openssl("rand -hex 16");
    let tokens = format!("{token},admin,admin,system:masters\n");
    for (name, text) in [("token", token), ("tokens.csv", tokens)] {
        std::fs::write(folder.join(name), text).expect("a file of our own");
    }
}

fn token(folder: &Path) -> String {
    std::fs::read_to_string(folder.join("token")).expect("the administrator's token")
}

/// Its arguments. Privileged, because istio-init changes its pod's firewall.
fn api_server(folder: &Path) -> String {
    let own = folder.display();
    format!(
        "--cert-dir {own}/certificates --service-account-key-file {own}/accounts.pub
         --service-account-signing-key-file {own}/accounts.key --token-auth-file {own}/tokens.csv
         --etcd-servers {ETCD} --service-cluster-ip-range {SERVICES} --bind-address {ADDRESS}
         --advertise-address {ADDRESS} --secure-port=6443 --authorization-mode=RBAC
         --service-account-issuer=https://kubernetes.default.svc --allow-privileged=true"
    )
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
    let text = text(format!("tests/full/mesh/node/{name}"));
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
