//! Grafana's service without Grafana, which has no package: another image runs in its container and checks what
//! Grafana would find there.

use std::path::Path;

use serde_json::Value;
use sluicegate_tests::process::repository;

use crate::engine::Engine;

/// Where Grafana keeps its state, and may write.
const STATE: &str = "/var/lib/grafana";
/// Where Grafana reads its provisioning files.
const PROVISIONING: &str = "/etc/grafana/provisioning";

/// Compares the service with its provisioning files: it sees the dashboards, reaches the data source, and can write
/// only where it has to.
pub fn check(engine: &Engine) {
    let container = GrafanaContainer::start(engine);
    for (kind, list) in [("datasources", "datasources"), ("dashboards", "providers")] {
        let folder = repository("deploy/grafana/provisioning").join(kind);
        let files = names(&folder);
        assert!(!files.is_empty(), "nothing in {}", folder.display());
        assert_eq!(container.names(&format!("{PROVISIONING}/{kind}")), files);
        for file in files {
            let text = std::fs::read_to_string(folder.join(&file)).expect("a file");
            let value: Value = serde_saphyr::from_str(&text)
                .unwrap_or_else(|error| panic!("{kind}/{file}: {error}"));
            assert_eq!(value["apiVersion"], 1, "{kind}/{file}");
            let entries = value[list].as_array();
            let entries = entries.unwrap_or_else(|| panic!("{kind}/{file} has no `{list}`"));
            for entry in entries {
                assert!(entry["name"].is_string(), "{kind}/{file}: a name");
                match kind {
                    "datasources" => reaches(&container, entry),
                    _ => sees_dashboards(&container, entry),
                }
            }
        }
    }
    container.bash(&format!(
        "touch {STATE}/grafana.db /tmp/any && ! touch /written 2>/dev/null"
    ));
    let user = container.bash("id -u");
    assert_ne!(user, "0", "Grafana is root");
    container.end();
}

fn reaches(container: &GrafanaContainer, source: &Value) {
    let url = source["url"].as_str().expect("a data source's url");
    assert_eq!(source["type"], "prometheus", "{url}");
    let address = url.trim_start_matches("http://").replace(':', "/");
    container.bash(&format!("exec 3<>/dev/tcp/{address}"));
}

fn sees_dashboards(container: &GrafanaContainer, provider: &Value) {
    let path = provider["options"]["path"]
        .as_str()
        .expect("a provider's path");
    let folder = repository("deploy/grafana/dashboards");
    let files = names(&folder);
    assert!(!files.is_empty(), "no dashboards");
    assert_eq!(container.names(path), files, "{path}");
    for file in files {
        let text = std::fs::read_to_string(folder.join(&file)).expect("a file");
        let dashboard: Value = serde_json::from_str(&text).expect("a dashboard is JSON");
        for (field, there) in [
            ("title", dashboard["title"].is_string()),
            ("uid", dashboard["uid"].is_string()),
            ("schemaVersion", dashboard["schemaVersion"].is_u64()),
            (
                "panels",
                dashboard["panels"]
                    .as_array()
                    .is_some_and(|panels| !panels.is_empty()),
            ),
        ] {
            assert!(there, "{file}: {field}");
        }
    }
}

/// A container of the service, with its mounts, user, network and limits, in which Bash runs.
struct GrafanaContainer<'a> {
    engine: &'a Engine,
    id: String,
}

impl<'a> GrafanaContainer<'a> {
    fn start(engine: &'a Engine) -> Self {
        let run = ["run", "--detach", "--no-deps", "--entrypoint", "sleep"];
        let id = engine.compose(&[&run[..], &["grafana", "infinity"]].concat());
        Self { engine, id }
    }

    /// Runs a script and returns its output.
    fn bash(&self, script: &str) -> String {
        self.engine
            .docker(&["exec", &self.id, "bash", "-c", script])
    }

    /// The names in a folder.
    fn names(&self, folder: &str) -> Vec<String> {
        let text = self.bash(&format!("ls {folder}"));
        text.lines().map(str::to_owned).collect()
    }

    fn end(self) {
        self.engine
            .docker(&["rm", "--force", "--volumes", &self.id]);
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries =
        std::fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut names: Vec<String> = entries
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name in UTF-8")
        })
        .collect();
    names.sort();
    names
}
