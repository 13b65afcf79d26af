//! The rules and limits of the traffic: for Envoy's filter, for the sidecar's policy, and for the checker.
//!
//! | rule | its limits | `when_unavailable` | `when_store_is_down` |
//! |---|---|---|---|
//! | `deny` | by client, and for all together | deny | share |
//! | `allow` | by client | allow | share |
//! | `shut` | by client | deny | deny |
//!
//! Each rule also has a limit that is never reached. What the store has counted for it in the end is compared with what
//! clients were admitted.

use serde_json::{Value, json};
use sluicegate_history::{Algorithm, Check, Limit};
use sluicegate_tests::policy::with_sets;

/// Rules, by their `when_unavailable` or what the store's absence means to them.
pub const RULES: [&str; 3] = ["deny", "allow", "shut"];
/// The only rule that lets requests through without a verdict, and never refuses one for want of it.
pub const ALLOW: usize = 1;
/// The rule whose verdicts come from the store only.
pub const SHUT: usize = 2;
/// The largest cost of a request.
pub const MOST: u64 = 3;
/// Longest wait of the filter for the sidecar.
pub const FILTER_TIMEOUT_MS: u64 = 1_000;
/// The length of the windows that fill.
pub const WINDOW_US: u64 = 2_000_000;

const PRECISION_MS: u64 = 100;
/// What a client may have of its own in a window.
pub const QUOTA: u64 = 40;
const TOGETHER: u64 = 50;
const NEVER: u64 = 1_000_000;
/// The key of limits for all clients together.
const EVERYONE: usize = 0;

/// The indices of a rule's limits, in the order of `limits`: those by client, those for all.
const LIMITS: [(usize, &[usize]); 3] = [(0, &[1, 4]), (2, &[5]), (3, &[6])];

/// A limit's name, its index and the quota of its one window.
const NAMES: [(&str, u64); 7] = [
    ("deny", QUOTA),
    ("together", TOGETHER),
    ("allow", QUOTA),
    ("shut", QUOTA),
    ("deny-count", NEVER),
    ("allow-count", NEVER),
    ("shut-count", NEVER),
];

/// The limits, as the checker knows them.
pub fn limits() -> Vec<Limit> {
    let limit = |(name, quota): &(&str, u64)| {
        let algorithm = match *name {
            "together" => Algorithm::Sliding(PRECISION_MS),
            _ => Algorithm::Log,
        };
        let per_ms = match *quota {
            NEVER => 3_600_000,
            _ => WINDOW_US / 1_000,
        };
        Limit::new(algorithm, *quota, per_ms)
    };
    NAMES.iter().map(limit).collect()
}

/// What a request of a rule asks for; clients are counted from 1.
pub fn checks(rule: usize, client: u32, cost: u64) -> Vec<Check> {
    let (by_client, together) = LIMITS[rule];
    let check = |limit, key| Check::new(limit, key, cost);
    let together = together.iter().map(|limit| check(*limit, EVERYONE));
    [check(by_client, client as usize)]
        .into_iter()
        .chain(together)
        .collect()
}

/// The index of the limit that counts all that a rule admits.
pub fn count_of(rule: usize) -> usize {
    LIMITS[rule].1.last().copied().expect("each rule has one")
}

/// A peek at what a rule's count has left, as the wire has it and as the checker does.
pub fn look_at_count(rule: usize) -> (Value, Vec<Check>) {
    let limit = count_of(rule);
    let check = json!({ "limit": NAMES[limit].0, "key": everyone() });
    let decision = json!({ "checks": [check], "peek": true });
    (decision, vec![Check::new(limit, EVERYONE, 0)])
}

/// A constant's key, as the filter encodes it. With another, a look would find that nothing was taken.
pub fn everyone() -> &'static str {
    "@constant=everyone"
}

/// Units that a rule's count has taken when so many are left.
pub fn taken(left: u64) -> u64 {
    NEVER.saturating_sub(left)
}

/// The policy with this store.
pub fn policy(store: &str) -> String {
    with_sets(&policy_of_limits(store), &json!({ "default": rules() }))
}

/// It without its rules.
pub fn policy_of_limits(store: &str) -> String {
    let mut text = format!("store: {store}\nstore_timeout: 200ms\nlimits:\n");
    for ((name, quota), limit) in NAMES.iter().zip(limits()) {
        let window = &limit.windows[0];
        let (algorithm, more) = match limit.algorithm {
            Algorithm::Sliding(ms) => ("sliding_window", format!(", precision: {ms}ms")),
            _ => ("sliding_log", String::new()),
        };
        let down = if *name == "shut" { "deny" } else { "share" };
        let per = window.per_ms;
        text += &format!(
            "  {name}: {{ algorithm: {algorithm}, when_store_is_down: {down}, windows: [{{ quota: {quota}, per: {per}ms{more} }}] }}\n"
        );
    }
    // What calls are made of that take long; no client uses it.
    text + "  huge: { algorithm: sliding_log, windows: [{ quota: 100000, per: 10s }] }\n"
}

/// The policy's rules. With `on_admitted`, an admission by a verdict has header fields, and others have none.
pub fn rules() -> Value {
    let rules = RULES.iter().enumerate().map(|(index, rule)| {
        let cost = json!({ "header": "x-cost", "max": MOST, "trusted": true, "default": 1 });
        let (by_client, together) = LIMITS[index];
        let mut checks = vec![json!({
            "limit": NAMES[by_client].0, "key": [{ "header": "x-client", "plain": true }], "cost": cost })];
        for limit in together {
            checks.push(json!({
                "limit": NAMES[*limit].0, "key": [{ "constant": "everyone" }], "cost": cost }));
        }
        let unavailable = if *rule == "allow" { "allow" } else { "deny" };
        json!({
            "name": rule, "match": { "path": format!("/{rule}") },
            "checks": checks, "when_unavailable": unavailable,
        })
    });
    json!({
        "reply": { "headers": "draft", "on_admitted": true },
        "rules": rules.collect::<Vec<_>>(),
    })
}

/// The filter's configuration.
pub fn plugin() -> Value {
    json!({
        "version": 2,
        "sidecar": { "cluster": "sluicegate", "timeout": format!("{FILTER_TIMEOUT_MS}ms") },
        "until_rules": { "hold": "10s" },
    })
}
