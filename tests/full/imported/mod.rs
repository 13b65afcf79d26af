//! Policies imported from envoyproxy/ratelimit, beside it: the same requests, the same verdicts but for what the policy says.

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::policy::pushed;
use sluicegate_tests::process::{eventually, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, binary};
use sluicegate_tests_full::ratelimit;

/// A window's edge must not come between: all quotas are by hour or day.
async fn far_from_an_edge() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let left = 3_600 - now.expect("a clock").as_secs() % 3_600;
    if left < 120 {
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}

fn run(arguments: &[&str]) -> Output {
    Command::new(binary())
        .args(arguments)
        .output()
        .expect("the program")
}

/// The policy that the command prints, which `check-config` accepts.
fn imported(shape: &Path, folder: &Path, more: &[&str]) -> String {
    let [config, envoy] =
        ["config.yaml", "envoy.yaml"].map(|name| shape.join(name).display().to_string());
    let words = ["import", "envoy-ratelimit", &config, "--envoy", &envoy];
    let output = run(&[&words, more].concat());
    let policy = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{policy}");
    assert!(!policy.contains("What was not imported"), "{policy}");
    let file = folder.join("imported.yaml").display().to_string();
    std::fs::write(&file, &policy).expect("a file");
    let checked = run(&["check-config", "--policy", &file]);
    assert!(checked.status.success(), "{policy}{checked:?}");
    policy
}

/// What ratelimit reads, which a manifest may hold.
fn limits(shape: &Path) -> String {
    let text = std::fs::read_to_string(shape.join("config.yaml")).expect("a file");
    let config: Value = serde_saphyr::from_str(&text).expect("YAML");
    match &config["data"]["limits.yaml"] {
        Value::String(limits) => limits.clone(),
        _ => text,
    }
}

/// Puts the shape's filter, behind ours, and its routes into Envoy's configuration, as its control plane would.
fn patch(shape: &Path, config: &mut Value, grpc: u16) {
    let text = std::fs::read_to_string(shape.join("envoy.yaml")).expect("a file");
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
    let mut cluster = at(config, "/static_resources/clusters/1").clone();
    cluster["name"] = json!("ratelimit");
    cluster["load_assignment"]["cluster_name"] = json!("ratelimit");
    *at(
        &mut cluster,
        "/load_assignment/endpoints/0/lb_endpoints/0/endpoint/address/socket_address/port_value",
    ) = json!(grpc);
    ratelimit::over_grpc(&mut cluster);
    let clusters = at(config, "/static_resources/clusters")
        .as_array_mut()
        .expect("a list");
    clusters.push(cluster);
    let manager = at(config, MANAGER);
    manager["access_log"][0]["typed_config"]["log_format"]["json_format"]["flags"] =
        json!("%RESPONSE_FLAGS%");
    let patched = |number: usize| &documents[number]["spec"]["configPatches"][0]["patch"]["value"];
    let filter = match documents[0].pointer(MANAGER) {
        Some(own) => {
            manager["route_config"]["virtual_hosts"] = own["route_config"]["virtual_hosts"].clone();
            own["http_filters"][0].clone()
        }
        None => {
            manager["route_config"]["virtual_hosts"][0]["rate_limits"] =
                patched(1)["rate_limits"].clone();
            patched(0).clone()
        }
    };
    manager["http_filters"]
        .as_array_mut()
        .expect("a list")
        .insert(1, filter);
    if let Some(node) = documents[0].get("node") {
        config["node"] = node.clone();
    }
}

/// Rows: a request, its fields, how often it is sent, and how many of these ratelimit and we admit. In shadow, where each limit
/// decides for itself, we deny this many that ratelimit admits, and none the other way.
async fn same_verdicts(shape: &str, only_ours: usize, table: &str) {
    if !ratelimit::is_built() {
        println!(
            "skipped: without envoyproxy/ratelimit, which `tests/setup bench-fleet` builds where there is a Go"
        );
        return;
    }
    far_from_an_edge().await;
    let shape = repository("tests/full/imported").join(shape);
    let folder = tempfile::tempdir().expect("a folder");
    let redis = Redis::start().await;
    let (_process, grpc) =
        ratelimit::start(folder.path(), redis.port(), &limits(&shape), false).await;
    let mut plugin = pushed();
    plugin
        .as_object_mut()
        .expect("an object")
        .remove("rule_sets");
    // One Envoy asks both, ours in shadow; the other asks ours alone.
    let in_shadow = Sidecar::alone(&imported(&shape, folder.path(), &["--shadow"])).await;
    let alone = Sidecar::alone(&imported(&shape, folder.path(), &[])).await;
    let beside = Envoy::asking(in_shadow.port).plugin(plugin.clone());
    let beside = beside
        .patch(|config| patch(&shape, config, grpc))
        .start(folder.path())
        .await;
    let ours = Envoy::asking(alone.port)
        .plugin(plugin)
        .start(folder.path())
        .await;
    beside.has_rules().await;
    ours.has_rules().await;

    let client = client();
    let mut sent = 0;
    for row in table
        .lines()
        .map(str::trim)
        .filter(|row| !row.is_empty() && !row.starts_with('#'))
    {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (method, path) = cells[0].split_once(' ').expect("a request");
        let numbers: Vec<usize> = cells[2..]
            .iter()
            .map(|cell| cell.parse().expect("a number"))
            .collect();
        for (envoy, admitted) in [(&beside, numbers[1]), (&ours, numbers[2])] {
            let mut statuses = Vec::new();
            for _ in 0..numbers[0] {
                let mut request =
                    client.request(method.parse().expect("a method"), envoy.url(path));
                for (name, value) in cells[1]
                    .split(';')
                    .filter_map(|field| field.split_once(':'))
                {
                    request = request.header(name.trim(), value.trim());
                }
                statuses.push(request.send().await.expect("an answer").status().as_u16());
            }
            let denied = numbers[0] - admitted;
            let expected = [vec![200; admitted], vec![429; denied]].concat();
            assert_eq!(
                statuses,
                expected,
                "{row}: {}",
                std::ptr::eq(envoy, &beside)
            );
        }
        sent += numbers[0];
    }

    let lines = || {
        beside
            .log()
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    eventually("every line is there", async || lines().len() == sent).await;
    let log = folder.path().join("access.log").display().to_string();
    std::fs::write(&log, lines().join("\n")).expect("a file");
    let table = String::from_utf8(run(&["compare", &log]).stdout).expect("text");
    let all = table
        .lines()
        .find(|line| line.ends_with("all requests"))
        .expect("a row");
    let all: Vec<usize> = all
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    assert!(all[0] > 0 && all[3] > 0, "{table}");
    assert_eq!((all[1], all[2]), (0, only_ours), "{table}");
    println!("{table}");
}

#[tokio::test]
async fn limits_by_path_of_a_mesh() {
    let table = "
        GET /cart | | 4 | 2 | 2
        GET /items/1 | | 6 | 4 | 4
        GET /items/2 | | 5 | 4 | 4
        # `:path` carries the query there.
        GET /cart?page=2 | | 2 | 2 | 0
    ";
    same_verdicts("mesh", 2, table).await;
}

#[tokio::test]
async fn descriptors_of_several_levels() {
    let table = "
        GET /clusters/x | | 3 | 1 | 1
        GET /tenant/x | tenant: a | 4 | 2 | 2
        GET /tenant/x | tenant: b | 3 | 2 | 2
        GET /tenant/x | | 5 | 5 | 5
        GET /both | tenant: a; device: d | 5 | 3 | 3
        GET /both | tenant: a; device: stolen | 2 | 0 | 0
        # The trial's limit is in shadow there too.
        GET /both | tenant: c; device: d; plan: trial | 4 | 3 | 3
        GET /both | tenant: f; plan: free | 4 | 4 | 4
        GET /both | tenant: e; device: d; plan: gold | 3 | 1 | 1
        # What the plan has denied took from the device there.
        GET /both | tenant: e; device: d | 3 | 0 | 2
    ";
    same_verdicts("headers", 2, table).await;
}

#[tokio::test]
async fn virtual_hosts_and_routes() {
    let table = "
        POST /login | host: api.example.com | 4 | 2 | 2
        GET /login | host: api.example.com | 2 | 2 | 2
        # What the login has denied took from the address there.
        GET /x | host: api.example.com | 4 | 2 | 4
        GET /search/?deep=1 | host: api.example.com; user-agent: x | 4 | 2 | 2
        GET /search/ | host: api.example.com; user-agent: x | 3 | 0 | 2
        GET /search/ | host: api.example.com; user-agent: botnet | 4 | 2 | 2
        GET /search/ | host: api.example.com; user-agent: botany | 3 | 2 | 2
        GET /x | host: other.example.com | 5 | 3 | 3
        GET /y | host: third.example.com | 1 | 0 | 0
    ";
    same_verdicts("hosts", 0, table).await;
}
