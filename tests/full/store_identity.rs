//! Authentication in both directions: passwords that rotate, the minimal ACL, TLS.

use std::path::Path;
use std::process::Command;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use reqwest::Method;
use serde_json::json;
use sluicegate_tests::ask::{
    PATIENT, PLENTY, decide, documented_acl, failures, is_soon_back, policy, sidecar,
    stays_unavailable, wait_until_back,
};
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::redis::{Redis, from_words};
use sluicegate_tests::sidecar::{Sidecar, binary};

#[tokio::test]
async fn a_password_that_was_wrong_for_long_and_is_corrected() {
    let redis = Redis::start_with(&["--requirepass", "right"]).await;
    let store = format!("redis://:right@127.0.0.1:{}", redis.port());
    let sidecar = sidecar(store, PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let mut admin = redis_admin(&redis, "right").await;
    set(&mut admin, "CONFIG SET requirepass other").await;
    set(&mut admin, "CLIENT KILL TYPE normal SKIPME yes").await;
    decide(&sidecar, "k").await;
    // For eight seconds: longer than any retry pause of the `redis` crate's own client, which recovered too late.
    for _ in 0..4 {
        stays_unavailable(&sidecar, "k").await;
    }
    assert!(failures(&sidecar, "auth").await > 10.0);
    set(&mut admin, "CONFIG SET requirepass right").await;
    is_soon_back(&sidecar, "k", "password wrong for 8 s").await;
}

#[tokio::test]
async fn a_password_in_a_file_that_rotates_while_it_runs() {
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
    let sidecar = sidecar(store, PATIENT, PLENTY).await;
    wait_until_back(&sidecar, "k").await;
    let mut admin = redis_admin(&redis, "first").await;
    for next in ["second", "third"] {
        // Redis first and the file later: the harder order.
        set(&mut admin, &format!("CONFIG SET requirepass {next}")).await;
        set(&mut admin, "CLIENT KILL TYPE normal SKIPME yes").await;
        decide(&sidecar, "k").await;
        stays_unavailable(&sidecar, "k").await;
        file("password", &format!("{next}\n"));
        is_soon_back(&sidecar, "k", "password rotated, its file later").await;
    }
}

async fn redis_admin(redis: &Redis, password: &str) -> redis::aio::MultiplexedConnection {
    let url = format!("redis://:{password}@127.0.0.1:{}", redis.port());
    let client = redis::Client::open(url).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

async fn set(connection: &mut redis::aio::MultiplexedConnection, words: &str) {
    let done: redis::RedisResult<redis::Value> = from_words(words).query_async(connection).await;
    done.expect(words);
}

#[tokio::test]
async fn the_documented_acl_suffices() {
    let redis = Redis::start().await;
    let _: () = redis.command(&documented_acl()).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    for algorithm in [
        "sliding_log",
        "sliding_window",
        "fixed_window",
        "token_bucket",
    ] {
        let text = policy(&store, PATIENT, 60).replace("sliding_log", algorithm);
        let sidecar = Sidecar::alone(&text).await;
        let key = format!("k-{algorithm}");
        let check = json!({ "limit": "per-key", "key": key, "cost": 2 });
        let answer = sidecar.answer(json!([{ "checks": [check], "receipt": true }]));
        let answer = answer.await["verdicts"][0].take();
        assert_eq!(answer["outcome"], "admitted", "{answer}");
        for _ in 0..70 {
            let outcome = decide(&sidecar, &key).await;
            assert_ne!(outcome, "unavailable", "{}", sidecar.log());
        }
        let answer = sidecar.reset("per-key", &key).await;
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
        let answer: redis::RedisResult<redis::Value> =
            from_words(forbidden).query_async(&mut connection).await;
        let error = answer.unwrap_err();
        assert_eq!(error.code(), Some("NOPERM"), "{forbidden}: {error}");
    }
}

#[tokio::test]
async fn an_acl_that_lacks_a_command_of_the_script_is_reported_although_ping_would_succeed() {
    let redis = Redis::start().await;
    let acl = documented_acl().replace(" +hset", " +ping");
    let _: () = redis.command(&acl).await;
    let store = format!("redis://sluicegate:secret@127.0.0.1:{}", redis.port());
    let sidecar = sidecar(store, PATIENT, 60).await;
    assert_eq!(decide(&sidecar, "k").await, "unavailable");
    eventually("the call and the loss are counted", async || {
        failures(&sidecar, "refused").await == 2.0
    })
    .await;
    // Once the command is allowed, no restart is needed.
    let _: () = redis.command("ACL SETUSER sluicegate +hset").await;
    is_soon_back(&sidecar, "k", "a command allowed").await;
}

/// Writes a certificate authority and the certificates of Redis and of the sidecar.
fn certificates(folder: &Path, name: &str) {
    std::fs::create_dir_all(folder).unwrap();
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
    let own = ["--tls-cert-file", &cert, "--tls-key-file", &key];
    let clients = ["--tls-ca-cert-file", &ca, "--tls-auth-clients", "yes"];
    let arguments = [&["--tls-port", &port_word][..], &own, &clients].concat();
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
    let sidecar = sidecar(store, PATIENT, 1).await;
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
        all.arg(option).arg(folder.path().join(file).to_str());
    }
    let mut connection = redis.connection().await;
    let _: () = all.query_async(&mut connection).await.unwrap();
    let before = redis.calls("role").await;
    let _: i64 = redis.command("CLIENT KILL TYPE normal SKIPME yes").await;
    eventually("another connection", async || {
        redis.calls("role").await > before
    })
    .await;
    is_soon_back(&sidecar, "k2", "certificates replaced").await;
}

#[tokio::test]
async fn tls_refuses_a_certificate_with_another_name_or_an_unknown_issuer() {
    let folder = tempfile::tempdir().unwrap();
    certificates(folder.path(), "redis.internal");
    let (_redis, port) = with_tls(folder.path()).await;
    let ca = format!("ca: {}/ca.pem", folder.path().display());
    let store = |options: &str| tls_store(folder.path(), port, options);
    let refused = async |options: &str| {
        let sidecar = sidecar(store(options), PATIENT, 1).await;
        assert_eq!(decide(&sidecar, "k").await, "unavailable");
        sidecar.reports("TLS failed").await;
        let shown = sidecar.readyz().await + &sidecar.log();
        // The store's host, and the name in its certificate.
        for name in ["localhost", "redis.internal"] {
            assert!(!shown.contains(name), "{shown}");
        }
        assert!(failures(&sidecar, "connection").await >= 1.0);
    };
    refused(&ca).await;
    // To the operator too, who is told the remedy.
    certificates(&folder.path().join("other"), "localhost");
    let other = format!("ca: {}/other/ca.pem", folder.path().display());
    for (options, told) in [
        (&ca, "set `tls.server_name`"),
        (&other, "; correct the files"),
    ] {
        let policy = folder.path().join("policy.yaml");
        std::fs::write(&policy, self::policy(store(options), PATIENT, 1)).unwrap();
        let mut check = Command::new(binary());
        let ran = check.args(["check-store", "--policy"]).arg(policy).output();
        let ran = ran.unwrap();
        let out = String::from_utf8(ran.stdout).unwrap();
        assert!(out.contains("tls: error: ") && out.contains(told), "{out}");
        assert_eq!(ran.status.code(), Some(1), "{out}");
    }
    // The system's authorities did not sign it.
    refused("server_name: redis.internal").await;
    // Accepted with the name that is in the certificate.
    let sidecar = sidecar(
        store(&format!("{ca}, server_name: redis.internal")),
        PATIENT,
        1,
    )
    .await;
    assert_eq!(decide(&sidecar, "k").await, "admitted", "{}", sidecar.log());
}
