//! The proxies' pods: their containers, and what Envoy and the sidecar in them say on loopback.
//!
//! The containers' processes are processes of this machine, so their ports are reached in their network namespace and a
//! container is killed like any process.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::tools::{Tools, attempt, run};

/// The sidecar's container.
pub const SIDECAR: &str = "sluicegate";

/// A pod with a proxy and a sidecar.
#[derive(Clone, Debug)]
pub struct Pod {
    pub name: String,
    /// Its address in the cluster.
    pub address: String,
    /// Whether all its containers are ready.
    pub ready: bool,
    /// Containers' names, identifiers and restarts.
    containers: Vec<(String, String, u64)>,
}

impl Pod {
    /// The running pods that a selector selects.
    pub fn list(tools: &Tools, namespace: &str, selector: &str) -> Vec<Self> {
        let list = tools.get(&format!(
            "pods --namespace {namespace} --selector {selector}"
        ));
        let pods = list["items"].as_array().expect("a list of pods").iter();
        pods.filter(|pod| pod["metadata"]["deletionTimestamp"].is_null())
            .map(Self::read)
            .collect()
    }

    fn read(pod: &Value) -> Self {
        let mut containers = Vec::new();
        for kind in ["initContainerStatuses", "containerStatuses"] {
            for status in pod["status"][kind].as_array().into_iter().flatten() {
                let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
                let id = text("containerID").replace("containerd://", "");
                let restarts = status["restartCount"].as_u64().unwrap_or_default();
                containers.push((text("name"), id, restarts));
            }
        }
        let conditions = pod["status"]["conditions"].as_array();
        let ready = |one: &Value| one["type"] == "Ready" && one["status"] == "True";
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            name: text(&pod["metadata"]["name"]),
            address: text(&pod["status"]["podIP"]),
            ready: conditions.into_iter().flatten().any(ready),
            containers,
        }
    }

    /// How often its containers were restarted.
    pub fn restarts(&self) -> u64 {
        let all = self.containers.iter();
        all.map(|(_, _, restarts)| restarts).sum()
    }

    /// Kills the sidecar's container, like a crash.
    pub fn kill_sidecar(&self) {
        let process = self.try_process();
        let process = process.unwrap_or_else(|| panic!("{}: no {SIDECAR} runs", self.name));
        run(Command::new("sh").args(["-c", &format!("kill -KILL {process}")]));
    }

    /// What a port of the pod's loopback answers.
    ///
    /// # Panics
    /// There is no answer.
    pub fn get(&self, port: u16, path: &str) -> String {
        self.try_get(port, path)
            .unwrap_or_else(|failure| panic!("{}: {failure}", self.name))
    }

    /// Likewise, without a panic.
    pub fn try_get(&self, port: u16, path: &str) -> Result<String, String> {
        let process = self.try_process().ok_or("the sidecar does not run")?;
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &process.to_string()]);
        // Envoy's main thread stands still while it compiles a filter.
        let curl = "curl --silent --show-error --fail --max-time 60";
        command.args(curl.split(' '));
        attempt(command.arg(format!("http://127.0.0.1:{port}{path}")))
    }

    /// A metric of the sidecar without labels; `None` while it does not answer.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let page = self.try_get(9181, "/metrics").ok()?;
        let start = format!("{name} ");
        let line = page.lines().find(|line| line.starts_with(&start))?;
        line.rsplit(' ').next()?.parse().ok()
    }

    /// The sum of a metric over the series that have this label; `None` while the sidecar does not answer.
    pub fn sum(&self, name: &str, label: &str) -> Option<f64> {
        let page = self.try_get(9181, "/metrics").ok()?;
        let start = format!("{name}{{");
        let is = |line: &&str| line.starts_with(&start) && line.contains(label);
        let values = page.lines().filter(is).map(|line| line.rsplit(' ').next());
        Some(values.filter_map(|value| value?.parse::<f64>().ok()).sum())
    }

    /// The sidecar's process: the one whose control group has the container's name.
    fn try_process(&self) -> Option<u32> {
        let mut containers = self.containers.iter();
        let (_, id, _) = containers.find(|(name, _, _)| name == SIDECAR)?;
        let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
        let mut processes = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        processes.find(|process: &u32| {
            let groups = Path::new("/proc").join(process.to_string()).join("cgroup");
            std::fs::read_to_string(groups).is_ok_and(|text| !id.is_empty() && text.contains(id))
        })
    }
}
