//! A window's boundary: a burst just before it and one just after.

use sluicegate_tests::edge::{QUOTA, bursts_around_an_edge};

/// Both bursts fall into one window's length.
#[tokio::test]
async fn at_a_boundary_a_fixed_window_admits_twice_its_limit_and_a_sliding_log_its_limit() {
    let run = bursts_around_an_edge().await;
    assert_eq!(run.admitted("fixed_window"), 2 * QUOTA, "{run:?}");
    assert_eq!(run.admitted("sliding_log"), QUOTA, "{run:?}");
}
