//! The Retry-After of denials that last as long as an override or longer.

use std::time::SystemTime;

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
    service.set_override(body.as_bytes()).await.unwrap();
}

/// In how many milliseconds to come again, of a denial.
async fn retry_after_ms(service: &Service, cost: u64) -> u64 {
    let verdict = ask(service, json!([check(cost)])).await;
    let again = verdict["retry_after_ms"].as_u64();
    again.unwrap_or_else(|| panic!("{verdict}"))
}

#[track_caller]
fn assert_about(is: u64, should: u64) {
    assert!(is <= should && is + MINUTE_MS / 2 > should, "{is} {should}");
}

#[tokio::test]
async fn a_timed_block_in_front_of_a_block_without_an_end_has_no_end() {
    let service = service(&policy(HOURLY, "blocked: true"));
    for_a_minute(&service, r#""blocked":true"#).await;
    let again = retry_after_ms(&service, 1).await;
    assert_about(again, MINUTE_MS + HOUR_MS);
}

#[tokio::test]
async fn a_timed_block_in_front_of_a_longer_one_ends_with_that() {
    let terms = format!("blocked: true, until: {}", in_minutes(120));
    let service = service(&policy(HOURLY, &terms));
    for_a_minute(&service, r#""blocked":true"#).await;
    assert_about(retry_after_ms(&service, 1).await, 2 * HOUR_MS);
}

#[tokio::test]
async fn a_block_ends_with_its_override_if_what_it_hides_has_room() {
    let service = service(&policy(HOURLY, "quota: 1"));
    for_a_minute(&service, r#""blocked":true"#).await;
    assert_about(retry_after_ms(&service, 1).await, MINUTE_MS);
}

#[tokio::test]
async fn a_block_in_front_of_a_quota_that_is_used_up_ends_when_that_has_room() {
    let service = service(&policy(HOURLY, "quota: 3"));
    ask(&service, json!([check(2)])).await;
    for_a_minute(&service, r#""blocked":true"#).await;
    assert_about(retry_after_ms(&service, 1).await, MINUTE_MS);
    assert_about(retry_after_ms(&service, 2).await, HOUR_MS);
}

#[tokio::test]
async fn a_quota_in_front_of_a_block_claims_no_room_while_that_lasts() {
    let terms = format!("blocked: true, until: {}", in_minutes(120));
    let service = service(&policy(HOURLY, &terms));
    for_a_minute(&service, r#""quota":7"#).await;
    ask(&service, json!([check(7)])).await;
    assert_about(retry_after_ms(&service, 1).await, 2 * HOUR_MS);
}

#[tokio::test]
async fn a_higher_quota_in_front_of_a_lower_one_claims_no_room_that_it_refuses() {
    let bucket = |quota| {
        format!("algorithm: token_bucket, windows: [{{ quota: {quota}, per: 1h, burst: 60 }}]")
    };
    let service = service(&policy(&bucket(6), ""));
    for_a_minute(
        &service,
        r#""windows":[{"quota":60,"per":"1h","burst":60}]"#,
    )
    .await;
    ask(&service, json!([check(60)])).await;
    // By the override in half an hour, and by the policy in five hours.
    assert_about(retry_after_ms(&service, 30).await, 5 * HOUR_MS);
}

#[tokio::test]
async fn a_lower_quota_denies_no_longer_than_until_its_override_ends() {
    let service = service(&policy(HOURLY, ""));
    for_a_minute(&service, r#""quota":1"#).await;
    ask(&service, json!([check(1)])).await;
    assert_about(retry_after_ms(&service, 1).await, MINUTE_MS);
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
    assert_about(verdict["retry_after_ms"].as_u64().unwrap(), 2 * HOUR_MS);
}
