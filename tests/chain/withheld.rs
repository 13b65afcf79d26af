//! Envoys that withhold calls from the filter by their `capability_restriction_config`: each such call fails, and none ends
//! the VM.

use serde_json::{Map, Value, json};
use sluicegate_tests::envoy::Envoy;
use sluicegate_tests::sidecar::Sidecar;

use super::support::{decided, filters, per_key, policy, pushed, with_rules};

/// What the filter calls, and what Envoy calls in it.
const ALL: [&str; 32] = [
    "clock_time_get",
    "environ_get",
    "environ_sizes_get",
    "proxy_continue_stream",
    "proxy_define_metric",
    "proxy_dequeue_shared_queue",
    "proxy_enqueue_shared_queue",
    "proxy_get_buffer_bytes",
    "proxy_get_header_map_pairs",
    "proxy_get_header_map_value",
    "proxy_get_property",
    "proxy_http_call",
    "proxy_increment_metric",
    "proxy_log",
    "proxy_on_configure",
    "proxy_on_context_create",
    "proxy_on_delete",
    "proxy_on_http_call_response",
    "proxy_on_queue_ready",
    "proxy_on_request_body",
    "proxy_on_request_headers",
    "proxy_on_request_trailers",
    "proxy_on_response_headers",
    "proxy_on_tick",
    "proxy_on_vm_start",
    "proxy_register_shared_queue",
    "proxy_replace_header_map_value",
    "proxy_send_local_response",
    "proxy_set_effective_context",
    "proxy_set_property",
    "proxy_set_tick_period_milliseconds",
    "random_get",
];

/// Calls without which no rules come.
const NO_RULES: [&str; 4] = [
    "proxy_get_header_map_value",
    "proxy_http_call",
    "proxy_on_configure",
    "proxy_set_tick_period_milliseconds",
];

/// An Envoy that withholds these calls.
async fn withholding(calls: &[&str], sidecar: &Sidecar) -> Envoy {
    let allowed = ALL.iter().filter(|name| !calls.contains(name));
    let allowed: Map<String, Value> = allowed
        .map(|name| ((*name).to_owned(), json!({})))
        .collect();
    let restrict = |config: &mut Value| {
        filters(config)[0]["typed_config"]["config"]["capability_restriction_config"] =
            json!({ "allowed_capabilities": allowed });
    };
    let mut plugin = pushed();
    // Where no rules can come, requests are answered at once.
    if calls.iter().any(|call| NO_RULES.contains(call)) {
        plugin["until_rules"]["hold"] = json!("0ms");
    }
    let planned = Envoy::asking(sidecar.port).plugin(plugin);
    planned.patch(restrict).alone().await
}

#[tokio::test]
async fn a_call_that_envoy_withholds_fails_and_ends_no_vm() {
    let mut rules = per_key("deny");
    rules[0]["reply"] = json!({ "on_admitted": true });
    let policy = with_rules(&policy("memory", "sliding_log", 1, "1h"), &rules);
    let sidecar = Sidecar::alone(&policy).await;
    let (decided, undecided) = ([200, 429, 429], [503; 3]);
    for (key, statuses, withheld) in [
        (
            "no timer",
            undecided,
            &["proxy_set_tick_period_milliseconds"][..],
        ),
        (
            "no wake-ups: the timer wakes who waits",
            decided,
            &["proxy_dequeue_shared_queue"],
        ),
        (
            "nothing is told, and the timer wakes who waits",
            decided,
            &[
                "proxy_define_metric",
                "proxy_get_property",
                "proxy_increment_metric",
                "proxy_log",
                "proxy_register_shared_queue",
                "proxy_replace_header_map_value",
                "proxy_set_property",
            ],
        ),
        (
            "answers have no status",
            undecided,
            &["proxy_get_header_map_value", "proxy_enqueue_shared_queue"],
        ),
        ("no callouts", undecided, &["proxy_http_call"]),
        ("no configuration", undecided, &["proxy_on_configure"]),
    ] {
        let envoy = withholding(withheld, &sidecar).await;
        for status in statuses {
            let answer = envoy.status("/", key).await;
            assert_eq!(answer, status, "{key}: {}", envoy.log());
        }
        assert_eq!(envoy.vm_deaths().await, 0, "{key}: {}", envoy.log());
    }
}

/// No denial that is cached would ever end, so none is: its answers come from the sidecar.
#[tokio::test]
async fn without_a_clock_each_request_asks_the_sidecar() {
    let text = policy("memory", "sliding_log", 1, "1h") + "denial_ttl: 60s\n";
    let text = with_rules(&text, &per_key("deny"));
    let sidecar = Sidecar::alone(&text).await;
    let calls = ["clock_time_get"];
    let envoy = withholding(&calls, &sidecar).await;
    for status in [200, 429, 429, 429] {
        let answer = envoy.status("/", "key").await;
        assert_eq!(answer, status, "{}", envoy.log());
    }
    let cached = decided(&sidecar, "per-key", "certificate", "denied").await;
    assert_eq!(cached, 2);
    assert_eq!(envoy.vm_deaths().await, 0, "{}", envoy.log());
}

/// As docs/security.md says: no address, no limit by it.
#[tokio::test]
async fn without_properties_a_request_has_no_address() {
    let mut rules = per_key("deny");
    rules[0]["checks"][0]["key"] = json!([{ "address": {} }]);
    let policy = policy("memory", "sliding_log", 1, "1h");
    let sidecar = Sidecar::alone(&with_rules(&policy, &rules)).await;
    for (withheld, statuses) in [(&[][..], [200, 429]), (&["proxy_get_property"], [200, 200])] {
        let envoy = withholding(withheld, &sidecar).await;
        for status in statuses {
            let answer = envoy.status("/", "key").await;
            assert_eq!(answer, status, "{}", envoy.log());
        }
    }
}
