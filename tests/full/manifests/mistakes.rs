//! What Helm says of mistakes in values: always the value's name, and what to set.

use serde_json::{Map, Value, json};
use sluicegate_tests::process::{attempt, repository};
use sluicegate_tests_full::chart;

use super::scenes::NAMESPACE;
use super::valid;
use super::values::schema;

/// What Helm says of these values with these changes.
fn changed(file: &str, changes: &[&str]) -> Result<String, String> {
    let chart = repository("deploy/helm/sluicegate");
    let values = repository("tests/full/manifests/values").join(file);
    let mut arguments = Vec::new();
    for change in changes {
        arguments.extend(["--set-json", change]);
    }
    chart::template(&chart, NAMESPACE, &[&values], &arguments)
}

fn refusal(file: &str, changes: &[&str]) -> String {
    match changed(file, changes) {
        Err(said) => said,
        Ok(_) => panic!("{file} with {changes:?} is accepted"),
    }
}

/// Files of values, each with changes and what Helm says of them.
const MISTAKES: &str = r#"
istio.yaml
  kind=""  =>  '/kind': value must be one of 'envoyGateway', 'istio', 'kubernetes'
  kind="nginx"  =>  '/kind': value must be one of
  sidecar.prot=1  =>  '/sidecar': additional properties 'prot' not allowed
  sidecar.port=0  =>  '/sidecar/port': minimum: got 0, want 1
  filter.config.sidecar={"cluster":"x"}  =>  '/filter/config/sidecar': additional properties 'cluster' not allowed
  filter.config={"rules":[]}  =>  '/filter/config': additional properties 'rules' not allowed
  filter.config={"rule_set":{"default":"a"}}  =>  '/filter/config': additional properties 'rule_set' not allowed
  filter.config={"version":1}  =>  '/filter/config/version': minimum: got 1, want 2
  filter.config={"reply":{}}  =>  '/filter/config': additional properties 'reply' not allowed
  consumers={}  =>  '/consumers': got object, want string
  policy="limits: ["  =>  policy: is not YAML
  policy="store: memory"  =>  store: set only one of
  filter.image.digest="sha256:1"  =>  '/filter/image/digest'
  filter.http.url="https://e.example/s.wasm"  =>  filter.http.sha256: set the SHA-256
  istio.selector=null  =>  istio.selector: set labels
  istio.phase="LAST"  =>  '/istio/phase': value must be one of
  store.url=""  =>  store: set store.url to a Redis URL
  policy.store="memory"  =>  store: set only one of
  existingPolicy="mine"  =>  policy: set only one of policy and existingPolicy (`policy: null` unsets
  policy.limits=null  =>  policy.limits: set the limits
  kubernetes.deployment.enabled=true  =>  kubernetes.deployment.enabled: only with kind: kubernetes
  sidecar.adminPort=9180  =>  sidecar.adminPort: 9180 is the port of sidecar.port
  filter={"pepper":{"existingSecret":{"name":"a"}},"config":{"pepper":"x"}}  =>  filter.pepper.existingSecret.name: filter.config.pepper is set too
envoy-gateway.yaml
  envoyGateway.targetRefs=[]  =>  envoyGateway.targetRefs: name the Gateways
  envoyGateway.targetRefs=[{"kind":"Service","name":"a"}]  =>  '/envoyGateway/targetRefs/0/kind': value must be one of
  envoyGateway.envoyProxy={"bootstrap":{"type":"Merge"}}  =>  envoyGateway.envoyProxy.bootstrap.type: must be JSONPatch
  envoyGateway.envoyProxy={"provider":{"kubernetes":{"envoyDeployment":{"patch":{"type":"JSONMerge"}}}}}  =>  envoyDeployment.patch.type: must be StrategicMerge
  envoyGateway.envoyProxy={"provider":"foo"}  =>  '/envoyGateway/envoyProxy/provider': got string, want null or object
kubernetes-deployment.yaml
  kubernetes.deployment.port=9181  =>  sidecar.adminPort: 9181 is the port of kubernetes.deployment.port
  kubernetes.deployment.port=9180  =>  sidecar.port: 9180 is the port of kubernetes.deployment.port
  kubernetes.deployment.port=9901  =>  kubernetes.deployment.port: 9901 is the port of Envoy's admin interface
  sidecar.adminPort=9902  =>  sidecar.adminPort: 9902 is the port of Envoy's metrics
  networkPolicy.adminFrom=[]  =>  networkPolicy.adminFrom: without Prometheus's pods here, podMonitor.enabled scrapes nothing
  podMonitor.interval="1m"  =>  podMonitor.interval: the alerts need a scrape every 30 seconds, and this is `1m`
  podMonitor.interval="31s"  =>  podMonitor.interval: the alerts need
  podMonitor.interval="30001ms"  =>  podMonitor.interval: the alerts need
  networkPolicy.ports=[8080,9181]  =>  networkPolicy.ports: has sidecar.adminPort
  kubernetes.deployment.upstream.timeout="1m"  =>  '/kubernetes/deployment/upstream/timeout'
  kubernetes.deployment.replicas=0  =>  '/kubernetes/deployment/replicas': minimum: got 0, want 1
  kubernetes.deployment.terminationGracePeriodSeconds=10  =>  terminationGracePeriodSeconds': minimum: got 10, want 20
  kubernetes.deployment.imagePullPolicy="Sometimes"  =>  '/kubernetes/deployment/imagePullPolicy': value must be one of
  kubernetes.deployment.service.type="ExternalName"  =>  '/kubernetes/deployment/service/type': value must be one of
  kubernetes.deployment.tls={"secretName":"a"}  =>  '/kubernetes/deployment/tls': additional properties 'secretName' not allowed
  podDisruptionBudget.maxUnavailable="1"  =>  '/podDisruptionBudget/maxUnavailable'
  podDisruptionBudget.maxUnavailable="0%"  =>  '/podDisruptionBudget/maxUnavailable'
  securityContext=65532  =>  '/securityContext': got number, want object
  alerts.rules={"StoreSlow":{"enabled":false}}  =>  alerts.rules.StoreSlow: there is no such alert
  alerts.rules={"SluicegateStoreSlow":{"severity":"critical"}}  =>  '/alerts/rules/SluicegateStoreSlow': additional properties 'severity' not allowed
  alerts.rules={"SluicegateStoreSlow":{"thresholds":{"> 0.7":"> 0.8"}}}  =>  alerts.rules.SluicegateStoreSlow.thresholds: its expression has no `> 0.7`
  kubernetes.deployment.upstream.host=""  =>  kubernetes.deployment.upstream.host: set the Service
"#;

#[test]
fn mistakes_are_named() {
    let mut file = "";
    for line in MISTAKES.lines() {
        let Some((change, said)) = line.split_once("  =>  ") else {
            file = line;
            continue;
        };
        let told = refusal(file, &[change.trim()]);
        assert!(told.contains(said), "{file} with {change}: {told}");
    }
}

/// Rates over a minute need two scrapes in it.
#[test]
fn scrapes_may_be_as_rare_as_the_alerts_allow() {
    let file = "kubernetes-deployment.yaml";
    for interval in ["30s", "030s", "30000ms"] {
        let change = format!("podMonitor.interval=\"{interval}\"");
        changed(file, &[&change]).unwrap_or_else(|said| panic!("{interval}: {said}"));
    }
    for off in ["alerts.enabled=false", "podMonitor.enabled=false"] {
        let changes = [r#"podMonitor.interval="1m""#, off];
        changed(file, &changes).unwrap_or_else(|said| panic!("{off}: {said}"));
    }
}

#[test]
fn a_password_is_refused_and_not_printed() {
    for (url, is_refused) in [
        ("redis://:hunter2@redis:6379", true),
        ("rediss+sentinel://app:hunter2@a:26379,b:26379/main", true),
        ("redis+unix:///run/redis?db=1&pass=hunter2", true),
        // It lacks the percent signs, and is no less a password.
        ("redis://app:hunter2/x@redis", true),
        ("redis://redis.default:6379/1", false),
        ("redis+cluster://a:7000,b:7000", false),
        ("redis+unix:///run/redis?db=1", false),
    ] {
        for (field, value) in [
            ("store.url", json!(url)),
            ("policy.store", json!(url)),
            ("policy.store", json!({ "url": url, "connections": 2 })),
        ] {
            let change = format!("{field}={value}");
            let outcome = changed("istio.yaml", &["store.url=null", &change]);
            assert_eq!(outcome.is_err(), is_refused, "{change}: {outcome:?}");
            if let Err(said) = outcome {
                let remedy = "set store.existingSecret.name";
                let named = said.contains(&format!("{field}: has a password"));
                assert!(named && said.contains(remedy), "{change}: {said}");
                assert!(!said.contains("hunter2"), "{said}");
            }
        }
    }
}

/// The paths of all values and objects of values.
fn paths(above: &str, properties: &Map<String, Value>, found: &mut Vec<String>) {
    for (name, schema) in properties {
        let path = format!("{above}{name}");
        if let Some(inner) = schema["properties"].as_object() {
            paths(&format!("{path}."), inner, found);
        }
        found.push(path);
    }
}

/// `null` in an overlay removes a value with its default.
#[test]
fn null_is_empty_or_refused_by_name() {
    let mut all = Vec::new();
    paths("", schema()["properties"].as_object().unwrap(), &mut all);
    assert!(all.len() > 80, "{all:?}");
    let mut accepted = Vec::new();
    for path in all {
        let first = path.split('.').next().unwrap();
        let file = match first {
            "envoyGateway" => "envoy-gateway.yaml",
            "istio" => "istio.yaml",
            _ => "kubernetes-deployment.yaml",
        };
        let said = match changed(file, &[&format!("{path}=null")]) {
            Err(said) => said,
            Ok(text) => {
                accepted.push((path, text));
                continue;
            }
        };
        let (above, name) = path.rsplit_once('.').unwrap_or(("", &path));
        let above = format!("/{}", above.replace('.', "/"));
        let above = above.trim_end_matches('/');
        let clear = [
            format!("at '{above}': missing property '{name}'"),
            format!("at '{above}/{name}': got null"),
            // What the chart itself asks for.
            format!("): {first}"),
        ];
        let is_clear = clear.iter().any(|clear| said.contains(clear));
        assert!(is_clear, "{path}=null: {said}");
    }
    // All at once, because it is much faster; one by one if that fails, for the name.
    let texts: Vec<&str> = accepted.iter().map(|(_, text)| text.as_str()).collect();
    if valid::conforms(&texts.join("\n---\n")).is_err() {
        for (path, text) in &accepted {
            valid::conforms(text).unwrap_or_else(|said| panic!("{path}=null: {said}"));
        }
    }
}

#[test]
fn null_unsets_a_policy() {
    let mine = r#"existingPolicy="mine""#;
    for file in ["envoy-gateway.yaml", "istio.yaml", "kubernetes.yaml"] {
        changed(file, &["policy=null", "store.url=null", mine]).unwrap();
        let said = refusal(file, &["policy=null"]);
        assert!(said.contains("policy.limits: set the limits"), "{said}");
    }
}

/// Cut names of two releases could be one.
#[test]
fn a_release_whose_name_does_not_fit_is_refused() {
    let named = |release: &str, more: &[&str]| {
        let values = repository("tests/full/manifests/values/kubernetes.yaml");
        let mut helm = chart::helm();
        helm.args(["template", release, "--kube-version", "1.36.0"]);
        helm.arg(repository("deploy/helm/sluicegate"));
        attempt(helm.arg("--values").arg(values).args(more), chart::INSTALL)
    };
    let longest = "a".repeat(29); // and `-sluicegate`: 40
    named(&longest, &[]).unwrap();
    let too_long = longest.clone() + "a";
    for release in [&too_long, "a.b", "1st"] {
        let said = named(release, &[]).expect_err(release);
        let remedy = "fullnameOverride: set a name, because";
        assert!(said.contains(remedy), "{release}: {said}");
    }
    for release in [&longest, &too_long, "a.b", "1st"] {
        let text = named(release, &["--set", "fullnameOverride=limits"]).unwrap();
        assert!(text.contains("name: limits-policy"), "{release}: {text}");
    }
}
