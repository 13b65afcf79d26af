//! What is around the pods: NetworkPolicy, PodMonitor, alerts, and the names that several releases must not share.

use serde_json::{Value, json};
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests_full::chart;

use super::documents::released_filter;
use super::scenes::{self, NAMESPACE, WITH_FILTER, injection, rendered_with, template};

const MONITORED: &str = "podMonitor: { enabled: true }";

/// The ports that everybody may reach.
fn open_ports(manifests: &[Value]) -> Value {
    let policy = chart::manifest(manifests, "NetworkPolicy", "sluicegate");
    policy["spec"]["ingress"][0]["ports"].clone()
}

#[test]
fn the_charts_own_envoys_open_their_own_ports_only() {
    let manifests = scenes::rendered("kubernetes-deployment.yaml");
    let open = open_ports(&manifests);
    let tcp = |port: &str| json!({ "protocol": "TCP", "port": port });
    assert_eq!(open, json!([tcp("http"), tcp("metrics")]));
    let pod = &chart::manifest(&manifests, "Deployment", "sluicegate")["spec"]["template"]["spec"];
    let ports = pod["containers"][0]["ports"].as_array().unwrap();
    let names: Vec<_> = ports.iter().map(|port| &port["name"]).collect();
    assert_eq!(json!(names), json!(["http", "metrics"]));
    let policy = &chart::manifest(&manifests, "NetworkPolicy", "sluicegate")["spec"];
    let admin = &policy["ingress"][1];
    assert_eq!(admin["ports"], json!([{ "protocol": "TCP", "port": 9181 }]));
    assert!(admin["from"][0]["namespaceSelector"].is_object(), "{admin}");
}

#[test]
fn other_pods_open_the_ports_that_are_listed() {
    let listed = "networkPolicy: { enabled: true, ports: [8080] }";
    let open = open_ports(&rendered_with("istio.yaml", &[listed]));
    let port = |protocol: &str| json!({ "protocol": protocol, "port": 8080 });
    assert_eq!(open, json!([port("TCP"), port("UDP")]));
}

#[test]
fn without_a_list_every_port_but_the_admin_port_is_open() {
    let range = |port: u16, end: u16| json!({ "protocol": "TCP", "port": port, "endPort": end });
    for (admin, tcp) in [
        (9181, vec![range(1, 9180), range(9182, 65535)]),
        (1, vec![range(2, 65535)]),
        (2, vec![range(1, 1), range(3, 65535)]),
        (65535, vec![range(1, 65534)]),
    ] {
        let admin = format!("sidecar: {{ adminPort: {admin} }}");
        let changes = ["networkPolicy: { enabled: true }", &admin];
        let open = open_ports(&rendered_with("istio.yaml", &changes));
        let mut expected = tcp;
        expected.push(json!({ "protocol": "UDP", "port": 1, "endPort": 65535 }));
        assert_eq!(open, json!(expected), "{admin}");
    }
}

/// So several releases in a namespace have several jobs, and SluicegateConfigurationsDiffer does not compare their proxies.
#[test]
fn the_sidecars_job_is_the_releases_name() {
    for file in WITH_FILTER {
        let manifests = rendered_with(file, &[MONITORED, "fullnameOverride: limits"]);
        let (monitor, sidecar) = scraped(&manifests, "/metrics");
        let label = monitor["jobLabel"].as_str().expect("a label");
        let labels = template(&manifests)["metadata"]["labels"].take();
        assert_eq!(labels[label], "limits", "{file}");
        assert!(sidecar["relabelings"].is_null(), "{file}: {sidecar}");
        let (_, envoy) = scraped(&manifests, "/stats/prometheus");
        let job = json!([{ "targetLabel": "job", "replacement": "limits-envoy" }]);
        assert_eq!(envoy["relabelings"], job);
    }
}

/// The `spec` and the endpoint of the one PodMonitor that scrapes this path.
fn scraped(manifests: &[Value], path: &str) -> (Value, Value) {
    let specs = manifests.iter().filter(|one| one["kind"] == "PodMonitor");
    let mut found = specs.map(|one| &one["spec"]).flat_map(|spec| {
        let endpoints = spec["podMetricsEndpoints"].as_array().unwrap().iter();
        let these = endpoints.filter(|endpoint| endpoint["path"] == path);
        these.map(move |endpoint| (spec.clone(), endpoint.clone()))
    });
    let one = found
        .next()
        .unwrap_or_else(|| panic!("nothing scrapes {path}"));
    assert!(found.next().is_none(), "{path} is scraped twice");
    one
}

/// An Envoy without the sidecar is the one whose requests pass unmetered.
#[test]
fn every_envoy_that_may_have_the_filter_is_scraped_with_or_without_the_sidecar() {
    let selected = |manifests: &[Value], path| scraped(manifests, path).0["selector"].clone();
    for file in WITH_FILTER {
        let manifests = rendered_with(file, &[MONITORED]);
        let sidecars = json!({ "matchLabels": { "sluicegate.github.io/release": "sluicegate" } });
        assert_eq!(selected(&manifests, "/metrics"), sidecars, "{file}");
        let envoys = selected(&manifests, "/stats/prometheus");
        match file {
            "istio.yaml" => {
                let plugin = chart::manifest(&manifests, "WasmPlugin", "sluicegate");
                assert_eq!(envoys, plugin["spec"]["selector"]);
            }
            // Not those of other namespaces, which another release scrapes.
            "envoy-gateway.yaml" => assert_eq!(
                envoys,
                json!({ "matchLabels": {
                    "app.kubernetes.io/managed-by": "envoy-gateway", "app.kubernetes.io/component": "proxy",
                    "gateway.envoyproxy.io/owning-gateway-namespace": NAMESPACE,
                }, "matchExpressions": [of_eg()] })
            ),
            _ => assert_eq!(envoys, sidecars),
        }
    }
    // A route's Gateway is not known here.
    let route =
        "envoyGateway.targetRefs: [{ kind: Gateway, name: eg }, { kind: HTTPRoute, name: shop }]";
    let manifests = rendered_with("envoy-gateway.yaml", &[MONITORED, route]);
    let all = &selected(&manifests, "/stats/prometheus")["matchExpressions"];
    assert_eq!(*all, Value::Null);
    // Envoys that several Gateways share have the label of their class only.
    let merged = "envoyGateway.envoyProxy: { mergeGateways: true }";
    let manifests = rendered_with("envoy-gateway.yaml", &[MONITORED, merged]);
    let class = json!({ "key": "gateway.envoyproxy.io/owning-gatewayclass", "operator": "Exists" });
    let labels = json!({ "app.kubernetes.io/managed-by": "envoy-gateway", "app.kubernetes.io/component": "proxy" });
    let selector = json!({ "matchLabels": labels, "matchExpressions": [class] });
    assert_eq!(selected(&manifests, "/stats/prometheus"), selector);
}

/// An alert tells of Envoys without the filter: those of other Gateways are meant to have none.
fn of_eg() -> Value {
    json!({ "key": "gateway.envoyproxy.io/owning-gateway-name", "operator": "In", "values": ["eg"] })
}

#[test]
fn alerts_name_the_releases_jobs_and_dashboards_none() {
    let manifests = rendered_with("kubernetes-deployment.yaml", &["fullnameOverride: limits"]);
    let text = |kind, name| chart::manifest(&manifests, kind, name).to_string();
    let alerts = text("PrometheusRule", "limits");
    let dashboards = text("ConfigMap", "limits-dashboards");
    for job in ["limits", "limits-envoy"] {
        let selected = format!(r#"up{{namespace=\"{NAMESPACE}\", job=\"{job}\"}}"#);
        assert!(alerts.contains(&selected), "{selected}: {alerts}");
    }
    assert!(dashboards.contains("sluicegate_store_up"), "{dashboards}");
    for text in [alerts, dashboards] {
        let unescaped = text.replace('\\', "");
        assert!(!unescaped.contains(r#"job="sluicegate"#), "{text}");
    }
}

/// On tainted nodes, without them, the Job of an install would wait for its deadline.
#[test]
fn the_charts_pods_run_where_the_values_say() {
    let given = json!({
        "nodeSelector": { "pool": "edge" },
        "tolerations": [{ "key": "edge", "operator": "Exists" }],
        "affinity": { "nodeAffinity": {} },
        "priorityClassName": "high",
        "serviceAccountName": "edge",
        "podSecurityContext": { "fsGroup": 2000 },
        "podAnnotations": { "team": "edge" },
        "podLabels": { "cost": "edge", "app.kubernetes.io/name": "other" },
    });
    let given_fields = given.as_object().unwrap().iter();
    let changes: Vec<_> = given_fields
        .map(|(name, value)| format!("{name}: {value}"))
        .collect();
    let changes: Vec<_> = changes.iter().map(String::as_str).collect();
    let manifests = rendered_with("kubernetes-deployment.yaml", &changes);
    for (kind, name) in [
        ("Deployment", "sluicegate"),
        ("Job", "sluicegate-check"),
        ("Pod", "sluicegate-test"),
    ] {
        let manifest = chart::manifest(&manifests, kind, name);
        let pod = manifest.pointer("/spec/template").unwrap_or(manifest);
        assert_eq!(pod["spec"]["securityContext"], given["podSecurityContext"]);
        for field in [
            "nodeSelector",
            "tolerations",
            "affinity",
            "priorityClassName",
            "serviceAccountName",
        ] {
            assert_eq!(pod["spec"][field], given[field], "{kind}: {field}");
        }
        let (labels, annotations) = (&pod["metadata"]["labels"], &pod["metadata"]["annotations"]);
        assert_eq!(annotations["team"], "edge", "{kind}");
        assert_eq!(labels["cost"], "edge", "{kind}");
        assert_eq!(labels["app.kubernetes.io/name"], "sluicegate", "{kind}");
    }
}

/// Of two replicas on one node, none outlives it.
#[test]
fn the_charts_envoys_are_spread_over_nodes() {
    let spread = |changes: &[&str]| {
        let manifests = rendered_with("kubernetes-deployment.yaml", changes);
        let deployment = chart::manifest(&manifests, "Deployment", "sluicegate")["spec"].clone();
        let spread = deployment["template"]["spec"]["topologySpreadConstraints"].clone();
        (deployment, spread)
    };
    let (deployment, constraints) = spread(&[]);
    assert_eq!(constraints[0]["topologyKey"], "kubernetes.io/hostname");
    assert_eq!(constraints[0]["labelSelector"], deployment["selector"]);
    let own = json!([{ "maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule" }]);
    let change = format!("kubernetes.deployment.topologySpreadConstraints: {own}");
    assert_eq!(spread(&[&change]).1, own);
}

/// A Prometheus that adds the namespace of a rule to its expressions finds no series of other namespaces.
#[test]
fn alerts_are_in_the_namespace_of_the_pods() {
    for (file, namespace) in [
        ("envoy-gateway.yaml", "envoy-gateway-system"),
        ("istio.yaml", NAMESPACE),
        ("kubernetes-deployment.yaml", NAMESPACE),
    ] {
        let manifests = rendered_with(file, &[MONITORED, "alerts: { enabled: true }"]);
        for (kind, name) in [
            ("PodMonitor", "sluicegate"),
            ("PodMonitor", "sluicegate-envoy"),
            ("PrometheusRule", "sluicegate"),
        ] {
            let metadata = &chart::manifest(&manifests, kind, name)["metadata"];
            assert_eq!(metadata["namespace"], namespace, "{file}: {kind} {name}");
        }
    }
}

/// istiod has one set of templates for all namespaces.
#[test]
fn releases_in_two_namespaces_have_two_injection_templates() {
    let values = scenes::values("istio.yaml");
    let names = ["shop", "bank"].map(|namespace| {
        let manifests = chart::render(namespace, &values).unwrap();
        let found = manifests.iter().find_map(injection);
        found.expect("istiod's values").0
    });
    assert_eq!(names, ["sluicegate.shop", "sluicegate.bank"]);
}

/// Annotations that select another template leave the pods without a sidecar.
#[test]
fn the_notes_name_the_injection_template() {
    let notes = scenes::notes(&scenes::values("istio.yaml"));
    let annotation = "inject.istio.io/templates: gateway,sluicegate.shop\n";
    assert!(notes.contains(annotation), "{notes}");
}

/// Envoy reads `sluicegate.wasm`, and the release's file has another name.
#[test]
fn the_notes_put_the_releases_filter_where_envoy_reads_it() {
    let notes = scenes::notes(&scenes::values("kubernetes-deployment.yaml"));
    let file = released_filter();
    let argument = format!("--from-file=sluicegate.wasm={file}\n");
    assert!(notes.contains(&argument), "{notes}");
}

#[test]
fn the_notes_warn_of_a_policy_that_may_have_no_store() {
    for (secret, warns) in [("", true), ("sluicegate-redis", false)] {
        let store = format!("store: {{ existingSecret: {{ name: '{secret}' }} }}");
        let changes = ["policy: null", "existingPolicy: mine", &store];
        for file in [
            "istio.yaml",
            "kubernetes.yaml",
            "kubernetes-deployment.yaml",
        ] {
            let notes = scenes::notes(&scenes::changed(file, &changes));
            let warning = "The policy in ConfigMap `mine` must name its `store`";
            assert_eq!(notes.contains(warning), warns, "{file}: {notes}");
        }
    }
}

/// Without a scrape, an alert fires for ever.
#[test]
fn the_notes_tell_of_alerts_that_nothing_is_scraped_for() {
    for (changes, told) in [
        (&["podMonitor.enabled: false"][..], true),
        (
            &["podMonitor.enabled: false", "alerts.enabled: false"][..],
            false,
        ),
        (&[][..], false),
    ] {
        let notes = scenes::notes(&scenes::changed("kubernetes-deployment.yaml", changes));
        assert_eq!(notes.contains("Nothing here scrapes"), told, "{notes}");
    }
}

#[test]
fn the_charts_envoy_waits_for_an_answer_as_long_as_it_is_told() {
    let given = |timeout: &str| format!("kubernetes.deployment.upstream.timeout: {timeout}");
    for (changes, timeout) in [
        (vec![], "15s"),
        (vec![given("0.5s")], "0.5s"),
        (vec![given("0s")], "0s"),
    ] {
        let changes: Vec<_> = changes.iter().map(String::as_str).collect();
        let manifests = rendered_with("kubernetes-deployment.yaml", &changes);
        let mut envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
        let hosts = &at(&mut envoy, MANAGER)["route_config"]["virtual_hosts"];
        let route = &hosts[0]["routes"][0]["route"];
        assert_eq!(*route, json!({ "cluster": "upstream", "timeout": timeout }));
    }
}
