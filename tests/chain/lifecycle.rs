//! Clients that hang up, streams that are reset, sidecars that disconnect, Envoys that reload: no waiting request is lost and
//! nothing leaks. `stall` and `tests/chaos` drain an Envoy.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::{client, get, status_for};
use sluicegate_tests::envoy::{Envoy, PLUGIN, at};
use sluicegate_tests::listener::{from_file, write_listener};
use sluicegate_tests::process::eventually;
use sluicegate_tests::recorder::Recorder;
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::wire::read_question;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};

use super::support::{self, generous, per_key, plugin, pushed, with_sets};

const ADMITTED: &str = r#"{"epoch":1,"verdicts":[{"outcome":"admitted","check":0,"limit":"per-key","quota":9,"window_ms":1000,"remaining":8,"reset_ms":1000,"retry_after_ms":0}]}"#;

/// A fake sidecar that sends raw bytes: `answer` gets the number of the connection and writes to it.
async fn liar<F>(answer: impl Fn(usize, TcpStream) -> F + Send + Sync + 'static) -> u16
where
    F: Future<Output = ()> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answer = Arc::new(answer);
    let count = Arc::new(AtomicUsize::new(0));
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let (answer, count) = (Arc::clone(&answer), Arc::clone(&count));
            tokio::spawn(async move {
                if read_question(&mut stream).await {
                    answer(count.fetch_add(1, Ordering::SeqCst), stream).await;
                }
            });
        }
    });
    port
}

fn whole() -> String {
    format!(
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{ADMITTED}",
        ADMITTED.len()
    )
}

#[tokio::test]
async fn an_answer_that_breaks_off_at_any_byte_is_no_verdict() {
    let port = liar(|n, mut stream| async move {
        let answer = whole();
        let _ = stream
            .write_all(&answer.as_bytes()[..n.min(answer.len())])
            .await;
    })
    .await;
    let envoy = support::envoy(port, plugin(per_key("deny"))).await;
    for n in 0..=whole().len() {
        let expected = if n < whole().len() { 503 } else { 200 };
        assert_eq!(envoy.status("/", "k").await, expected, "after {n} bytes");
    }
    envoy.is_well().await;
}

#[tokio::test]
async fn a_slow_answer_is_no_verdict_and_delays_nobody_for_long() {
    // A byte now and then, so that the connection is never idle: for half a minute and more, which is longer than a client
    // waits. The pace is part of the test.
    let port = liar(|_, mut stream| async move {
        for byte in whole().bytes() {
            if stream.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    })
    .await;
    let mut plugin = plugin(per_key("deny"));
    plugin["sidecar"]["timeout"] = json!("1s");
    let envoy = support::envoy(port, plugin).await;
    for n in 0..3 {
        // Within the client's deadline: the whole answer would take longer than that.
        assert_eq!(envoy.status("/", "k").await, 503, "{n}");
    }
    envoy.is_well().await;
}

/// An Envoy whose fake sidecar answers late, so that clients can hang up before.
async fn envoy_with_a_slow_sidecar() -> Envoy {
    let sidecar = Recorder::slow(Duration::from_millis(100)).await.port;
    support::envoy(sidecar, plugin(per_key("deny"))).await
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_hang_up_while_they_wait_leave_nothing_behind() {
    let envoy = envoy_with_a_slow_sidecar().await;
    for _ in 0..20 {
        let mut hung = Vec::new();
        for n in 0..100 {
            let mut stream = TcpStream::connect(("127.0.0.1", envoy.port)).await.unwrap();
            let request = format!("GET / HTTP/1.1\r\nhost: h\r\nx-api-key: {n}\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            hung.push(stream);
        }
        eventually("some of them wait", async || envoy.active().await > 0).await;
        // Half of them are reset, half are closed normally.
        for (n, stream) in hung.into_iter().enumerate() {
            if n % 2 == 0 {
                stream.set_zero_linger().unwrap();
            }
        }
    }
    envoy.is_well().await;
    eventually("they are counted", async || {
        envoy.counted("decisions").await >= 100
    })
    .await;
    serves(&envoy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_that_are_reset_while_they_wait_leave_nothing_behind() {
    let envoy = envoy_with_a_slow_sidecar().await;
    for _ in 0..10 {
        let stream = TcpStream::connect(("127.0.0.1", envoy.port)).await.unwrap();
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(connection);
        let mut streams = Vec::new();
        for n in 0..50 {
            let mut send = send.clone().ready().await.unwrap();
            let request = axum::http::Request::get("http://h/")
                .header("x-api-key", n)
                .body(())
                .unwrap();
            streams.push(send.send_request(request, n % 2 == 0).unwrap());
        }
        // Let the requests go out before they are reset, or they would never be sent.
        eventually("some of them wait", async || envoy.active().await > 0).await;
        for (_, mut body) in streams {
            body.send_reset(h2::Reason::CANCEL);
        }
        drop(send);
        driver.abort();
    }
    envoy.is_well().await;
    serves(&envoy).await;
}

/// Asserts that a new client is served.
async fn serves(envoy: &Envoy) {
    eventually("a request is served", async || {
        status_for(&client(), &envoy.url("/"), "after").await == Some(200)
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_configuration_is_replaced_under_traffic_without_a_failure_and_old_ones_go() {
    let folder = tempfile::tempdir().unwrap();
    let generations = (0..10).map(|generation| {
        let mut rules = per_key("deny");
        rules[0]["name"] = json!(format!("generation-{generation}"));
        (
            format!("generation-{generation}"),
            json!({ "rules": rules }),
        )
    });
    let mut sets: serde_json::Map<String, Value> = generations.collect();
    sets.insert("s".to_owned(), json!({ "rules": per_key("deny") }));
    let sidecar = Sidecar::alone(&with_sets(&generous(), &sets.into())).await;
    let mut listener = Value::Null;
    let envoy = Envoy::asking(sidecar.port)
        .plugin(pushed())
        .patch(|config| listener = from_file(config, folder.path()))
        .alone()
        .await;
    serves(&envoy).await;
    let vms = "wasm.envoy.wasm.runtime.v8.active";
    let before = envoy.stat(vms).await;
    let stop = Arc::new(AtomicUsize::new(0));
    let served: Arc<[AtomicUsize; 8]> = Arc::default();
    let mut traffic = Vec::new();
    for n in 0..served.len() {
        let (stop, url, client) = (Arc::clone(&stop), envoy.url("/"), client());
        let served = Arc::clone(&served);
        traffic.push(tokio::spawn(async move {
            while stop.load(Ordering::Relaxed) == 0 {
                // A connection of a drained listener may be closed before it is used: try again.
                if let Ok(answer) = client.get(&url).header("x-api-key", n).send().await {
                    assert_eq!(answer.status(), 200);
                    served[n].fetch_add(1, Ordering::Relaxed);
                }
            }
        }));
    }
    for generation in 0..10 {
        let name = format!("generation-{generation}");
        at(&mut listener, PLUGIN)["rule_sets"] = json!({ "default": name });
        write_listener(folder.path(), &listener);
        let counter = format!("rule=.={name};.;limit=.=per-key;.;rule_limit_denied");
        eventually("the new configuration is in force", async || {
            let admin = envoy.admin("");
            let stats = get(&format!("{admin}/stats?filter={counter}")).await;
            stats.1.contains(&counter)
        })
        .await;
    }
    eventually("each client was served", async || {
        let mut served = served.iter();
        served.all(|served| served.load(Ordering::Relaxed) > 10)
    })
    .await;
    stop.store(1, Ordering::Relaxed);
    for client in traffic {
        client.await.unwrap();
    }
    eventually("the VMs of old configurations are gone", async || {
        envoy.stat(vms).await <= before + 2
    })
    .await;
    envoy.is_well().await;
    serves(&envoy).await;
}
