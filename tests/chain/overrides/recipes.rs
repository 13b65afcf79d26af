//! What docs/overrides.md and docs/runbook.md tell operators to type, typed as it stands there, between real requests.

use serde_json::{Value, json};
use sluicegate_tests::documents::{bash, text, with_path};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, repository};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::{Sidecar, binary};

use super::super::access_log::access_log;
use super::super::support::{Policy, plugin};
use super::list;

/// The only line of a page that begins so and contains these words.
fn line(page: &str, start: &str, words: &[&str]) -> String {
    let lines = page.lines().map(str::trim);
    let has_all = |line: &&str| line.starts_with(start) && words.iter().all(|w| line.contains(w));
    let found: Vec<_> = lines.filter(has_all).collect();
    assert_eq!(found.len(), 1, "{start} {words:?}: {found:?}");
    found[0].to_owned()
}

/// Types a command, and returns what it prints.
fn type_in(sidecar: &Sidecar, command: &str) -> String {
    let mut bash = bash(command, &repository(""));
    with_path(&mut bash, binary().parent().unwrap().display());
    bash.env("SLUICEGATE_ADMIN", sidecar.admin(""));
    bash.env("SLUICEGATE_SIDECAR", sidecar.url(""));
    let typed = bash.output().unwrap();
    let printed = String::from_utf8_lossy(&typed.stdout).into_owned();
    let errors = String::from_utf8_lossy(&typed.stderr);
    assert!(typed.status.success(), "{command}: {printed}{errors}");
    printed
}

/// A chain with the limits that the documents name, each of one unit an hour: by tenant, by address and by API key.
struct Scene {
    sidecar: Sidecar,
    envoy: Envoy,
    _redis: Redis,
}

impl Scene {
    async fn start() -> Self {
        let redis = Redis::start().await;
        let limits = ["per-tenant", "per-address", "per-key"];
        let policy = limits
            .iter()
            .fold(Policy::on(redis.url()), |policy, limit| {
                policy.window(limit, "sliding_log", 1, "1h")
            });
        let sidecar = Sidecar::alone(&policy.text()).await;
        let rule = |limit: &str, key: Value| {
            let checks = json!([{ "limit": limit, "key": [key] }]);
            let path = json!({ "path": format!("/{limit}") });
            json!({ "name": limit, "match": path, "checks": checks, "when_unavailable": "deny" })
        };
        let rules = json!([
            rule("per-tenant", json!({ "header": "x-tenant" })),
            rule("per-address", json!({ "address": {} })),
            rule("per-key", json!({ "header": "x-api-key" })),
        ]);
        let envoy = Envoy::asking(sidecar.port).plugin(plugin(rules));
        Self {
            envoy: envoy.alone().await,
            sidecar,
            _redis: redis,
        }
    }

    async fn status(&self, limit: &str, field: (&str, &str)) -> u16 {
        let answer = self.envoy.get(&format!("/{limit}"), &[field]).await;
        answer.status().as_u16()
    }

    /// The tenant is denied, the command is typed, the tenant is admitted, and denied again after the other command. Returns
    /// what the first prints.
    async fn plays(&self, limit: &str, field: (&str, &str), [set, remove]: [&str; 2]) -> String {
        let becomes = async |status: u16, why: &str| {
            eventually(&format!("{status} after {why}"), async || {
                self.status(limit, field).await == status
            })
            .await;
        };
        becomes(429, "the quota is used up").await;
        let printed = type_in(&self.sidecar, set);
        becomes(200, set).await;
        type_in(&self.sidecar, remove);
        becomes(429, remove).await;
        assert!(list(&self.sidecar).await.is_empty(), "{remove}");
        printed
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_three_in_the_morning_lifts_the_limit_of_a_hashed_header() {
    let scene = Scene::start().await;
    let page = text("docs/overrides.md");
    let words = ["--limit per-tenant", "--subject"];
    let set = line(&page, "sluicegate override set", &words);
    let remove = line(&page, "sluicegate override remove", &words);
    let tenant = ("x-tenant", "acme");
    let printed = scene.plays("per-tenant", tenant, [&set, &remove]).await;
    assert!(
        printed.contains("digits stand for no key with a header"),
        "{printed}"
    );
    // The access log of the denied requests has the digits that the page shows.
    let digits = set
        .split_whitespace()
        .skip_while(|word| *word != "--subject");
    let digits = digits.into_iter().nth(1).unwrap();
    let shown = json!(format!("sluicegate_denied{{subject={digits}}}"));
    let logged = access_log(&scene.envoy);
    let logged = logged.iter().filter(|line| line["status"] == 429);
    assert!(
        logged
            .map(|line| &line["sluicegate"])
            .all(|state| *state == shown)
    );
    assert!(page.contains(shown.as_str().unwrap()));
    // So have `top` and its own two companions.
    for command in ["sluicegate top --once", "sluicegate top --output json"] {
        let printed = type_in(&scene.sidecar, command);
        assert!(printed.contains(digits), "{printed}");
    }
    let of = format!("--limit per-tenant --subject {digits}");
    let left = type_in(&scene.sidecar, &format!("sluicegate peek {of}"));
    assert!(left.contains("0 of 1 left"), "{left}");
    type_in(&scene.sidecar, &format!("sluicegate reset {of}"));
    let left = type_in(&scene.sidecar, &format!("sluicegate peek {of}"));
    assert!(left.contains("1 of 1 left"), "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipe_for_an_address_and_the_switch_do_what_the_page_says() {
    let scene = Scene::start().await;
    let page = text("docs/overrides.md");
    let nobody = ("x-nothing", "");
    let recipe = ["set", "remove"].map(|verb| {
        let start = format!("sluicegate override {verb}");
        let line = line(&page, &start, &["--limit per-address", "--key"]);
        line.replace("192.0.2.7", "127.0.0.1")
    });
    let recipe = [&*recipe[0], &*recipe[1]];
    let printed = scene.plays("per-address", nobody, recipe).await;
    assert!(
        printed.contains("units are counted for this key"),
        "{printed}"
    );
    let switch = ["set", "remove"].map(|verb| {
        let start = format!("sluicegate override {verb}");
        line(&page, &start, &["--limit per-tenant", "--all-keys"])
    });
    let switch = [&*switch[0], &*switch[1]];
    scene.plays("per-tenant", ("x-tenant", "a"), switch).await;
    scene.plays("per-tenant", ("x-tenant", "b"), switch).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runbooks_commands_for_one_limit_and_for_one_subject_work() {
    let scene = Scene::start().await;
    let page = text("docs/runbook.md");
    for word in ["--all-keys", "--subject"] {
        let typed = ["set", "remove"].map(|verb| {
            let start = format!("sluicegate override {verb}");
            line(&page, &start, &["--limit per-key", word])
        });
        let typed = [&*typed[0], &*typed[1]];
        scene.plays("per-key", ("x-api-key", "k"), typed).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_pages_http_calls_and_its_policy_work() {
    let scene = Scene::start().await;
    let page = text("docs/overrides.md");
    let calls = page
        .split("```sh")
        .find(|block| block.contains("curl -X PUT"));
    let calls = calls.unwrap().split("```").next().unwrap();
    // The page's end is past.
    let calls = calls.replace("2026-11-22T05:00:00Z", "2126-11-22T05:00:00Z");
    let admin = format!("127.0.0.1:{}", scene.sidecar.admin_port);
    let calls = calls.replace("localhost:9181", &admin);
    let (set, rest) = calls.split_once(&format!("curl {admin}")).unwrap();
    let (_, remove) = rest.split_once('\n').unwrap();
    scene
        .plays("per-tenant", ("x-tenant", "acme"), [set, remove])
        .await;

    let policy = page.split("```yaml\n").nth(1).unwrap();
    let policy = policy.split("```").next().unwrap();
    let policy = policy.replace("quota: 1000", "quota: 1");
    let sidecar = Sidecar::alone(&policy).await;
    let rule = json!([{ "name": "tenant", "checks": [{ "limit": "per-tenant", "key": [{ "header": "x-tenant" }] }], "when_unavailable": "deny" }]);
    let envoy = Envoy::asking(sidecar.port)
        .plugin(plugin(rule))
        .alone()
        .await;
    for (tenant, statuses) in [
        ("acme", [200, 200]),
        ("evil", [429, 429]),
        ("probe", [200, 200]),
        ("another", [200, 429]),
    ] {
        for status in statuses {
            let answer = envoy.get("/", &[("x-tenant", tenant)]).await;
            assert_eq!(answer.status().as_u16(), status, "{tenant}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_no_request_has_is_told_and_so_are_digits_that_name_none() {
    let scene = Scene::start().await;
    let set = |whom: &str| {
        let command =
            format!("sluicegate override set --limit per-tenant {whom} --unlimited 2>&1 || true");
        type_in(&scene.sidecar, &command)
    };
    let tenant = ("x-tenant", "acme");
    assert_eq!(scene.status("per-tenant", tenant).await, 200);
    let printed = set("--key x-tenant=acme");
    for part in ["nothing is counted", "`--subject`", "explain"] {
        assert!(printed.contains(part), "{printed}");
    }
    let key = "x-tenant#363b48e20ce951214612b382c04596d9";
    let printed = set(&format!("--key '{key}'"));
    assert!(printed.contains("units are counted"), "{printed}");
    let unseen = "00000000000000000000";
    let printed = set(&format!("--subject {unseen}"));
    assert!(printed.contains("not seen"), "{printed}");
    let printed = set("--subject 7638ef95271f");
    assert!(printed.contains("20 hexadecimal digits"), "{printed}");
    let peek = format!("sluicegate peek --limit per-tenant --subject {unseen} 2>&1 || true");
    let printed = type_in(&scene.sidecar, &peek);
    assert!(printed.contains("no key with these 20 digits"), "{printed}");
    // A program's key in plain text, as a plain header's would be.
    super::super::support::take(&scene.sidecar, "per-tenant", "x-team=a").await;
    let digits = type_in(
        &scene.sidecar,
        "printf %s x-team=a | sha256sum | cut -c1-20",
    );
    let printed = set(&format!("--subject {digits}").replace('\n', ""));
    assert!(printed.contains("plain text"), "{printed}");
    assert_eq!(list(&scene.sidecar).await.len(), 3, "it was refused");
    // Digits find what was set by the key, and the other way round.
    let by_digits = |key: &str| {
        let digits = format!("printf %s '{key}' | sha256sum | cut -c1-20");
        format!("--subject $({digits})")
    };
    let printed = set(&by_digits(key));
    for part in ["(a key of `x-tenant`)", "replacing an earlier override"] {
        assert!(printed.contains(part), "{printed}");
    }
    let remove = |whom: &str| {
        let command = format!("sluicegate override remove --limit per-tenant {whom}");
        type_in(&scene.sidecar, &command)
    };
    remove(&format!("--key '{key}'"));
    remove(&by_digits("x-tenant=acme"));
    assert_eq!(list(&scene.sidecar).await.len(), 1);
}
