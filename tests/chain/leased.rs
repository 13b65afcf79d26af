//! Leases inside Envoy: a hot key is admitted without a callout, and no unit is over or lost.

use serde_json::{Value, json};
use sluicegate_tests::process::eventually;
use sluicegate_tests::sidecar::metric_in;

use super::support::{Chain, Policy, decided, plugin};

const QUOTA: u64 = 3_000;
/// Clients that ask as fast as they are answered.
const CLIENTS: u64 = 16;

fn policy(store: &str) -> String {
    let window = format!("algorithm: sliding_window, windows: [{{ quota: {QUOTA}, per: 10m }}]");
    let hot = format!("{window}, lease: {{ longest: 500ms }}");
    // No cached denial outlives the return of units.
    let policy = Policy::on(store).line("denial_ttl: 0s").limit("hot", &hot);
    policy.window("exact", "sliding_log", 200, "10m").text()
}

/// A rule for `/` with a lease, and one for `/both` with two checks of which only one may have a lease.
fn rules() -> Value {
    let by_key = |limit: &str| json!({ "limit": limit, "key": [{ "header": "x-api-key" }] });
    json!([
        { "name": "both", "match": { "path": "/both" }, "when_unavailable": "deny",
          "checks": [by_key("hot"), by_key("exact")], "stop": true, "reply": { "on_admitted": true } },
        { "name": "hot", "checks": [by_key("hot")], "when_unavailable": "deny", "reply": { "on_admitted": true } },
    ])
}

struct Leased(Chain);

/// So many requests of each client; how many were answered with 200, with 429 and otherwise.
async fn load_of(url: &str, each: u64) -> [u64; 3] {
    let clients = (0..CLIENTS).map(|_| {
        let url = url.to_owned();
        tokio::spawn(async move {
            // Its own connection, so that both workers have some.
            let client = reqwest::Client::new();
            let mut statuses = [0; 3];
            for _ in 0..each {
                let request = client.get(&url).header("x-api-key", "k");
                let status = request.send().await.map(|answer| answer.status().as_u16());
                let index = match status {
                    Ok(200) => 0,
                    Ok(429) => 1,
                    _ => 2,
                };
                statuses[index] += 1;
            }
            statuses
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut total = [0; 3];
    for client in clients {
        let statuses = client.await.unwrap();
        (0..3).for_each(|index| total[index] += statuses[index]);
    }
    total
}

impl Leased {
    async fn start() -> Self {
        // Two VMs.
        Self(Chain::with(policy, |envoy| envoy.plugin(plugin(rules())).workers(2)).await)
    }

    async fn load(&self, path: &str, each: u64) -> [u64; 3] {
        load_of(&self.0.envoy.url(path), each).await
    }

    /// Units of the key's lease that were granted, spent, returned, and are held.
    async fn units(&self) -> [u64; 4] {
        let text = self.0.sidecar.metrics().await;
        let event = |event: &str| {
            let name = format!("sluicegate_lease_units_total{{event=\"{event}\",limit=\"hot\"}}");
            metric_in(&text, &name) as u64
        };
        let held = metric_in(&text, "sluicegate_lease_units_held{limit=\"hot\"}") as u64;
        [event("granted"), event("spent"), event("returned"), held]
    }

    /// Waits until no unit is held, and none is lost.
    async fn all_is_accounted_for(&self) {
        eventually("every unit is spent or returned", async || {
            let [granted, spent, returned, held] = self.units().await;
            held == 0 && granted == spent + returned
        })
        .await;
    }

    /// Requests `/` until nothing is admitted any more; how many were admitted.
    async fn use_up(&self) -> u64 {
        let mut admitted = 0;
        loop {
            // Leases are for keys that are hot. From here on the quota is to be used up to the last unit, and none of them
            // may be idle in the other VM.
            self.all_is_accounted_for().await;
            let [more, _, other] = self.load("/", 40).await;
            assert_eq!(other, 0);
            if more == 0 {
                return admitted;
            }
            admitted += more;
        }
    }
}

/// The window is longer than the test, so that each unit is admitted once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hot_key_is_admitted_inside_envoy_up_to_the_last_unit_and_no_further() {
    let chain = Leased::start().await;
    let [mut admitted, denied, other] = chain.load("/", 150).await;
    assert_eq!((admitted + denied, other), (CLIENTS * 150, 0));
    eventually("most are admitted by leases", async || {
        chain.0.envoy.counted("admitted_by_lease").await > admitted / 2
    })
    .await;
    let callouts = "cluster.sluicegate.upstream_rq_total";
    let callouts = chain.0.envoy.stat(callouts).await;
    assert!(
        callouts < admitted / 4,
        "{callouts} callouts for {admitted} requests"
    );
    chain.all_is_accounted_for().await;
    eventually("the sidecar counts what the filter admitted", async || {
        let by_lease = decided(&chain.0.sidecar, "hot", "lease", "admitted").await;
        by_lease >= chain.0.envoy.counted("admitted_by_lease").await
    })
    .await;
    admitted += chain.use_up().await;
    assert_eq!(admitted, QUOTA);
    assert_eq!(chain.0.envoy.vm_deaths().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_denial_by_another_limit_puts_the_leased_units_back() {
    let chain = Leased::start().await;
    let [hot, 0, 0] = chain.load("/", 50).await else {
        panic!("it is not used up yet")
    };
    let both = chain.load("/both", 50).await;
    assert_eq!(both, [200, CLIENTS * 50 - 200, 0], "`exact` has 200");
    // Only what was admitted is used.
    chain.all_is_accounted_for().await;
    assert_eq!(hot + 200 + chain.use_up().await, QUOTA);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vm_that_dies_has_spent_its_part() {
    let mut chain = Leased::start().await;
    let [admitted, ..] = chain.load("/", 40).await;
    let url = chain.0.envoy.url("/");
    let load = tokio::spawn(async move { load_of(&url, 40).await });
    eventually("it holds units", async || chain.units().await[3] > 0).await;
    chain.0.envoy.kill();
    load.await.unwrap();
    chain.all_is_accounted_for().await;
    let [_, spent, ..] = chain.units().await;
    assert!(spent <= QUOTA && spent > admitted / 2, "{spent}");
}
