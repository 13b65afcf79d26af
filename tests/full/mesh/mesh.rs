//! A mesh with the chart installed: its clients, its proxies' pods, and upgrades of the release.

use std::path::{Path, PathBuf};

use sluicegate_tests::process::repository;
use sluicegate_tests_full::documents::text;

use crate::cluster::REGISTRY;
use crate::images::TAG;
use crate::pages::PageFor;
use crate::pods::Pod;
use crate::tools::Tools;
use crate::traffic::Clients;

/// The quota in manifests/rules.yaml.
pub const QUOTA: u64 = 50;

/// That of partners in docs/install.
pub const PARTNERS_QUOTA: u64 = 20;

/// The chart.
pub const CHART: &str = "deploy/helm/sluicegate";

/// The release of the chart, and so the name of its objects.
pub const RELEASE: &str = "sluicegate";

/// How long an installation may take on a busy machine.
pub const TIMEOUT: &str = "--timeout=5m";

/// A mesh under test.
#[derive(Debug)]
pub struct Mesh {
    /// As its project writes it.
    pub name: &'static str,
    /// Its page of docs/install.
    pub page: PageFor,
    /// kubectl and helm.
    pub tools: Tools,
    /// The namespace of the release.
    pub namespace: &'static str,
    /// The namespace of its Redis.
    pub redis: &'static str,
    /// Namespace and selector of the proxies' pods.
    pub proxies: (&'static str, &'static str),
    /// The port of Envoy's admin interface in a pod.
    pub admin_port: u16,
    /// The object that holds the filter's configuration: KIND/NAME.
    pub filter: &'static str,
    /// Who sends requests.
    pub clients: Clients,
    /// The quota of the limit in force, for an hour: no window ends during the test.
    pub quota: u64,
    /// Values of the release: files, and single values that a scenario has changed.
    pub release: Release,
}

impl Mesh {
    /// The proxies' pods.
    pub fn pods(&self) -> Vec<Pod> {
        Pod::list(&self.tools, self.proxies.0, self.proxies.1)
    }

    /// Changes a value of the release, as `helm upgrade --set-json` does, and keeps the change if that succeeds.
    pub fn upgrade(&mut self, setting: &str) -> Result<String, String> {
        let mut changed = self.release.clone();
        changed.settings.push(setting.to_owned());
        let output = changed.apply(&self.tools, "upgrade", self.namespace)?;
        self.release = changed;
        Ok(output)
    }

    /// Likewise.
    ///
    /// # Panics
    /// Helm refuses the value.
    pub fn must_upgrade(&mut self, setting: &str) {
        self.upgrade(setting)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// What the objects with the filter's configuration and the policy say, without what the API server adds.
    pub fn objects(&self) -> [String; 2] {
        let policy = format!("configmap/{RELEASE}-policy");
        [(self.filter, self.namespace), (&*policy, self.proxies.0)].map(|(object, namespace)| {
            let object = self.tools.get(&format!("{object} --namespace {namespace}"));
            let content = object.get("spec").or(object.get("data"));
            content.expect("an object with content").to_string()
        })
    }
}

/// Values of a release.
#[derive(Clone, Debug)]
pub struct Release {
    files: Vec<PathBuf>,
    settings: Vec<String>,
}

impl Release {
    /// Values of the images, the rules and this file of manifests/.
    pub fn of(folder: &Path, file: &str) -> Self {
        let files = ["images.yaml", "rules.yaml", file].map(|name| {
            let path = folder.join(format!("release-{name}"));
            std::fs::write(&path, manifest(name)).expect("a file of our own");
            path
        });
        Self {
            files: files.into(),
            settings: Vec::new(),
        }
    }

    /// With the values of this text too.
    pub fn with(mut self, folder: &Path, text: &str) -> Self {
        let path = folder.join("release-page.yaml");
        std::fs::write(&path, text).expect("a file of our own");
        self.files.push(path);
        self
    }

    /// Installs or upgrades it.
    ///
    /// # Panics
    /// Helm refuses it.
    pub fn must_apply(&self, tools: &Tools, verb: &str, namespace: &str) {
        self.apply(tools, verb, namespace)
            .unwrap_or_else(|failure| panic!("{failure}"));
    }

    /// Likewise, without a panic.
    pub fn apply(&self, tools: &Tools, verb: &str, namespace: &str) -> Result<String, String> {
        let chart = repository(CHART);
        let chart = chart.display();
        let mut words = format!("{verb} {RELEASE} {chart} --namespace {namespace} {TIMEOUT}");
        for file in &self.files {
            words += &format!(" --values {}", file.display());
        }
        let settings = self.settings.iter();
        let settings = settings.flat_map(|setting| ["--set-json", setting]);
        tools.try_helm(&words, &settings.collect::<Vec<_>>())
    }
}

/// A file of manifests/, filled in.
pub fn manifest(name: &str) -> String {
    let text = text(format!("tests/full/mesh/manifests/{name}"));
    text.replace("{registry}", REGISTRY).replace("{tag}", TAG)
}

/// Makes a Redis and an application in a namespace.
pub fn prepare(tools: &Tools, namespace: &str) {
    let upstream = repository("deploy/docker/upstream.yaml");
    let file = format!("--from-file={}", upstream.display());
    tools.kubectl(&format!(
        "create configmap upstream --namespace {namespace} {file}"
    ));
    for name in ["redis", "application"] {
        tools.apply(namespace, &manifest(&format!("{name}.yaml")));
    }
    for name in ["redis", "app"] {
        wait_for(tools, namespace, &format!("deployment/{name}"));
    }
}

/// Takes away what [`prepare`] made; its Services stay.
pub fn unprepare(tools: &Tools, namespace: &str) {
    let made = "deployment/redis deployment/app configmap/upstream";
    tools.kubectl(&format!("delete --namespace {namespace} {made}"));
}

/// Waits until a Deployment is rolled out.
pub fn wait_for(tools: &Tools, namespace: &str, deployment: &str) {
    let status = format!("rollout status {deployment} --namespace {namespace} {TIMEOUT}");
    tools.kubectl(&status);
}

/// The address in the cluster of a Service: a name, or a selector that selects one.
pub fn address(tools: &Tools, namespace: &str, service: &str) -> String {
    let found = tools.get(&format!("service --namespace {namespace} {service}"));
    let service = found.pointer("/items/0").unwrap_or(&found);
    let address = service["spec"]["clusterIP"].as_str();
    address.expect("a Service with an address").to_owned()
}

/// Replaces the proxies' pods, so that they start with the policy of now: the kubelet would take a minute to tell them.
pub fn replace_pods(tools: &Tools, namespace: &str, selector: &str, deployment: &str) {
    delete_pods(tools, namespace, selector);
    wait_for(tools, namespace, deployment);
}

/// Deletes pods, so that others take their place.
pub fn delete_pods(tools: &Tools, namespace: &str, selector: &str) {
    let pods = format!("pods --namespace {namespace} --selector {selector}");
    tools.kubectl(&format!("delete {pods}"));
}
