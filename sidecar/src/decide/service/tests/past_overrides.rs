//! The Retry-After of denials that last as long as an override or longer.

use std::time::SystemTime;

use sluicegate_protocol::read_set_override;

use super::*;

const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;

fn in_minutes(minutes: u64) -> String {
    let end = SystemTime::now() + Duration::from_secs(60 * minutes);
    humantime::format_rfc3339_millis(end).to_string()
}

/// A policy of one limit, with this override for the key in the file.
fn policy(windows: &str, of_file: &str) -> String {
    let overrides = match of_file {
        "" => String::new(),
        terms => format!("overrides: [{{ key: k, {terms} }}]"),
    };
    format!("limits: {{ l: {{ {windows}, {overrides} }} }}")
}

const HOURLY: &str = "algorithm: sliding_log, windows: [{ quota: 5, per: 1h }]";

/// Overrides the key in the store for a minute.
async fn for_a_minute(service: &Service, terms: &str) {
    let until = in_minutes(1);
    let body = format!(r#"{{"limit":"l","key":"k",{terms},"until":"{until}"}}"#);
    let asked = read_set_override(body.as_bytes()).unwrap();
    service.set_override(asked).await.unwrap();
}

/// In how many milliseconds to come again, of a denial.
async fn retry_after_ms(service: &Service, cost: u64) -> u64 {
    let verdict = ask(service, json!([check(cost)])).await;
    let again = verdict["retry_after_ms"].as_u64();
    again.unwrap_or_else(|| panic!("{verdict}"))
}

/// A key's terms in the policy, what is taken before its override in the store, the override's terms, what is taken under it, and
/// in how long a request of a cost is told to come again.
type Case<'a> = (&'a str, u64, &'a str, u64, u64, u64);

async fn tells_when(limit: &str, (of_file, before, of_store, under, cost, again_ms): Case<'_>) {
    let service = service(&policy(limit, of_file));
    ask(&service, json!([check(before)])).await;
    for_a_minute(&service, of_store).await;
    ask(&service, json!([check(under)])).await;
    let told = retry_after_ms(&service, cost).await;
    let about = told <= again_ms && told + MINUTE_MS / 2 > again_ms;
    assert!(about, "{of_file} behind {of_store}: {told}");
}

#[tokio::test]
async fn a_denial_under_an_override_ends_when_what_that_hides_has_room() {
    let long = format!("blocked: true, until: {}", in_minutes(120));
    let blocked = r#""blocked":true"#;
    for case in [
        // A block without an end, and a longer one.
        ("blocked: true", 0, blocked, 0, 1, MINUTE_MS + HOUR_MS),
        (&long, 0, blocked, 0, 1, 2 * HOUR_MS),
        // A quota with room, and one that is used up for some costs.
        ("quota: 1", 0, blocked, 0, 1, MINUTE_MS),
        ("quota: 3", 2, blocked, 0, 1, MINUTE_MS),
        ("quota: 3", 2, blocked, 0, 2, HOUR_MS),
        // A quota in front of a block, and a lower one in front of the limit's own.
        (&long, 0, r#""quota":7"#, 7, 1, 2 * HOUR_MS),
        ("", 0, r#""quota":1"#, 1, 1, MINUTE_MS),
    ] {
        tells_when(HOURLY, case).await;
    }
    // By the override in half an hour, and by the policy, whose quota is lower, in five hours.
    let tokens = "algorithm: token_bucket, windows: [{ quota: 6, per: 1h, burst: 60 }]";
    let raised = r#""windows":[{"quota":60,"per":"1h","burst":60}]"#;
    tells_when(tokens, ("", 0, raised, 60, 30, 5 * HOUR_MS)).await;
}

#[tokio::test]
async fn no_limit_in_front_of_a_block_ends_before_another_limits_denial() {
    let terms = format!("blocked: true, until: {}", in_minutes(120));
    let other = format!("{}\n  m: {{ {HOURLY} }}", "limits:");
    let of_key = format!("overrides: [{{ key: k, {terms} }}]");
    let service = service(&format!("{other}\n  l: {{ {HOURLY}, {of_key} }}\n"));
    for_a_minute(&service, r#""unlimited":true"#).await;
    let of_m = json!({"limit": "m", "key": "k", "cost": 5});
    ask(&service, json!([of_m])).await;
    let verdict = ask(&service, json!([of_m, check(1)])).await;
    let told = verdict["retry_after_ms"].as_u64().unwrap();
    assert!(
        told <= 2 * HOUR_MS && told + MINUTE_MS > 2 * HOUR_MS,
        "{told}"
    );
}
