//! Authentication in both directions: passwords that rotate, the minimal ACL, TLS.

use std::path::Path;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use reqwest::Method;
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use sluicegate_tests::ask::{
    BACK_WITHIN, decide, decide_for, documented_acl, failures, policy, print_measured,
    wait_until_back,
};

/// Longer than any retry pause of the `redis` crate's own client, which recovered too late.
const WRONG: Duration = Duration::from_secs(8);

#[tokio::test]
async fn s2_a_password_that_was_wrong_for_long_and_is_corrected() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let store = format!("redis://:right@127.0.0.1:{}", redis.port());
    let sidecar = Sidecar::start(&policy(&store, "20ms", 1_000), folder.path()).await;
    wait_until_back(&sidecar, "k").await;
    let mut admin = redis_admin(&redis, "right").await;
    set(&mut admin, "CONFIG SET requirepass other").await;
    set(&mut admin, "CLIENT KILL TYPE normal SKIPME yes").await;
    let during = decide_for(&sidecar, "k", WRONG).await;
    assert!(during.iter().all(|outcome| outcome == "unavailable"));
    assert!(failures(&sidecar, "auth").await > 10.0);
    set(&mut admin, "CONFIG SET requirepass right").await;
    let time = wait_until_back(&sidecar, "k").await;
    print_measured("password wrong for 8 s", time);
    assert!(time < BACK_WITHIN, "{time:?}");
}

#[tokio::test]
async fn s2_a_password_in_a_file_that_rotates_while_it_runs() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start_with(&["--requirepass", "first"]).await;
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let password = file("password", "first\n");
    let username = file("username", "default");
    let store = format!(
        "{{ url: '{}', username_file: {username}, password_file: {password} }}",
        redis.url()
    );
    let sidecar = Sidecar::start(&policy(&store, "20ms", 1_000), folder.path()).await;
    wait_until_back(&sidecar, "k").await;
    let mut admin = redis_admin(&redis, "first").await;
    for next in ["second", "third"] {
        // Redis first and the file later: the harder order.
        set(&mut admin, &format!("CONFIG SET requirepass {next}")).await;
        set(&mut admin, "CLIENT KILL TYPE normal SKIPME yes").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
        file("password", &format!("{next}\n"));
        let time = wait_until_back(&sidecar, "k").await;
        print_measured("password rotated, its file 1 s later", time);
        assert!(time < BACK_WITHIN, "{time:?}");
    }
}

async fn redis_admin(redis: &Redis, password: &str) -> redis::aio::MultiplexedConnection {
    let url = format!("redis://:{password}@127.0.0.1:{}", redis.port());
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn set(connection: &mut redis::aio::MultiplexedConnection, words: &str) {
    let mut words = words.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    for word in words {
        command.arg(word);
    }
    let _: redis::Value = command.query_async(connection).await.unwrap();
}

#[tokio::test]
async fn the_documented_acl_suffices() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let _: () = redis.command(&documented_acl()).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    for algorithm in [
        "sliding_log",
        "sliding_window",
        "fixed_window",
        "token_bucket",
    ] {
        let text = policy(&store, "500ms", 60).replace("sliding_log", algorithm);
        let sidecar = Sidecar::start(&text, folder.path()).await;
        let key = format!("k-{algorithm}");
        let receipts = format!(
            r#"{{ "decisions": [{{ "checks": [{{ "limit": "per-key", "key": "{key}", "cost": 2 }}], "receipt": true }}] }}"#
        );
        let url = format!("http://127.0.0.1:{}/v1/decide", sidecar.port);
        let (_, answer) = sluicegate_tests::client::post(&url, receipts).await;
        assert!(answer.contains("admitted"), "{answer}");
        for _ in 0..70 {
            assert_ne!(
                decide(&sidecar, &key).await,
                "unavailable",
                "{}",
                sidecar.log()
            );
        }
        let url = format!("http://127.0.0.1:{}/v1/reset", sidecar.admin_port);
        let body = format!(r#"{{ "resets": [{{ "limit": "per-key", "key": "{key}" }}] }}"#);
        let (_, answer) = sluicegate_tests::client::post(&url, body).await;
        assert!(answer.contains("\"held\":true"), "{answer}");
        for terms in [
            r#""unlimited": true"#,
            r#""quota": 9, "until": "2099-01-01T00:00:00Z""#,
        ] {
            let body = format!(r#"{{ "limit": "per-key", "key": "{key}", {terms} }}"#);
            let (status, answer) = sidecar.change_override(Method::PUT, body).await;
            assert_eq!(status, 200, "{answer}");
        }
        eventually("it is up", async || {
            sidecar.metric("sluicegate_store_up").await == 1.0
                && sidecar.metric("sluicegate_sidecars").await >= 1.0
        })
        .await;
    }
    // The ACL forbids everything else: other keys, and every command that it does not name.
    let log: Vec<redis::Value> = redis.command("ACL LOG").await;
    let denied = format!("{log:?}");
    // The library sends its name, which does not justify a permission.
    let refused = denied.matches("reason").count();
    let set_info = denied
        .matches(r#""object"'), bulk-string('"client"#)
        .count();
    assert_eq!(refused, set_info, "{denied}");
    for forbidden in [
        "GET other",
        "KEYS *",
        "FLUSHALL",
        "CONFIG GET maxmemory",
        "DEL sg:{k}:x",
    ] {
        let client = redis::Client::open(store.as_str()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut words = forbidden.split(' ');
        let mut command = redis::cmd(words.next().unwrap());
        words.for_each(|word| _ = command.arg(word));
        let answer: redis::RedisResult<redis::Value> = command.query_async(&mut connection).await;
        let error = answer.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{forbidden}: {error}");
    }
}

#[tokio::test]
async fn an_acl_that_lacks_a_command_of_the_script_is_reported_although_ping_would_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let redis = Redis::start().await;
    let acl = documented_acl().replace(" +hset", " +ping");
    let _: () = redis.command(&acl).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    let sidecar = Sidecar::start(&policy(&store, "500ms", 60), folder.path()).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    assert_eq!(failures(&sidecar, "refused").await, 1.0);
    // Once the command is allowed, no restart is needed.
    let _: () = redis.command("ACL SETUSER sluicegate +hset").await;
    assert!(wait_until_back(&sidecar, "k").await < BACK_WITHIN);
}

/// Writes a certificate authority and the certificates of Redis and of the sidecar.
fn certificates(folder: &Path, name: &str) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // A certificate with the same name as its authority would count as self-signed.
    params
        .distinguished_name
        .push(DnType::CommonName, "authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    std::fs::write(folder.join("ca.pem"), authority.pem()).unwrap();
    for (file, name) in [("redis", name), ("client", "sidecar")] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &authority).unwrap();
        std::fs::write(folder.join(format!("{file}.pem")), certificate.pem()).unwrap();
        std::fs::write(folder.join(format!("{file}.key")), key.serialize_pem()).unwrap();
    }
}

/// A Redis, and its TLS port, on which it requires client certificates.
async fn with_tls(folder: &Path) -> (Redis, u16) {
    let port = free_port();
    let file = |name: &str| folder.join(name).display().to_string();
    let port_word = port.to_string();
    let (cert, key, ca) = (file("redis.pem"), file("redis.key"), file("ca.pem"));
    // The plain port is for the test itself.
    let arguments = [
        "--tls-port",
        &port_word,
        "--tls-cert-file",
        &cert,
        "--tls-key-file",
        &key,
        "--tls-ca-cert-file",
        &ca,
        "--tls-auth-clients",
        "yes",
    ];
    (Redis::start_with(&arguments).await, port)
}

fn tls_store(folder: &Path, port: u16, options: &str) -> String {
    let folder = folder.display();
    let client = format!("certificate: {folder}/client.pem, key: {folder}/client.key");
    format!("{{ url: 'rediss://localhost:{port}', tls: {{ {client}, {options} }} }}")
}

#[tokio::test]
async fn tls_with_a_private_authority_and_a_client_certificate() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "localhost");
    let (redis, port) = with_tls(folder.path()).await;
    let ca = format!("ca: {}/ca.pem", folder.path().display());
    let store = tls_store(folder.path(), port, &ca);
    let sidecar = Sidecar::start(&policy(&store, "1s", 1), folder.path()).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted", "{}", sidecar.log());
    assert_eq!(decide(&sidecar, "k").await, "denied");
    // Replace all certificates while the sidecar runs, by those of another authority.
    certificates(folder.path(), "localhost");
    let mut all = redis::cmd("CONFIG");
    all.arg("SET");
    for (option, file) in [
        ("tls-ca-cert-file", "ca.pem"),
        ("tls-key-file", "redis.key"),
        ("tls-cert-file", "redis.pem"),
    ] {
        all.arg(option)
            .arg(folder.path().join(file).display().to_string());
    }
    let _: () = all
        .query_async(&mut redis.connection().await)
        .await
        .unwrap();
    let _: i64 = redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        wait_until_back(&sidecar, "k2").await < BACK_WITHIN,
        "{}",
        sidecar.log()
    );
}

#[tokio::test]
async fn tls_refuses_a_certificate_with_another_name_or_an_unknown_issuer() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "redis.internal");
    let (_redis, port) = with_tls(folder.path()).await;
    let ca = format!("ca: {}/ca.pem", folder.path().display());
    let refused = async |options: &str| {
        let store = tls_store(folder.path(), port, options);
        let sidecar = Sidecar::start(&policy(&store, "2s", 1), folder.path()).await;
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
        let ready = format!("http://127.0.0.1:{}/readyz", sidecar.admin_port);
        eventually("the cause is reported", async || {
            let (_, body) = sluicegate_tests::client::get(&ready).await;
            body.contains("TLS failed")
        })
        .await;
        let (_, body) = sluicegate_tests::client::get(&ready).await;
        let shown = body + &sidecar.log();
        // The store's host, and the name in its certificate.
        for name in ["localhost", "redis.internal"] {
            assert!(!shown.contains(name), "{shown}");
        }
        assert!(failures(&sidecar, "connection").await >= 1.0);
    };
    refused(&ca).await;
    // The system's authorities did not sign it.
    refused("server_name: redis.internal").await;
    // Accepted with the name that is in the certificate.
    let store = tls_store(
        folder.path(),
        port,
        &format!("{ca}, server_name: redis.internal"),
    );
    let sidecar = Sidecar::start(&policy(&store, "2s", 1), folder.path()).await;
    assert_eq!(decide(&sidecar, "k").await, "admitted", "{}", sidecar.log());
}
