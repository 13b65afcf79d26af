//! Rules that the sidecar pushes to the filters.
//!
//! | file | for |
//! |---|---|
//! | `pushed_beside.rs` | what else goes on while rules change |
//! | `pushed_long.rs` | a thousand changes, large ones, and how long they take |
#![expect(
    clippy::disallowed_methods,
    reason = "fake sidecars answer at a path that no document describes"
)]
#[path = "pushed_beside.rs"]
mod beside;
#[path = "pushed_long.rs"]
mod long;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::http::HeaderMap;
use serde_json::{Value, json};
use sluicegate_tests::ask::logs;
use sluicegate_tests::client::{client, get, status_for};
use sluicegate_tests::envoy::{Envoy, MANAGER, at};
use sluicegate_tests::process::{eventually, free_port};
use sluicegate_tests::sidecar::Sidecar;
use sluicegate_tests::upstream::serve;
use tokio::task::JoinHandle;

use super::late::{burst, fields};
use super::support::{
    behind, check, decide, decided, envoy, generous, peek, per_key, policy, pushed, take,
    with_rules, with_state,
};

/// A rule that denies everybody after the first request, with a body of its own.
fn told(body: &str) -> Value {
    let mut rules = per_key("deny");
    rules[0]["reply"] = json!({ "body": body });
    rules
}

fn one_each(rules: &Value) -> String {
    with_rules(&policy("memory", "fixed_window", 1, "30d"), rules)
}

async fn body(envoy: &Envoy, path: &str, key: &str) -> (u16, String) {
    let answer = envoy.get(path, &[("x-api-key", key)]).await;
    (answer.status().as_u16(), answer.text().await.unwrap())
}

/// All filters of a sidecar, with the digest of its rules.
async fn filters(sidecar: &Sidecar) -> (String, Vec<Value>) {
    let (status, text) = get(&sidecar.admin("/v1/filters")).await;
    assert_eq!(status, 200, "{text}");
    let mut list: Value = serde_json::from_str(&text).unwrap();
    let filters = serde_json::from_value(list["filters"].take()).unwrap();
    (list["rules"].as_str().unwrap().to_owned(), filters)
}

/// How many filters are in this state.
async fn in_state(sidecar: &Sidecar, state: &str) -> usize {
    let (_, filters) = filters(sidecar).await;
    filters.iter().filter(|one| one["state"] == state).count()
}

fn write(path: &Path, text: &str) {
    // As editors and Kubernetes do, so that nobody reads half of it.
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, path).unwrap();
}

/// Puts a policy in force, and waits until so many filters have its rules. The signal makes the sidecar read the file at once.
async fn change(sidecar: &Sidecar, text: &str, count: usize) {
    let (before, _) = filters(sidecar).await;
    write(&sidecar.policy, text);
    sidecar.signal("HUP");
    all_have_others(sidecar, &before, count).await;
}

/// Waits until so many filters have the same rules, which are not these.
async fn all_have_others(sidecar: &Sidecar, before: &str, count: usize) {
    eventually("all filters have the rules", async || {
        let (rules, filters) = filters(sidecar).await;
        let has = |one: &Value| one["digest"] == rules.as_str();
        rules != before && filters.len() == count && filters.iter().all(has)
    })
    .await;
}

/// An Envoy that has the rules of a sidecar, by which `alice` has had what she may.
async fn used_up(sidecar: &Sidecar, plugin: Value) -> Envoy {
    let envoy = envoy(sidecar.port, plugin).await;
    assert_eq!(body(&envoy, "/", "alice").await.0, 200);
    envoy
}

/// Waits until a key is denied by the rules with this body.
async fn denies(envoy: &Envoy, key: &str, by: &str) {
    let what = format!("`{key}` is denied by the rules `{by}`");
    let denied = (429, by.to_owned());
    eventually(&what, async || body(envoy, "/", key).await == denied).await;
}

/// Clients with keys of their own, all of whose requests pass.
struct Admitted {
    go_on: Arc<AtomicBool>,
    clients: Vec<JoinHandle<()>>,
}

impl Admitted {
    fn start(envoys: &[Envoy], count: usize) -> Self {
        let go_on = Arc::new(AtomicBool::new(true));
        let clients = (0..count).map(|n| {
            let (url, go_on) = (envoys[n % envoys.len()].url("/"), Arc::clone(&go_on));
            tokio::spawn(async move {
                let (client, key) = (client(), n.to_string());
                while go_on.load(Ordering::Relaxed) {
                    assert_eq!(status_for(&client, &url, &key).await, Some(200));
                }
            })
        });
        let clients = clients.collect();
        Self { go_on, clients }
    }

    async fn stop(self) {
        self.go_on.store(false, Ordering::Relaxed);
        for client in self.clients {
            client.await.unwrap();
        }
    }
}

/// Two Envoys with two workers each.
async fn two_envoys(sidecar: &Sidecar) -> [Envoy; 2] {
    let planned = || Envoy::asking(sidecar.port).plugin(pushed()).workers(2);
    [planned().alone().await, planned().alone().await]
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_before_the_first_rules_wait_and_are_then_metered() {
    let sidecar = Sidecar::alone(&one_each(&told("first"))).await;
    let planned = Envoy::asking(sidecar.port).plugin(pushed());
    let planned =
        planned.patch(|config| config["node"] = json!({ "id": "gateway-0", "cluster": "c" }));
    let envoy = planned.alone().await;
    assert_eq!(body(&envoy, "/", "alice").await.0, 200);
    assert_eq!(body(&envoy, "/", "alice").await, (429, "first".to_owned()));
    // A filter says so with its next request for rules.
    eventually("the sidecar knows of it", async || {
        let (rules, filters) = filters(&sidecar).await;
        filters.iter().any(|one| one["serves"] == true)
            && filters.iter().all(|one| one["digest"] == rules.as_str())
    })
    .await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_sidecar_requests_wait_for_as_long_as_said_and_are_then_answered_as_said() {
    for (then, status, counter) in [
        ("deny", 503, "no_rules_denied"),
        ("allow", 200, "no_rules_allowed"),
    ] {
        let port = free_port();
        let mut plugin = pushed();
        plugin["until_rules"] = json!({ "hold": "400ms", "then": then });
        let envoy = envoy(port, plugin).await;
        let began = Instant::now();
        let (answered, text) = body(&envoy, "/", "alice").await;
        assert_eq!(answered, status, "{text}");
        assert!(began.elapsed() >= Duration::from_millis(400));
        envoy.counts(&[(counter, 1)]).await;
        // The sidecar comes.
        let folder = tempfile::tempdir().unwrap();
        let planned = Sidecar::with(&one_each(&told("first"))).port(port);
        let _sidecar = planned.start(folder.path()).await;
        eventually("requests are metered", async || {
            body(&envoy, "/", "bob").await.0 == 429
        })
        .await;
        envoy.is_well().await;
    }
}

/// More than may wait for verdicts with one key.
#[tokio::test(flavor = "multi_thread")]
async fn thousands_that_have_waited_for_rules_get_their_verdicts() {
    const CONNECTIONS: usize = 30;
    let port = free_port();
    let mut plugin = pushed();
    plugin["until_rules"] = json!({ "hold": "10s" });
    let envoy = envoy(port, plugin).await;
    let waiting = tokio::spawn(burst(envoy.port, CONNECTIONS, |_| fields("alice")));
    eventually("they wait", async || {
        envoy.active().await >= 100 * CONNECTIONS as u64
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let text = with_rules(&generous(), &per_key("deny"));
    let planned = Sidecar::with(&text).port(port);
    let sidecar = planned.start(folder.path()).await;
    let statuses = waiting.await.unwrap();
    assert!(statuses.iter().all(|status| *status == 200), "{statuses:?}");
    let admitted = decided(&sidecar, "per-key", "store", "admitted").await;
    assert_eq!(admitted, statuses.len() as u64);
    envoy.is_well().await;
}

/// Each version of the rules has a body of its own, which tells which version answered. Cached denials stay through all.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_under_load_reaches_all_workers_and_each_reply_belongs_to_one_version() {
    const VERSIONS: u64 = 10;
    const CLIENTS: usize = 64;
    let text = |version: u64| one_each(&told(&format!("version {version}")));
    let sidecar = Sidecar::alone(&text(0)).await;
    let envoys = two_envoys(&sidecar).await;
    // From now on everyone is denied.
    for key in 0..4 {
        let key = format!("k{key}");
        assert_eq!(body(&envoys[0], "/", &key).await.0, 200);
    }
    let go_on = Arc::new(AtomicBool::new(true));
    let newest = Arc::new(AtomicU64::new(0));
    let clients = (0..CLIENTS).map(|index| {
        let (url, client) = (envoys[index % 2].url("/"), client());
        let (go_on, newest) = (Arc::clone(&go_on), Arc::clone(&newest));
        tokio::spawn(async move {
            let mut seen = 0;
            while go_on.load(Ordering::Relaxed) {
                let request = client
                    .get(&url)
                    .header("x-api-key", format!("k{}", index % 4));
                let answer = request.send().await.unwrap();
                assert_eq!(answer.status(), 429);
                let text = answer.text().await.unwrap();
                let version: u64 = text.strip_prefix("version ").unwrap().parse().unwrap();
                // It may have been read before the newest was written.
                assert!(version <= newest.load(Ordering::Relaxed), "{text}");
                seen = seen.max(version);
            }
            seen
        })
    });
    let clients: Vec<_> = clients.collect();
    for version in 1..=VERSIONS {
        let (before, _) = filters(&sidecar).await;
        newest.store(version, Ordering::Relaxed);
        write(&sidecar.policy, &text(version));
        all_have_others(&sidecar, &before, 6).await;
        for envoy in &envoys {
            assert_eq!(body(envoy, "/", "k0").await.1, format!("version {version}"));
        }
    }
    go_on.store(false, Ordering::Relaxed);
    for client in clients {
        assert_eq!(client.await.unwrap(), VERSIONS);
    }
    // The limits have not changed: what was taken is taken, and denials were cached all the time.
    assert_eq!(decided(&sidecar, "per-key", "store", "admitted").await, 4);
    for envoy in envoys {
        let modified = envoy.stat("listener_manager.listener_modified").await;
        assert_eq!(modified, 0);
        envoy.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_goes_away_leaves_the_rules_in_force_and_may_come_back_with_others() {
    let mut sidecar = Sidecar::alone(&one_each(&told("first"))).await;
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("300ms");
    let envoy = used_up(&sidecar, plugin).await;
    sidecar.kill();
    // The rule's own `when_unavailable`.
    eventually("there are no verdicts", async || {
        body(&envoy, "/", "bob").await.0 == 503
    })
    .await;
    envoy.counts(&[("no_rules_denied", 0)]).await;
    write(&sidecar.policy, &one_each(&told("second")));
    sidecar.restart().await;
    denies(&envoy, "alice", "second").await;
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_file_changes_nothing_and_the_old_file_is_the_rollback() {
    let first = one_each(&told("first"));
    let sidecar = Sidecar::alone(&first).await;
    let envoy = used_up(&sidecar, pushed()).await;
    write(
        &sidecar.policy,
        &first.replace("\"per-key\"", "\"per-kee\""),
    );
    sidecar.reports("did you mean `per-key`").await;
    assert_eq!(body(&envoy, "/", "alice").await.1, "first");
    for version in ["second", "first"] {
        write(&sidecar.policy, &one_each(&told(version)));
        denies(&envoy, "alice", version).await;
    }
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_that_starts_with_a_broken_file_serves_the_last_good_policy() {
    let (_state, mut sidecar) = with_state(&one_each(&told("first"))).await;
    let envoy = used_up(&sidecar, pushed()).await;
    sidecar.kill();
    write(&sidecar.policy, "limits: 7\n");
    sidecar.restart().await;
    let readyz = sidecar.readyz().await;
    assert!(readyz.contains("the last good policy"), "{readyz}");
    logs(&sidecar, "the last good policy is in force").await;
    assert_eq!(body(&envoy, "/", "carol").await.0, 200);
    assert_eq!(body(&envoy, "/", "carol").await.1, "first");
    assert_eq!(
        sidecar
            .metric("sluicegate_policy_last_reload_successful")
            .await,
        0.0
    );
    write(&sidecar.policy, &one_each(&told("second")));
    denies(&envoy, "carol", "second").await;
    assert!(!sidecar.readyz().await.contains("last good"));
}

/// Its filters refuse the newer rules, in which the set and the limit have other names.
#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_sidecar_decides_by_the_rules_that_filters_keep() {
    let (_state, mut sidecar) = with_state(&one_each(&told("first"))).await;
    let envoy = used_up(&sidecar, pushed()).await;
    let other = one_each(&told("second")).replace("{\"s\":", "{\"other\":");
    write(&sidecar.policy, &other.replace("per-key", "uno"));
    eventually("both filters have refused it", async || {
        in_state(&sidecar, "refused").await == 2
    })
    .await;
    for user in ["bob", "carol"] {
        sidecar.restart().await;
        // A connection from before ends with the first request.
        denies(&envoy, user, "first").await;
    }
    // While it is away, the file changes again.
    sidecar.kill();
    write(&sidecar.policy, &other.replace("per-key", "due"));
    sidecar.restart().await;
    denies(&envoy, "dora", "first").await;
    assert_eq!(take(&sidecar, "uno", "k").await["outcome"], "admitted");
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_good_policy_is_written_again_until_it_is_on_disk() {
    let (state, mut sidecar) = with_state(&one_each(&told("first"))).await;
    let kept = || std::fs::read_to_string(state.path().join("last-good-policy.yaml")).unwrap();
    assert!(kept().contains("first"));
    // As if the disk were full.
    let obstacle = state.path().join("last-good-policy.new");
    std::fs::create_dir(&obstacle).unwrap();
    write(&sidecar.policy, &one_each(&told("second")));
    sidecar.reports("cannot keep the policy").await;
    assert!(sidecar.readyz().await.contains("cannot keep the policy in"));
    assert_eq!(sidecar.metric("sluicegate_policy_unkept").await, 1.0);
    assert!(kept().contains("first"));
    std::fs::remove_dir(&obstacle).unwrap();
    eventually("it is on disk", async || kept().contains("second")).await;
    sidecar.reaches("sluicegate_policy_unkept", 0.0).await;
    assert!(!sidecar.readyz().await.contains("cannot keep"));
    logs(&sidecar, "the policy is kept in").await;
    assert_eq!(sidecar.log().matches("cannot keep the policy").count(), 1);
    sidecar.kill();
    write(&sidecar.policy, "limits: 7\n");
    sidecar.restart().await;
    let envoy = used_up(&sidecar, pushed()).await;
    assert_eq!(body(&envoy, "/", "alice").await.1, "second");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_that_does_not_exist_is_refused_and_said_to_be() {
    let sidecar = Sidecar::alone(&one_each(&told("first"))).await;
    let envoy = used_up(&sidecar, pushed()).await;
    let other = one_each(&told("second")).replace("{\"s\":", "{\"other\":");
    write(&sidecar.policy, &other);
    eventually("the log names both filters that list it", async || {
        let log = sidecar.log();
        log.matches("lists the rule set s, which the policy does not have")
            .count()
            == 2
    })
    .await;
    eventually("both filters have refused it", async || {
        in_state(&sidecar, "refused").await == 2
    })
    .await;
    let (_, filters) = filters(&sidecar).await;
    let why = filters[0]["why"].as_str().unwrap();
    assert!(why.contains("no rule set `s`"), "{why}");
    assert_eq!(body(&envoy, "/", "alice").await.1, "first");
    assert!(envoy.counted("rules_refused").await >= 1);
    envoy.is_well().await;
}

/// A document, and what the filter says of it.
#[tokio::test(flavor = "multi_thread")]
async fn documents_that_cannot_be_used_leave_the_rules_in_force() {
    let head = |digest: &str, format: u64, lines: u64| {
        json!({ "format": format, "digest": digest, "instance": 1, "lines": lines }).to_string()
    };
    let set = json!({ "set": "s" });
    let rule = json!({ "rule": told("first")[0] });
    let good = format!("{}\n{set}\n{rule}\n", head("aaaaaaaaaaaa", 1, 2));
    let with = |digest: &str, format: u64, second: &str| {
        let head = head(digest, format, 2);
        format!("{head}\n{set}\n{second}")
    };
    let documents = [
        (
            with("bbbbbbbbbbbb", 3, &format!("{rule}\n")),
            "upgrade the filter",
        ),
        (with("cccccccccccc", 1, ""), "lines arrived"),
        (
            with("dddddddddddd", 1, "{\"rule\":7}\n"),
            "is not an object",
        ),
        (
            with("eeeeeeeeeeee", 1, &"x".repeat(300_000)),
            "more than 262144",
        ),
        (
            with("999999999999", 1, &"x".repeat(20_000)),
            "no end within",
        ),
        (with("ffffffffffff", 1, "{\"regex\":\"(\"}\n"), "`regex`"),
        ("nonsense".to_owned(), "nonsense"),
        ("[".repeat(100_000), "nonsense"),
        (String::new(), "nonsense"),
    ];
    let current = Arc::new(std::sync::Mutex::new(good));
    let reports = Arc::new(std::sync::Mutex::new(Vec::<String>::new()));
    let (answers, heard) = (Arc::clone(&current), Arc::clone(&reports));
    let router = Router::new()
        .route(
            "/v1/rules",
            axum::routing::get(async move |headers: HeaderMap| {
                let report = headers["sluicegate-rules"].to_str().unwrap().to_owned();
                heard.lock().unwrap().push(report);
                answers.lock().unwrap().clone()
            }),
        )
        .fallback(async || r#"{"epoch":1,"verdicts":[]}"#);
    let mut plugin = pushed();
    plugin["sidecar"]["timeout"] = json!("200ms");
    let envoy = envoy(serve(router).await, plugin).await;
    // Without a verdict, the rule denies.
    let metered = async || {
        body(&envoy, "/", "alice")
            .await
            .1
            .contains("did not answer")
    };
    eventually("the rules are in force", metered).await;
    for (document, why) in documents {
        *current.lock().unwrap() = document;
        eventually(why, async || {
            let told = reports.lock().unwrap().join("\n");
            told.contains(why) || why == "nonsense" && envoy.log().contains("no new rules from")
        })
        .await;
        assert!(metered().await, "{why}");
    }
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_that_disagree_behind_one_cluster_make_no_filter_flap() {
    let sidecars = [
        Sidecar::alone(&one_each(&told("first"))).await,
        Sidecar::alone(&one_each(&told("second"))).await,
    ];
    let envoy = behind(&sidecars, pushed(), 1).await;
    let mut seen = BTreeSet::new();
    let until = Instant::now() + Duration::from_secs(4);
    let mut n = 0;
    while Instant::now() < until {
        n += 1;
        let (status, text) = body(&envoy, "/", &format!("k{}", n % 3)).await;
        if status == 429 {
            seen.insert(text);
        }
    }
    assert_eq!(seen.len(), 1, "{seen:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_route_chooses_the_set_and_no_header_does() {
    let rules = json!({ "s": { "rules": told("default") }, "strict": { "rules": told("strict") }, "secret": { "rules": told("secret") } });
    let text = format!(
        "{}\nrules: {rules}\n",
        policy("memory", "fixed_window", 1, "30d")
    );
    let sidecar = Sidecar::alone(&text).await;
    for by in [
        json!("route_name"),
        json!({ "route_metadata": { "namespace": "sluicegate", "name": "rules" } }),
    ] {
        let mut plugin = pushed();
        plugin["rule_sets"] = json!({ "default": "s", "others": ["strict"], "by": by });
        let planned = Envoy::asking(sidecar.port).plugin(plugin).patch(|config| {
            let routes = at(config, MANAGER)["route_config"]["virtual_hosts"][0]["routes"].take();
            let route = |set: &str| {
                let mut route = routes[0].clone();
                route["match"] = json!({ "prefix": format!("/{set}") });
                route["name"] = json!(set);
                route["metadata"] =
                    json!({ "filter_metadata": { "sluicegate": { "rules": set } } });
                route
            };
            let all = json!([route("strict"), route("secret"), routes[0]]);
            at(config, MANAGER)["route_config"]["virtual_hosts"][0]["routes"] = all;
        });
        let envoy = planned.alone().await;
        body(&envoy, "/", "alice").await;
        for (path, set) in [
            ("/strict/x", "strict"),
            ("/", "default"),
            ("/secret", "default"),
        ] {
            let fields = [
                ("x-api-key", "alice"),
                ("x-route", "strict"),
                ("rules", "strict"),
            ];
            let answer = envoy.get(path, &fields).await;
            assert_eq!(answer.text().await.unwrap(), set, "{path} {by}");
        }
        envoy.is_well().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_a_change_removed_is_still_answered_and_rules_alone_keep_the_epoch() {
    let rules = with_rules(&generous(), &per_key("deny"));
    let sidecar = Sidecar::alone(&rules).await;
    let question = json!({ "checks": [check("per-key", "k")] });
    let answer = sidecar.answer(json!([question])).await;
    let epoch = answer["epoch"].clone();
    write(
        &sidecar.policy,
        &rules.replace("per_key", "x").replace("deny", "allow"),
    );
    sidecar.reaches("sluicegate_policy_epoch", 2.0).await;
    let after = sidecar.answer(json!([question])).await;
    assert_eq!(after["epoch"], epoch, "the limits are the same");
    assert_ne!(after["rules"], answer["rules"]);
    let other = generous().replace("per-key", "other");
    write(&sidecar.policy, &other);
    sidecar.reaches("sluicegate_policy_epoch", 3.0).await;
    let verdict = decide(&sidecar, question).await;
    assert_eq!(verdict["outcome"], "admitted", "{verdict}");
    let verdict = peek(&sidecar, "other", "k").await;
    assert_eq!(verdict["outcome"], "admitted", "{verdict}");
}
