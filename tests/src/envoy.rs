//! An Envoy with the filter, on its own ports, configured from `envoy/envoy.yaml` or `envoy/egress.yaml`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::process::{POLL, Process, eventually, free_port, repository};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    /// Its files, unless the test gave it a folder.
    _folder: Option<TempDir>,
    /// Port for clients.
    pub port: u16,
    /// Port for its statistics.
    pub admin_port: u16,
}

/// Changes a configuration.
type Patch<'a> = Box<dyn FnOnce(&mut Value) + 'a>;

/// An Envoy that has not started yet: what differs from the example.
pub struct Planned<'a> {
    example: &'static str,
    sidecar: u16,
    upstream: Option<u16>,
    plugin: Option<Value>,
    workers: u32,
    patches: Vec<Patch<'a>>,
}

impl std::fmt::Debug for Planned<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.example)
    }
}

impl<'a> Planned<'a> {
    /// The port behind it, instead of an upstream of its own.
    #[must_use]
    pub fn upstream(mut self, port: u16) -> Self {
        self.upstream = Some(port);
        self
    }

    /// The plugin's configuration, instead of one with a rule for each key; `None`: the example's. `rules` in it are no part
    /// of it: `pushing.rs` sends them in the sidecar's place, which has none.
    #[must_use]
    pub fn plugin(mut self, plugin: impl Into<Option<Value>>) -> Self {
        self.plugin = plugin.into();
        self
    }

    /// The number of its workers, instead of one.
    #[must_use]
    pub fn workers(mut self, workers: u32) -> Self {
        self.workers = workers;
        self
    }

    /// Changes the rest of Envoy's configuration: see [`LISTENER`] and [`MANAGER`].
    #[must_use]
    pub fn patch(mut self, patch: impl FnOnce(&mut Value) + 'a) -> Self {
        self.patches.push(Box::new(patch));
        self
    }

    /// Starts it, with a folder for its files.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn start(self, folder: &Path) -> Envoy {
        let upstream = match self.upstream {
            Some(port) => port,
            None => crate::upstream::start().await,
        };
        let (port, admin_port) = (free_port(), free_port());
        let (mut plugin, mut sidecar) = (self.plugin, self.sidecar);
        let fields = plugin.as_mut().and_then(Value::as_object_mut);
        if let Some(rules) = fields.and_then(|fields| fields.remove("rules")) {
            sidecar = crate::pushing::before(sidecar, &rules).await;
        }
        let ports = [port, admin_port, sidecar, upstream];
        let mut config = config(self.example, ports, plugin);
        for patch in self.patches {
            patch(&mut config);
        }
        Envoy::start_config(folder, self.workers, port, admin_port, &config).await
    }

    /// Starts it, with a folder of its own.
    ///
    /// # Panics
    /// It does not become ready.
    pub async fn alone(self) -> Envoy {
        let folder = tempfile::tempdir().expect("a folder");
        let mut envoy = self.start(folder.path()).await;
        envoy._folder = Some(folder);
        envoy
    }
}

impl Envoy {
    /// One with the example's rules and one worker, which asks the sidecar on this port; to be started.
    pub fn asking<'a>(sidecar: u16) -> Planned<'a> {
        Planned {
            example: "envoy/envoy.yaml",
            sidecar,
            upstream: None,
            plugin: Some(anonymous()),
            workers: 1,
            patches: Vec::new(),
        }
    }

    /// One that limits what goes out to the API on this port.
    pub fn egress<'a>(sidecar: u16, api: u16) -> Planned<'a> {
        let mut planned = Self::asking(sidecar).upstream(api);
        planned.example = "envoy/egress.yaml";
        planned.plugin = None;
        planned.patch(|config| {
            // The API of a test is on this machine, and without TLS.
            let api = at(config, "/static_resources/clusters/0");
            api["type"] = json!("STATIC");
            api["transport_socket"].take();
            *at(
                api,
                "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/address",
            ) = json!("127.0.0.1");
        })
    }

    /// Starts one with this configuration, which has these ports.
    pub async fn start_config(
        folder: &Path,
        workers: u32,
        port: u16,
        admin_port: u16,
        config: &Value,
    ) -> Self {
        let mut process = launch(folder, port, workers, config);
        let ready = format!("http://127.0.0.1:{admin_port}/ready");
        process
            .wait_until("envoy", async || crate::client::answers(&ready).await)
            .await;
        Self {
            process,
            _folder: None,
            port,
            admin_port,
        }
    }

    /// The address of a path on it.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// The address of a path on its port for statistics.
    pub fn admin(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.admin_port)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Requests a path with these header fields.
    ///
    /// # Panics
    /// Nothing answers.
    pub async fn get(&self, path: &str, fields: &[(&str, &str)]) -> reqwest::Response {
        crate::client::get_with(&self.url(path), fields).await
    }

    /// The status of a GET with this API key.
    ///
    /// # Panics
    /// Nothing answers.
    pub async fn status(&self, path: &str, key: &str) -> u16 {
        let answer = self.get(path, &[("x-api-key", key)]).await;
        answer.status().as_u16()
    }

    /// A counter of the filter as Envoy has it now, by its name in `docs/metrics.md`.
    pub async fn counted(&self, name: &str) -> u64 {
        self.stat(&format!("wasmcustom.sluicegate.{name}")).await
    }

    /// Waits until the filters of its main thread and of a worker have rules from a sidecar. Before, requests wait for rules and
    /// not for verdicts, and the counters of rules have no value.
    ///
    /// # Panics
    /// It does not get any.
    pub async fn has_rules(&self) {
        eventually("it has rules", async || {
            self.counted("rules_updated").await >= 2
        })
        .await;
    }

    /// Waits until these counters of the filter have these values. The filter tells Envoy of all of them together, once a
    /// second: so a zero holds, where another one of them has to rise.
    ///
    /// # Panics
    /// They do not get them.
    pub async fn counts(&self, expected: &[(&str, u64)]) {
        let deadline = Instant::now() + Duration::from_secs(30);
        loop {
            let mut found = Vec::new();
            for (name, _) in expected {
                found.push((*name, self.counted(name).await));
            }
            if found == expected {
                return;
            }
            assert!(Instant::now() < deadline, "{found:?}, not {expected:?}");
            tokio::time::sleep(POLL).await;
        }
    }

    /// Requests that are in it now.
    pub async fn active(&self) -> u64 {
        self.stat("http.ingress.downstream_rq_active").await
    }

    /// Asserts that no VM has died, and waits until no request is left in it.
    ///
    /// # Panics
    /// One has died, or a request stays.
    pub async fn is_well(&self) {
        eventually("no request is active", async || self.active().await == 0).await;
        assert_eq!(self.vm_deaths().await, 0, "{}", self.log());
    }

    /// How often it restarted the filter's VM, or a request found the VM dead.
    pub async fn vm_deaths(&self) -> u64 {
        let mut sum = 0;
        for name in [
            "vm_reload_success",
            "vm_reload_failure",
            "vm_reload_backoff",
        ] {
            sum += self.stat(&format!("wasm.sluicegate.{name}")).await;
        }
        sum
    }

    /// Waits until it takes requests: a listener from a file comes after Envoy is ready.
    pub async fn listens(&self) {
        eventually("the listener is there", async || {
            crate::client::raw(self.port, b"GET / HTTP/1.1\r\nhost: h\r\n\r\n")
                .await
                .is_some()
        })
        .await;
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    /// Waits until it exits by itself.
    ///
    /// # Panics
    /// It does not.
    pub async fn ends(&mut self) {
        self.process.wait().await;
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// One of its statistics, by its full name.
    ///
    /// # Panics
    /// It has none of that name: a test that took this for a zero could never fail.
    pub async fn stat(&self, name: &str) -> u64 {
        // Names of rules' counters contain characters that mean something in a query.
        let escaped = name.replace('=', "%3D").replace(';', "%3B");
        let url = format!(
            "http://127.0.0.1:{}/stats?filter=^{escaped}$",
            self.admin_port
        );
        let (_, text) = crate::client::get(&url).await;
        let value = text
            .trim()
            .rsplit_once(": ")
            .and_then(|(_, value)| value.parse().ok());
        value.unwrap_or_else(|| panic!("Envoy has no statistic {name}: {text}"))
    }
}

/// The listener, as a JSON pointer into the configuration.
pub const LISTENER: &str = "/static_resources/listeners/0";
/// Its HTTP connection manager.
pub const MANAGER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config";
/// The plugin's configuration, as a JSON pointer into the listener.
pub const PLUGIN: &str = "/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config/configuration/value";
/// The sidecar's address.
pub const SIDECAR: &str =
    "/static_resources/clusters/1/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address";
const FILTER: &str = "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";

/// The value at a JSON pointer.
///
/// # Panics
/// There is none.
pub fn at<'a>(config: &'a mut Value, pointer: &str) -> &'a mut Value {
    config
        .pointer_mut(pointer)
        .unwrap_or_else(|| panic!("the example has no {pointer}"))
}

const INSTALL: &str = "install it: tests/setup";

/// The Envoy that `tests/setup` installed, or the one that `make versions` tries.
fn binary() -> std::path::PathBuf {
    std::env::var_os("SLUICEGATE_ENVOY")
        .map_or_else(|| repository(".tools/envoy"), std::path::PathBuf::from)
}

fn launch(folder: &Path, port: u16, workers: u32, config: &Value) -> Process {
    let file = folder.join(format!("envoy-{port}.json"));
    std::fs::write(&file, config.to_string()).expect("a configuration file");
    let mut command = Command::new(binary());
    // Without hot restart, or Envoy would end with the thread that started it.
    command
        .args([
            "--disable-hot-restart",
            "--concurrency",
            &workers.to_string(),
            // How long a replaced listener lives on: Envoy's ten minutes are longer than a test. Requests that wait on it
            // have to be answered by then, also when other tests load the machine.
            "--drain-time-s",
            "6",
            // Flush the access log, which goes to standard output, without delay.
            "--file-flush-interval-msec",
            "100",
            "-l",
            "warning",
            "-c",
        ])
        .arg(file);
    Process::start(
        &mut command,
        &folder.join(format!("envoy-{port}.log")),
        INSTALL,
    )
}

/// A rule for each key, for sidecars whose policies have no rules.
fn anonymous() -> Value {
    let check = json!({ "limit": "per-key", "key": [{ "header": "x-api-key" }],
        "when_missing": { "use": "anonymous" } });
    let rule = json!({ "name": "per-key", "match": { "path_prefix": "/" }, "checks": [check],
        "when_unavailable": "allow" });
    let mut plugin = crate::policy::plugin(json!([rule]));
    // The example's.
    plugin["sidecar"]["timeout"] = json!("50ms");
    plugin
}

/// An example with these ports (clients, administration, sidecar, upstream), the filter's path and, if given, the plugin's
/// configuration.
fn config(
    example: &str,
    [port, admin_port, sidecar_port, upstream_port]: [u16; 4],
    plugin: Option<Value>,
) -> Value {
    let text = std::fs::read_to_string(repository(example)).expect(example);
    let mut config: Value = serde_saphyr::from_str(&text).expect(example);
    let mut set = |path: &str, value: Value| *at(&mut config, path) = value;
    const ENDPOINT: &str =
        "load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
    set(
        "/admin/address/socket_address/port_value",
        json!(admin_port),
    );
    set(
        &format!("{LISTENER}/address/socket_address/port_value"),
        json!(port),
    );
    set(
        &format!("/static_resources/clusters/0/{ENDPOINT}"),
        json!(upstream_port),
    );
    set(
        &format!("/static_resources/clusters/1/{ENDPOINT}"),
        json!(sidecar_port),
    );
    set(
        &format!("{FILTER}/vm_config/code/local/filename"),
        json!(repository("target/filter/sluicegate.wasm")),
    );
    if let Some(plugin) = plugin {
        set(&format!("{FILTER}/configuration/value"), plugin);
    }
    // Thousands of requests that are admitted at once must not meet Envoy's own limits, which answer 503 too.
    let limits = json!({ "max_connections": 10_000, "max_pending_requests": 10_000, "max_requests": 10_000 });
    let upstream = at(&mut config, "/static_resources/clusters/0");
    upstream["circuit_breakers"] = json!({ "thresholds": [limits] });
    config
}
