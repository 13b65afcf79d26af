//! `sluicegate render`: its parts, pasted into an Envoy configuration that this project has never seen.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, free_port, repository, run};
use sluicegate_tests::sidecar::{Sidecar, binary};
use sluicegate_tests::token::{jwt_authn, token};
use sluicegate_tests::upstream;

/// Where somebody pastes part 1, 2 and so on; lists are not indented below their names.
const EXISTING: &str = "
admin:
  address:
    socket_address:
      address: 127.0.0.1
      port_value: ADMIN
#1
static_resources:
  listeners:
  - name: public
    address:
      socket_address:
        address: 127.0.0.1
        port_value: LISTEN
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          codec_type: AUTO
          stat_prefix: public
          #2
          http_filters:
          - name: envoy.filters.http.cors
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors
          - JWT
          #4
          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            name: public
            #3
            virtual_hosts:
            - name: api
              domains:
              - api.example.com
              typed_per_filter_config:
                envoy.filters.http.cors:
                  '@type': type.googleapis.com/envoy.extensions.filters.http.cors.v3.CorsPolicy
                  allow_origin_string_match:
                  - exact: https://app.example.com
                  allow_methods: GET
                  allow_headers: authorization
                  expose_headers: retry-after,ratelimit
              routes:
              - match:
                  prefix: /
                route:
                  cluster: backend
            - name: everything-else
              domains:
              - '*'
              routes:
              - match:
                  prefix: /
                route:
                  cluster: backend
  clusters:
  - name: backend
    type: STATIC
    load_assignment:
      cluster_name: backend
      endpoints:
      - lb_endpoints:
        - endpoint:
            address:
              socket_address:
                address: 127.0.0.1
                port_value: UPSTREAM
  #5
";

const POLICY: &str = "
limits:
  per-user: { algorithm: sliding_log, windows: [{ quota: 2, per: 1h }] }
  per-address: { algorithm: sliding_log, windows: [{ quota: 100, per: 1h }] }
rules:
  default:
    rules:
      - name: per-user
        checks:
          - { limit: per-user, key: [{ jwt: { payload: payload, claim: sub } }], when_missing: skip }
          - { limit: per-address, key: [{ address: {} }] }
        when_unavailable: deny
  partners:
    rules:
      - name: per-address
        checks: [{ limit: per-address, key: [{ address: {} }] }]
        when_unavailable: deny
";

/// With the labels that `stats_config` makes.
const DENIED: &str = "sluicegate_rule_limit_denied{rule=\"per-user\",limit=\"per-user\"} 1";

fn sluicegate(arguments: &[&str], paths: &[&Path]) -> String {
    let mut command = Command::new(binary());
    command
        .args(arguments)
        .args(paths)
        .current_dir(repository(""));
    run(&mut command, "build it: cargo build")
}

/// The text with each part in the place of its mark, indented as the mark is.
fn pasted(existing: &str, parts: &str) -> String {
    let parts: Vec<_> = parts.split("---\n").skip(1).collect();
    let mut text = String::new();
    for line in existing.lines() {
        let indentation = &line[..line.len() - line.trim_start().len()];
        let part = line.trim().strip_prefix('#').map(|number| {
            let part = parts
                .iter()
                .find(|part| part.starts_with(&format!("# {number}. ")));
            part.unwrap_or_else(|| panic!("no part {number} in {parts:?}"))
        });
        for line in part.map_or(line, |part| part).lines() {
            let indentation = part.map_or("", |_| indentation);
            text += &format!("{indentation}{line}\n");
        }
    }
    text
}

#[tokio::test]
async fn its_parts_pasted_into_a_configuration_that_exists_limit_by_the_policy() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let pepper = folder.join("pepper");
    // Not a number, but text.
    std::fs::write(&pepper, "20261126\n").unwrap();
    let sidecar = Sidecar::start(POLICY, folder).await;
    let address = format!("127.0.0.1:{}", sidecar.port);
    let render = [
        "render",
        "--for",
        "envoy",
        "--sidecar",
        &address,
        "--rule-sets",
        "default,partners",
        "--pepper-file",
    ];
    let parts = sluicegate(&render, &[&pepper]);
    let route = parts.find("\n- name: sluicegate-route\n").unwrap();
    assert!(route < parts.find("\n- name: sluicegate\n  typed_config").unwrap());
    assert!(parts.contains(r#"{"by":"route_name","default":"default","others":["partners"]}"#));
    let (port, admin_port) = (free_port(), free_port());
    let existing = EXISTING
        .replace("ADMIN", &admin_port.to_string())
        .replace("LISTEN", &port.to_string())
        .replace("UPSTREAM", &upstream::start().await.to_string())
        .replace("JWT", &jwt_authn().to_string());
    let text = pasted(&existing, &parts);
    let file = folder.join("envoy.yaml");
    std::fs::write(&file, &text).unwrap();
    let paths = [file.as_path(), Path::new("--policy"), &sidecar.policy];
    let checked = sluicegate(&["check-config", "--envoy"], &paths);
    assert!(checked.ends_with("0 errors, 0 warnings"), "{checked}");

    let config: Value = serde_saphyr::from_str(&text).unwrap_or_else(|why| panic!("{why}: {text}"));
    let envoy = Envoy::start_config(folder, 1, port, admin_port, &config).await;
    let origin = ("origin", "https://app.example.com");
    let bearer = format!(
        "Bearer {}",
        token(&json!({ "iss": "issuer", "sub": "alice" }))
    );
    let bearer = ("authorization", bearer.as_str());
    let fields = [("host", "api.example.com"), origin, bearer];
    for status in [200, 200, 429] {
        let answer = envoy.get("/v1/x", &fields).await;
        assert_eq!(answer.status().as_u16(), status, "{}", envoy.log());
        let exposed = answer.headers()["access-control-expose-headers"].to_str();
        assert_eq!(exposed.unwrap(), "retry-after,ratelimit");
    }
    // The other host, without a token.
    assert_eq!(envoy.status("/v1/x", "").await, 200);
    let underscore = envoy.get("/", &[("x_api_key", "k")]).await;
    assert_eq!(underscore.status().as_u16(), 400);
    let statistics = envoy.admin("/stats/prometheus");
    eventually(DENIED, async || get(&statistics).await.1.contains(DENIED)).await;
    let denied = "sluicegate_denied{rule=per-user,limit=per-user}";
    eventually(denied, async || envoy.log().contains(denied)).await;
    // A sidecar elsewhere, by its name.
    let elsewhere = [
        "render",
        "--for",
        "envoy",
        "--filter",
        "f.wasm",
        "--sidecar",
    ];
    let parts = sluicegate(&elsewhere, &[Path::new("sluicegate.internal:9180")]);
    let part = "\"sluicegate.internal\", port_value: 9180";
    assert!(
        parts.contains("LOGICAL_DNS") && parts.contains(part),
        "{parts}"
    );
    assert!(parts.contains(r#"/f.wasm" }"#), "{parts}");
    assert!(!parts.contains("rule_sets"), "{parts}");
}
