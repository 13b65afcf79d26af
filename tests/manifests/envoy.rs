//! Real Envoys, with the filter of this working copy and a sidecar with the chart's policy, must admit up to the limit and
//! then deny: a wrong name of a cluster would be nothing but 200s.

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, free_port, repository};
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::translated::{MODULE, RENEW, Translated, inputs};
use sluicegate_tests::{chart, upstream};

use crate::scenes;

#[tokio::test]
async fn envoy_gateways_translation_limits() {
    translation_limits("envoy-gateway").await;
}

#[tokio::test]
async fn istios_translation_limits() {
    translation_limits("istio").await;
}

#[tokio::test]
async fn the_charts_own_envoy_limits() {
    let values = scenes::values("kubernetes-deployment.yaml");
    let manifests = scenes::rendered("kubernetes-deployment.yaml");
    let file = &chart::manifest(&manifests, "ConfigMap", "sluicegate-envoy")["data"]["envoy.yaml"];
    let config = serde_saphyr::from_str(file.as_str().expect("a file")).expect("YAML");
    limits_of(config, &values).await;
}

#[test]
fn the_translations_are_of_this_chart() {
    for mesh in ["envoy-gateway", "istio"] {
        let fixture = Translated::read(mesh);
        let rendered = chart::render(&fixture.namespace, &fixture.values).unwrap_or_else(|error| {
            panic!("{mesh}: the chart refuses the fixture's values; {RENEW}\n{error}")
        });
        let now = inputs(&rendered);
        assert!(
            now == fixture.inputs,
            "{mesh}: the chart renders other manifests than those of tests/manifests/translated/{mesh}.json; {RENEW}\n\
             now: {}\nthen: {}",
            json!(now),
            json!(fixture.inputs)
        );
    }
}

async fn translation_limits(mesh: &str) {
    let fixture = Translated::read(mesh);
    limits_of(fixture.envoy, &fixture.values).await;
}

/// With the policy and the first rule in these values.
async fn limits_of(config: Value, values: &Value) {
    let rule = &values["filter"]["config"]["rules"][0];
    let path = rule["match"]["path_prefix"].as_str().expect("a path");
    let name = rule["name"].as_str().expect("a name");
    limits(config, values["policy"].clone(), path, name).await;
}

/// Sends requests through an Envoy with this configuration and a sidecar with this policy, to the path of this rule.
pub async fn limits(mut config: Value, mut policy: Value, path: &str, rule: &str) {
    let folder = tempfile::tempdir().unwrap();
    policy["store"] = json!("memory");
    // A stall of this machine is not an outage.
    policy["store_timeout"] = json!("2s");
    let quota = policy["limits"]["per-key"]["windows"][0]["quota"].as_u64();
    let quota = quota.expect("a limit `per-key`");
    policy["limits"]["per-key"]["windows"] = json!([{ "quota": quota, "per": "1h" }]);
    let sidecar = Sidecar::start(&policy.to_string(), folder.path()).await;
    let upstream = upstream::start().await;
    let (port, admin_port) = (free_port(), free_port());
    local(&mut config, [port, admin_port, sidecar.port, upstream]);
    let envoy = Envoy::start_config(folder.path(), 1, port, admin_port, &config).await;

    let mut answers = Vec::new();
    for _ in 0..quota + 2 {
        let request = client().get(envoy.url(path)).header("x-api-key", "k");
        // Of the fields that Sluicegate writes, a client's copy does not reach the upstream.
        let answer = request.header("ratelimit", "forged").send().await.unwrap();
        answers.push(answer.status().as_u16());
        let echo = answer.text().await.unwrap();
        assert!(!echo.contains("forged"), "{echo}");
    }
    let (admitted, denied) = answers.split_at(usize::try_from(quota).unwrap());
    assert!(admitted.iter().all(|status| *status == 200), "{answers:?}");
    assert_eq!(denied, [429, 429]);

    // The tags of statistics make labels of the rule and the limit.
    let counter = format!("sluicegate_rule_limit_denied{{rule=\"{rule}\",limit=\"per-key\"}} 2");
    let statistics = format!("http://127.0.0.1:{admin_port}/stats/prometheus");
    eventually(&counter, async || {
        get(&statistics).await.1.contains(&counter)
    })
    .await;
}

/// Puts the parts of this test in place of those in a cluster.
fn local(config: &mut Value, [port, admin_port, sidecar, upstream]: [u16; 4]) {
    let address =
        |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    config["admin"]["address"] = address(admin_port);
    for listener in list(&mut config["static_resources"]["listeners"]) {
        let is_ours = listener["name"] == "ingress";
        listener["address"] = address(if is_ours { port } else { free_port() });
    }
    for cluster in list(&mut config["static_resources"]["clusters"]) {
        let name = cluster["name"].as_str().expect("a name").to_owned();
        let endpoint =
            &mut cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"];
        let now = match name.as_str() {
            "admin" => admin_port,
            name if name.contains("sluicegate") => {
                let given = &endpoint["address"]["socket_address"];
                assert_eq!(
                    *given,
                    json!({ "address": "127.0.0.1", "port_value": 9180 })
                );
                sidecar
            }
            _ => upstream,
        };
        endpoint["address"] = address(now);
    }
    set_module(config);
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().expect("a list")
}

/// The file of the filter, wherever the configuration expects it.
fn set_module(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                if name == "filename" && value.as_str().is_some_and(|file| file.ends_with(".wasm"))
                {
                    *value = json!(repository(MODULE));
                }
                set_module(value);
            }
        }
        Value::Array(values) => values.iter_mut().for_each(set_module),
        _ => {}
    }
}
