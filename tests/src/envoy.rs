//! An Envoy with the filter, on its own ports, configured from `envoy/envoy.yaml` or `envoy/egress.yaml`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::{Process, eventually, free_port, repository};

/// A running Envoy.
#[derive(Debug)]
pub struct Envoy {
    process: Process,
    /// Port for clients.
    pub port: u16,
    /// Port for its statistics.
    pub admin_port: u16,
}

impl Envoy {
    /// Starts one with one worker, which asks `sidecar_port` and forwards to `upstream_port`, with the example's rules or
    /// those in `plugin`.
    pub async fn start(
        folder: &Path,
        sidecar_port: u16,
        upstream_port: u16,
        plugin: Option<Value>,
    ) -> Self {
        Self::start_with(folder, sidecar_port, upstream_port, plugin, |_| {}).await
    }

    /// Likewise, with more of Envoy's configuration changed by `patch`: see [`LISTENER`] and [`MANAGER`].
    pub async fn start_with(
        folder: &Path,
        sidecar_port: u16,
        upstream_port: u16,
        plugin: Option<Value>,
        patch: impl FnOnce(&mut Value),
    ) -> Self {
        Self::start_workers(folder, 1, sidecar_port, upstream_port, plugin, patch).await
    }

    /// Likewise, with this number of workers.
    pub async fn start_workers(
        folder: &Path,
        workers: u32,
        sidecar_port: u16,
        upstream_port: u16,
        plugin: Option<Value>,
        patch: impl FnOnce(&mut Value),
    ) -> Self {
        let example = "envoy/envoy.yaml";
        Self::start_example(
            example,
            folder,
            workers,
            sidecar_port,
            upstream_port,
            plugin,
            patch,
        )
        .await
    }

    /// Starts the one that limits what goes out.
    pub async fn start_egress(folder: &Path, sidecar_port: u16, api_port: u16) -> Self {
        let example = "envoy/egress.yaml";
        Self::start_example(example, folder, 1, sidecar_port, api_port, None, |config| {
            // The API of a test is on this machine, and without TLS.
            let api = at(config, "/static_resources/clusters/0");
            api["type"] = json!("STATIC");
            api["transport_socket"].take();
            *at(
                api,
                "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/address",
            ) = json!("127.0.0.1");
        })
        .await
    }

    async fn start_example(
        example: &str,
        folder: &Path,
        workers: u32,
        sidecar_port: u16,
        upstream_port: u16,
        plugin: Option<Value>,
        patch: impl FnOnce(&mut Value),
    ) -> Self {
        let (port, admin_port) = (free_port(), free_port());
        let mut config = config(
            example,
            port,
            admin_port,
            sidecar_port,
            upstream_port,
            plugin,
        );
        patch(&mut config);
        Self::start_config(folder, workers, port, admin_port, &config).await
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
            port,
            admin_port,
        }
    }

    /// Starts one that is expected to reject its configuration; returns its log when it has exited.
    pub fn refusal(folder: &Path, plugin: Value) -> String {
        let config = config(
            "envoy/envoy.yaml",
            free_port(),
            free_port(),
            free_port(),
            free_port(),
            Some(plugin),
        );
        let file = folder.join("envoy-refused.json");
        std::fs::write(&file, config.to_string()).expect("a configuration file");
        let output = Command::new(binary())
            .args(["--disable-hot-restart", "-c"])
            .arg(file)
            .args(["--mode", "validate"])
            .output()
            .unwrap_or_else(|error| panic!("cannot start envoy: {error}; {INSTALL}"));
        assert!(!output.status.success(), "envoy accepts this configuration");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// The address of a path on it.
    pub fn url(&self, path: &str) -> String {
        format!("http://127.0.0.1:{}{path}", self.port)
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// A counter of the filter, by its name in `docs/filter.md`.
    pub async fn counted(&self, name: &str) -> u64 {
        self.counts([name]).await[0]
    }

    /// Likewise, for several.
    pub async fn counts<const N: usize>(&self, names: [&str; N]) -> [u64; N] {
        // The filter updates Envoy's counters once a second, and nothing shows that it has.
        tokio::time::sleep(Duration::from_millis(1_200)).await;
        let mut counts = [0; N];
        for (count, name) in counts.iter_mut().zip(names) {
            *count = self.stat(&format!("wasmcustom.sluicegate.{name}")).await;
        }
        counts
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

/// An example with these ports, the filter's path and, if given, the plugin's configuration.
fn config(
    example: &str,
    port: u16,
    admin_port: u16,
    sidecar_port: u16,
    upstream_port: u16,
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
    config
}
