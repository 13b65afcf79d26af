//! `check-config` and `explain`, as they are run: on Envoy's, Istio's and Envoy Gateway's files, with the line of each
//! finding.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test is meant to panic when it fails"
)]

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
  nearly:
    algorithm: sliding_log
    windows: [{ quota: 150, per: 1m }]
";

/// An Envoy file around these lines of a plugin configuration, which begin at line 20.
const ENVOY: &str = r#"static_resources:
  clusters:
    - name: sluicegate
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
                        vm_config: { runtime: envoy.wasm.runtime.v8 }
                        configuration:
                          "@type": type.googleapis.com/google.protobuf.Struct
                          value:
"#;

/// Two rules of two checks: nothing is wrong with them.
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

/// Runs a command on a policy and a file.
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
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    (output, said)
}

#[test]
fn a_good_configuration_has_no_findings_in_any_kind_of_file() {
    let json: serde_json::Value = serde_saphyr::from_str(GOOD).unwrap();
    let files = [
        envoy(GOOD),
        GOOD.to_owned(),
        format!(
            "apiVersion: v1\nkind: Service\n---\nkind: WasmPlugin\nmetadata:\n  name: sluicegate\nspec:\n  pluginConfig:\n{}",
            indented(GOOD, 4)
        ),
        format!(
            "kind: EnvoyExtensionPolicy\nspec:\n  wasm:\n    - name: sluicegate\n      code: {{ type: HTTP }}\n      config:\n{}",
            indented(GOOD, 8)
        ),
        format!(
            "config:\n  name: x\n  vm_config: {{}}\n  configuration:\n    \"@type\": type.googleapis.com/google.protobuf.StringValue\n    value: '{json}'\n"
        ),
    ];
    for file in files {
        let (output, said) = run(&["check-config"], true, &file);
        assert_eq!(output.status.code(), Some(0), "{said}\n{file}");
        assert_eq!(said, "0 errors, 0 warnings\n", "{file}");
    }
}

/// A change to `GOOD`, the line of the finding in an Envoy file, its severity and what it says.
type Case = (
    &'static str,
    &'static str,
    usize,
    &'static str,
    &'static str,
);

const CASES: [Case; 22] = [
    (
        "limit: everyone",
        "limit:\n          evryone",
        29,
        "error",
        "no limit `evryone`",
    ),
    (
        "limit: everyone",
        "limit: evryone",
        29,
        "error",
        "did you mean `everyone`",
    ),
    ("cost: 5", "cost: 50", 27, "error", "never admitted"),
    (
        "cost: 5",
        "cost: { table: [{ template: /search, cost: 50 }] }",
        27,
        "error",
        "never admitted",
    ),
    (
        "cost: 5",
        "cost: { header: x-cost, max: 50, trusted: true }",
        27,
        "warning",
        "never admitted",
    ),
    ("cost: 5", "cots: 5", 27, "error", "did you mean `cost`"),
    ("cost: 5", "cost: 0", 27, "error", "between 1"),
    (
        "cluster: sluicegate",
        "cluster: elsewhere",
        20,
        "warning",
        "no cluster `elsewhere`",
    ),
    (
        "limit: per-key\n        key: [{ address: {} }]",
        "limit: per-key\n        key: [{ header: x-api-key }]",
        35,
        "warning",
        "a client can choose every part",
    ),
    (
        "{ header: x-api-key }",
        "{ header: X-Forwarded-For }",
        26,
        "error",
        "trusted_hops",
    ),
    (
        "{ header: x-api-key }",
        "{ attribute: [request, headers, x-forwarded-for] }",
        26,
        "error",
        "trusted_hops",
    ),
    (
        "limit: per-key\n        key: [{ header",
        "limit: { by: { header: x-plan }, map: { default: per-key } }\n        key: [{ header",
        25,
        "warning",
        "choose its own tier",
    ),
    (
        "limit: per-key\n        key: [{ header",
        "limit: { by: { header: x-plan, trusted: true }, map: { gold: gold, default: per-key } }\n        key: [{ header",
        25,
        "error",
        "no limit `gold`",
    ),
    (
        "    match: { path_prefix: /search }",
        "    stop: true",
        32,
        "warning",
        "rule `all` is never reached",
    ),
    (
        "limit: everyone\n        key: [{ constant: everyone }]",
        "limit: loose\n        key: [{ header: x-api-key }, { address: {} }]",
        29,
        "warning",
        "limit `loose` can never deny",
    ),
    (
        "limit: everyone\n        key: [{ constant: everyone }]",
        "limit: loose\n        key: [{ address: {} }, { path: true }]",
        29,
        "warning",
        "limit `per-key` of rule `all` is always tighter",
    ),
    ("name: all", "name: search", 32, "error", "another rule"),
    (
        "path_prefix: /search",
        "path_prefix: search",
        23,
        "error",
        "begin with `/`",
    ),
    // F7: what is left out must not mean unmetered without somebody's word.
    (
        "        when_missing: deny\n",
        "",
        26,
        "warning",
        "say `when_missing: deny`",
    ),
    (
        "key: [{ address: {} }]",
        "key: [{ address: { trusted_hops: 2 } }]",
        35,
        "warning",
        "say `when_missing: deny`",
    ),
    // F15
    (
        "pepper: a-long-random-text",
        "version: 1",
        26,
        "warning",
        "without a `pepper`",
    ),
    // F5
    (
        "checks:\n      - limit: per-key\n        key: [{ address: {} }]",
        "checks: &eight\n      [&c { limit: loose, key: [{ constant: c }] }, *c, *c, *c, *c, *c, *c, *c]\n    \
         when_unavailable: allow\n  - { name: b, when_unavailable: allow, checks: *eight }\n  \
         - { name: c, when_unavailable: allow, checks: *eight }\n  \
         - { name: d, when_unavailable: allow, checks: *eight }\n  \
         - name: e\n    checks: *eight",
        21,
        "error",
        "one request has 42 checks",
    ),
];

#[test]
fn each_finding_has_its_file_line_severity_and_remedy() {
    for (from, to, line, severity, says) in CASES {
        assert!(GOOD.contains(from), "{from}");
        let (output, said) = run(&["check-config"], true, &envoy(&GOOD.replacen(from, to, 1)));
        let at = format!("file.yaml:{line}: {severity}: ");
        let found = said
            .lines()
            .any(|one| one.contains(&at) && one.contains(says) && one.contains("; "));
        assert!(found, "{from} -> {to}: no {at:?} with {says:?} in\n{said}");
        let status = if severity == "error" { 64 } else { 0 };
        assert_eq!(output.status.code(), Some(status), "{said}");
    }
}

#[test]
fn an_address_that_envoy_takes_from_the_client_is_found() {
    let file = envoy(GOOD).replace("use_remote_address: true", "codec_type: AUTO");
    let (_, said) = run(&["check-config"], false, &file);
    assert!(
        said.contains("file.yaml:35: warning") && said.contains("use_remote_address"),
        "{said}"
    );
}

/// A good file with a change around the filter, and what is said of it.
fn around(from: &str, to: &str, plugin: &str) -> String {
    let file = envoy(plugin);
    assert!(file.contains(from), "{from}");
    run(&["check-config"], false, &file.replacen(from, to, 1)).1
}

#[test]
fn f20_headers_with_underscores_that_get_past_the_connection_manager_are_found_once() {
    let option = "headers_with_underscores_action: REJECT_REQUEST";
    let two = GOOD.replace(
        "{ constant: everyone }",
        "{ header: X-Other, trusted: true }, { address: {} }",
    );
    for (action, count) in [("ALLOW", 1), ("DROP_HEADER", 0), ("REJECT_REQUEST", 0)] {
        let said = around(
            option,
            &format!("headers_with_underscores_action: {action}"),
            &two,
        );
        assert_eq!(
            said.matches("headers_with_underscores_action").count(),
            count,
            "{said}"
        );
        assert_eq!(said.matches("`x_api_key`").count(), 2 * count, "{said}");
    }
    let said = around(
        option,
        "idle_timeout: 1s",
        &GOOD.replace("header: x-api-key", "header: key"),
    );
    assert!(!said.contains("underscores"), "{said}");
    let (_, said) = run(&["check-config"], false, GOOD);
    assert!(
        !said.contains("underscores"),
        "no connection manager is seen: {said}"
    );
}

#[test]
fn f20_a_token_that_is_verified_behind_the_filter_is_found() {
    let plugin = GOOD.replace(
        "{ header: x-api-key }",
        "{ jwt: { payload: p, claim: sub } }",
    );
    let jwt = "- name: envoy.filters.http.jwt_authn\n                  ";
    let filters = "http_filters:\n                  ";
    let behind = format!("{}                  {jwt}\n", envoy(&plugin));
    let (_, said) = run(&["check-config"], false, &behind);
    assert!(
        said.contains("put `jwt_authn` before this filter"),
        "{said}"
    );
    assert!(
        said.contains("file.yaml:26: warning: `rules[0].checks[0].key[0].jwt`"),
        "{said}"
    );
    let before = behind.replacen(filters, &format!("{filters}{jwt}"), 1);
    for fine in [before, envoy(&plugin)] {
        let (_, said) = run(&["check-config"], false, &fine);
        assert!(!said.contains("jwt_authn"), "{said}");
    }
    let (_, said) = run(
        &["check-config"],
        false,
        &behind.replace("{ jwt: { payload: p, claim: sub } }", "{ header: key }"),
    );
    assert!(!said.contains("jwt_authn"), "{said}");
}

#[test]
fn f14_the_flag_that_makes_envoy_buffer_bodies_is_found() {
    let name = "                        name: sluicegate\n";
    let flag = format!("{name}                        allow_on_headers_stop_iteration: true\n");
    let said = around(name, &flag, GOOD);
    assert!(said.contains("this filter does not need it"), "{said}");
}

#[test]
fn looser_limits_of_other_subjects_or_of_other_requests_are_not_called_useless() {
    for (from, to) in [
        // Another subject.
        (
            "limit: everyone\n        key: [{ constant: everyone }]",
            "limit: loose\n        key: [{ cookie: a }]",
        ),
        // Requests that the tighter limit does not count.
        (
            "limit: per-key\n        key: [{ address: {} }]",
            "limit: loose\n        key: [{ header: x-api-key }]",
        ),
        // Around the edge of its windows a fixed window admits 200, which is more than 150.
        (
            "limit: per-key\n        key: [{ header: x-api-key }]\n        cost: 5\n      - limit: everyone\n        key: [{ constant: everyone }]",
            "limit: aligned\n        key: [{ cookie: a }]\n      - limit: nearly\n        key: [{ cookie: a }]",
        ),
        // A cost that makes the loose limit the tighter one: 1000 a minute at 20 are 50 requests.
        (
            "limit: everyone\n        key: [{ constant: everyone }]",
            "limit: loose\n        key: [{ header: x-api-key }, { address: {} }]\n        cost: 600",
        ),
    ] {
        let (_, said) = run(&["check-config"], true, &envoy(&GOOD.replacen(from, to, 1)));
        assert!(!said.contains("can never deny"), "{to}: {said}");
    }
}

#[test]
fn a_rule_after_one_that_stops_for_other_requests_is_reached() {
    for matcher in [
        "path_prefix: /search",
        "methods: [GET]",
        "hosts: [a.example.com]",
        "headers: [{ name: x, present: true }]",
        "not: { path: /search }",
    ] {
        let stopping = format!("stop: true\n    match: {{ {matcher} }}");
        let file = envoy(&GOOD.replacen("match: { path_prefix: /search }", &stopping, 1));
        let (_, said) = run(&["check-config"], true, &file);
        assert!(!said.contains("never reached"), "{matcher}: {said}");
    }
}

#[test]
fn a_file_without_a_configuration_and_one_that_is_no_yaml_are_refused() {
    for (file, says) in [("a: b", "has no configuration"), ("a: [", "is not YAML")] {
        let (output, said) = run(&["check-config"], false, file);
        assert_eq!(output.status.code(), Some(64));
        assert!(said.contains(says), "{said}");
    }
}

#[test]
fn explain_tells_what_a_request_would_ask() {
    let (output, said) = run(
        &[
            "explain",
            "--request",
            "GET /x/../search?q=x",
            "-H",
            "X-Api-Key: k",
            "--peer",
            "198.51.100.7",
        ],
        true,
        &envoy(&GOOD.replace(
            "{ header: x-api-key }",
            "{ header: x-api-key, plain: true }",
        )),
    );
    assert_eq!(output.status.code(), Some(0), "{said}");
    for line in [
        "rule `search` matches",
        "rule `all` matches",
        "rule `search`: limit `per-key`, key `x-api-key=k`, cost 5, subject 752629eec0a1",
        "rule `search`: limit `everyone`, key `@constant=everyone`, cost 1",
        "rule `all`: limit `per-key`, key `@address=198.51.100.7`, cost 1",
        "10 per 1s",
        "100 per 1m",
    ] {
        assert!(said.contains(line), "no {line:?} in\n{said}");
    }
    let (_, said) = run(&["explain", "--request", "GET /other"], false, &envoy(GOOD));
    assert!(said.contains("rule `search` does not match"), "{said}");
}

#[test]
fn explain_knows_claims_and_attributes() {
    let file = GOOD.replace(
        "{ header: x-api-key }",
        "{ jwt: { payload: jwt, claim: sub }, plain: true }, { mtls: spiffe }",
    );
    let (_, said) = run(
        &[
            "explain",
            "--request",
            "GET /search",
            "--claims",
            r#"jwt={"sub":"alice"}"#,
            "--attribute",
            "connection.uri_san_peer_certificate=spiffe://a/b",
        ],
        false,
        &envoy(&file),
    );
    assert!(
        said.contains("key `@jwt/jwt/sub=alice;@mtls/spiffe=spiffe://a/b`"),
        "{said}"
    );
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
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("0 errors"), "{said}");
}
