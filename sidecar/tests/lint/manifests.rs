//! Kubernetes objects: what a plugin needs may be in another object, document or file.

use tempfile::TempDir;

use super::{GOOD, check_stream, good, indented, is_without_findings, pushed};
use crate::support::{has, has_all, printed, sluicegate};

const SERVICE_ENTRY: &str = "kind: ServiceEntry
metadata: { name: sluicegate, namespace: shop }
spec:
  hosts: [sluicegate.internal]
  ports: [{ number: 9180, name: http }]
";

/// Adds the sidecar's cluster to Envoy Gateway's proxies.
const ENVOY_PROXY: &str = "kind: EnvoyProxy
metadata: { name: sluicegate }
spec:
  bootstrap:
    jsonPatches:
      - { op: add, path: /static_resources/clusters/-, value: { name: sluicegate, connect_timeout: 1s } }
";

/// Sets the failure policy that Envoy Gateway does not set.
const RELOAD: &str = "kind: EnvoyPatchPolicy
spec: { jsonPatches: [{ operation: { op: add, path: failure_policy, value: FAIL_RELOAD } }] }";

const CLUSTER: &str = "cluster: \"outbound|9180||sluicegate.internal\"";

fn wasm_plugin() -> String {
    let plugin = pushed(GOOD).0.replace("cluster: sluicegate", CLUSTER);
    format!(
        "kind: WasmPlugin\nmetadata: {{ name: sluicegate, namespace: shop }}\nspec:\n  failStrategy: FAIL_RELOAD\n  pluginConfig:\n{}",
        indented(&plugin, 4)
    )
}

fn extension_policy() -> String {
    format!(
        "kind: EnvoyExtensionPolicy\nmetadata: {{ name: sluicegate, namespace: shop }}\nspec:\n  wasm:\n    - name: sluicegate\n      code: {{ type: Image }}\n      config:\n{}",
        indented(&pushed(GOOD).0, 8)
    )
}

fn config_map(namespace: &str, policy: &str) -> String {
    format!(
        "kind: ConfigMap\nmetadata: {{ name: sluicegate-policy, namespace: {namespace} }}\ndata:\n  policy.yaml: |\n{}",
        indented(policy, 4)
    )
}

#[test]
fn complete_manifests_have_no_findings() {
    let (istio, gateway) = (wasm_plugin(), extension_policy());
    let policy = config_map("shop", &pushed(GOOD).1);
    for documents in [
        [SERVICE_ENTRY, &istio, &policy].as_slice(),
        &[&policy, &istio, SERVICE_ENTRY],
        &[ENVOY_PROXY, RELOAD, &gateway, &policy],
    ] {
        let checked = check_stream(documents);
        is_without_findings(&checked);
        let printed = checked.1;
        let named = printed.contains("Plugin shop/sluicegate: configuration ")
            || printed.contains("Policy shop/sluicegate: configuration ");
        assert!(named, "{printed}");
    }
}

#[test]
fn a_cluster_that_no_object_provides_is_found() {
    let istio = wasm_plugin();
    let gateway = extension_policy();
    let other_port = SERVICE_ENTRY.replace("9180", "9181");
    let other_host = SERVICE_ENTRY.replace("sluicegate.internal", "other.internal");
    let private =
        SERVICE_ENTRY.replace("namespace: shop", "namespace: other") + "  exportTo: [\".\"]\n";
    let plain = istio.replace(CLUSTER, "cluster: sluicegate");
    let other_cluster = ENVOY_PROXY.replace("name: sluicegate, connect", "name: sidecar, connect");
    let none = "provides a cluster `outbound|9180||sluicegate.internal`";
    let private_only = "exported to its own namespace `other` only";
    for (documents, severity, says) in [
        ([istio.as_str()].as_slice(), "warning", none),
        (
            &[&istio, &other_host],
            "error",
            "with host and port of the sidecar's ServiceEntry",
        ),
        (
            &[&istio, &other_port],
            "error",
            "did you mean `outbound|9181||sluicegate.internal`?",
        ),
        (&[&istio, &private], "error", private_only),
        (
            &[&plain, SERVICE_ENTRY],
            "error",
            "write `outbound|PORT||HOST`",
        ),
        (
            &[&gateway, RELOAD, &other_cluster],
            "error",
            "provides a cluster `sluicegate`",
        ),
        (&[&gateway], "warning", "provides a cluster `sluicegate`"),
    ] {
        let (status, printed) = check_stream(documents);
        let severe = format!(": {severity}: ");
        let parts = [&severe, "/sluicegate: `sidecar.cluster`: ", says];
        let has_all = |line: &str| parts.iter().all(|part| line.contains(part));
        assert!(printed.lines().any(has_all), "{says}: {printed}");
        let expected = if severity == "error" { 64 } else { 0 };
        assert_eq!(status, expected, "{printed}");
    }
}

#[test]
fn clusters_of_services_and_of_patches_in_strings_are_known() {
    let service = "kind: Service\nmetadata: { name: limiter, namespace: shop }\nspec: { ports: [{ port: 80 }] }\n";
    let cluster = "cluster: \"outbound|80||limiter.shop.svc.cluster.local\"";
    let istio = wasm_plugin().replace(CLUSTER, cluster);
    let merge = "kind: EnvoyProxy\nspec:\n  bootstrap:\n    type: Merge\n    value: |\n      static_resources:\n        clusters:\n          - { name: sluicegate, lb_policy: RANDOM }\n";
    let filter = "kind: EnvoyFilter\nspec: { configPatches: [{ applyTo: CLUSTER, patch: { operation: ADD, value: { name: sluicegate, connect_timeout: 1s } } }] }";
    let patched = wasm_plugin().replace(CLUSTER, "cluster: sluicegate");
    for documents in [
        [service, &istio].as_slice(),
        &[merge, RELOAD, &extension_policy()],
        &[filter, &patched],
    ] {
        is_without_findings(&check_stream(documents));
    }
}

#[test]
fn a_plugin_that_stays_dead_or_fails_open_is_found() {
    let gateway = extension_policy();
    let open = gateway.replace("      code:", "      failOpen: true\n      code:");
    let istio = wasm_plugin();
    let unset = istio.replace("  failStrategy: FAIL_RELOAD\n", "");
    let fail_open = istio.replace("FAIL_RELOAD", "FAIL_OPEN");
    let (dead, unmetered) = (
        "if the filter's VM fails once",
        "all requests pass unmetered",
    );
    for (documents, field, says) in [
        ([ENVOY_PROXY, &gateway].as_slice(), "failure_policy", dead),
        (&[ENVOY_PROXY, RELOAD, &open], "failOpen", unmetered),
        (&[SERVICE_ENTRY, &unset], "failStrategy", dead),
        (&[SERVICE_ENTRY, &fail_open], "failStrategy", unmetered),
    ] {
        let (status, printed) = check_stream(documents);
        has(&printed, &format!("/sluicegate: `{field}`: {says}"));
        assert!(printed.ends_with("\n0 errors, 1 warning\n"), "{printed}");
        assert_eq!(status, 0);
    }
}

#[test]
fn a_policy_in_a_config_map_is_validated_and_its_limits_are_compared() {
    let istio = wasm_plugin();
    let policy = pushed(GOOD).1;
    let wrong = policy.replacen("quota: 10,", "quota: 0,", 1);
    let (status, printed) = check_stream(&[SERVICE_ENTRY, &istio, &config_map("shop", &wrong)]);
    assert_eq!(status, 64);
    let says = "error: ConfigMap shop/sluicegate-policy: `data.policy.yaml`: limit `per-key`: window 1: `quota` is 0";
    has(&printed, says);
    let text = [SERVICE_ENTRY, &istio, &config_map("shop", &wrong)].join("\n---\n");
    let line = text.lines().position(|line| line.contains("quota: 0,"));
    let line = 1 + line.unwrap();
    has(&printed, &format!("standard input:{line}: error"));

    let lacking = policy.replacen("everyone:", "somebody:", 1);
    let (status, printed) = check_stream(&[SERVICE_ENTRY, &istio, &config_map("shop", &lacking)]);
    assert_eq!(status, 64);
    has(&printed, "no limit `everyone`");

    // Of two policies, the one of the plugin's namespace counts.
    let with_two = |maps: [String; 2]| check_stream(&[SERVICE_ENTRY, &istio, &maps[0], &maps[1]]);
    let renamed = policy.replacen("gateway:", "edge:", 1);
    let (status, printed) = with_two([config_map("shop", &policy), config_map("other", &renamed)]);
    assert_eq!(status, 0, "{printed}");
    let (_, printed) = with_two(["one", "other"].map(|namespace| config_map(namespace, &policy)));
    has(&printed, "several policies might be");
}

#[test]
fn an_envoy_file_in_a_config_map_or_a_list_has_findings_at_its_lines() {
    let file = good().replace("cluster: sluicegate }", "clutser: sluicegate }");
    let map = format!(
        "kind: List\nitems:\n  - kind: ConfigMap\n    metadata: {{ name: envoy }}\n    data:\n      envoy.yaml: |\n{}",
        indented(&file, 8)
    );
    let (status, printed) = check_stream(&[&map]);
    assert_eq!(status, 64);
    let line = 1 + map
        .lines()
        .position(|line| line.contains("clutser"))
        .unwrap();
    let says = format!("standard input:{line}: error: ConfigMap envoy: `sidecar.clutser`: ");
    has(&printed, &says);
}

#[test]
fn a_folder_is_searched_and_its_files_are_checked_together() {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    std::fs::create_dir(folder.path().join("network")).unwrap();
    write("plugin.yaml", &wasm_plugin());
    write("network/entries.yml", SERVICE_ENTRY);
    write("readme.md", "{{ no YAML }}");
    let run = || {
        let mut command = sluicegate(&["check-config", "--envoy"]);
        printed(&command.arg(folder.path()).output().unwrap())
    };
    let checked = run();
    is_without_findings(&checked);
    let named = "plugin.yaml:6: WasmPlugin shop/sluicegate: configuration ";
    has(&checked.1, named);
    write("template.yaml", "name: {{ .Values.name }}\n  a: [");
    let (status, printed) = run();
    assert_eq!(status, 64);
    has_all(&printed, "template.yaml is not YAML, helm template");
}

#[test]
fn a_policy_in_a_config_map_has_its_consumers_beside_it() {
    let policy = "limits:\n  l: { key: { header: k, consumers: consumers.yaml }, rate: 5/s }\n";
    let of_policy = config_map("shop", policy);
    let consumers = "  consumers.yaml: |\n    pepper: \"0123456789ab\"\n    consumers: {}\n";
    let (status, printed) = check_stream(&[&format!("{of_policy}{consumers}")]);
    assert_eq!(status, 0, "{printed}");
    let (status, printed) = check_stream(&[&of_policy]);
    assert_eq!(status, 64, "{printed}");
    has(&printed, ":6: error: ");
    has(
        &printed,
        "`consumers.yaml`: there is no such file beside the policy",
    );
}
