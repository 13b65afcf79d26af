//! envoyproxy/ratelimit, to compare with: built by `tests/setup bench-fleet` where there is a Go.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client;
use sluicegate_tests::envoy::{MANAGER, SIDECAR, at};
use sluicegate_tests::process::{Process, free_port, repository};

/// The program.
const PROGRAM: &str = ".tools/ratelimit";

/// Whether it is there.
pub fn is_built() -> bool {
    repository(PROGRAM).exists()
}

/// A running one with this configuration; its gRPC port.
///
/// # Panics
/// It does not become ready.
pub async fn start(folder: &Path, redis: u16, limits: &str, cache: bool) -> (Process, u16) {
    let config = folder.join("runtime/config");
    std::fs::create_dir_all(&config).expect("a folder");
    std::fs::write(config.join("limits.yaml"), limits).expect("a file");
    let [http, grpc, debug] = [(); 3].map(|()| free_port());
    let mut command = Command::new(repository(PROGRAM));
    command.env_clear().envs([
        ("RUNTIME_ROOT", folder.join("runtime").display().to_string()),
        ("RUNTIME_WATCH_ROOT", "false".to_owned()),
        ("USE_STATSD", "false".to_owned()),
        ("LOG_LEVEL", "warn".to_owned()),
        ("REDIS_SOCKET_TYPE", "tcp".to_owned()),
        ("REDIS_URL", format!("127.0.0.1:{redis}")),
        ("PORT", http.to_string()),
        ("GRPC_PORT", grpc.to_string()),
        ("DEBUG_PORT", debug.to_string()),
        // Its own default is none.
        (
            "LOCAL_CACHE_SIZE_IN_BYTES",
            if cache { "10000000" } else { "0" }.to_owned(),
        ),
    ]);
    let mut process = Process::start(
        &mut command,
        &folder.join("ratelimit.log"),
        "make bench-fleet",
    );
    let health = format!("http://127.0.0.1:{http}/healthcheck");
    let ready = async || client::answers(&health).await;
    process.wait_until("envoyproxy/ratelimit", ready).await;
    (process, grpc)
}

/// A descriptor for each API key, as [`ask`] sends it.
pub fn by_key(per_minute: u64) -> String {
    format!(
        "domain: bench\ndescriptors: [{{ key: api_key, rate_limit: {{ unit: minute, requests_per_unit: {per_minute} }} }}]\n"
    )
}

/// Has a cluster of Envoy's speak HTTP/2.
///
/// # Panics
/// The configuration has no such cluster.
pub fn over_grpc(cluster: &mut Value) {
    cluster["typed_extension_protocol_options"] = json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        },
    });
}

/// Has an Envoy ask it on this port, in place of the filter.
///
/// # Panics
/// The configuration is not made from `envoy/envoy.yaml`.
pub fn ask(config: &mut Value, grpc: u16) {
    at(config, SIDECAR)["socket_address"]["port_value"] = json!(grpc);
    over_grpc(at(config, "/static_resources/clusters/1"));
    let manager = at(config, MANAGER);
    let by_key =
        json!({ "request_headers": { "header_name": "x-api-key", "descriptor_key": "api_key" } });
    let route = &mut manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"];
    route["rate_limits"] = json!([{ "actions": [by_key] }]);
    manager["http_filters"][0] = json!({
        "name": "envoy.filters.http.ratelimit",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit",
            "domain": "bench",
            "timeout": "2s",
            "failure_mode_deny": true,
            "enable_x_ratelimit_headers": "DRAFT_VERSION_03",
            "rate_limit_service": {
                "transport_api_version": "V3",
                "grpc_service": { "envoy_grpc": { "cluster_name": "sluicegate" } },
            },
        },
    });
}
