//! `check`, step by step: what is well, and each step's mistake with its meaning, its page and its status.

use std::process::Stdio;

use sluicegate_tests::client::get;
use sluicegate_tests::documents::{blocks, section, text};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::shell::{Ran, Shell};

/// A stall of this machine is not an outage.
const POLICY: &str = "
store_timeout: 2s
limits:
  by-address: { match: { host: api.example.com, path: /v1/ }, key: address, rate: 2/1h, on_failure: deny }
";

/// A Redis, a sidecar and a shell with the policy.
async fn world() -> (Shell, Redis, Sidecar) {
    let mut shell = Shell::new();
    let redis = Redis::start().await;
    let policy = format!("store: {}\n{POLICY}", redis.url());
    shell.write("policy.yaml", &policy);
    let sidecar = Sidecar::start(&policy, shell.folder.path()).await;
    shell.ask(&sidecar);
    (shell, redis, sidecar)
}

/// An Envoy whose filter has the rules.
async fn envoy(sidecar: &Sidecar) -> Envoy {
    let envoy = Envoy::asking(sidecar.port).plugin(None).alone().await;
    let filters = sidecar.admin("/v1/filters");
    let has_rules = async || {
        let list = get(&filters).await.1;
        list.contains("\"in_force\"") && !list.contains("\"none\"")
    };
    eventually("the rules are in force", has_rules).await;
    envoy
}

/// Runs `check` with further arguments; it has to end with this status.
async fn check(shell: &Shell, code: i32, more: &str) -> Ran {
    let command = format!("check --policy policy.yaml {more}");
    shell.ends(code, &command).await
}

/// The marks, each with the first letter of its step.
fn marks(ran: &Ran) -> String {
    let lines = ran.out.lines().filter(|line| !line.starts_with(' '));
    let first = lines.filter_map(|line| {
        let (mark, rest) = line.split_once(' ')?;
        let is_mark = ["✓", "✗", "!", "-"].contains(&mark);
        is_mark.then(|| format!("{mark}{} ", &rest[..1]))
    });
    first.collect::<String>().trim_end().to_owned()
}

/// It has a line with these words, and below it this one.
fn tells(ran: &Ran, words: &str, below: &str) {
    let mut lines = ran.out.lines();
    let found = lines.find(|line| line.contains(words));
    assert!(found.is_some(), "no {words}: {ran:?}");
    let next = lines.next().unwrap_or_default();
    assert!(next.contains(below), "{next}, not {below}: {ran:?}");
}

/// Lines without words that differ from run to run: those with a digit.
fn shown(text: &str) -> Vec<String> {
    let is_same = |word: &&str| !word.contains(|c: char| c.is_ascii_digit());
    let words = |line: &str| {
        line.split(' ')
            .filter(is_same)
            .collect::<Vec<_>>()
            .join(" ")
    };
    text.lines().map(words).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_is_well_and_the_request_counts() {
    let (shell, _redis, sidecar) = world().await;
    let envoy = envoy(&sidecar).await;
    let ran = check(&shell, 0, "").await;
    assert_eq!(marks(&ran), "✓p ✓s ✓s ✓f", "{ran:?}");
    assert!(
        ran.out.ends_with("0 errors, 0 warnings\n") && ran.err.is_empty(),
        "{ran:?}"
    );
    tells(
        &ran,
        "policy.yaml: a sidecar takes it; 1 limit, rules ",
        "docs/policy.md#",
    );
    tells(&ran, "sidecars can count there", "docs/redis.md#");
    tells(&ran, "ready: sidecar ", "docs/runbook.md#");
    tells(&ran, " are in force in ", "docs/rules.md#");

    let left = async || {
        let look = "peek --limit by-address --key @address=127.0.0.1 --output json";
        shell.must(look).await.json()["remaining"].clone()
    };
    let ask = format!("--url {} --header host:api.example.com", envoy.url("/v1/x"));
    for units in [1, 0] {
        let ran = check(&shell, 0, &ask).await;
        assert_eq!(marks(&ran), "✓p ✓s ✓s ✓f ✓r", "{ran:?}");
        tells(
            &ran,
            "answered 200 OK, and the sidecar has counted a request",
            "docs/troubleshooting.md#",
        );
        assert_eq!(left().await, units);
    }
    let ran = check(&shell, 0, &ask).await;
    tells(
        &ran,
        "answered 429 Too Many Requests (limit `by-address` allows 2 per hour",
        "docs/",
    );
    // As the page has it.
    let page = text("docs/dev.md");
    let command = blocks(section(&page, "Check it all"), "sh")[0];
    let here = command.replace("http://127.0.0.1:10000/", &envoy.url("/v1/x"));
    shell.write("envoy.yaml", &text("envoy/envoy.yaml"));
    let ran = shell
        .sh(&format!("{} -H host:api.example.com", here.trim_end()))
        .await;
    assert_eq!(
        (ran.code(), marks(&ran).as_str()),
        (0, "✓p ✓s ✓s ✓f ✓r"),
        "{ran:?}"
    );
    // No rule matches this one.
    let ran = check(&shell, 1, &format!("--url {}", envoy.url("/"))).await;
    assert_eq!(marks(&ran), "✓p ✓s ✓s ✓f ✗r", "{ran:?}");
    tells(
        &ran,
        "answered 200 OK, and this sidecar has counted nothing: by the policy, `GET /` at host `127.0.0.1:",
        "docs/",
    );
    let nobody = format!("--url http://127.0.0.1:{}/", free_port());
    let ran = check(&shell, 69, &nobody).await;
    tells(
        &ran,
        "no answer: Connection refused",
        "requests like this one may not be limited",
    );
    assert_eq!(
        ran.err,
        "sluicegate: not all is well: begin with the request\n"
    );
    let mistakes = ["--url https://h/", "--url http://h/ -H x", "-H a:b"];
    for mistake in mistakes {
        check(&shell, 64, mistake).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_tells_its_mistake() {
    let (mut shell, redis, mut sidecar) = world().await;
    let no_envoy = check(&shell, 1, "--url http://127.0.0.1:1/").await;
    assert_eq!(marks(&no_envoy), "✓p ✓s ✓s ✗f -r", "{no_envoy:?}");
    let why = "no filter has asked this sidecar for rules lately";
    tells(&no_envoy, why, "docs/runbook.md#sluicegatewithoutrules");
    let page = text("docs/dev.md");
    let page = section(&page, "Check it all");
    let mut of_page = blocks(page, "").into_iter();
    let of_page = of_page
        .find(|block| block.starts_with('✓'))
        .expect("a block");
    assert_eq!(shown(&no_envoy.out), shown(of_page), "{no_envoy:?}");
    let policy = std::fs::read_to_string(&sidecar.policy).unwrap();
    let of_jobs = "limits: { job: { match: none, rate: 5/1h } }";
    shell.write("policy.yaml", of_jobs);
    let other = Sidecar::alone(of_jobs).await;
    shell.ask(&other);
    let ran = check(&shell, 0, "").await;
    assert_eq!(marks(&ran), "✓p ✓s ✓s -f", "{ran:?}");
    drop(other);
    shell.ask(&sidecar);
    shell.write("policy.yaml", &policy);
    let _envoy = envoy(&sidecar).await;

    // The filter's configuration is the filter's, and stops a wait at once.
    shell.write(
        "envoy.yaml",
        "version: 2\nsidecar: { cluster: c }\nruels: 1\n",
    );
    let ran = check(&shell, 64, "--envoy envoy.yaml --wait 1h").await;
    assert_eq!(marks(&ran), "✓p ✓s ✓s ✗f", "{ran:?}");
    tells(
        &ran,
        "envoy.yaml:3: `ruels`",
        "requests may be limited by other rules",
    );

    // Another store than the sidecar's.
    let away = format!("--store redis://127.0.0.1:{}", free_port());
    let ran = check(&shell, 1, &away).await;
    assert_eq!(marks(&ran), "✓p ✗s ✓s ✓f", "{ran:?}");
    tells(&ran, "address: ", "docs/redis.md#the-address");
    check(&shell, 64, "--store redis:/x").await;
    let elsewhere = Redis::start().await;
    for (store, words) in [
        (elsewhere.url(), "it counts in another Redis"),
        ("memory".to_owned(), "it counts in Redis, not in `memory`"),
    ] {
        let ran = check(&shell, 1, &format!("--store {store}")).await;
        assert_eq!(marks(&ran), "✓p ✓s ✗s ✓f", "{ran:?}");
        tells(
            &ran,
            words,
            "docs/troubleshooting.md#a-change-did-not-arrive",
        );
    }
    let _: () = redis
        .command("CONFIG SET maxmemory-policy allkeys-lru")
        .await;
    let ran = check(&shell, 0, "").await;
    tells(
        &ran,
        "! store    127.0.0.1:",
        "docs/runbook.md#sluicegatestoreevicts",
    );

    // Another policy than the sidecar's, with the same rules or others, and one that it refuses.
    shell.write(
        "policy.yaml",
        &policy.replace("deny }", "deny, enforce: false }"),
    );
    let ran = check(&shell, 1, "").await;
    assert_eq!(marks(&ran), "✓p !s !s ✓s ✗s ✓f", "{ran:?}");
    tells(
        &ran,
        "the sidecar's limits, tiers or consumers",
        "docs/troubleshooting.md#",
    );
    shell.write("policy.yaml", &policy.replace("/v1/", "/v2/"));
    let ran = check(&shell, 1, "").await;
    assert_eq!(marks(&ran), "✓p !s ✓s ✗s ✓f", "{ran:?}");
    tells(
        &ran,
        "the sidecar's rules are ",
        "docs/troubleshooting.md#a-change-did-not-arrive",
    );
    shell.write("policy.yaml", &policy.replace("2/1h", "2/1"));
    let ran = check(&shell, 64, "--wait").await;
    assert_eq!(marks(&ran), "✗p -s ✓s ✓f", "{ran:?}");
    tells(
        &ran,
        "policy.yaml:5: ",
        "a running sidecar keeps its earlier policy",
    );
    shell.write("policy.yaml", &policy);
    std::fs::write(&sidecar.policy, "limits: 1").unwrap();
    sidecar.reports("the policy file is refused").await;
    let ran = check(&shell, 1, "").await;
    tells(
        &ran,
        "the policy file is refused",
        "docs/runbook.md#sluicegatepolicyrefused",
    );
    std::fs::write(&sidecar.policy, policy).unwrap();
    let is_read = async || !sidecar.readyz().await.contains("refused");
    eventually("the policy is read", is_read).await;

    // The sidecar knows that its store is down, and then nobody is there.
    drop(redis);
    sidecar.reports("the store has not answered").await;
    let ran = check(&shell, 1, "").await;
    assert!(marks(&ran).starts_with("✓p ✗s ✗s "), "{ran:?}");
    tells(
        &ran,
        "the store has not answered",
        "docs/runbook.md#sluicegatestorefailing",
    );
    sidecar.kill();
    let ran = check(&shell, 1, "").await;
    assert_eq!(marks(&ran), "✓p ✗s ✗s -f", "{ran:?}");
    shell.write("policy.yaml", POLICY);
    shell.set("SLUICEGATE_STORE", "memory");
    let ran = check(&shell, 69, "").await;
    assert_eq!(marks(&ran), "✓p ✓s ✗s -f", "{ran:?}");
    tells(
        &ran,
        "Is the sidecar running?",
        "docs/runbook.md#sluicegatesidecarmissing",
    );
    check(&shell, 64, "--envoy nonexistent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn wait_tries_until_all_is_well() {
    let (shell, _redis, sidecar) = world().await;
    let program = shell.folder.path().join("bin/sluicegate");
    let mut waiting = shell.command(program.to_str().unwrap());
    waiting.args(["check", "--policy", "policy.yaml", "--wait", "5m"]);
    let mut waiting = waiting.stdout(Stdio::null()).spawn().unwrap();
    let ran = check(&shell, 1, "--wait 2s").await;
    tells(&ran, "no filter has asked", "docs/");
    assert!(
        waiting.try_wait().unwrap().is_none(),
        "it waits for a filter"
    );
    let _envoy = envoy(&sidecar).await;
    let ended = waiting.wait().await.unwrap();
    assert!(ended.success(), "{ended}");
}
