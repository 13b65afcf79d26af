//! Changes of rules while something else goes on: leases, waiting requests, listeners that are replaced, sidecars that stop.
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::HeaderMap;
use axum::routing::MethodRouter;
use reqwest::Method;
use serde_json::{Value, json};
use sluicegate_tests::client::{get, get_with, post};
use sluicegate_tests::envoy::{Envoy, PLUGIN, SIDECAR, at};
use sluicegate_tests::listener::{from_file, replace_listener};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream::serve;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::super::support::{
    Policy, envoy, filters as http_filters, per_key, pushed, question, sent, with_rules,
};
use super::{Admitted, body, change, denies, filters, one_each, told, write};

/// A document with one set, whose only rule has this body for a denial.
fn document(digest: &str, body: &str) -> String {
    let head = json!({ "format": 1, "digest": digest, "instance": 1, "lines": 2 });
    let (set, rule) = (json!({ "set": "s" }), json!({ "rule": told(body)[0] }));
    format!("{head}\n{set}\n{rule}\n")
}

const FIRST: &str = "aaaaaaaaaaaa";
const SECOND: &str = "bbbbbbbbbbbb";

/// What a filter says of its rules.
fn reported(headers: &HeaderMap) -> Value {
    serde_json::from_slice(headers["sluicegate-rules"].as_bytes()).unwrap()
}

/// An answer to a question.
fn answer(question: &str, outcome: &str, rules: &str) -> Value {
    let question: Value = serde_json::from_str(question).unwrap();
    let decisions = question["decisions"].as_array().unwrap().len();
    let verdict = json!({ "outcome": outcome, "check": 0, "limit": "per-key", "quota": 100, "window_ms": 60_000,
        "remaining": 50, "reset_ms": 60_000, "retry_after_ms": 1_000 });
    json!({ "epoch": 1, "instance": 1, "verdicts": vec![verdict; decisions], "rules": rules })
}

/// As if the request were at another sidecar, which is silent. Each answer to a question names the new rules, and answers come
/// faster than rules.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_for_rules_that_is_not_answered_is_given_up_and_the_next_one_has_its_time() {
    let asked = Arc::new(AtomicUsize::new(0));
    let named = Arc::new(Mutex::new(FIRST));
    let reached = Arc::new(AtomicBool::new(false));
    let (requests, names, done) = (Arc::clone(&asked), Arc::clone(&named), Arc::clone(&reached));
    let router = Router::new()
        .route(
            "/v1/rules",
            axum::routing::get(async move |headers: HeaderMap| {
                let report = reported(&headers);
                // That of Envoy's main thread hears of no answer.
                if report["in_force"] == SECOND {
                    done.store(true, Ordering::Relaxed);
                } else if report["in_force"].is_null() {
                    return document(FIRST, "first");
                } else if report["serves"] == true && requests.fetch_add(1, Ordering::Relaxed) > 0 {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    return document(SECOND, "second");
                } else {
                    *names.lock().unwrap() = SECOND;
                }
                std::future::pending().await
            }),
        )
        .fallback(async move |question: String| {
            answer(&question, "admitted", *named.lock().unwrap()).to_string()
        });
    let envoy = envoy(serve(router).await, pushed()).await;
    let clients = Admitted::start(std::slice::from_ref(&envoy), 4);
    eventually("the new rules are in force", async || {
        reached.load(Ordering::Relaxed)
    })
    .await;
    clients.stop().await;
    envoy.is_well().await;
}

/// An idle filter's timer fires once a second.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_request_for_rules_follows_the_answer() {
    const WAITS: Duration = Duration::from_millis(1_100);
    let gaps = Arc::new(Mutex::new(Vec::new()));
    let last: Arc<Mutex<Option<Instant>>> = Arc::default();
    let found = Arc::clone(&gaps);
    let router = Router::new()
        .route(
            "/v1/rules",
            axum::routing::get(async move |headers: HeaderMap| {
                let report = reported(&headers);
                if report["in_force"].is_null() {
                    return document(FIRST, "first");
                }
                if report["serves"] == false {
                    std::future::pending::<()>().await;
                }
                if let Some(answered) = last.lock().unwrap().take() {
                    found.lock().unwrap().push(answered.elapsed());
                }
                tokio::time::sleep(WAITS).await;
                *last.lock().unwrap() = Some(Instant::now());
                format!(
                    "{}\n",
                    json!({ "format": 1, "digest": FIRST, "instance": 1, "lines": 0 })
                )
            }),
        )
        .fallback(async move |question: String| answer(&question, "admitted", FIRST).to_string());
    let envoy = envoy(serve(router).await, pushed()).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    eventually("it has asked several times", async || {
        gaps.lock().unwrap().len() >= 5
    })
    .await;
    // By the timer alone, each would be 0.9 s.
    let least = gaps.lock().unwrap().iter().min().copied().unwrap();
    assert!(least < Duration::from_millis(500), "{gaps:?}");
}

/// Answers a filter as soon as it does not have the newest of these documents.
fn newest(documents: &watch::Sender<(&'static str, &'static str)>) -> MethodRouter {
    let changes = documents.subscribe();
    axum::routing::get(async move |headers: HeaderMap| {
        let report = reported(&headers);
        let mut changes = changes.clone();
        let new = changes.wait_for(|(digest, _)| report["in_force"] != *digest);
        let (digest, body) = *new.await.unwrap();
        document(digest, body)
    })
}

/// Replaces the rules of an Envoy with two filters.
async fn replaces(documents: &watch::Sender<(&'static str, &'static str)>, envoy: &Envoy) {
    documents.send_replace((SECOND, "second"));
    eventually("the rules are replaced", async || {
        envoy.counted("rules_updated").await >= 4
    })
    .await;
}

/// It is counted and answered by the rules with which it was evaluated.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_waits_while_the_rules_change_is_answered_by_its_own() {
    let documents = watch::Sender::new((FIRST, "first"));
    let waits = Arc::new(AtomicBool::new(true));
    let (asked, still) = (Arc::new(AtomicBool::new(false)), Arc::clone(&waits));
    let seen = Arc::clone(&asked);
    let router = Router::new()
        .route("/v1/rules", newest(&documents))
        .fallback(async move |question: String| {
            if !question.contains("\"decisions\":[]") {
                seen.store(true, Ordering::Relaxed);
                while still.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            answer(&question, "denied", FIRST).to_string()
        });
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("10s");
    let envoy = Arc::new(envoy(serve(router).await, plugin).await);
    let waiting = Arc::clone(&envoy);
    let early = tokio::spawn(async move { body(&waiting, "/", "early").await });
    eventually("it waits for its verdict", async || {
        asked.load(Ordering::Relaxed)
    })
    .await;
    replaces(&documents, &envoy).await;
    waits.store(false, Ordering::Relaxed);
    assert_eq!(early.await.unwrap(), (429, "first".to_owned()));
    assert_eq!(body(&envoy, "/", "late").await, (429, "second".to_owned()));
    envoy.counts(&[("decisions", 2), ("denied", 2)]).await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn units_that_were_lent_are_spent_by_the_next_rules_too() {
    const LENT: usize = 8;
    let documents = watch::Sender::new((FIRST, "first"));
    let lent = Arc::new(AtomicBool::new(false));
    let router = Router::new()
        .route("/v1/rules", newest(&documents))
        .fallback(async move |question: String| {
            let mut answer = answer(&question, "admitted", FIRST);
            if question.contains("\"decisions\":[]") || lent.swap(true, Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            let question: Value = serde_json::from_str(&question).unwrap();
            let check = &question["decisions"][0]["checks"][0];
            answer["leases"] = json!([{ "id": 1, "limit": check["limit"], "key": check["key"], "units": LENT,
                "lasts_us": 60_000_000, "quota": 100, "window_ms": 60_000, "remaining": 50, "reset_ms": 60_000 }]);
            answer.to_string()
        });
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("200ms");
    let envoy = envoy(serve(router).await, plugin).await;
    assert_eq!(envoy.status("/", "k").await, 200);
    for _ in 0..LENT / 2 {
        assert_eq!(envoy.status("/", "k").await, 200);
    }
    replaces(&documents, &envoy).await;
    for _ in 0..LENT / 2 {
        assert_eq!(envoy.status("/", "k").await, 200);
    }
    // Nothing is lent any more, and the sidecar is silent.
    assert_eq!(envoy.status("/", "k").await, 503);
    envoy.counts(&[("admitted_by_lease", LENT as u64)]).await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_rule_that_is_enforced_denies_by_what_it_has_counted_and_overrides_stay() {
    let rules = |shadow: bool| {
        let mut rules = told("enforced");
        rules[0]["shadow"] = json!(shadow);
        one_each(&rules)
    };
    let sidecar = Sidecar::alone(&rules(true)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    for _ in 0..3 {
        assert_eq!(envoy.status("/", "alice").await, 200);
    }
    write(&sidecar.policy, &rules(false));
    denies(&envoy, "alice", "enforced").await;
    let all = json!({ "limit": "per-key", "all_keys": true, "unlimited": true }).to_string();
    let (status, why) = sidecar.change_override(Method::PUT, all).await;
    assert_eq!(status, 200, "{why}");
    eventually("it is unlimited", async || {
        envoy.status("/", "alice").await == 200
    })
    .await;
    change(&sidecar, &one_each(&told("second")), 2).await;
    assert_eq!(envoy.status("/", "alice").await, 200);
    let all = json!({ "limit": "per-key", "all_keys": true }).to_string();
    let (status, why) = sidecar.change_override(Method::DELETE, all).await;
    assert_eq!(status, 200, "{why}");
    denies(&envoy, "alice", "second").await;
    envoy.is_well().await;
}

/// A policy that takes a while to put in force: filters must not have its rules before the sidecar has its limits.
#[tokio::test(flavor = "multi_thread")]
async fn limits_and_rules_that_change_together_leave_no_request_without_a_verdict() {
    let text = |version: u64| {
        let name = format!("limit-{version}");
        let mut limits = Policy::on("memory").window(&name, "fixed_window", 2_000_000_000, "1h");
        for n in 0..2_000 {
            limits = limits.window(&format!("unused-{version}-{n}"), "fixed_window", 1, "1h");
        }
        let mut rules = per_key("deny");
        rules[0]["checks"][0]["limit"] = json!(name);
        with_rules(&limits.text(), &rules)
    };
    let sidecar = Sidecar::alone(&text(0)).await;
    let envoy = envoy(sidecar.port, pushed()).await;
    let clients = Admitted::start(std::slice::from_ref(&envoy), 8);
    for version in 1..=3 {
        change(&sidecar, &text(version), 2).await;
    }
    clients.stop().await;
    envoy
        .counts(&[("error_decision", 0), ("rules_updated", 8)])
        .await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rules_come_over_a_unix_socket_one_by_one_and_with_the_shortest_timeout() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("decisions.sock");
    let planned = Sidecar::with(&one_each(&told("first"))).socket(&socket);
    let sidecar = planned.start(folder.path()).await;
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("1ms");
    plugin["sidecar"]["together"] = json!(false);
    let planned = Envoy::asking(0).plugin(plugin);
    let envoy = planned
        .patch(|config| *at(config, SIDECAR) = json!({ "pipe": { "path": socket } }))
        .alone()
        .await;
    for version in ["first", "second"] {
        write(&sidecar.policy, &one_each(&told(version)));
        denies(&envoy, "alice", version).await;
    }
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listeners_that_are_replaced_and_an_envoy_that_ends_leave_no_request_for_rules_behind() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::alone(&one_each(&told("first"))).await;
    let mut listener = Value::Null;
    let mut envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .patch(|config| listener = from_file(config, folder.path()))
        .alone()
        .await;
    envoy.listens().await;
    for generation in 0..5 {
        at(&mut listener, PLUGIN)["pepper"] = json!(format!("pepper-{generation}"));
        replace_listener(&envoy, folder.path(), &listener).await;
        let key = generation.to_string();
        denies(&envoy, &key, "first").await;
    }
    let waiting = "cluster.sluicegate.upstream_rq_active";
    eventually("only the last listener's filters ask", async || {
        envoy.stat(waiting).await <= 2
    })
    .await;
    envoy.is_well().await;
    let drain = envoy.admin("/drain_listeners?graceful");
    assert_eq!(post(&drain, "").await.0, 200);
    let began = Instant::now();
    assert_eq!(post(&envoy.admin("/quitquitquit"), "").await.0, 200);
    envoy.ends().await;
    eprintln!("Envoy ended after {:?}", began.elapsed());
}

/// Requests for rules, as filters send them: `count` of them, which have these rules.
async fn ask_for_rules(sidecar: &Sidecar, count: usize, digest: &str) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for vm in 0..count {
        let report = json!({ "vm": format!("{vm:032x}"), "node": format!("node-{vm}"), "sets": ["s"], "serves": true,
            "in_force": digest });
        let head = format!(
            "GET /v1/rules HTTP/1.1\r\nhost: s\r\nsluicegate-filter: 0.1.0 configuration={digest}\r\nsluicegate-rules: {report}\r\n\r\n"
        );
        streams.push(sent(sidecar.port, &head).await);
    }
    streams
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_stops_keeps_no_filter_waiting() {
    let planned = Sidecar::with(&one_each(&told("first")));
    let drain = ["--drain", "200ms", "--shutdown-timeout", "20s"];
    let mut sidecar = planned.arguments(&drain).alone().await;
    let envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .workers(2)
        .alone()
        .await;
    assert_eq!(body(&envoy, "/", "alice").await.0, 200);
    let (digest, _) = filters(&sidecar).await;
    let _streams = ask_for_rules(&sidecar, 20, &digest).await;
    eventually("they wait", async || filters(&sidecar).await.1.len() == 23).await;
    let began = Instant::now();
    sidecar.signal("TERM");
    sidecar.wait().await;
    eprintln!("the sidecar ended after {:?}", began.elapsed());
    let log = sidecar.log();
    assert!(!log.contains("closed while in use"), "{log}");
    envoy.is_well().await;
}

/// Each takes a connection that cannot be closed in favour of another.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_filters_that_wait_leave_connections_for_decisions() {
    let planned = Sidecar::with(&one_each(&told("first")));
    let few = ["--max-connections", "128"];
    let sidecar = planned.arguments(&few).alone().await;
    let (digest, _) = filters(&sidecar).await;
    let _streams = ask_for_rules(&sidecar, 200, &digest).await;
    // Connections whose requests are not read yet may be closed for others.
    eventually("as many wait as may", async || {
        filters(&sidecar).await.1.len() >= 64
    })
    .await;
    for _ in 0..20 {
        let (status, answer) = post(&sidecar.url("/v1/decide"), question()).await;
        assert_eq!(status, 200, "{answer}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_which_rules_is_told_only_with_the_token_if_there_is_one() {
    let planned = Sidecar::with(&one_each(&told("first")));
    let token = ("SLUICEGATE_ADMIN_TOKEN", "secret".to_owned());
    let sidecar = planned.environment(&[token]).alone().await;
    let url = sidecar.admin("/v1/filters");
    assert_eq!(get(&url).await.0, 401);
    let answer = get_with(&url, &[("authorization", "Bearer secret")]).await;
    assert_eq!(answer.status(), 200);
}

/// The filter, but a request with trailers ends its VM: the module's entry for them is that of another function, which panics
/// for a request.
fn that_dies_of_trailers(folder: &std::path::Path) -> std::path::PathBuf {
    let module = sluicegate_tests::process::repository("target/filter/sluicegate.wasm");
    let mut module = std::fs::read(module).unwrap();
    // An entry: length and name, kind 0, then the function's number, in LEB128.
    let entry = |module: &[u8], name: &str| {
        let mut entry = vec![u8::try_from(name.len()).unwrap()];
        entry.extend(name.bytes());
        entry.push(0);
        let found = module.windows(entry.len()).position(|bytes| bytes == entry);
        let start = found.unwrap() + entry.len();
        let length = module[start..].iter().position(|byte| byte & 0x80 == 0);
        start..=start + length.unwrap()
    };
    let other = module[entry(&module, "proxy_on_configure")].to_vec();
    let range = entry(&module, "proxy_on_request_trailers");
    assert_eq!(module[range.clone()].len(), other.len());
    module.splice(range, other);
    let path = folder.join("dies-of-trailers.wasm");
    std::fs::write(&path, module).unwrap();
    path
}

/// Sends a request with trailers; the status, if there is an answer.
async fn with_trailers(port: u16, key: &str) -> Option<u16> {
    let stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    let (mut send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(connection);
    let request = axum::http::Request::post("http://host/").header("x-api-key", key);
    let (answer, mut sending) = send.send_request(request.body(()).unwrap(), false).unwrap();
    let map: HeaderMap = [("x-checksum".parse().unwrap(), "1".parse().unwrap())]
        .into_iter()
        .collect();
    sending.send_trailers(map).unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), answer).await;
    Some(answer.ok()?.ok()?.status().as_u16())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_that_has_died_has_its_rules_again_before_its_first_request_is_answered() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::alone(&one_each(&told("first"))).await;
    let module = that_dies_of_trailers(folder.path());
    let planned = Envoy::asking(sidecar.port).plugin(pushed());
    let envoy = planned
        .patch(|config| {
            let filter = &mut http_filters(config)[0]["typed_config"]["config"];
            filter["vm_config"]["code"]["local"]["filename"] = json!(module);
        })
        .alone()
        .await;
    assert_eq!(body(&envoy, "/", "alice").await.0, 200);
    let keys = AtomicUsize::new(0);
    for died in 1..=2 {
        let before = envoy.vm_deaths().await;
        eventually("the VM has died", async || {
            // A denial, or an answer of the upstream, may come before the trailers.
            let key = keys.fetch_add(1, Ordering::Relaxed).to_string();
            with_trailers(envoy.port, &key).await;
            envoy.status("/", &key).await;
            envoy.vm_deaths().await > before
        })
        .await;
        let began = Instant::now();
        // Envoy starts it again with a request, at the latest after a second; until then, requests get 503.
        denies(&envoy, "alice", "first").await;
        eprintln!("metered again after {:?}", began.elapsed());
        assert!(envoy.stat("wasm.sluicegate.vm_reload_success").await >= died);
        envoy.counts(&[("no_rules_denied", 0)]).await;
    }
}
