//! Real Envoys, with the filter of this working copy and a sidecar with the chart's policy, must admit up to the limit and
//! then deny: a wrong name of a cluster would be nothing but 200s.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, free_port, repository};
use sluicegate_tests::sidecar::{self, Sidecar};
use sluicegate_tests::upstream;
use sluicegate_tests_full::chart;
use sluicegate_tests_full::translated::{MODULE, RENEW, Translated, inputs};

use tempfile::TempDir;

use super::scenes::{self, texts};

#[tokio::test]
async fn envoy_gateways_translation_limits() {
    let fixture = Translated::read("envoy-gateway");
    let chain = Chain::of(fixture.envoy, &fixture.values).await;
    chain.limits().await;
    chain.strips_forged_fields().await;
    chain.labels_counters().await;
}

#[tokio::test]
async fn istios_translations_limit() {
    for mesh in ["istio", "istio-workload"] {
        let fixture = Translated::read(mesh);
        let chain = Chain::of(fixture.envoy, &fixture.values).await;
        chain.limits().await;
    }
}

#[tokio::test]
async fn the_charts_own_envoy_limits() {
    let values = scenes::values("kubernetes-deployment.yaml");
    let manifests = scenes::rendered("kubernetes-deployment.yaml");
    let config = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
    let chain = Chain::of(config, &values).await;
    chain.limits().await;
    chain.strips_forged_fields().await;
    chain.labels_counters().await;
    chain.logs_denials().await;
    // What `helm test` runs.
    let pod = chart::manifest(&manifests, "Pod", "sluicegate-test");
    chain.passes(&pod["spec"]["containers"][0]).await;
}

/// With a variable that this test, and so its Envoy, have: without a value the filter refuses its configuration.
#[tokio::test]
async fn the_charts_own_envoy_passes_the_pepper_on() {
    let file = "kubernetes-deployment.yaml";
    let secret = "filter.pepper: { existingSecret: { name: hidden, key: salt } }";
    let manifests = scenes::rendered_with(file, &[secret]);
    let config = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml").to_string();
    let config = config.replace("SLUICEGATE_PEPPER", "PATH");
    let config = serde_json::from_str(&config).unwrap();
    let chain = Chain::of(config, &scenes::values(file)).await;
    chain.limits().await;
}

#[test]
fn the_translations_are_of_this_chart() {
    for mesh in ["envoy-gateway", "istio", "istio-workload"] {
        let fixture = Translated::read(mesh);
        let rendered = chart::render(&fixture.namespace, &fixture.values);
        let rendered = rendered.unwrap_or_else(|error| panic!("{mesh}: {RENEW}\n{error}"));
        let (now, then) = (json!(inputs(&rendered)), json!(fixture.inputs));
        assert!(
            now == then,
            "{mesh}: the chart renders other manifests now; {RENEW}\nnow: {now}\nthen: {then}"
        );
    }
}

/// An Envoy with a configuration under test, a sidecar, and an upstream that echoes requests.
pub struct Chain {
    envoy: Envoy,
    sidecar: Sidecar,
    _folder: TempDir,
    /// What the first rule's limit allows, and its name.
    quota: u64,
    limit: String,
    /// A path to which it applies, and the name of its rule.
    path: String,
    rule: String,
}

impl Chain {
    /// With the policy and rules in these values.
    pub async fn of(mut config: Value, values: &Value) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut policy = values["policy"].clone();
        policy["store"] = json!("memory");
        // A stall of this machine is not an outage.
        policy["store_timeout"] = json!("2s");
        // The short form has a rule of the limit's name, for every path.
        let rule = policy["rules"]["default"]["rules"][0].clone();
        let limits = policy["limits"].as_object_mut().expect("limits");
        let (only, _) = limits.iter().next().expect("a limit");
        let text = |value: &Value, short: &str| value.as_str().unwrap_or(short).to_owned();
        let limit = text(&rule["checks"][0]["limit"], only);
        let quota = for_an_hour(&mut limits[&limit]);
        let sidecar = Sidecar::start(&policy.to_string(), folder.path()).await;
        let upstream = upstream::start().await;
        let (port, admin_port) = (free_port(), free_port());
        local(&mut config, [port, admin_port, sidecar.port, upstream]);
        Self {
            envoy: Envoy::start_config(folder.path(), 1, port, admin_port, &config).await,
            sidecar,
            _folder: folder,
            quota,
            path: text(&rule["match"]["path_prefix"], "/"),
            rule: text(&rule["name"], &limit),
            limit,
        }
    }

    /// One client's requests are admitted up to the limit, and then denied.
    pub async fn limits(&self) {
        let mut answers = Vec::new();
        for _ in 0..self.quota + 2 {
            answers.push(self.ask("k").await.0);
        }
        let (admitted, denied) = answers.split_at(usize::try_from(self.quota).unwrap());
        assert!(admitted.iter().all(|status| *status == 200), "{answers:?}");
        assert_eq!(denied, [429, 429]);
    }

    /// A client's copy of a field that Sluicegate writes does not reach the upstream.
    async fn strips_forged_fields(&self) {
        let (status, echo) = self.ask("other").await;
        assert_eq!(status, 200);
        assert!(echo.contains("x-api-key: other"), "{echo}");
        assert!(!echo.contains("forged"), "{echo}");
    }

    /// Rule and limit are labels of the filter's counters.
    async fn labels_counters(&self) {
        let labels = format!("{{rule=\"{}\",limit=\"{}\"}}", self.rule, self.limit);
        let counter = format!("sluicegate_rule_limit_denied{labels} 2");
        let admin = self.envoy.admin("");
        let statistics = async || get(&format!("{admin}/stats/prometheus")).await.1;
        let counts = async || statistics().await.contains(&counter);
        eventually(&counter, counts).await;
    }

    /// The access log says who was denied.
    async fn logs_denials(&self) {
        let logs = async || self.envoy.log().contains("sluicegate_denied{subject=");
        eventually("a denial in the access log", logs).await;
    }

    /// A container's `sluicegate` finds that all is well, and says so of no sidecar that is away.
    async fn passes(mut self, container: &Value) {
        let run = |sidecar: &Sidecar| {
            let arguments = texts(&container["args"]).into_iter().map(|argument| {
                let argument = argument.replace(
                    "/etc/sluicegate/policy.yaml",
                    sidecar.policy.to_str().unwrap(),
                );
                let argument = argument.replace("http://sluicegate-test:9181", &sidecar.admin(""));
                argument.replace("60s", "5s")
            });
            let output = chart::run(Command::new(sidecar::binary()).args(arguments));
            (
                output.status.success(),
                String::from_utf8_lossy(&output.stdout).into_owned(),
            )
        };
        let (passed, said) = run(&self.sidecar);
        assert!(passed && said.contains("are in force in"), "{said}");
        self.sidecar.kill();
        let (passed, said) = run(&self.sidecar);
        assert!(!passed, "{said}");
    }

    async fn ask(&self, key: &str) -> (u16, String) {
        let fields = [("x-api-key", key), ("ratelimit", "forged")];
        let answer = self.envoy.get(&self.path, &fields).await;
        (answer.status().as_u16(), answer.text().await.unwrap())
    }
}

/// Makes the first window of a limit an hour long, and the only one; returns its quota.
fn for_an_hour(limit: &mut Value) -> u64 {
    if let Some(quota) = limit["windows"][0]["quota"].as_u64() {
        limit["windows"] = json!([{ "quota": quota, "per": "1h" }]);
        return quota;
    }
    let rate = match &limit["rate"] {
        Value::Array(rates) => rates[0].clone(),
        rate => rate.clone(),
    };
    let (quota, _) = rate
        .as_str()
        .and_then(|rate| rate.split_once('/'))
        .expect("a rate");
    let quota = quota.parse().expect("a quota");
    limit["rate"] = json!(format!("{quota}/1h"));
    quota
}

/// Puts the parts of this test in place of those in a cluster.
pub fn local(config: &mut Value, [port, admin_port, sidecar, upstream]: [u16; 4]) {
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
                assert_eq!(endpoint["address"], address(9180));
                sidecar
            }
            _ => upstream,
        };
        endpoint["address"] = address(now);
    }
    set_filter(config);
}

fn list(value: &mut Value) -> &mut Vec<Value> {
    value.as_array_mut().expect("a list")
}

/// The filter's file in this repository, and a timeout that a stall of this machine does not exceed.
fn set_filter(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            if fields.contains_key("vm_config") {
                fields["vm_config"]["code"] =
                    json!({ "local": { "filename": repository(MODULE) } });
                let plugin = &mut fields["configuration"]["value"];
                if let Some(text) = plugin.as_str() {
                    let mut inner: Value = serde_json::from_str(text).expect("JSON");
                    inner["sidecar"]["timeout"] = json!("5s");
                    *plugin = json!(inner.to_string());
                } else {
                    plugin["sidecar"]["timeout"] = json!("5s");
                }
            }
            fields.values_mut().for_each(set_filter);
        }
        Value::Array(values) => values.iter_mut().for_each(set_filter),
        _ => {}
    }
}
