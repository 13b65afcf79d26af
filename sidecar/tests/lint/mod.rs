//! `check-config` and `explain` as commands, on files of Envoy, Istio and Envoy Gateway.
//!
//! | module | for |
//! |---|---|
//! | `findings` | one finding for each mistake, with its line |
//! | `envoy_file` | findings about the settings around the filter |
//! | `as_envoy_reads` | spellings, durations, other filters and files given apart |
//! | `explain` | `sluicegate explain` |
//! | `manifests` | Kubernetes objects: several files, folders and standard input |
//! | `rule_sets` | rules in the policy, which plugins of version 2 name |

mod as_envoy_reads;
mod envoy_file;
mod explain;
mod findings;
mod manifests;
mod rule_sets;

use std::io::Write;
use std::process::Stdio;

use tempfile::TempDir;

use super::support::{has, has_all, lacks, printed, sluicegate};

const POLICY: &str = "store: redis://redis:6379
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
  granted:
    algorithm: sliding_log
    windows: [{ quota: 10, per: 1s }]
    quota_from_request: { max: 500 }
";

/// An Envoy file around these lines of a plugin configuration, which begin at line 21.
const ENVOY: &str = r#"stats_config: { stats_tags: [{ tag_name: rule, regex: '^wasmcustom\.sluicegate\.(rule=\.=(.+?);\.;)' }] }
static_resources:
  clusters: [{ name: sluicegate }]
  listeners:
    - filter_chains:
        - filters:
            - typed_config:
                common_http_protocol_options: { headers_with_underscores_action: REJECT_REQUEST }
                use_remote_address: true
                request_timeout: 30s
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

/// A plugin and two rules with valid checks, which [`pushed`] puts into a policy: no findings.
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

/// The plugin of a configuration, and a policy that has its rules as the set `gateway`.
fn pushed(configuration: &str) -> (String, String) {
    let (of_plugin, of_set): (Vec<_>, Vec<_>) = configuration.lines().partition(|line| {
        ["sidecar:", "pepper:", "version:"]
            .iter()
            .any(|field| line.starts_with(field))
    });
    let of_plugin = of_plugin.into_iter().filter(|line| *line != "version: 1");
    let of_plugin = of_plugin.collect::<Vec<_>>().join("\n");
    let plugin = format!("{of_plugin}\nversion: 2\nrule_sets: {{ default: gateway }}\n");
    let set = indented(&of_set.join("\n"), 4);
    (plugin, format!("{POLICY}rules:\n  gateway:\n{set}"))
}

/// The Envoy file with the valid plugin.
fn good() -> String {
    envoy(&pushed(GOOD).0)
}

/// Runs a command on an Envoy file and the policy with the valid rules; returns its status and all that it printed.
fn run(command: &[&str], file: &str) -> (i32, String) {
    run_with(command, Some(&pushed(GOOD).1), Some(file))
}

/// The same on the files of a configuration.
fn run_on(command: &[&str], configuration: &str) -> (i32, String) {
    let (plugin, policy) = pushed(configuration);
    run_with(command, Some(&policy), Some(&envoy(&plugin)))
}

/// The same with this policy, or without an Envoy file.
fn run_with(command: &[&str], policy: Option<&str>, file: Option<&str>) -> (i32, String) {
    let folder = TempDir::new().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let mut run = sluicegate(command);
    if let Some(file) = file {
        run.arg("--envoy").arg(write("file.yaml", file));
    }
    if let Some(policy) = policy {
        run.arg("--policy").arg(write("policy.yaml", policy));
    }
    printed(&run.output().unwrap())
}

/// What `check-config` prints of an Envoy file and the valid rules.
fn checked(file: &str) -> String {
    run(&["check-config"], file).1
}

/// Checks these documents as one stream on standard input.
fn check_stream(documents: &[&str]) -> (i32, String) {
    let mut run = sluicegate(&["check-config", "--envoy", "-"]);
    run.stdin(Stdio::piped());
    run.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut run = run.spawn().unwrap();
    let text = documents.join("\n---\n");
    let mut stdin = run.stdin.take().unwrap();
    stdin.write_all(text.as_bytes()).unwrap();
    drop(stdin);
    printed(&run.wait_with_output().unwrap())
}

#[track_caller]
fn is_without_findings((status, printed): &(i32, String)) {
    assert_eq!(*status, 0, "{printed}");
    assert!(printed.ends_with("\n0 errors, 0 warnings\n"), "{printed}");
}

#[test]
fn a_valid_configuration_has_no_findings_in_any_kind_of_file() {
    let (plugin, _) = pushed(GOOD);
    let json: serde_json::Value = serde_saphyr::from_str(&plugin).unwrap();
    let in_string = format!(
        "config:\n  name: x\n  failure_policy: FAIL_RELOAD\n  vm_config: {{}}\n  configuration:\n    \"@type\": type.googleapis.com/google.protobuf.StringValue\n    value: '{json}'\n"
    );
    for file in [good(), plugin, in_string] {
        let checked = run(&["check-config"], &file);
        is_without_findings(&checked);
        has(&checked.1, ": configuration ");
    }
}

#[test]
fn a_file_without_a_configuration_or_with_invalid_yaml_is_refused() {
    for (file, says) in [
        ("a: b", "contains no configuration"),
        ("a: [", "is not YAML"),
    ] {
        let (status, printed) = run_with(&["check-config"], None, Some(file));
        assert_eq!(status, 64);
        has(&printed, says);
    }
}

#[test]
fn the_examples_draw_no_warning() {
    let files = "check-config --policy envoy/policy.yaml --envoy envoy/envoy.yaml";
    let words: Vec<_> = files.split(' ').collect();
    let (status, printed) = printed(&sluicegate(&words).output().unwrap());
    assert_eq!(status, 0, "{printed}");
    has(&printed, "0 errors, 0 warnings");
}
