//! The filter's configuration and the policy, as rendered: `check-config` accepts them, and the hook that runs it finds
//! mistakes before a proxy does.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::process::repository;
use sluicegate_tests_full::chart;

use super::scenes::{self, NAMESPACE, WITH_FILTER};

/// Runs the command of the hook's Job on the files that its pod mounts; `Err` is what it says of a mistake.
fn hook(values: &Value, more: &[(&str, &str)]) -> Result<String, String> {
    let manifests = chart::render(NAMESPACE, values)?;
    let job = chart::manifest(&manifests, "Job", "sluicegate-check");
    let folder = tempfile::tempdir().unwrap();
    let pod = &job["spec"]["template"]["spec"];
    let [container] = pod["containers"].as_array().unwrap().as_slice() else {
        panic!("one container")
    };
    for mount in container["volumeMounts"].as_array().unwrap() {
        let volumes = pod["volumes"].as_array().unwrap();
        let volume = volumes
            .iter()
            .find(|volume| volume["name"] == mount["name"])
            .expect("a volume");
        let name = volume["configMap"]["name"].as_str().unwrap();
        let inside = folder
            .path()
            .join(mount["mountPath"].as_str().unwrap().trim_start_matches('/'));
        std::fs::create_dir_all(&inside).unwrap();
        match more.iter().find(|(given, _)| *given == name) {
            Some((_, policy)) => std::fs::write(inside.join("policy.yaml"), policy).unwrap(),
            None => write(
                &chart::manifest(&manifests, "ConfigMap", name)["data"],
                &inside,
            ),
        }
    }
    let arguments = container["args"]
        .as_array()
        .unwrap()
        .iter()
        .map(|argument| {
            let argument = argument.as_str().unwrap();
            argument.replace("/etc/", &format!("{}/etc/", folder.path().display()))
        });
    let mut command = Command::new(repository("target/debug/sluicegate"));
    let output = chart::run(command.args(arguments));
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if output.status.success() {
        Ok(said.into_owned())
    } else {
        Err(said.into_owned())
    }
}

fn write(data: &Value, folder: &Path) {
    for (name, text) in data.as_object().expect("files") {
        std::fs::write(folder.join(name), text.as_str().unwrap()).unwrap();
    }
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
fn the_hook_finds_mistakes() {
    for file in WITH_FILTER {
        let mut unknown_limit = scenes::values(file);
        unknown_limit["filter"]["config"]["rules"][0]["checks"][0]["limit"] = json!("per-kye");
        let said = hook(&unknown_limit, &[]).expect_err("a limit that the policy lacks");
        assert!(said.contains("per-kye"), "{said}");

        let mut window = scenes::values(file);
        window["policy"]["limits"]["per-key"]["windows"][0]["per"] = json!("2 moons");
        let said = hook(&window, &[]).expect_err("a window that is no time");
        assert!(said.contains("2 moons"), "{said}");

        let mut misspelt = scenes::values(file);
        misspelt["policy"]["limits"]["per-key"]["algorithms"] = json!("token_bucket");
        let said = hook(&misspelt, &[]).expect_err("a misspelt field");
        assert!(said.contains("algorithms"), "{said}");
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
    let said = hook(&values, &[("mine", &good.replace("per-key", "other"))]).unwrap_err();
    assert!(said.contains("per-key"), "{said}");
}

#[test]
fn the_hook_runs_before_everything_else() {
    for file in WITH_FILTER {
        let manifests = scenes::rendered(file);
        for (kind, weight) in [("ConfigMap", Some("-1")), ("Job", None)] {
            let annotations =
                &chart::manifest(&manifests, kind, "sluicegate-check")["metadata"]["annotations"];
            assert_eq!(annotations["helm.sh/hook"], "pre-install,pre-upgrade");
            assert_eq!(annotations["helm.sh/hook-weight"].as_str(), weight);
        }
    }
    let mut without = scenes::values("istio.yaml");
    without["validation"]["enabled"] = json!(false);
    let manifests = chart::render(NAMESPACE, &without).unwrap();
    assert!(manifests.iter().all(|manifest| manifest["kind"] != "Job"));
}

#[test]
fn the_filter_asks_the_cluster_that_the_chart_makes() {
    let mut values = scenes::values("istio.yaml");
    values["sidecar"]["port"] = json!(9999);
    values["fullnameOverride"] = json!("limits");
    let manifests = chart::render(NAMESPACE, &values).unwrap();
    let plugin = &chart::manifest(&manifests, "WasmPlugin", "limits")["spec"];
    let entry = &chart::manifest(&manifests, "ServiceEntry", "limits")["spec"];
    let cluster = format!(
        "outbound|{}||{}",
        entry["ports"][0]["number"],
        entry["hosts"][0].as_str().unwrap()
    );
    assert_eq!(plugin["pluginConfig"]["sidecar"]["cluster"], cluster);

    let manifests = scenes::rendered("envoy-gateway.yaml");
    let policy = &chart::manifest(&manifests, "EnvoyExtensionPolicy", "sluicegate")["spec"];
    let proxy = &chart::manifest(&manifests, "EnvoyProxy", "sluicegate")["spec"];
    let cluster = &proxy["bootstrap"]["jsonPatches"][0]["value"];
    assert_eq!(
        policy["wasm"][0]["config"]["sidecar"]["cluster"],
        cluster["name"]
    );
    assert_eq!(cluster["load_assignment"]["cluster_name"], cluster["name"]);
}

/// Istio counts a gateway's listeners as clients; `SERVER` would leave them out without a word.
#[test]
fn a_gateway_in_istio_is_a_client() {
    for (proxy, mode) in [("gateway", "CLIENT"), ("workload", "SERVER")] {
        let mut values = scenes::values("istio.yaml");
        values["istio"]["proxy"] = json!(proxy);
        values["istio"]["ports"] = json!([8080]);
        let manifests = chart::render(NAMESPACE, &values).unwrap();
        let plugin = &chart::manifest(&manifests, "WasmPlugin", "sluicegate")["spec"];
        assert_eq!(
            plugin["match"],
            json!([{ "mode": mode, "ports": [{ "number": 8080 }] }])
        );
        assert_eq!(plugin["failStrategy"], "FAIL_RELOAD");
    }
}

/// On proxies with traffic the sidecars come first.
#[test]
fn everything_but_the_filter_can_be_installed() {
    for file in WITH_FILTER {
        let before = scenes::rendered(file);
        let mut values = scenes::values(file);
        values["filter"]["enabled"] = json!(false);
        let manifests = chart::render(NAMESPACE, &values).unwrap();
        let kinds = |manifests: &[Value]| -> Vec<String> {
            let kinds = manifests
                .iter()
                .map(|manifest| manifest["kind"].to_string());
            let mut kinds: Vec<_> = kinds
                .filter(|kind| {
                    !kind.contains("EnvoyExtensionPolicy") && !kind.contains("WasmPlugin")
                })
                .collect();
            kinds.sort();
            kinds
        };
        assert_eq!(kinds(&manifests), kinds(&before), "{file}");
        let text = json!(manifests).to_string();
        for filter in [
            "EnvoyExtensionPolicy",
            "WasmPlugin",
            "http.wasm",
            "sluicegate-filter",
        ] {
            assert!(!text.contains(filter), "{file}: {filter}");
        }
        assert!(scenes::notes(&values).contains("Nothing is limited yet"));
        // The hook reads the rules all the same.
        assert!(hook(&values, &[]).unwrap().contains("0 errors"));
        values["filter"]["config"]["rules"][0]["checks"][0]["limit"] = json!("per-kye");
        let said = hook(&values, &[]).expect_err("a limit that the policy lacks");
        assert!(said.contains("per-kye"), "{said}");
        // They may come later.
        values["filter"] = json!({ "enabled": false });
        hook(&values, &[]).unwrap();
    }
}

/// A patch for a filter that is not there would be an error of Envoy Gateway's.
#[test]
fn without_the_filter_nothing_patches_it() {
    let mut values = scenes::values("envoy-gateway.yaml");
    values["envoyGateway"]["failReload"] = json!([{ "gateway": "eg", "listener": "http" }]);
    for enabled in [true, false] {
        values["filter"]["enabled"] = json!(enabled);
        let manifests = chart::render(NAMESPACE, &values).unwrap();
        let is_patched = manifests
            .iter()
            .any(|manifest| manifest["kind"] == "EnvoyPatchPolicy");
        assert_eq!(is_patched, enabled);
    }
}

#[test]
fn generated_what_the_chart_has_from_the_example() {
    let text = std::fs::read_to_string(repository("envoy/envoy.yaml")).unwrap();
    let example: Value = serde_saphyr::from_str(&text).unwrap();
    let routes =
        "/static_resources/listeners/0/filter_chains/0/filters/0/typed_config/route_config";
    let taken = json!({
        "request_headers_to_remove": example.pointer(routes).unwrap()["request_headers_to_remove"],
        "stats_tags": example["stats_config"]["stats_tags"],
    });
    let file = "deploy/helm/sluicegate/files/envoy.yaml";
    let should_be = "# From envoy/envoy.yaml, written by `make chart`.\n".to_owned()
        + &serde_json::to_string_pretty(&taken).unwrap()
        + "\n";
    super::values::is_up_to_date(file, &should_be);
}
