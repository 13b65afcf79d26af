//! The sidecar in a pod: one container for all kinds, its restrictions, and probes that a store's absence does not fail.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client::{answers, get};
use sluicegate_tests::process::{Process, eventually, free_port, repository};
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::{blocks, text};

use super::scenes::{self, WITH_FILTER, rendered_with, template, texts};

/// The pod that a rendering puts the sidecar into.
fn pod(file: &str) -> Value {
    pod_of(&scenes::rendered(file))
}

fn pod_of(manifests: &[Value]) -> Value {
    template(manifests)["spec"].take()
}

fn container(pod: &Value) -> Value {
    let containers = pod["initContainers"].as_array().expect("init containers");
    assert_eq!(containers.len(), 1, "{pod}");
    containers[0].clone()
}

#[test]
fn every_kind_has_the_same_container() {
    // The other files have none of these.
    let less = ["sidecar: {}", "imagePullSecrets: []"];
    let deployment = pod_of(&rendered_with("kubernetes-deployment.yaml", &less));
    let envoy_gateway = pod("envoy-gateway.yaml");
    let istio = pod("istio.yaml");
    // Control planes end their own Envoys.
    let mut own = container(&deployment);
    let hook = own.as_object_mut().unwrap().remove("lifecycle");
    assert!(hook.is_some(), "no preStop");
    assert_eq!(own, container(&envoy_gateway));
    // Under Istio a startup probe would wait for the proxy, which waits for it.
    let mut without = container(&envoy_gateway);
    let removed = without.as_object_mut().unwrap().remove("startupProbe");
    assert!(removed.is_some(), "no startup probe");
    assert_eq!(without, container(&istio));
    assert_eq!(envoy_gateway["volumes"], istio["volumes"]);
    assert_eq!(envoy_gateway["volumes"][0], deployment["volumes"][0]);
}

#[test]
fn the_document_has_the_container_that_the_chart_makes() {
    let page = text("docs/install/kubernetes.md");
    let mut blocks = blocks(&page, "yaml").into_iter();
    let block = blocks.find(|block| block.starts_with("initContainers:"));
    let pasted: Value = serde_saphyr::from_str(block.expect("a container to paste")).expect("YAML");
    let envoy = "kubernetes: { deployment: { enabled: true, upstream: { host: app } } }";
    let pod = pod_of(&rendered_with("kubernetes.yaml", &[envoy]));
    let mut own = container(&pod);
    // It is for the chart's own Envoy; the page says what is for others.
    own.as_object_mut().unwrap().remove("lifecycle");
    assert_eq!(container(&pasted), own);
    assert_eq!(pasted["volumes"][0], pod["volumes"][0]);
}

#[test]
fn no_container_can_do_more_than_it_needs() {
    for file in WITH_FILTER {
        let manifests = scenes::rendered(file);
        let pod = pod_of(&manifests);
        let job = chart::manifest(&manifests, "Job", "sluicegate-check");
        let job = &job["spec"]["template"]["spec"];
        let (init, own) = (&pod["initContainers"], &pod["containers"]);
        let lists = [init, own, &job["containers"]];
        for container in lists.iter().filter_map(|list| list.as_array()).flatten() {
            let context = json!({
                "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                "seccompProfile": { "type": "RuntimeDefault" },
            });
            assert_eq!(container["securityContext"], context, "{file}");
            let memory = &container["resources"]["limits"]["memory"];
            assert!(memory.is_string(), "{file}");
        }
        assert_eq!(job["automountServiceAccountToken"], false);
    }
}

/// Starts the sidecar with the arguments that a pod has, on free ports, with a Redis that is away, and asks what the
/// kubelet would ask.
#[tokio::test]
async fn the_probes_do_not_evict_pods_while_redis_is_away() {
    let manifests = scenes::rendered("envoy-gateway.yaml");
    let policy = &chart::manifest(&manifests, "ConfigMap", "sluicegate-policy")["data"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy["policy.yaml"].as_str().unwrap()).unwrap();
    let container = container(&pod_of(&manifests));
    let (port, admin_port) = (free_port().to_string(), free_port().to_string());
    let file = file.to_str().unwrap();
    let arguments = texts(&container["args"]).into_iter().map(|argument| {
        let argument = argument.replace("/etc/sluicegate/policy.yaml", file);
        let argument = argument.replace("9180", &port);
        argument.replace("9181", &admin_port)
    });
    let mut command = Command::new(repository("target/debug/sluicegate"));
    command.args(arguments);
    let away = format!("redis://127.0.0.1:{}", free_port());
    command.env("SLUICEGATE_STORE", away);
    let log = folder.path().join("log");
    let sidecar = Process::start(&mut command, &log, "build it: make debug");
    for probe in ["startupProbe", "readinessProbe", "livenessProbe"] {
        let request = &container[probe]["httpGet"];
        assert_eq!(request["port"], 9181);
        let path = request["path"].as_str().unwrap();
        let url = format!("http://127.0.0.1:{admin_port}{path}");
        eventually(probe, async || answers(&url).await).await;
        assert_eq!(get(&url).await.0, 200, "{probe}: {}", sidecar.log());
    }
    // It does know that its Redis is away.
    let metrics = format!("http://127.0.0.1:{admin_port}/metrics");
    let metrics = async || get(&metrics).await.1;
    let is_down = async || metrics().await.contains("\nsluicegate_store_up 0\n");
    eventually("the store is down", is_down).await;
    let ready = format!("http://127.0.0.1:{admin_port}/readyz");
    assert_eq!(get(&ready).await.0, 200);
}

#[test]
fn secrets_reach_the_sidecar_by_reference() {
    let store = "store: { existingSecret: { name: redis } }";
    let token = "sidecar: { adminToken: { existingSecret: { name: admin, key: bearer } } }";
    let manifests = rendered_with("envoy-gateway.yaml", &[store, token]);
    let expected = json!([
        { "name": "SLUICEGATE_STORE", "valueFrom": { "secretKeyRef": { "name": "redis", "key": "url" } } },
        { "name": "SLUICEGATE_ADMIN_TOKEN", "valueFrom": { "secretKeyRef": { "name": "admin", "key": "bearer" } } },
        { "name": "SLUICEGATE_OPEN_METRICS", "value": "true" },
    ]);
    assert_eq!(container(&pod_of(&manifests))["env"], expected);
}

/// A running sidecar refuses such a change, and every later one of the policy with it.
#[test]
fn pods_are_replaced_by_a_change_that_a_running_sidecar_refuses_and_by_no_other_of_the_policy() {
    let pods = |file: &str, changes: &[&str]| template(&rendered_with(file, changes));
    for (setting, replaces) in [
        ("store.url: redis://host-#", true),
        ("policy.store_timeout: #0ms", true),
        ("policy.memory_limit: #MiB", true),
        ("policy.limits.per-key.rate: #/1m", false),
        // In the policy, the store can be a mapping.
        ("policy.store: { url: redis://a, connections: # }", true),
    ] {
        let more: &[&str] = match setting.starts_with("policy.store:") {
            true => &["store: {}"],
            false => &[],
        };
        for file in ["kubernetes-deployment.yaml", "envoy-gateway.yaml"] {
            let of = |value: &str| pods(file, &[&[&*setting.replace('#', value)], more].concat());
            assert_eq!(of("2") != of("3"), replaces, "{file}: {setting}");
        }
    }
    let theirs = ["store: {}", "policy: {}", "existingPolicy: mine"];
    let theirs = pods("envoy-gateway.yaml", &theirs);
    // The chart does not see into it.
    assert!(theirs["metadata"]["annotations"].is_null(), "{theirs}");
}

/// Where pods have only IPv6 addresses, `0.0.0.0` listens on none of them.
#[test]
fn the_ports_of_a_pod_listen_on_the_address_that_is_set() {
    // Without the last field, Envoy would refuse IPv4 in pods that have both.
    let both = json!({ "address": "::", "port_value": 10000, "ipv4_compat": true });
    let ipv4 = json!({ "address": "0.0.0.0", "port_value": 10000 });
    for (address, admin, socket) in [("0.0.0.0", "0.0.0.0:9181", ipv4), ("::", "[::]:9181", both)] {
        let address = format!("listenAddress: '{address}'");
        for file in WITH_FILTER {
            let manifests = rendered_with(file, &[&address]);
            let arguments = texts(&container(&pod_of(&manifests))["args"]).join(" ");
            let listens = format!("--admin-listen {admin} ");
            assert!(
                format!("{arguments} ").contains(&listens),
                "{file}: {arguments}"
            );
        }
        let manifests = rendered_with("kubernetes-deployment.yaml", &[&address]);
        let envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
        for (listener, port) in [(0, 10_000), (1, 9_902)] {
            let mut socket = socket.clone();
            socket["port_value"] = json!(port);
            let listener = &envoy["static_resources"]["listeners"][listener];
            assert_eq!(listener["address"]["socket_address"], socket);
        }
    }
}
