//! Corrections of the host's clock, in the embedded store.

use super::*;
use crate::clock::tests::step_us;

const SECOND_US: i128 = 1_000_000;
const HOUR_US: i128 = 3_600 * SECOND_US;
const DAY_US: i128 = 24 * HOUR_US;

fn limit(limit: &str) -> Service {
    // Noon of some day.
    step_us(20_000 * DAY_US + DAY_US / 2 - i128::from(clock::unix_us()));
    service(&format!("limits: {{ l: {{ {limit} }} }}"))
}

async fn verdict(service: &Service) -> Value {
    ask(service, json!([check(1)])).await
}

/// In how many hours to come again, of a denial; rounded up.
async fn denied_for_hours(service: &Service) -> u64 {
    let verdict = verdict(service).await;
    assert_eq!(verdict["outcome"], "denied", "{verdict}");
    verdict["retry_after_ms"]
        .as_u64()
        .unwrap()
        .div_ceil(3_600_000)
}

#[tokio::test]
async fn a_step_of_the_clock_voids_cached_denials_here_and_in_filters() {
    let service = limit("algorithm: sliding_log, windows: [{ quota: 1, per: 1h }]");
    verdict(&service).await;
    assert_eq!(denied_for_hours(&service).await, 1);
    let epoch = service.policy.current().number;
    for (steps, by_us) in [(0, 1_000), (1, -HOUR_US / 2), (2, HOUR_US / 4)] {
        step_us(by_us);
        assert_eq!(denied_for_hours(&service).await, 1);
        assert_eq!(service.policy.current().number, epoch + steps, "{by_us}");
    }
    step_us(HOUR_US);
    assert_eq!(verdict(&service).await["outcome"], "admitted");
}
