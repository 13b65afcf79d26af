//! Every command of docs/jobs.md, run as it stands there, with places of the test's own in the variables that it names.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::future::join_all;
use sluicegate_tests::client::client;
use sluicegate_tests::documents;
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{repository, run, write_program};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::api::{Api, SEARCH};
use super::shell::{Ran, Shell};

/// The blocks of the page in this language.
fn blocks(language: &str) -> Vec<String> {
    let page = documents::text("docs/jobs.md");
    let blocks = documents::blocks(&page, language).into_iter();
    blocks.map(str::to_owned).collect()
}

/// The page's policy on a Redis, a sidecar with it, an API, and what the page names.
struct Page {
    shell: Shell,
    redis: Redis,
    sidecar: Sidecar,
    api: Api,
}

impl Page {
    async fn open() -> Self {
        not_across_midnight().await;
        let mut shell = Shell::new();
        let redis = Redis::start().await;
        let [policy] = blocks("yaml").try_into().unwrap();
        // A stall of this machine is not an outage.
        let policy = format!("store_timeout: 2s\n{policy}");
        shell.write("policy.yaml", &policy);
        let sidecar = Sidecar::with(&policy)
            .store(Some(&redis.url()))
            .start(shell.folder.path())
            .await;
        shell.ask(&sidecar);
        let api = Api::start().await;
        shell.set("API", api.url(""));
        std::fs::copy(
            repository("envoy/egress.yaml"),
            shell.folder.path().join("egress.yaml"),
        )
        .unwrap();
        for script in blocks("sh").into_iter().chain(blocks("python")) {
            if script.starts_with("#!") {
                let name = script.lines().nth(1).unwrap().trim_start_matches("# ");
                let name = name.split([' ', ':']).next().unwrap();
                let path = shell.folder.path().join("bin").join(name);
                write_program(&path, &script);
            }
        }
        Self {
            shell,
            redis,
            sidecar,
            api,
        }
    }

    /// What is left of the day's quota for a key.
    async fn left(&self, key: &str) -> u64 {
        let look = format!("peek --limit yt-quota --key {key} --output json");
        self.shell.sluicegate(&look).await.json()["remaining"]
            .as_u64()
            .unwrap()
    }

    /// Uses up the quota of a limit but for some units.
    async fn leave(&self, limit: &str, key: &str, quota: u64, left: u64) {
        let cost = quota - left;
        let take = format!("decide --limit {limit} --key {key} --cost {cost}");
        self.shell.must(&take).await;
    }
}

/// The day's window of the page begins anew at midnight UTC.
async fn not_across_midnight() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let left = 86_400 - now.as_secs() % 86_400;
    if left < 120 {
        tokio::time::sleep(Duration::from_secs(left + 1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_command_works() {
    let mut page = Page::open().await;
    let folder = page.shell.folder.path().to_owned();
    let envoy = Envoy::egress(page.sidecar.port, page.api.port)
        .start(&folder)
        .await;
    page.shell.set("EGRESS", envoy.url(""));
    let mut ran = Vec::new();
    for block in blocks("sh") {
        if !block.starts_with("#!") {
            let Ran { status, out, err } = page.shell.sh(&block).await;
            assert!(status.success() && err.is_empty(), "{block}{out}{err}");
            ran.push((block, out));
        }
    }
    let said = |command: &str, what: &str| {
        let of = ran.iter().find(|(block, _)| block.contains(command));
        let (_, out) = of.unwrap_or_else(|| panic!("the page has no `{command}`"));
        assert!(out.contains(what), "{command}: {out}");
    };
    said("-- curl", "11 12 13");
    said("peek --limit news-api", "500 of 500 left");
    said("sluicegate settle", "60 units returned\n");
    said("--reserve", "left in a window");
    said(
        "reset",
        "limit `yt-quota`: the whole quota is available again for this key\n",
    );
    said("curl -sf --retry", "11 12 13");
    said("explain", "key `@constant=cred-1`, cost 100");
    said("explain", "9900 of 10000 left");
    assert!(page.shell.has("sluicegate-decide.1"));
    assert_eq!(page.api.spent(), 2 * SEARCH);
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_regions_share_a_quota_to_the_last_unit_and_stop_cleanly() {
    let mut page = Page::open().await;
    let [crontab] = blocks("crontab").try_into().unwrap();
    let (job, variables) = {
        let mut lines: Vec<_> = crontab.lines().collect();
        (lines.pop().unwrap(), lines)
    };
    let names: Vec<_> = variables
        .iter()
        .map(|line| line.split('=').next().unwrap())
        .collect();
    assert_eq!(
        names,
        ["PATH", "POLICY", "SLUICEGATE_STORE", "API", "REGION"]
    );
    let policy = page.shell.folder.path().join("policy.yaml");
    page.shell.set("POLICY", policy.display().to_string());
    page.shell.set("SLUICEGATE_STORE", page.redis.url());
    let job = job.splitn(6, ' ').nth(5).unwrap();
    // Most of the day's quota is gone: four runs have 105 units, the fifth has its search and only two videos more.
    page.leave("yt-quota", "cred-1", 10_000, 522).await;
    let run = async |region: u32| {
        let job = format!("unset SLUICEGATE_SIDECAR; export REGION=region-{region}; {job}");
        page.shell.sh(&job).await
    };
    let runs = join_all((0..8).map(run)).await;
    assert!(
        runs.iter()
            .all(|ran| ran.status.success() && ran.err.is_empty()),
        "{runs:?}"
    );
    let stopped = runs
        .iter()
        .filter(|ran| ran.out.contains("the quota is used up, stopping"));
    // Eight searches and their videos would be 840.
    assert!((3..8).contains(&stopped.count()), "{runs:?}");
    // What was counted was called, and nothing else.
    let left = page.left("cred-1").await;
    assert_eq!(page.api.spent() + left, 522);
    assert!(left < SEARCH, "{left}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crawler_leaves_what_is_for_people() {
    let page = Page::open().await;
    page.leave("news-api", "cred-1", 500, 103).await;
    let urls: Vec<_> = (0..6)
        .map(|number| page.api.url(&format!("/page/{number}")))
        .collect();
    let ran = page
        .shell
        .run("crawl", urls.iter().map(String::as_str))
        .await;
    assert_eq!(ran.code(), 0, "{ran:?}");
    let lines: Vec<_> = ran.out.lines().collect();
    assert_eq!(lines.len(), 4, "{ran:?}");
    assert!(lines[2].ends_with("/page/2 7 bytes"), "{ran:?}");
    // The first units come back an hour and up to a minute's precision after they were taken.
    assert!(
        lines[3].starts_with("100 of 500 units left, more in 6"),
        "{ran:?}"
    );
    assert_eq!(page.api.spent(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_envoy_on_the_way_out_answers_for_an_api_whose_quota_is_used_up() {
    let page = Page::open().await;
    let folder = page.shell.folder.path();
    let envoy = Envoy::egress(page.sidecar.port, page.api.port)
        .start(folder)
        .await;
    page.leave("yt-quota", "@constant=cred-1", 10_000, 203)
        .await;
    let call = async |path: &str| client().get(envoy.url(path)).send().await.unwrap();
    assert_eq!(call("/search?q=cats").await.status(), 200);
    assert_eq!(call("/videos/11").await.status(), 200);
    assert_eq!(call("/search?q=dogs").await.status(), 200);
    // Two units are left, and a search needs a hundred.
    let denied = call("/search?q=mice").await;
    assert_eq!(denied.status(), 429);
    let retry_after = denied.headers()["retry-after"].to_str().unwrap();
    assert!((1..=86_400).contains(&retry_after.parse::<u64>().unwrap()));
    assert_eq!(call("/videos/12").await.status(), 200);
    assert_eq!(page.left("@constant=cred-1").await, 1);
    assert_eq!(page.api.spent(), 202, "the API never saw what was denied");
    // curl gives up rather than wait for tomorrow.
    let retried = page
        .shell
        .sh(&format!(
            "curl -sf --retry 3 --retry-max-time 300 {}",
            envoy.url("/search?q=mice")
        ))
        .await;
    assert_eq!(retried.code(), 22, "{retried:?}");
}

#[test]
fn the_committed_example_is_one_that_envoy_takes() {
    let mut envoy = std::process::Command::new(repository(".tools/envoy"));
    envoy.args(["--mode", "validate", "--disable-hot-restart"]);
    envoy.args(["-c", "envoy/egress.yaml"]);
    run(envoy.current_dir(repository("")), "install it: tests/setup");
}
