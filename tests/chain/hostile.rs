//! Bytes that no client should send, answers that no sidecar should give: the VM survives.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderMap, StatusCode};
use serde_json::{Value, json};
use sluicegate_tests::client::{self, raw};
use sluicegate_tests::envoy::{Envoy, at};
use sluicegate_tests::listener::{from_file, write_listeners};
use sluicegate_tests::process;
use sluicegate_tests::upstream::serve;

use super::support::{Chain, envoy, per_key, plugin};

#[tokio::test]
async fn hostile_bytes_leave_the_worker_alive() {
    let rules = json!([{
        "name": "all",
        "checks": [
            { "limit": "per-key", "key": [{ "header": "x-api-key" }, { "path": true }], "when_missing": { "use": "none" } },
            { "limit": "per-key", "key": [{ "header": "x-plain", "plain": true }] },
            { "limit": "per-key", "key": [{ "address": { "trusted_hops": 2 } }] },
            { "limit": "per-key", "key": [{ "address": {} }, { "header": ":authority", "plain": true }] },
        ],
        "when_unavailable": "deny",
    }]);
    let chain = Chain::hourly(1_000_000, rules).await;
    let long = "k".repeat(20_000);
    let values: [&[u8]; 12] = [
        b"\xff",
        b"\xff\xfe\xfd",
        b"\xc3\x28",
        b"\xed\xa0\x80",
        b"\xf0\x9f\x92\xa9",
        b"",
        b"\"\\{}[]%;=#~",
        b"}{user}",
        b"\t \t",
        b",,,,,",
        b"::ffff:1.2.3.4, [::1]:1, 999.1.1.1, \xff",
        long.as_bytes(),
    ];
    let mut answered = 0;
    for value in values {
        for name in [
            "x-api-key",
            "x-plain",
            "x-forwarded-for",
            "cookie",
            "x-\u{e9}",
        ] {
            let mut request =
                format!("GET /{answered} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{name}: ")
                    .into_bytes();
            request.extend_from_slice(value);
            request.extend_from_slice(b"\r\n\r\n");
            // Envoy itself rejects some with 400 or 431; the upstream must answer the others.
            let status = raw(chain.envoy.port, &request).await;
            assert!(
                matches!(status, Some(200 | 400 | 431)),
                "{name}: {value:?}: {status:?}"
            );
            answered += usize::from(status == Some(200));
        }
        let mut request = b"GET /".to_vec();
        request.extend(value.iter().filter(|byte| !b" \t".contains(byte)));
        request.extend_from_slice(b" HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let status = raw(chain.envoy.port, &request).await;
        assert!(
            matches!(status, Some(200 | 400 | 431)),
            "path {value:?}: {status:?}"
        );
    }
    assert!(answered > 20, "only {answered} reached the upstream");
    assert_eq!(chain.status("/", "alice").await, 200);
    chain.envoy.is_well().await;
}

/// Starts a fake sidecar that answers questions with what `answer` returns; its port.
async fn liar(answer: impl Fn() -> (StatusCode, Vec<u8>) + Send + Sync + 'static) -> u16 {
    let answer = Arc::new(answer);
    let router = Router::new().fallback(async move |headers: HeaderMap| {
        // An announcement comes when it is due, and no test should depend on that.
        let (status, body) = if headers.contains_key("sluicegate-filter") {
            (StatusCode::OK, br#"{"epoch":1,"verdicts":[]}"#.to_vec())
        } else {
            answer()
        };
        (status, Body::from(body))
    });
    serve(router).await
}

#[tokio::test]
async fn whatever_a_sidecar_answers_the_rules_own_answer_is_given() {
    let admitted = r#"{"outcome":"admitted","check":0,"limit":"l","quota":1,"window_ms":1,"remaining":0,"reset_ms":1,"retry_after_ms":0}"#;
    let huge = format!(
        r#"{{"epoch":1,"verdicts":[{}]}}"#,
        vec![admitted; 20_000].join(",").replace("admitted", "x")
    );
    let answers: Vec<(StatusCode, Vec<u8>)> = vec![
        (StatusCode::OK, b"".to_vec()),
        (StatusCode::OK, b"not json".to_vec()),
        (StatusCode::OK, b"\xff\xfe\x00".to_vec()),
        (StatusCode::OK, b"null".to_vec()),
        (StatusCode::OK, br#"{"epoch":1,"verdicts":[]}"#.to_vec()),
        (
            StatusCode::OK,
            br#"{"epoch":-1,"verdicts":[{"outcome":"admitted"}]}"#.to_vec(),
        ),
        (
            StatusCode::OK,
            br#"{"epoch":1,"verdicts":[{"outcome":"denied","retry_after_ms":"soon"}]}"#.to_vec(),
        ),
        (
            StatusCode::OK,
            format!(r#"{{"epoch":1,"verdicts":[{admitted}"#).into_bytes(),
        ),
        (StatusCode::OK, huge.into_bytes()),
        (
            StatusCode::INTERNAL_SERVER_ERROR,
            format!(r#"{{"epoch":1,"verdicts":[{admitted}]}}"#).into_bytes(),
        ),
        (StatusCode::NOT_FOUND, b"".to_vec()),
        (StatusCode::NO_CONTENT, b"".to_vec()),
    ];
    let last = Arc::new(Mutex::new((StatusCode::OK, Vec::new())));
    let answer = Arc::clone(&last);
    let port = liar(move || answer.lock().unwrap().clone()).await;
    let envoy = envoy(port, plugin(per_key("deny"))).await;
    for (status, body) in answers {
        let shown = String::from_utf8_lossy(&body)
            .chars()
            .take(60)
            .collect::<String>();
        *last.lock().unwrap() = (status, body);
        for _ in 0..3 {
            let answer = envoy.status("/", "k").await;
            assert_eq!(answer, 503, "{status} {shown}");
        }
        let deaths = envoy.vm_deaths().await;
        assert_eq!(deaths, 0, "{status} {shown}: {}", envoy.log());
    }
    assert!(envoy.log().contains("no verdict"), "{}", envoy.log());
}

/// F12: a sidecar that answers every other request writes a few lines into Envoy's log, and not one for each request.
#[tokio::test]
async fn an_outage_that_comes_and_goes_is_logged_at_most_once_a_second() {
    let requests = AtomicUsize::new(0);
    let port = liar(move || {
        let admitted = r#"{"epoch":1,"verdicts":[{"outcome":"admitted","check":0,"limit":"l","quota":1,"window_ms":1,"remaining":0,"reset_ms":1,"retry_after_ms":0}]}"#;
        match requests.fetch_add(1, Ordering::SeqCst) % 2 {
            0 => (StatusCode::OK, admitted.into()),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
        }
    })
    .await;
    let envoy = envoy(port, plugin(per_key("deny"))).await;
    let started = Instant::now();
    let mut statuses = [0, 0];
    for _ in 0..200 {
        match envoy.status("/", "k").await {
            200 => statuses[0] += 1,
            503 => statuses[1] += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(statuses, [100, 100]);
    let seconds = usize::try_from(started.elapsed().as_secs()).unwrap();
    // A line may say twice that there was no verdict: for this request and for those since the last line.
    let log = envoy.log();
    let lines = log.lines().filter(|line| line.contains("verdict")).count();
    assert!(
        (1..=2 + seconds).contains(&lines),
        "{lines}: {}",
        envoy.log()
    );
}

/// F15: an answer of 20 MB is not read into the VM, where it once took 347 MB.
#[tokio::test]
async fn an_answer_of_any_size_takes_little_memory() {
    let port = liar(|| (StatusCode::OK, vec![b'['; 20_000_000])).await;
    let envoy = envoy(port, plugin(per_key("deny"))).await;
    let peak_kb = || process::status(envoy.id(), "VmHWM");
    let before = peak_kb();
    for _ in 0..3 {
        assert_eq!(envoy.status("/", "k").await, 503);
    }
    let grown = peak_kb() - before;
    println!("Envoy has grown by {grown} kB");
    // Envoy itself buffers the answer.
    assert!(grown < 80_000, "{grown} kB");
    let counts = [("error_body", 3), ("error_no_answer", 0)];
    envoy.counts(&counts).await;
    envoy.is_well().await;
}

#[tokio::test]
async fn a_cluster_that_envoy_does_not_have_leaves_the_worker_alive() {
    for (when, status) in [("allow", 200), ("deny", 503)] {
        let mut plugin = plugin(per_key(when));
        plugin["sidecar"]["cluster"] = json!("nowhere");
        let envoy = envoy(process::free_port(), plugin).await;
        for _ in 0..5 {
            assert_eq!(envoy.status("/", "k").await, status);
        }
        envoy.is_well().await;
    }
}

#[test]
fn envoy_refuses_a_broken_configuration_at_start_with_the_field_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut rules = per_key("deny");
    rules[0]["checks"][0]["cots"] = json!(5);
    let log = Envoy::refusal(folder.path(), plugin(rules));
    assert!(
        log.contains("rules[0].checks[0].cots") && log.contains("unknown field"),
        "{log}"
    );
    let mut rules = per_key("deny");
    rules[0]["checks"][0]["cost"] = json!(0);
    let log = Envoy::refusal(folder.path(), plugin(rules));
    assert!(
        log.contains("`rules[0].checks[0].cost`: 0 is not between 1 and"),
        "{log}"
    );
}

/// Sets a value at a JSON pointer; null removes the field.
fn with(mut configuration: Value, pointer: &str, value: &Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    match configuration.pointer_mut(parent).unwrap() {
        Value::Object(fields) if value.is_null() => {
            fields.remove(field);
        }
        Value::Object(fields) => {
            fields.insert(field.to_owned(), value.clone());
        }
        Value::Array(list) => list[field.parse::<usize>().unwrap()] = value.clone(),
        other => panic!("{pointer}: {other}"),
    }
    configuration
}

/// The configuration of the filter, in a listener.
const FILTER: &str = "/filter_chains/0/filters/0/typed_config/http_filters/0/typed_config/config";

/// One Envoy gets all of them at once, each in a listener of its own, beside a good one that goes on.
#[tokio::test]
async fn configurations_broken_in_more_than_fifty_ways_are_refused_by_envoy_and_none_traps() {
    let good = json!({
        "version": 1, "sidecar": { "cluster": "sluicegate", "timeout": "50ms" },
        "rules": [{
            "name": "search", "match": { "path_template": "/v1/{id}", "methods": ["GET"] },
            "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key" }, { "template": "id" }], "cost": 5,
                         "when_missing": "deny" }],
            "when_unavailable": "allow",
        }],
    });
    // The same list as in the filter's own tests.
    let list = include_str!("../../filter/rules/tests/broken.json");
    let list: Vec<Value> = serde_json::from_str(list).unwrap();
    assert!(list.len() >= 50);
    let folder = tempfile::tempdir().unwrap();
    let all = |config: &mut Value| {
        let listener = from_file(config, folder.path());
        let broken = list.iter().enumerate().map(|(index, one)| {
            let (pointer, value) = (one["pointer"].as_str().unwrap(), &one["value"]);
            let mut listener = listener.clone();
            listener["name"] = json!(format!("broken-{index}"));
            *at(&mut listener, "/address/socket_address/port_value") = json!(0);
            let filter = at(&mut listener, FILTER);
            filter["name"] = json!(format!("broken-{index}"));
            filter["configuration"]["value"] = with(good.clone(), pointer, value);
            listener
        });
        // The good one comes first: Envoy compiles the module for it, and clones it for the others.
        let listeners: Vec<_> = [listener.clone()].into_iter().chain(broken).collect();
        write_listeners(folder.path(), &listeners);
    };
    let planned = Envoy::asking(process::free_port()).plugin(good.clone());
    let envoy = planned.patch(all).start(folder.path()).await;
    envoy.listens().await;
    let log = envoy.log();
    let mut log = log.as_str();
    let dump = envoy.admin("/config_dump?resource=dynamic_listeners");
    let (_, dump) = client::get(&dump).await;
    let dump: Value = serde_json::from_str(&dump).unwrap();
    let listeners = dump["configs"].as_array().unwrap();
    let with_any = |states: &[&str]| -> BTreeSet<Option<&str>> {
        let has = |listener: &&Value| states.iter().any(|state| listener[*state].is_object());
        let listeners = listeners.iter().filter(has);
        listeners
            .map(|listener| listener["name"].as_str())
            .collect()
    };
    let accepted = with_any(&["active_state", "warming_state"]);
    assert_eq!(accepted, BTreeSet::from([Some("ingress")]));
    let refused = with_any(&["error_state"]);
    for (index, one) in list.iter().enumerate() {
        let name = format!("broken-{index}");
        assert!(refused.contains(&Some(name.as_str())), "accepted: {one}");
        // The reason stands before the line that names the plugin.
        let (before, rest) = log
            .split_once(&format!("Plugin {name} failed to load"))
            .unwrap_or_else(|| panic!("{name} has no reason: {log}"));
        log = rest;
        let field = one["field"].as_str().unwrap();
        let reason = format!("configuration refused: `{field}`");
        assert!(before.contains(&reason), "no {reason} in {before}");
        assert!(
            !before.contains("panicked") && !before.contains("unreachable"),
            "{before}"
        );
    }
    assert_eq!(envoy.status("/v1/a", "k").await, 200);
    envoy.is_well().await;
}
