//! What README, `docs/http.md`, `docs/policy.md` and other short pages tell people to type, run as it is written there, and
//! what `docs/keys.md` tells them to put beside the filter.

use std::path::Path;
use std::process::Output;

use axum::Router;
use axum::body::Bytes;
use serde_json::{Value, json};
use sluicegate_tests::client::client;
use sluicegate_tests::documents::{bash, blocks, text, with_path};
use sluicegate_tests::envoy::{Envoy, Planned};
use sluicegate_tests::process::repository;
use sluicegate_tests::sidecar::{Sidecar, binary};
use sluicegate_tests::upstream;

use super::support::{Chain, filters, plugin, policy};

/// Commands that other targets run, or that only prepare the next line.
const NOT_HERE: [&str; 6] = [
    "make quick",
    "sluicegate dev ",
    "docker compose up --build",
    "export PATH=",
    "sluicegate serve --policy envoy/policy.yaml",
    "kubectl ",
];
/// Pages whose commands need nothing but a sidecar and an Envoy.
const SHORT_PAGES: [&str; 6] = [
    "docs/http.md",
    "docs/test.md",
    "docs/compose.md",
    "docs/sizing.md",
    "docs/troubleshooting.md",
    "docs/upgrades.md",
];
/// Attempts until a limit of five in two seconds denies, on a machine that may stand still for some time.
const ATTEMPTS: usize = 200;

fn run(command: &str) -> Output {
    let mut bash = bash(command, &repository(""));
    with_path(&mut bash, binary().parent().unwrap().display());
    bash.output().expect("bash")
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).replace('\r', "")
}

/// Numbers differ from run to run.
fn without_numbers(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars() {
        if !c.is_ascii_digit() {
            shown.push(c);
        } else if !shown.ends_with('N') {
            shown.push('N');
        }
    }
    // A late run is told "1 second".
    shown.replace("N seconds", "N second")
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_of_readme_and_of_the_short_pages_works() {
    let sidecar = Sidecar::alone(&text("envoy/policy.yaml")).await;
    let upstream = upstream::start().await;
    let planned = Envoy::asking(sidecar.port).upstream(upstream).plugin(None);
    let envoy = planned.alone().await;
    let envoy_address = envoy.url("");
    let places = [
        ("127.0.0.1:9180", format!("127.0.0.1:{}", sidecar.port)),
        (
            "127.0.0.1:9181",
            format!("127.0.0.1:{}", sidecar.admin_port),
        ),
        (
            "http://127.0.0.1:10000",
            envoy_address.trim_end_matches('/').to_owned(),
        ),
        ("run-the-job", "true".to_owned()),
    ];
    let readme = text("README.md");
    let pages = SHORT_PAGES.map(text);
    let commands = [&readme]
        .into_iter()
        .chain(&pages)
        .flat_map(|page| blocks(page, "sh"))
        .collect::<String>();
    let mut ran = 0;
    let mut through_envoy = None;
    for command in commands.lines() {
        if NOT_HERE.iter().any(|start| command.starts_with(start)) {
            continue;
        }
        let here = places.iter().fold(command.to_owned(), |line, (from, to)| {
            line.replace(from, to)
        });
        let here = format!("export SLUICEGATE_ADMIN={}; {here}", sidecar.admin(""));
        let output = run(&here);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{here}: {}{errors}",
            printed(&output)
        );
        assert!(!printed(&output).is_empty(), "{here} prints nothing");
        assert!(
            !printed(&output).contains("\"error\""),
            "{here}: {}",
            printed(&output)
        );
        if command.starts_with("curl ") && command.contains(":10000") {
            through_envoy = Some(here);
        }
        ran += 1;
    }
    assert!(ran >= 10, "{ran}");

    let through_envoy = through_envoy.expect("README asks through Envoy");
    let denied = (0..ATTEMPTS)
        .map(|_| printed(&run(&through_envoy)))
        .find(|answer| answer.starts_with("HTTP/1.1 429"))
        .expect("a denial");
    let shown = blocks(&readme, "")
        .into_iter()
        .find(|block| block.starts_with("HTTP/1.1 429"))
        .expect("README shows a 429");
    let denied = without_numbers(&denied);
    for line in shown.lines() {
        let line = without_numbers(line);
        assert!(
            denied.lines().any(|this| this == line),
            "not in the 429: {line}\n{denied}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_policy_of_readme_does_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let consumers = folder.path().join("consumers.yaml");
    std::fs::write(&consumers, "pepper: 0123456789ab\nconsumers: {}\n").unwrap();
    let readme = text("README.md");
    let policy = blocks(&readme, "yaml")[0];
    let policy = policy.replace("consumers.yaml", consumers.to_str().unwrap());
    let planned = Sidecar::with(&policy).store(Some("memory"));
    let sidecar = planned.start(folder.path()).await;
    let envoy = Envoy::asking(sidecar.port).plugin(None).alone().await;
    // Keys of their own, so that only the address's limit is used up.
    let login = async |number: usize| {
        let key = format!("k{number}");
        let request = client().post(envoy.url("/login")).header("x-api-key", key);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.text().await.unwrap())
    };
    for number in 0..10 {
        assert_eq!(login(number).await.0, 200, "{number}");
    }
    let (status, body) = login(10).await;
    assert_eq!(status, 429, "{body}");
    assert!(body.contains("limit `login` allows 10 per"), "{body}");
    for _ in 0..30 {
        let request = client().request(reqwest::Method::OPTIONS, envoy.url("/login"));
        let preflight = request.header("access-control-request-method", "POST");
        assert_eq!(preflight.send().await.unwrap().status(), 200);
    }
    // Other programs ask for a limit that no request has.
    let asked = json!({ "decisions": [{ "checks": [{ "limit": "news-api", "key": "job", "cost": 9_500 }] }] });
    let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
    let decide = async || {
        let answer = client().post(&url).json(&asked).send().await.unwrap();
        answer.json::<Value>().await.unwrap()["verdicts"][0]["outcome"].clone()
    };
    assert_eq!(
        (decide().await, decide().await),
        (json!("admitted"), json!("denied"))
    );
}

#[test]
fn every_policy_in_a_document_passes_check_config() {
    let folder = tempfile::tempdir().unwrap();
    let consumers = "pepper: 0123456789ab\nconsumers: {}\n";
    std::fs::write(folder.path().join("consumers.yaml"), consumers).unwrap();
    let mut checked = 0;
    for name in [
        "README.md",
        "docs/matching.md",
        "docs/moving-envoy-ratelimit.md",
        "docs/moving.md",
        "docs/policy.md",
    ] {
        let document = text(name);
        for policy in blocks(&document, "yaml")
            .iter()
            .filter(|block| format!("\n{block}").contains("\nlimits:"))
        {
            let file: &Path = &folder.path().join("policy.yaml");
            std::fs::write(file, policy).unwrap();
            let output = run(&format!(
                "sluicegate check-config --policy {}",
                file.display()
            ));
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(
                output.status.success(),
                "{name}: {}{errors}",
                printed(&output)
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 7);
}

/// Newcomers' finding 29.
#[tokio::test]
async fn the_lua_filter_of_the_page_makes_a_cost_that_no_client_can_choose() {
    let page = text("docs/keys.md");
    let (_, section) = page.split_once("## Costs").expect("a section");
    let block = blocks(section, "yaml")[0];
    let recipe: Value = serde_saphyr::from_str(block).expect("YAML");
    let (_, cost) = section.split_once("with `cost: ").expect("a cost");
    let cost = cost.split('`').next().unwrap();
    let cost: Value = serde_saphyr::from_str(cost).expect("YAML");
    let rules = json!([{ "name": "r", "checks": [{ "limit": "per-key", "key": [{ "constant": "c" }], "cost": cost }],
        "when_unavailable": "deny", "reply": { "on_admitted": true } }]);
    let hourly = |url: &str| policy(url, "sliding_log", 1_024, "1h");
    let lua = move |config: &mut Value| {
        filters(config).insert(0, recipe["http_filters"][0].clone());
    };
    // It reads the whole body: one that answers before makes Envoy reset the request.
    let upstream = Router::new().fallback(async |_: Bytes| "");
    let upstream = upstream::serve(upstream).await;
    let plan = |envoy: Planned<'static>| envoy.upstream(upstream).plugin(plugin(rules)).patch(lua);
    let chain = Chain::with(hourly, plan).await;
    let ask = async |kib: usize, forged: &[&str]| {
        let body = "x".repeat(kib * 1_024);
        let mut request = client().post(chain.envoy.url("/")).body(body);
        for cost in forged {
            request = request.header("x-cost", *cost);
        }
        let answer = request.send().await.unwrap();
        let left = answer.headers()["x-ratelimit-remaining"].to_str().unwrap();
        (answer.status().as_u16(), left.parse::<u64>().unwrap())
    };
    assert_eq!(ask(0, &[]).await, (200, 1_023));
    assert_eq!(ask(100, &["1"]).await, (200, 923));
    assert_eq!(ask(900, &["1", "2"]).await, (200, 23));
    assert_eq!(ask(24, &["1"]).await, (429, 23));
    assert_eq!(ask(23, &["1000"]).await, (200, 0));
}
