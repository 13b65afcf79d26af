//! The filter's configuration and the policy, as rendered: `check-config` accepts them, and the hook that runs it finds
//! mistakes before a proxy does.

use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::envoy::{MANAGER, at};
use sluicegate_tests::process::repository;
use sluicegate_tests_full::chart;
use sluicegate_tests_full::documents::{is_up_to_date, yaml};

use super::scenes::{self, NAMESPACE, UNKNOWN_LIMIT, WITH_FILTER};

/// Runs the command of the hook's Job on the files that its pod mounts; `Err` is what it says of a mistake.
fn hook(values: &Value, more: &[(&str, &str)]) -> Result<String, String> {
    let manifests = chart::render(NAMESPACE, values)?;
    let job = chart::manifest(&manifests, "Job", "sluicegate-check");
    let folder = tempfile::tempdir().unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let containers = pod["containers"].as_array().unwrap();
    assert_eq!(containers.len(), 1, "{pod}");
    for mount in containers[0]["volumeMounts"].as_array().unwrap() {
        let mut volumes = pod["volumes"].as_array().unwrap().iter();
        let volume = volumes.find(|volume| volume["name"] == mount["name"]);
        let name = &volume.expect("a volume")["configMap"]["name"];
        let name = name.as_str().unwrap();
        let place = mount["mountPath"].as_str().unwrap();
        let inside = folder.path().join(place.trim_start_matches('/'));
        std::fs::create_dir_all(&inside).unwrap();
        let data = match more.iter().find(|(given, _)| *given == name) {
            Some((_, policy)) => json!({ "policy.yaml": policy }),
            None => chart::manifest(&manifests, "ConfigMap", name)["data"].clone(),
        };
        for (name, text) in data.as_object().expect("files") {
            std::fs::write(inside.join(name), text.as_str().unwrap()).unwrap();
        }
    }
    let etc = format!("{}/etc/", folder.path().display());
    let arguments = scenes::texts(&containers[0]["args"]);
    let arguments = arguments.iter().map(|text| text.replace("/etc/", &etc));
    let mut command = Command::new(repository("target/debug/sluicegate"));
    let output = chart::run(command.args(arguments));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let said = said.into_owned();
    output.status.success().then(|| said.clone()).ok_or(said)
}

#[test]
fn check_config_accepts_what_the_chart_renders() {
    for file in WITH_FILTER {
        let said = hook(&scenes::values(file), &[]).unwrap_or_else(|said| panic!("{file}: {said}"));
        assert!(said.contains("0 errors"), "{file}: {said}");
    }
    // Without rules of its own: the policy alone.
    hook(&scenes::values("kubernetes.yaml"), &[]).unwrap();
}

#[test]
fn a_filter_without_a_configuration_runs_the_policys_default_set() {
    let config = |changes: &[&str]| {
        let manifests = scenes::rendered_with("istio.yaml", changes);
        let plugin = chart::manifest(&manifests, "WasmPlugin", "sluicegate");
        plugin["spec"]["pluginConfig"].clone()
    };
    let cluster = "outbound|9180||sluicegate.internal";
    let default = json!({ "version": 2, "sidecar": { "cluster": cluster }, "rule_sets": { "default": "default" } });
    assert_eq!(config(&[]), default);
    let given = config(&[
        "filter.config: { pepper: salt, rule_sets: { default: edge } }",
        "policy.rules: { edge: { rules: [] } }",
    ]);
    let more = json!({ "version": 2, "pepper": "salt", "sidecar": { "cluster": cluster },
        "rule_sets": { "default": "edge" } });
    assert_eq!(given, more);
    let unknown = ["filter.config: { rule_sets: { default: edge } }"];
    let said = hook(&scenes::changed("istio.yaml", &unknown), &[]).unwrap_err();
    assert!(said.contains("no rule set `edge`"), "{said}");
}

/// Public finding 1.
#[test]
fn where_routes_choose_the_set_a_filter_before_makes_envoy_select_the_route_again() {
    let sets =
        "filter.config: { rule_sets: { default: default, others: [partners], by: route_name } }";
    let rules = "policy.rules: { partners: { rules: [{ name: p, checks: [{ limit: per-key, key: [{ address: {} }] }], when_unavailable: deny }] } }";
    let rendered = |file: &str, changes: &[&str]| {
        let values = scenes::changed(file, changes);
        hook(&values, &[]).unwrap_or_else(|said| panic!("{file}: {said}"));
        chart::render(NAMESPACE, &values).unwrap()
    };
    let rbac = "type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC";
    let rbac = json!({ "name": "sluicegate-route", "typed_config": { "@type": rbac } });

    let manifests = rendered("kubernetes-deployment.yaml", &[sets, rules]);
    let mut envoy = chart::file(&manifests, "sluicegate-envoy", "envoy.yaml");
    let filters = &at(&mut envoy, MANAGER)["http_filters"];
    assert_eq!(
        (&filters[0], &filters[1]["name"]),
        (&rbac, &json!("sluicegate"))
    );

    let manifests = rendered("istio.yaml", &[sets, rules]);
    let patch = chart::manifest(&manifests, "EnvoyFilter", "sluicegate-route");
    let patches = patch["spec"]["configPatches"].as_array().unwrap();
    let adds = |one: &Value| one["patch"]["value"] == rbac;
    assert!(patches.iter().all(adds), "{patch}");
    let without = rendered("istio.yaml", &[]);
    assert!(without.iter().all(|one| one["kind"] != "EnvoyFilter"));

    let listeners = "envoyGateway.failReload: [{ gateway: eg, listener: http }]";
    for (changes, count) in [(&[listeners][..], 1), (&[listeners, sets, rules][..], 2)] {
        let manifests = rendered("envoy-gateway.yaml", changes);
        let policy = chart::manifest(&manifests, "EnvoyPatchPolicy", "sluicegate-eg-http");
        let patches = policy["spec"]["jsonPatches"].as_array().unwrap();
        assert_eq!(patches.len(), count, "{policy}");
        assert_eq!(patches[0]["operation"]["value"], "FAIL_RELOAD");
        assert_eq!(patches[count - 1]["operation"]["value"] == rbac, count == 2);
    }
}

/// A mapping's names are sorted; the order of limits in the short form matters, and lines in messages.
#[test]
fn a_policy_given_as_a_text_keeps_its_lines() {
    let policy = scenes::values("istio.yaml")["policy"].take();
    let text = format!("# mine\nlimits: {}\n", policy["limits"]);
    let values = scenes::changed("istio.yaml", &[&format!("policy: {}", json!(text))]);
    let manifests = chart::render(NAMESPACE, &values).unwrap();
    let deployed = &chart::manifest(&manifests, "ConfigMap", "sluicegate-policy")["data"];
    assert_eq!(deployed["policy.yaml"], text.clone() + "store: memory\n");
    assert!(hook(&values, &[]).unwrap().contains("0 errors"));
    let mistake = json!(text.replace("5/2s", "5/2moons"));
    let values = scenes::changed("istio.yaml", &[&format!("policy: {mistake}")]);
    let said = hook(&values, &[]).unwrap_err();
    assert!(said.contains("policy.yaml:2: error"), "{said}");
}

/// The policy names the file, so both are in one folder, where the sidecar runs and where the hook checks.
#[test]
fn consumers_are_beside_the_policy() {
    // The digest of no pepper, as the values have none.
    let file = "pepper: 6f040f2d0434\nconsumers:\n  acme: [\"00112233445566778899aabbccddeeff\"]\n";
    let limit = "policy.limits.partner: { key: { header: x-api-key, consumers: consumers.yaml }, \
        tiers: { by: consumer, acme: 9/1m, default: 1/1m } }";
    let consumers = format!("consumers: {}", json!(file));
    let values = scenes::changed("istio.yaml", &[limit, &consumers]);
    assert!(hook(&values, &[]).unwrap().contains("0 errors"));
    let manifests = chart::render(NAMESPACE, &values).unwrap();
    let deployed = &chart::manifest(&manifests, "ConfigMap", "sluicegate-policy")["data"];
    assert_eq!(
        deployed["consumers.yaml"].as_str().map(str::trim),
        Some(file.trim())
    );
    let without = scenes::changed("istio.yaml", &[limit]);
    let said = hook(&without, &[]).unwrap_err();
    assert!(said.contains("consumers.yaml"), "{said}");
    let theirs = [
        "existingPolicy: mine",
        "policy: null",
        "store: {}",
        &consumers,
    ];
    let said = chart::render(NAMESPACE, &scenes::changed("istio.yaml", &theirs)).unwrap_err();
    assert!(said.contains("consumers: put it into"), "{said}");
}

#[test]
fn the_hook_finds_mistakes() {
    for file in WITH_FILTER {
        for (mistake, named) in [
            (UNKNOWN_LIMIT, "per-kye"),
            ("policy.limits.per-key.rate: 5/2moons", "2moons"),
            (
                "policy.limits.per-key.algorithms: token_bucket",
                "algorithms",
            ),
        ] {
            let said = hook(&scenes::changed(file, &[mistake]), &[]).expect_err(mistake);
            assert!(said.contains(named), "{mistake}: {said}");
        }
    }
}

#[test]
fn the_hook_reads_an_existing_policy() {
    let mut values = scenes::values("istio.yaml");
    let fields = values.as_object_mut().unwrap();
    let policy = fields.remove("policy").unwrap();
    fields.remove("store");
    values["existingPolicy"] = json!("mine");
    let good = policy.to_string();
    hook(&values, &[("mine", &good)]).unwrap();
    let said = hook(&values, &[("mine", &good.replace("5/2s", "5/2moons"))]).unwrap_err();
    assert!(said.contains("2moons"), "{said}");
}

#[test]
fn the_hook_runs_before_everything_else() {
    for file in WITH_FILTER {
        let manifests = scenes::rendered(file);
        for (kind, weight) in [("ConfigMap", Some("-1")), ("Job", None)] {
            let check = chart::manifest(&manifests, kind, "sluicegate-check");
            let annotations = &check["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/hook"], "pre-install,pre-upgrade");
            assert_eq!(annotations["helm.sh/hook-weight"].as_str(), weight);
        }
    }
    let manifests = scenes::rendered_with("istio.yaml", &["validation.enabled: false"]);
    assert!(manifests.iter().all(|manifest| manifest["kind"] != "Job"));
}

/// Only where it is asked for: the first install may come before its Redis.
#[test]
fn the_hook_checks_the_store_if_asked() {
    let containers = |file: &str, changes: &[&str]| {
        let manifests = scenes::rendered_with(file, changes);
        let job = chart::manifest(&manifests, "Job", "sluicegate-check");
        job["spec"]["template"]["spec"].clone()
    };
    let without = containers("kubernetes-deployment.yaml", &[]);
    assert_eq!(without["containers"].as_array().unwrap().len(), 1);
    let pod = containers("kubernetes-deployment.yaml", &["validation.store: true"]);
    let check = &pod["containers"][1];
    let arguments = scenes::texts(&check["args"]);
    let policy = "/etc/sluicegate/check/policy.yaml";
    assert_eq!(arguments, ["check-store", "--policy", policy]);
    // With the authority of Redis's certificate, as the sidecar has it.
    for names in [&check["volumeMounts"], &pod["volumes"]] {
        let names = names.as_array().unwrap().iter();
        let names: Vec<_> = names.map(|one| one["name"].as_str().unwrap()).collect();
        assert!(names.contains(&"redis-ca"), "{names:?}");
    }
    let pod = containers("kubernetes.yaml", &["validation.store: true"]);
    let env = &pod["containers"][1]["env"][0];
    assert_eq!(env["name"], "SLUICEGATE_STORE");
    assert_eq!(env["valueFrom"]["secretKeyRef"]["name"], "sluicegate-redis");
}

#[test]
fn the_filter_asks_the_cluster_that_the_chart_makes() {
    let changes = ["sidecar: { port: 9999 }", "fullnameOverride: limits"];
    let manifests = scenes::rendered_with("istio.yaml", &changes);
    let plugin = &chart::manifest(&manifests, "WasmPlugin", "limits")["spec"];
    let entry = &chart::manifest(&manifests, "ServiceEntry", "limits")["spec"];
    let host = entry["hosts"][0].as_str().unwrap();
    let cluster = format!("outbound|{}||{host}", entry["ports"][0]["number"]);
    assert_eq!(plugin["pluginConfig"]["sidecar"]["cluster"], cluster);

    let manifests = scenes::rendered("envoy-gateway.yaml");
    let policy = &chart::manifest(&manifests, "EnvoyExtensionPolicy", "sluicegate")["spec"];
    let proxy = &chart::manifest(&manifests, "EnvoyProxy", "sluicegate")["spec"];
    let cluster = &proxy["bootstrap"]["jsonPatches"][0]["value"];
    let asked = &policy["wasm"][0]["config"]["sidecar"];
    assert_eq!(asked["cluster"], cluster["name"]);
    assert_eq!(cluster["load_assignment"]["cluster_name"], cluster["name"]);
}

/// Istio counts a gateway's listeners as clients; `SERVER` would leave them out without a word.
#[test]
fn a_gateway_in_istio_is_a_client() {
    for (proxy, mode) in [("gateway", "CLIENT"), ("workload", "SERVER")] {
        let proxy = format!("istio.proxy: {proxy}");
        let manifests = scenes::rendered_with("istio.yaml", &[&proxy, "istio.ports: [8080]"]);
        let plugin = &chart::manifest(&manifests, "WasmPlugin", "sluicegate")["spec"];
        let matched = json!([{ "mode": mode, "ports": [{ "number": 8080 }] }]);
        assert_eq!(plugin["match"], matched);
        assert_eq!(plugin["failStrategy"], "FAIL_RELOAD");
    }
}

/// On proxies with traffic the sidecars come first.
#[test]
fn everything_but_the_filter_can_be_installed() {
    for file in WITH_FILTER {
        let disabled = "filter.enabled: false";
        let manifests = scenes::rendered_with(file, &[disabled]);
        let kinds = |manifests: &[Value]| -> Vec<String> {
            let mut kinds: Vec<_> = manifests
                .iter()
                .map(|one| one["kind"].to_string())
                .collect();
            let ours = ["\"EnvoyExtensionPolicy\"", "\"WasmPlugin\""];
            kinds.retain(|kind| !ours.contains(&kind.as_str()));
            kinds.sort();
            kinds
        };
        assert_eq!(kinds(&manifests), kinds(&scenes::rendered(file)), "{file}");
        let text = json!(manifests).to_string();
        for filter in "EnvoyExtensionPolicy WasmPlugin http.wasm sluicegate-filter".split(' ') {
            assert!(!text.contains(filter), "{file}: {filter}");
        }
        let values = scenes::changed(file, &[disabled]);
        assert!(scenes::notes(&values).contains("Nothing is limited yet"));
        // The hook reads the rules all the same.
        assert!(hook(&values, &[]).unwrap().contains("0 errors"));
        let unknown = scenes::changed(file, &[disabled, UNKNOWN_LIMIT]);
        let said = hook(&unknown, &[]).expect_err("a limit that the policy lacks");
        assert!(said.contains("per-kye"), "{said}");
        // They may come later.
        hook(&scenes::changed(file, &["filter: { enabled: false }"]), &[]).unwrap();
    }
}

/// A patch for a filter that is not there would be an error of Envoy Gateway's.
#[test]
fn without_the_filter_nothing_patches_it() {
    let reload = "envoyGateway.failReload: [{ gateway: eg, listener: http }]";
    for enabled in [true, false] {
        let enables = format!("filter.enabled: {enabled}");
        let manifests = scenes::rendered_with("envoy-gateway.yaml", &[reload, &enables]);
        let mut kinds = manifests.iter().map(|manifest| &manifest["kind"]);
        assert_eq!(kinds.any(|kind| kind == "EnvoyPatchPolicy"), enabled);
    }
}

#[test]
fn generated_what_the_chart_has_from_the_example() {
    let mut example = yaml("envoy/envoy.yaml");
    let tags = example["stats_config"]["stats_tags"].take();
    let manager = at(&mut example, MANAGER);
    let log = manager["access_log"].take();
    let removed = &manager["route_config"]["request_headers_to_remove"];
    let taken =
        json!({ "access_log": log, "request_headers_to_remove": removed, "stats_tags": tags });
    let taken = serde_json::to_string_pretty(&taken).unwrap();
    let should_be = format!("# From envoy/envoy.yaml, written by `make chart`.\n{taken}\n");
    is_up_to_date(
        "deploy/helm/sluicegate/files/envoy.yaml",
        &should_be,
        "chart",
    );
}
