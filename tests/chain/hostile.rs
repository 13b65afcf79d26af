//! Answers that no sidecar should give, configurations that Envoy has to refuse: the VM survives.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use axum::Router;
use axum::body::Body;
use axum::http::StatusCode;
use serde_json::{Value, json};
use sluicegate_tests::client;
use sluicegate_tests::envoy::{Envoy, at};
use sluicegate_tests::listener::{from_file, write_listeners};
use sluicegate_tests::process;
use sluicegate_tests::upstream::serve;

use super::support::{envoy, per_key, plugin};

/// Starts a fake sidecar that answers questions with what `answer` returns; its port.
async fn liar(answer: impl Fn() -> (StatusCode, Vec<u8>) + Send + Sync + 'static) -> u16 {
    let answer = Arc::new(answer);
    let router = Router::new().fallback(async move |question: String| {
        // An announcement comes when it is due, and no test should depend on that.
        let (status, body) = if question.contains(r#""decisions":[]"#) {
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
    let whole = format!(r#"{{"epoch":1,"verdicts":[{admitted}]}}"#);
    let two = whole.replace("[{", r#"[{"outcome":"unavailable"},{"#);
    let bodies: [&[u8]; 12] = [
        b"",
        b"not json",
        b"\xff\xfe\x00",
        b"null",
        br#"{"epoch":1,"verdicts":7}"#,
        br#"{"epoch":1,"verdicts":[]}"#,
        br#"{"epoch":-1,"verdicts":[{"outcome":"admitted"}]}"#,
        br#"{"epoch":1,"verdicts":[{"outcome":"denied","retry_after_ms":"soon"}]}"#,
        &whole.as_bytes()[..whole.len() - 2],
        two.as_bytes(),
        huge.as_bytes(),
        &[b'['; 100_000],
    ];
    let other = [
        (StatusCode::INTERNAL_SERVER_ERROR, whole.as_bytes()),
        (StatusCode::NOT_FOUND, b""),
        (StatusCode::NO_CONTENT, b""),
    ];
    let answers = bodies.map(|body| (StatusCode::OK, body));
    let last = Arc::new(Mutex::new((StatusCode::OK, Vec::new())));
    let answer = Arc::clone(&last);
    let port = liar(move || answer.lock().unwrap().clone()).await;
    let envoy = envoy(port, plugin(per_key("deny"))).await;
    for (status, body) in answers.into_iter().chain(other) {
        let shown = String::from_utf8_lossy(body)
            .chars()
            .take(60)
            .collect::<String>();
        *last.lock().unwrap() = (status, body.to_vec());
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
async fn broken_configurations_are_refused_by_envoy_and_none_traps() {
    let good = json!({
        "version": 2,
        "sidecar": { "cluster": "sluicegate", "timeout": "50ms" },
        "rule_sets": { "default": "gateway" },
        "until_rules": { "hold": "0ms", "then": "allow" },
    });
    // The same list as in the filter's own tests.
    let list = include_str!("../../filter/rules/tests/broken.json");
    let list: Vec<Value> = serde_json::from_str(list).unwrap();
    assert!(list.len() >= 25);
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
