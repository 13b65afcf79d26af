//! Named consumers: whose bucket a request of Envoy's takes from, before and after a change of the file.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use sluicegate_tests::client::get;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{eventually, eventually_within};
use sluicegate_tests::sidecar::{Sidecar, binary};

use super::overrides::operator::command;
use super::support::{Policy, decided, envoy, filters, pushed, take, with_rules};

const PEPPER: &str = "a long text that only filters have";

/// Runs `sluicegate consumers` in a folder, with this on its standard input.
fn consumers(folder: &Path, arguments: &[&str], stdin: &str) {
    let pepper = folder.join("pepper");
    if !pepper.exists() {
        std::fs::write(pepper, PEPPER).unwrap();
    }
    let mut command = Command::new(binary());
    command.arg("consumers").args(arguments).current_dir(folder);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(stdin.as_bytes()).unwrap();
    drop(input);
    assert!(child.wait().unwrap().success(), "{arguments:?}");
}

fn add(folder: &Path, name: &str, key: &str) {
    consumers(folder, &["add", name, "--pepper-file", "pepper"], key);
}

/// A policy with the consumers of the folder's file: five requests for acme, two for everybody else.
fn policy(folder: &Path, more: &Value) -> String {
    let file = std::fs::read_to_string(folder.join("consumers.yaml")).unwrap();
    let file: Value = serde_saphyr::from_str(&file).unwrap();
    let mut keys = serde_json::Map::new();
    for (name, hashes) in file["consumers"].as_object().unwrap() {
        for hash in hashes.as_array().unwrap() {
            keys.insert(hash.as_str().unwrap().to_owned(), json!(name));
        }
    }
    let entry = json!({ "pepper": file["pepper"], "keys": keys,
        "limits": { "acme": "partner.acme", "default": "partner.default" } });
    let limits = Policy::on("memory")
        .window("partner.acme", "fixed_window", 5, "30d")
        .window("partner.default", "fixed_window", 2, "30d");
    let text = limits
        .line(&format!("consumers: {}", json!({ "partner": entry })))
        .text();
    let mut rule = json!({
        "name": "partner", "when_unavailable": "deny",
        "checks": [{ "limit": "partner", "key": [{ "header": "x-api-key" }], "when_missing": { "address": {} },
            "consumers": true }],
    });
    let fields = rule.as_object_mut().unwrap();
    fields.extend(more.as_object().unwrap().clone());
    with_rules(&text, &json!([rule]))
}

fn filter() -> Value {
    let mut plugin = pushed();
    plugin["pepper"] = json!(PEPPER);
    plugin
}

async fn statuses<const N: usize>(envoy: &Envoy, keys: [&str; N]) -> [u16; N] {
    let mut statuses = [0; N];
    for (status, key) in statuses.iter_mut().zip(keys) {
        *status = match key {
            "" => envoy.get("/", &[]).await.status().as_u16(),
            key => envoy.status("/", key).await,
        };
    }
    statuses
}

#[tokio::test(flavor = "multi_thread")]
async fn the_keys_of_a_consumer_share_its_bucket_and_all_others_that_of_their_address() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    add(folder.path(), "acme", "new");
    let sidecar = Sidecar::alone(&policy(folder.path(), &json!({}))).await;
    let envoy = envoy(sidecar.port, filter()).await;
    let strangers = statuses(&envoy, ["stranger", "", "unknown", "", "@consumer=acme"]).await;
    assert_eq!(strangers, [200, 200, 429, 429, 429]);
    assert_eq!(
        statuses(&envoy, ["old", "new", "old", "new"]).await,
        [200; 4]
    );
    // Whoever reaches the sidecar's own port may ask for a consumer too.
    assert_eq!(
        take(&sidecar, "partner", "@consumer=acme").await["limit"],
        "partner.acme"
    );
    assert_eq!(
        take(&sidecar, "partner", "job").await["limit"],
        "partner.default"
    );
    let denied = envoy.get("/", &[("x-api-key", "new")]).await;
    assert_eq!(denied.status(), 429);
    assert_eq!(
        denied.headers()["ratelimit-policy"],
        r#""partner/2592000s";q=5;w=2592000"#
    );
    let problem: Value = denied.json().await.unwrap();
    assert!(
        problem["detail"].as_str().unwrap().contains("allows 5 per"),
        "{problem}"
    );
    // Envoy has cached denials of its own, which count for the consumer too.
    assert_eq!(statuses(&envoy, ["new", "new", "old"]).await, [429; 3]);
    let counted = |limit: &str, verdict: &str, source: &str| {
        format!(
            "sluicegate_decisions_total{{limit=\"{limit}\",source=\"{source}\",verdict=\"{verdict}\"}}"
        )
    };
    sidecar
        .reaches(&counted("partner.acme", "admitted", "store"), 5.0)
        .await;
    sidecar
        .reaches(&counted("partner.default", "admitted", "store"), 3.0)
        .await;
    eventually("denials of the filter are counted", async || {
        sidecar
            .metric(&counted("partner.acme", "denied", "filter"))
            .await
            > 0.0
    })
    .await;
    // An override of the consumer follows it, whichever of the limit's names is given.
    for (limit, quota) in [("partner", "9"), ("partner.acme", "7")] {
        let words = format!("set --limit {limit} --consumer acme --quota {quota}");
        let (_, printed) = command(&sidecar, &words);
        for told in [
            "limit `partner`, consumer acme: quota",
            "units are counted for this key now",
        ] {
            assert!(printed.contains(told), "{printed}");
        }
    }
    eventually("the override is in force", async || {
        envoy.status("/", "old").await == 200
    })
    .await;
    assert_eq!(statuses(&envoy, ["new", "old"]).await, [200, 429]);
    envoy.is_well().await;
}

/// The denial that the filter and the sidecar have cached of the new key ends with the change.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_counts_from_the_change_of_the_policy_on_and_a_removed_one_no_longer() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let sidecar = Sidecar::alone(&policy(folder.path(), &json!({}))).await;
    let envoy = envoy(sidecar.port, filter()).await;
    assert_eq!(statuses(&envoy, ["old", "old"]).await, [200; 2]);
    assert_eq!(
        statuses(&envoy, ["new", "new", "new", "new"]).await,
        [200, 200, 429, 429]
    );
    add(folder.path(), "acme", "new");
    consumers(folder.path(), &["remove", "acme"], "");
    add(folder.path(), "acme", "new");
    std::fs::write(&sidecar.policy, policy(folder.path(), &json!({}))).unwrap();
    // Found without a signal.
    eventually("the new key is acme's", async || {
        envoy.status("/", "new").await == 200
    })
    .await;
    assert_eq!(
        statuses(&envoy, ["old", "new", "new", "new"]).await,
        [429, 200, 200, 429]
    );
    envoy.is_well().await;
}

/// The filter hears of it although nobody asks it anything meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_consumers_ends_the_cached_denials_of_their_keys_and_no_others() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let text = || format!("denial_ttl: 60s\n{}", policy(folder.path(), &json!({})));
    let sidecar = Sidecar::alone(&text()).await;
    let envoy = envoy(sidecar.port, filter()).await;
    let strangers = ["new", "stranger", "new", "stranger"];
    assert_eq!(statuses(&envoy, strangers).await, [200, 200, 429, 429]);
    add(folder.path(), "acme", "new");
    let before = sidecar.metric("sluicegate_policy_epoch").await;
    std::fs::write(&sidecar.policy, text()).unwrap();
    eventually("the policy is in force", async || {
        sidecar.metric("sluicegate_policy_epoch").await > before
    })
    .await;
    // The promise is a second.
    eventually_within(
        Duration::from_secs(3),
        "the key is a consumer's",
        async || envoy.status("/", "new").await == 200,
    )
    .await;
    assert_eq!(statuses(&envoy, ["stranger"]).await, [429]);
    let asked = decided(&sidecar, "partner.default", "store", "denied").await
        + decided(&sidecar, "partner.default", "certificate", "denied").await;
    assert_eq!(asked, 2, "the filter has answered from its cache");
    envoy.is_well().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blocked_consumer_stays_blocked_when_its_tier_changes() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let with_tier = policy(folder.path(), &json!({}));
    let without = with_tier.replace(r#""acme":"partner.acme","#, "");
    assert_ne!(with_tier, without);
    let sidecar = Sidecar::alone(&without).await;
    let envoy = envoy(sidecar.port, filter()).await;
    assert_eq!(statuses(&envoy, ["old"; 3]).await, [200, 200, 429]);
    let words = "set --limit partner --consumer acme --blocked";
    let (status, printed) = command(&sidecar, words);
    assert_eq!(status, Some(0), "{printed}");
    for policy in [&with_tier, &without] {
        let epoch = sidecar.metric("sluicegate_policy_epoch").await;
        std::fs::write(&sidecar.policy, policy).unwrap();
        let next = epoch + 1.0;
        sidecar.reaches("sluicegate_policy_epoch", next).await;
        assert_eq!(statuses(&envoy, ["old"]).await, [429]);
        let (_, printed) = command(&sidecar, "list");
        assert!(printed.contains("in force"), "{printed}");
    }
    let (_, printed) = command(&sidecar, "remove --limit partner --consumer acme");
    assert!(printed.contains("override removed"), "{printed}");
    std::fs::write(&sidecar.policy, &with_tier).unwrap();
    eventually("it is free", async || envoy.status("/", "old").await == 200).await;
}

/// Any key may be a consumer's, so the filter asks about each that is new to it. The sidecar knows that they are nobody's.
#[tokio::test(flavor = "multi_thread")]
async fn invented_keys_of_a_denied_address_ask_the_sidecar_and_not_the_store() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let sidecar = Sidecar::alone(&policy(folder.path(), &json!({}))).await;
    let envoy = envoy(sidecar.port, filter()).await;
    assert_eq!(statuses(&envoy, ["a", "b"]).await, [200; 2]);
    for number in 0..100 {
        let status = envoy.status("/", &format!("invented-{number}")).await;
        assert_eq!(status, 429, "{number}");
    }
    let denied = async |source| decided(&sidecar, "partner.default", source, "denied").await;
    let (store, cached) = (denied("store").await, denied("certificate").await);
    assert_eq!(store + cached, 100, "each is asked about");
    // As many as take longer than `denial_ttl`, on a slow machine.
    assert!(store < 50, "{store} of 100");
    assert_eq!(statuses(&envoy, ["old"]).await, [200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shadow_rule_of_consumers_takes_nothing_from_their_buckets() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let shadow = policy(folder.path(), &json!({ "shadow": true }));
    let sidecar = Sidecar::alone(&shadow).await;
    let envoy = envoy(sidecar.port, filter()).await;
    assert_eq!(statuses(&envoy, ["old"; 8]).await, [200; 8]);
    let shadowed = "sluicegate_shadow_decisions_total{limit=\"partner.acme\",rule=\"partner\",verdict=\"denied\"}";
    sidecar.reaches(shadowed, 3.0).await;
    let own = take(&sidecar, "partner", "@consumer=acme").await;
    assert_eq!(own["remaining"], 4, "{own}");
}

/// In a pod it is from a Secret; here it is whatever variable this test, and so its Envoy, have.
#[tokio::test(flavor = "multi_thread")]
async fn a_filter_can_have_its_pepper_from_envoys_environment() {
    const NAME: &str = "PATH";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("pepper"), std::env::var(NAME).unwrap()).unwrap();
    add(folder.path(), "acme", "old");
    let sidecar = Sidecar::alone(&policy(folder.path(), &json!({}))).await;
    let mut plugin = pushed();
    plugin["pepper_env"] = json!(NAME);
    let envoy = Envoy::asking(sidecar.port).plugin(plugin);
    let passes_on = |config: &mut Value| {
        let vm = &mut filters(config)[0]["typed_config"]["config"]["vm_config"];
        vm["environment_variables"] = json!({ "host_env_keys": [NAME] });
    };
    let envoy = envoy.patch(passes_on).alone().await;
    assert_eq!(
        statuses(&envoy, ["old"; 6]).await,
        [200, 200, 200, 200, 200, 429]
    );
    assert_eq!(
        sidecar.metric("sluicegate_filters_with_other_pepper").await,
        0.0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_with_another_pepper_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    add(folder.path(), "acme", "old");
    let sidecar = Sidecar::alone(&policy(folder.path(), &json!({}))).await;
    let own = envoy(sidecar.port, filter()).await;
    assert_eq!(statuses(&own, ["old"; 3]).await, [200; 3]);
    let others = "sluicegate_filters_with_other_pepper";
    assert_eq!(sidecar.metric(others).await, 0.0);
    let mut plugin = filter();
    plugin["pepper"] = json!("another");
    let other = envoy(sidecar.port, plugin).await;
    assert_eq!(statuses(&other, ["old"; 3]).await, [200, 200, 429]);
    eventually("the metric tells", async || {
        sidecar.metric(others).await > 0.0
    })
    .await;
    let (_, list) = get(&sidecar.admin("/v1/filters")).await;
    let list: Value = serde_json::from_str(&list).unwrap();
    let filters = list["filters"].as_array().unwrap();
    let told: Vec<_> = filters
        .iter()
        .filter(|one| one["other_pepper"] == true)
        .collect();
    assert!(!told.is_empty() && told.len() < filters.len(), "{list}");
    let warned = "another pepper than the policy's `consumers`";
    eventually("it is logged", async || sidecar.log().contains(warned)).await;
    assert_eq!(sidecar.log().matches(warned).count(), 1);
}
