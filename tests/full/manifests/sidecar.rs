//! The sidecar in a pod: one container for all kinds, its restrictions, and probes that a store's absence does not fail.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client::{answers, get};
use sluicegate_tests::process::{Process, eventually, free_port, repository};
use sluicegate_tests_full::chart;

use super::scenes::{self, NAMESPACE, WITH_FILTER};

/// The pod that a rendering puts the sidecar into.
fn pod(file: &str) -> Value {
    pod_of(&scenes::rendered(file))
}

fn pod_of(manifests: &[Value]) -> Value {
    template_of(manifests)["spec"].take()
}

/// The pod with its labels and annotations: whatever changes in it replaces the pods.
fn template_of(manifests: &[Value]) -> Value {
    for manifest in manifests {
        let found = match manifest["kind"].as_str().unwrap_or_default() {
            "Deployment" => &manifest["spec"]["template"],
            "EnvoyProxy" => {
                let deployment = &manifest["spec"]["provider"]["kubernetes"]["envoyDeployment"];
                &deployment["patch"]["value"]["spec"]["template"]
            }
            "ConfigMap" if manifest["metadata"]["name"] == "sluicegate-istiod-values" => {
                return injected(manifest);
            }
            _ => continue,
        };
        return found.clone();
    }
    panic!("no pod in these manifests")
}

/// The pod's part of istiod's injection template.
fn injected(manifest: &Value) -> Value {
    let values = manifest["data"]["values.yaml"].as_str().expect("values");
    let values: Value = serde_saphyr::from_str(values).expect("YAML");
    let template = &values["sidecarInjectorWebhook"]["templates"]["sluicegate.shop"];
    let template = template.as_str().expect("a template");
    // istiod takes it for a Go template.
    assert!(!template.contains("{{"), "{template}");
    serde_saphyr::from_str(template).expect("YAML")
}

fn container(pod: &Value) -> Value {
    let containers = pod["initContainers"].as_array().expect("init containers");
    let [container] = containers.as_slice() else {
        panic!("{containers:?}")
    };
    container.clone()
}

#[test]
fn every_kind_has_the_same_container() {
    let mut deployment = scenes::values("kubernetes-deployment.yaml");
    // The other files have none of these.
    for field in ["sidecar", "imagePullSecrets"] {
        deployment.as_object_mut().unwrap().remove(field);
    }
    let deployment = pod_of(&chart::render(NAMESPACE, &deployment).unwrap());
    let envoy_gateway = pod("envoy-gateway.yaml");
    let istio = pod("istio.yaml");
    assert_eq!(container(&deployment), container(&envoy_gateway));
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
    let page = std::fs::read_to_string(repository("docs/install/kubernetes.md")).unwrap();
    let block = page
        .split("```yaml\n")
        .find(|block| block.starts_with("initContainers:"));
    let block = block.expect("a container to paste").split("```").next();
    let pasted: Value = serde_saphyr::from_str(block.unwrap()).expect("YAML");
    let mut values = scenes::values("kubernetes.yaml");
    values["filter"]["config"] = scenes::values("envoy-gateway.yaml")["filter"]["config"].clone();
    values["kubernetes"] =
        json!({ "deployment": { "enabled": true, "upstream": { "host": "app" } } });
    let pod = pod_of(&chart::render(NAMESPACE, &values).unwrap());
    assert_eq!(container(&pasted), container(&pod));
    assert_eq!(pasted["volumes"][0], pod["volumes"][0]);
}

#[test]
fn no_container_can_do_more_than_it_needs() {
    for file in WITH_FILTER {
        let manifests = scenes::rendered(file);
        let pod = pod_of(&manifests);
        let job =
            &chart::manifest(&manifests, "Job", "sluicegate-check")["spec"]["template"]["spec"];
        let lists = [
            &pod["initContainers"],
            &pod["containers"],
            &job["containers"],
        ];
        for container in lists.iter().filter_map(|list| list.as_array()).flatten() {
            assert_eq!(
                container["securityContext"],
                json!({
                    "runAsNonRoot": true, "runAsUser": 65532, "runAsGroup": 65532, "readOnlyRootFilesystem": true,
                    "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
                    "seccompProfile": { "type": "RuntimeDefault" },
                }),
                "{file}"
            );
            assert!(
                container["resources"]["limits"]["memory"].is_string(),
                "{file}"
            );
        }
        assert_eq!(job["automountServiceAccountToken"], false);
    }
}

/// Starts the sidecar with the arguments that a pod has, on free ports, with a Redis that is away, and asks what the
/// kubelet would ask.
#[tokio::test]
async fn the_probes_do_not_evict_pods_while_redis_is_away() {
    let manifests = scenes::rendered("envoy-gateway.yaml");
    let policy =
        &chart::manifest(&manifests, "ConfigMap", "sluicegate-policy")["data"]["policy.yaml"];
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, policy.as_str().unwrap()).unwrap();
    let container = container(&pod_of(&manifests));
    let (port, admin_port) = (free_port(), free_port());
    let arguments = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| {
            let argument = argument.as_str().unwrap();
            argument
                .replace("/etc/sluicegate/policy.yaml", file.to_str().unwrap())
                .replace("9180", &port.to_string())
                .replace("9181", &admin_port.to_string())
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
    eventually("the store is down", async || {
        let (_, metrics) = get(&metrics).await;
        metrics.contains("\nsluicegate_store_up 0\n")
    })
    .await;
    let ready = format!("http://127.0.0.1:{admin_port}/readyz");
    assert_eq!(get(&ready).await.0, 200);
}

#[test]
fn secrets_reach_the_sidecar_by_reference() {
    let mut values = scenes::values("envoy-gateway.yaml");
    values["store"] = json!({ "existingSecret": { "name": "redis" } });
    values["sidecar"]["adminToken"]["existingSecret"] = json!({ "name": "admin", "key": "bearer" });
    let manifests = chart::render(NAMESPACE, &values).unwrap();
    assert_eq!(
        container(&pod_of(&manifests))["env"],
        json!([
            { "name": "SLUICEGATE_STORE", "valueFrom": { "secretKeyRef": { "name": "redis", "key": "url" } } },
            { "name": "SLUICEGATE_ADMIN_TOKEN", "valueFrom": { "secretKeyRef": { "name": "admin", "key": "bearer" } } },
            { "name": "SLUICEGATE_OPEN_METRICS", "value": "true" },
        ])
    );
}

/// A running sidecar refuses such a change, and every later one of the policy with it.
#[test]
fn pods_are_replaced_by_a_change_that_a_running_sidecar_refuses_and_by_no_other_of_the_policy() {
    let template = |file: &str, pointer: &str, value: Value| {
        let mut values = scenes::values(file);
        let (above, field) = pointer.rsplit_once('/').unwrap();
        values.pointer_mut(above).unwrap()[field] = value;
        template_of(&chart::render(NAMESPACE, &values).unwrap())
    };
    for file in ["kubernetes-deployment.yaml", "envoy-gateway.yaml"] {
        let changes = |pointer, one, other| {
            template(file, pointer, json!(one)) != template(file, pointer, json!(other))
        };
        assert!(changes("/store/url", "redis://a", "redis://b"), "{file}");
        assert!(changes("/policy/store_timeout", "20ms", "30ms"), "{file}");
        assert!(changes("/policy/memory_limit", "1MiB", "2MiB"), "{file}");
        let quota = "/policy/limits/per-key/windows";
        let windows = |quota: u64| json!([{ "quota": quota, "per": "1m" }]);
        assert_eq!(
            template(file, quota, windows(5)),
            template(file, quota, windows(6)),
            "{file}"
        );
    }
    // In the policy, the store can be a mapping.
    let mapping = |connections: u32| {
        let mut values = scenes::values("envoy-gateway.yaml");
        values["store"] = json!({});
        values["policy"]["store"] = json!({ "url": "redis://a", "connections": connections });
        template_of(&chart::render(NAMESPACE, &values).unwrap())
    };
    assert_ne!(mapping(2), mapping(3));
    let mut theirs = scenes::values("envoy-gateway.yaml");
    theirs["store"] = json!({});
    theirs["policy"] = json!({});
    theirs["existingPolicy"] = json!("mine");
    let theirs = template_of(&chart::render(NAMESPACE, &theirs).unwrap());
    // The chart does not see into it.
    assert!(theirs["metadata"]["annotations"].is_null(), "{theirs}");
}

/// Where pods have only IPv6 addresses, `0.0.0.0` listens on none of them.
#[test]
fn the_ports_of_a_pod_listen_on_the_address_that_is_set() {
    for (address, admin, socket) in [
        (
            "0.0.0.0",
            "0.0.0.0:9181",
            json!({ "address": "0.0.0.0", "port_value": 10000 }),
        ),
        (
            "::",
            "[::]:9181",
            // Without the last field, Envoy would refuse IPv4 in pods that have both.
            json!({ "address": "::", "port_value": 10000, "ipv4_compat": true }),
        ),
    ] {
        for file in WITH_FILTER {
            let mut values = scenes::values(file);
            values["listenAddress"] = json!(address);
            let manifests = chart::render(NAMESPACE, &values).unwrap();
            let arguments = container(&pod_of(&manifests))["args"].clone();
            let arguments = arguments.as_array().unwrap();
            let flag = arguments.iter().position(|flag| flag == "--admin-listen");
            assert_eq!(arguments[flag.unwrap() + 1], admin, "{file}");
            if file != "kubernetes-deployment.yaml" {
                continue;
            }
            let envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
            let mut metrics = socket.clone();
            metrics["port_value"] = json!(9902);
            for (listener, socket) in [(0, &socket), (1, &metrics)] {
                let listener = &envoy["static_resources"]["listeners"][listener];
                assert_eq!(listener["address"]["socket_address"], *socket);
            }
        }
    }
}
