//! An operator raises a limit or resets a key: when clients behind two Envoys, each with its own sidecar, see it.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::process::{POLL, eventually};
use sluicegate_tests::redis::Redis;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{ask, check, decided, envoy, peek, plugin, policy};

/// The policy's `denial_ttl`.
const TTL: Duration = Duration::from_secs(2);
/// Allowance for a machine that stalls. Shorter than [`TTL`], or a certificate that lasts twice as long would pass.
const SLACK: Duration = Duration::from_millis(1_900);

/// An Envoy and its sidecar.
struct Side {
    sidecar: Sidecar,
    envoy: Envoy,
}

impl Side {
    async fn start(policy: &str) -> Self {
        // Not hashed, so that the test can name the key that it resets.
        let rules = json!([{
            "name": "per-key",
            "checks": [{ "limit": "per-key", "key": [{ "header": "x-api-key", "plain": true }] }],
            "when_unavailable": "deny",
        }]);
        let sidecar = Sidecar::alone(policy).await;
        let envoy = envoy(sidecar.port, plugin(rules)).await;
        Self { sidecar, envoy }
    }

    async fn status(&self, key: &str) -> u16 {
        self.envoy.status("/", key).await
    }

    /// Peeks at its sidecar directly, without Envoy.
    async fn outcome(&self, key: &str) -> Value {
        let key = format!("x-api-key={key}");
        peek(&self.sidecar, "per-key", &key).await["outcome"].clone()
    }

    /// Changes its policy; returns when the change is in force.
    async fn change_policy(&self, policy: &str) -> Instant {
        let epoch = async || self.sidecar.metric("sluicegate_policy_epoch").await;
        let before = epoch().await;
        std::fs::write(&self.sidecar.policy, policy).unwrap();
        eventually("the policy is in force", async || epoch().await > before).await;
        Instant::now()
    }

    async fn reset(&self, key: &str) -> Instant {
        let body = json!({ "resets": [check("per-key", &format!("x-api-key={key}"))] });
        let answer = ask(self.sidecar.admin_port, "/v1/reset", body).await;
        assert_eq!(answer["outcomes"][0]["held"], true, "{answer}");
        Instant::now()
    }

    /// How long after `changed` a client that keeps asking is first admitted, and how often it was denied.
    async fn admitted_after(&self, key: &str, changed: Instant) -> (Duration, u32) {
        let mut denials = 0;
        loop {
            match self.status(key).await {
                200 => return (changed.elapsed(), denials),
                429 => denials += 1,
                other => panic!("{other}"),
            }
            let waited = changed.elapsed();
            assert!(
                waited < TTL + SLACK,
                "denied for {waited:?} after the change"
            );
            tokio::time::sleep(POLL).await;
        }
    }

    /// Denials from the filter's cache. It reports them with its next question, or after a while by themselves.
    async fn denied_in_envoy(&self) -> u64 {
        decided(&self.sidecar, "per-key", "filter", "denied").await
    }
}

/// Takes what is left, until both sidecars have just denied the client.
async fn exhaust(sides: &[Side; 2], key: &str, left: u64) {
    for _ in 0..left {
        assert_eq!(sides[0].status(key).await, 200);
    }
    for side in sides {
        assert_eq!(side.status(key).await, 429);
        assert_eq!(side.status(key).await, 429);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_see_a_change_at_once_or_within_denial_ttl() {
    let redis = Redis::start().await;
    let text = policy(&redis.url(), "sliding_log", 5, "1h") + "denial_ttl: 2s\n";
    let sides = [Side::start(&text).await, Side::start(&text).await];
    let [changed_side, other] = &sides;
    let raised = text.replace("quota: 5,", "quota: 9,");

    // A raised limit, with other clients: the filter learns of it from their first answer.
    exhaust(&sides, "alice", 5).await;
    let changed = changed_side.change_policy(&raised).await;
    assert_eq!(changed_side.outcome("alice").await, "admitted", "at once");
    assert_eq!(changed_side.status("bystander").await, 200);
    assert_eq!(changed_side.status("alice").await, 200, "at once");
    // The other sidecar has not received the change, and nothing was reset.
    assert_eq!(other.status("alice").await, 429);
    println!("raised, with others asking: {:?}", changed.elapsed());

    // A raised limit, without other clients: the filter learns of it with its next report, unless its certificate expires first.
    let (after, denials) = {
        let changed = other.change_policy(&raised).await;
        assert_eq!(other.outcome("alice").await, "admitted", "at once");
        other.admitted_after("alice", changed).await
    };
    println!("raised, with nobody else asking: {after:?}, after {denials} denials");

    // A reset, sent to one sidecar. Two of nine are left.
    exhaust(&sides, "alice", 2).await;
    let changed = changed_side.reset("alice").await;
    assert_eq!(changed_side.outcome("alice").await, "admitted", "at once");
    let (here, there) = tokio::join!(
        changed_side.admitted_after("alice", changed),
        other.admitted_after("alice", changed)
    );
    println!("reset: {here:?} at the one that was changed_side, {there:?} at the other");

    // A later client is denied by the other sidecar's cached denial, and by its filter no longer than that.
    for _ in 0..7 {
        assert_eq!(changed_side.status("alice").await, 200);
    }
    assert_eq!(other.outcome("alice").await, "denied");
    let changed = changed_side.reset("alice").await;
    tokio::time::sleep(TTL * 3 / 4).await;
    let (after, denials) = other.admitted_after("alice", changed).await;
    println!("reset, and asked late: {after:?}, after {denials} denials");

    for side in &sides {
        eventually("the filter has given denials by itself", async || {
            side.denied_in_envoy().await > 0
        })
        .await;
    }
}

/// A filter that denies by itself asks nothing, but tells its sidecar of the denials once a second: the answer to that ends
/// them too.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_denied_inside_envoy_sees_a_change_long_before_denial_ttl() {
    let redis = Redis::start().await;
    let text = policy(&redis.url(), "sliding_log", 1, "1h") + "denial_ttl: 60s\n";
    let side = Side::start(&text).await;
    assert_eq!(side.status("alice").await, 200);
    assert_eq!(side.status("alice").await, 429);
    side.change_policy(&text.replace("quota: 1,", "quota: 9,"))
        .await;
    eventually("the client is admitted", async || {
        side.status("alice").await == 200
    })
    .await;
}
