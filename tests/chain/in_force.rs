//! What shows which configuration is in force, and that one cannot be: in the sidecar's metrics, Envoy's statistics and log.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::envoy::{Envoy, PLUGIN, at};
use sluicegate_tests::listener::{from_file, write_listener};
use sluicegate_tests::process::{eventually, free_port, repository};
use sluicegate_tests::sidecar::{Sidecar, binary};

use super::support::{envoy, filters, per_key, policy, pushed, with_rules};

async fn sidecar() -> Sidecar {
    let policy = policy("memory", "sliding_log", 2, "1h");
    Sidecar::alone(&with_rules(&policy, &per_key("allow"))).await
}

/// The fingerprints that `check-config` prints for a file of Envoy's.
fn printed(file: &Path) -> Vec<String> {
    let output = Command::new(binary())
        .args(["check-config", "--envoy"])
        .arg(file)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let found = text
        .lines()
        .filter_map(|line| line.split_once(": configuration "));
    found
        .map(|(_, fingerprint)| fingerprint.to_owned())
        .collect()
}

/// The configurations that filters have announced to a sidecar.
async fn announced(sidecar: &Sidecar) -> Vec<String> {
    let version = env!("CARGO_PKG_VERSION");
    let metrics = sidecar.metrics().await;
    let series = metrics.lines().filter_map(|line| {
        let labels = line.strip_prefix("sluicegate_filter_info{configuration=\"")?;
        let (fingerprint, rest) = labels.split_once('"')?;
        assert_eq!(rest, format!(",version=\"{version}\"}} 1"));
        Some(fingerprint.to_owned())
    });
    series.collect()
}

#[tokio::test]
async fn proxies_announce_the_fingerprint_that_check_config_prints_without_any_request() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = sidecar().await;
    let first = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .start(folder.path())
        .await;
    eventually("it is announced", async || {
        !announced(&sidecar).await.is_empty()
    })
    .await;
    let file = |envoy: &Envoy| folder.path().join(format!("envoy-{}.json", envoy.port));
    let expected = printed(&file(&first));
    assert_eq!(announced(&sidecar).await, expected);
    drop(first);

    // As a mesh would write it: JSON in a string, with other whitespace, order and numbers.
    let as_text = "{ \"until_rules\": { \"hold\": \"10s\" },\n \"rule_sets\": { \"default\": \"s\" }, \"version\": 2.0, \
                   \"sidecar\": { \"timeout\": \"3s\", \"cluster\": \"sluicegate\" } }";
    let other = self::sidecar().await;
    let second = Envoy::asking(other.port).patch(|config| {
        let config = &mut filters(config)[0]["typed_config"]["config"];
        config["name"] = json!("shop.sluicegate-istio-translated-wasmplugin");
        config["configuration"] =
            json!({ "@type": "type.googleapis.com/google.protobuf.StringValue", "value": as_text });
    }).start(folder.path())
    .await;
    eventually("it is announced", async || {
        !announced(&other).await.is_empty()
    })
    .await;
    assert_eq!(announced(&other).await, expected);
    assert_eq!(printed(&file(&second)), expected);

    // Another configuration has another fingerprint.
    let mut third = pushed();
    third["pepper"] = json!("another");
    let _third = envoy(other.port, third).await;
    eventually("both are announced", async || {
        announced(&other).await.len() == 2
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_does_not_exist_is_reported_before_the_first_request() {
    let sidecar = sidecar().await;
    let mut plugin = pushed();
    plugin["sidecar"]["cluster"] = json!("sluicegat");
    plugin["until_rules"] = json!({ "hold": "0ms", "then": "allow" });
    let envoy = envoy(sidecar.port, plugin).await;
    let unknown = async || envoy.counted("error_unknown_cluster").await;
    eventually("it is counted", async || unknown().await > 0).await;
    let log = envoy.log();
    let is_error =
        |line: &str| line.contains("[error]") && line.contains("Envoy has no cluster `sluicegat`");
    assert!(log.lines().any(is_error), "{log}");
    for _ in 0..3 {
        assert_eq!(envoy.status("/", "k").await, 200);
    }
    envoy.counts(&[("no_rules_allowed", 3)]).await;
    assert!(announced(&sidecar).await.is_empty());
    envoy.is_well().await;
}

#[tokio::test]
async fn a_refused_configuration_is_counted_and_the_one_in_force_is_announced() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = sidecar().await;
    let mut listener = Value::Null;
    let envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .patch(|config| listener = from_file(config, folder.path()))
        .alone()
        .await;
    eventually("it is announced", async || {
        announced(&sidecar).await.len() == 1
    })
    .await;
    let in_force = announced(&sidecar).await;
    let rejected = "listener_manager.lds.update_rejected";
    assert_eq!(envoy.stat(rejected).await, 0);
    at(&mut listener, PLUGIN)["ruels"] = json!([]);
    write_listener(folder.path(), &listener);
    eventually("it is refused", async || envoy.stat(rejected).await == 1).await;
    assert_eq!(envoy.counted("configuration_refused").await, 1);
    assert!(
        envoy.log().contains("configuration refused: `ruels`"),
        "{}",
        envoy.log()
    );
    assert_eq!(envoy.status("/", "k").await, 200);
    envoy.counts(&[("admitted", 1)]).await;
    assert_eq!(announced(&sidecar).await, in_force);
}

/// Istio chooses the plugin's name, exposes the statistics whose names begin with `wasm`, and makes labels of tags in its
/// own notation only (`tools/packaging/common/envoy_bootstrap.json` and `pkg/bootstrap/config.go` of istio/istio).
#[tokio::test]
async fn rule_and_limit_are_labels_under_istio_too() {
    let rules = json!([{ "name": "v1.search", "when_unavailable": "allow",
        "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }] }] }]);
    let policy = policy("memory", "sliding_log", 2, "1h");
    let sidecar = Sidecar::alone(&with_rules(&policy, &rules)).await;
    let envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .patch(|config| {
            let filter = &mut filters(config)[0]["typed_config"]["config"];
            filter["name"] = json!("shop.sluicegate-istio-translated-wasmplugin");
            let tag =
                |tag: &str| json!({ "tag_name": tag, "regex": format!("({tag}=\\.=(.*?);\\.;)") });
            let exposed = [
                "cluster_manager",
                "listener_manager",
                "server",
                "cluster.xds-grpc",
                "wasm",
            ];
            let exposed = exposed.map(|prefix| json!({ "prefix": prefix }));
            config["stats_config"] = json!({
                "stats_tags": [tag("rule"), tag("limit")],
                "stats_matcher": { "inclusion_list": { "patterns": exposed } },
            });
        })
        .alone()
        .await;
    for _ in 0..3 {
        envoy.get("/", &[]).await;
    }
    envoy.counts(&[("denied", 1)]).await;
    let url = envoy.admin("/stats/prometheus");
    let (_, text) = get(&url).await;
    for line in [
        "sluicegate_rule_decisions{rule=\"v1.search\"} 3",
        "sluicegate_rule_limit_denied{rule=\"v1.search\",limit=\"per-key\"} 1",
        "sluicegate_decisions{} 3",
    ] {
        assert!(text.lines().any(|one| one == line), "no {line}: {text}");
    }
}

#[tokio::test]
async fn a_module_that_cannot_be_fetched_is_in_envoys_statistics() {
    let sidecar = sidecar().await;
    let envoy = Envoy::asking(sidecar.port).patch(|config| {
        let mut code = config["static_resources"]["clusters"][0].clone();
        code["name"] = json!("code");
        let endpoint = "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value";
        *at(&mut code, endpoint) = json!(free_port());
        let clusters = config["static_resources"]["clusters"].as_array_mut();
        clusters.unwrap().push(code);
        let filter = &mut filters(config)[0]["typed_config"]["config"];
        filter["vm_config"]["code"] = json!({ "remote": {
            "http_uri": { "uri": "http://code/sluicegate.wasm", "cluster": "code", "timeout": "1s" },
            "sha256": "0".repeat(64), "retry_policy": { "num_retries": 0 } } });
    }).alone()
    .await;
    // Envoy is ready when it has given up.
    let failures = "wasm.remote_load_fetch_failures";
    eventually("it has given up", async || envoy.stat(failures).await == 1).await;
    assert_eq!(envoy.stat("wasm.remote_load_fetch_successes").await, 0);
    assert_eq!(envoy.status("/", "k").await, 503);
    let log = envoy.log();
    for says in [
        "Retry limit exceeded for fetching data from remote data source",
        "Plugin configured to fail closed failed to load",
    ] {
        assert!(log.contains(says), "{log}");
        let page = std::fs::read_to_string(repository("docs/runbook.md")).unwrap();
        assert!(page.contains(says), "docs/runbook.md: {says}");
    }
}
