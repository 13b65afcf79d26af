//! `check-config` and `explain` as commands, on files of Envoy, Istio and Envoy Gateway.
//!
//! | module | for |
//! |---|---|
//! | `findings` | one finding for each mistake, with its line |
//! | `envoy_file` | findings about the settings around the filter |
//! | `coverage` | rules and limits that are not redundant |
//! | `explain` | `sluicegate explain` |
//! | `manifests` | Kubernetes objects: several files, folders and standard input |
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

mod coverage;
mod envoy_file;
mod explain;
mod findings;
mod manifests;

use std::process::{Command, Output};

use tempfile::TempDir;

const POLICY: &str = "
limits:
  per-key:
    algorithm: sliding_log
    windows: [{ quota: 10, per: 1s }, { quota: 100, per: 1m }]
  loose:
    algorithm: sliding_log
    windows: [{ quota: 1000, per: 1m }]
  everyone:
    algorithm: fixed_window
    windows: [{ quota: 5000, per: 1s }]
  aligned:
    algorithm: fixed_window
    windows: [{ quota: 100, per: 1m }]
  granted:
    algorithm: sliding_log
    windows: [{ quota: 10, per: 1s }]
    quota_from_request: { max: 500 }
  nearly:
    algorithm: sliding_log
    windows: [{ quota: 150, per: 1m }]
";

/// An Envoy file around these lines of a plugin configuration, which begin at line 20.
const ENVOY: &str = r#"static_resources:
  clusters: [{ name: sluicegate }]
  listeners:
    - name: ingress
      filter_chains:
        - filters:
            - typed_config:
                common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }
                use_remote_address: true
                http_filters:
                  - name: sluicegate
                    typed_config:
                      config:
                        name: sluicegate
                        failure_policy: FAIL_RELOAD
                        vm_config: { runtime: envoy.wasm.runtime.v8 }
                        configuration:
                          "@type": type.googleapis.com/google.protobuf.Struct
                          value:
"#;

/// Two rules with valid checks: no findings.
const GOOD: &str = r#"sidecar: { cluster: sluicegate }
rules:
  - name: search
    match: { path_prefix: /search }
    checks:
      - limit: per-key
        key: [{ header: x-api-key }]
        cost: 5
        when_missing: deny
      - limit: everyone
        key: [{ constant: everyone }]
    when_unavailable: deny
  - name: all
    checks:
      - limit: per-key
        key: [{ address: {} }]
    when_unavailable: allow
pepper: a-long-random-text
"#;

fn indented(text: &str, by: usize) -> String {
    let indent = |line: &str| format!("{}{line}\n", " ".repeat(by));
    text.lines().map(indent).collect()
}

fn envoy(plugin: &str) -> String {
    format!("{ENVOY}{}", indented(plugin, 28))
}

/// Runs a command on an Envoy file, with or without the policy; returns its output and all that it printed.
fn run(command: &[&str], policy: bool, file: &str) -> (Output, String) {
    let folder = TempDir::new().unwrap();
    let (policy_file, envoy_file) = (
        folder.path().join("policy.yaml"),
        folder.path().join("file.yaml"),
    );
    std::fs::write(&policy_file, POLICY).unwrap();
    std::fs::write(&envoy_file, file).unwrap();
    let mut run = Command::new(env!("CARGO_BIN_EXE_sluicegate"));
    run.args(command).arg("--envoy").arg(envoy_file);
    if policy {
        run.arg("--policy").arg(policy_file);
    }
    let output = run.output().unwrap();
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, printed)
}

#[test]
fn a_valid_configuration_has_no_findings_in_any_kind_of_file() {
    let json: serde_json::Value = serde_saphyr::from_str(GOOD).unwrap();
    let files = [
        envoy(GOOD),
        GOOD.to_owned(),
        format!(
            "{}---\nkind: WasmPlugin\nmetadata:\n  name: sluicegate\nspec:\n  failStrategy: FAIL_RELOAD\n  pluginConfig:\n{}",
            manifests::SERVICE_ENTRY,
            indented(
                &GOOD.replace(
                    "cluster: sluicegate",
                    r#"cluster: "outbound|9180||sluicegate.internal""#
                ),
                4
            )
        ),
        format!(
            "{}\n---\n{}---\nkind: EnvoyExtensionPolicy\nspec:\n  wasm:\n    - name: sluicegate\n      code: {{ type: HTTP }}\n      config:\n{}",
            manifests::RELOAD,
            manifests::ENVOY_PROXY,
            indented(GOOD, 8)
        ),
        format!(
            "config:\n  name: x\n  failure_policy: FAIL_RELOAD\n  vm_config: {{}}\n  configuration:\n    \"@type\": type.googleapis.com/google.protobuf.StringValue\n    value: '{json}'\n"
        ),
    ];
    for file in files {
        let (output, printed) = run(&["check-config"], true, &file);
        assert_eq!(output.status.code(), Some(0), "{printed}\n{file}");
        let (fingerprint, counts) = printed.split_once('\n').unwrap();
        assert!(fingerprint.contains("configuration "), "{printed}");
        assert_eq!(counts, "0 errors, 0 warnings\n", "{file}");
    }
}

#[test]
fn a_file_without_a_configuration_or_with_invalid_yaml_is_refused() {
    for (file, says) in [
        ("a: b", "contains no configuration"),
        ("a: [", "is not YAML"),
    ] {
        let (output, printed) = run(&["check-config"], false, file);
        assert_eq!(output.status.code(), Some(64));
        assert!(printed.contains(says), "{printed}");
    }
}

#[test]
fn the_examples_have_no_errors() {
    let repository = std::path::PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let output = Command::new(env!("CARGO_BIN_EXE_sluicegate"))
        .arg("check-config")
        .arg("--policy")
        .arg(repository.join("envoy/policy.yaml"))
        .arg("--envoy")
        .arg(repository.join("envoy/envoy.yaml"))
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}");
    assert!(printed.contains("0 errors"), "{printed}");
}
