//! What the live page shows, as JSON. It holds no key and nothing of the store's address.

use serde_json::{Value, json};

use crate::clock;
use crate::decide::Service;
use crate::policy::{Limit, describe_window};

/// The counters are read at most this often, however many pages ask: more often gives no meaningful rate.
const MIN_SAMPLE_INTERVAL_MS: u64 = 900;

/// The state of everything at this moment, and the samples after `after_ms`, which are one or two for a page that asks every
/// second.
pub fn snapshot(service: &Service, after_ms: u64) -> Value {
    let history = service.sampled(MIN_SAMPLE_INTERVAL_MS);
    let mut top = service.metrics.top();
    // Most of thousands of limits have none.
    top.limits.retain(|limit| {
        let is_empty = limit.most_denied.is_empty() && limit.nearest.is_empty();
        !is_empty || limit.reserves.is_some()
    });
    let epoch = service.policy.current();
    let policy = &epoch.policy;
    json!({
        "now_ms": clock::unix_ms(),
        // Whatever the clock did.
        "up_ms": clock::now_us() / 1_000,
        "version": env!("CARGO_PKG_VERSION"),
        "policy": {
            "epoch": epoch.policy_number,
            // Why the file's current content was refused.
            "refused": service.policy.source.refusal(),
            // Limits that requests ask for and the policy does not have.
            "unknown_limits": service.metrics.unknown_limits(),
            // The digest of the rules for filters, and how many filters have them.
            "rules": policy.rules.told(),
            "filters": service.filter_states(),
            // Those that do not take the rules, and why.
            "filters_apart": service.filters_apart(),
            "filters_with_other_pepper": service.filters_with_other_pepper(),
            "store_timeout_ms": clock::micros(policy.store_timeout) / 1_000,
            "denial_ttl_ms": clock::micros(policy.denial_ttl) / 1_000,
            "limits": policy.limits().map(|limit| described(limit)).collect::<Vec<_>>(),
        },
        "store": {
            "name": service.store_name(),
            // They divide the limits among them; 0 if the store was never reached.
            "sidecars": service.sidecars(),
            "health": service.events.store(),
        },
        // Only if a limit of the policy has leases.
        "leases": epoch.metrics.lease_totals(),
        // Of limits that have some.
        "slots": service.slots_in_use(),
        "reserved": service.reserved(),
        "denying": history.denying(),
        "samples": history.samples_after(after_ms).collect::<Vec<_>>(),
        "top": top,
        "events": service.events.newest(),
    })
}

fn described(limit: &Limit) -> Value {
    let windows: Vec<_> = limit.windows.iter().map(describe_window).collect();
    json!({ "name": limit.name, "windows": windows.join(", ") })
}
