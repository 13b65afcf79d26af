//! Clients that ask one request after the other, ten thousand times: on one worker none is ever denied by its own slot, and on four
//! hardly ever.

use super::slots::{FOREVER, PATHS, all_are_admitted, chain_of, serial};

/// Of each kind of response: a third over each protocol and use of connections.
const COUNT: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_serial_client_of_one_worker_is_never_denied_by_its_own_slot() {
    all_are_admitted(&chain_of(1, 1, FOREVER, "").await, COUNT / 3).await;
}

/// Each connection may be of another worker: a release and the next question race, and whoever is denied waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_serial_client_of_four_workers_is_hardly_ever_denied_by_its_own_slot() {
    let chain = chain_of(4, 1, FOREVER, "").await;
    for path in PATHS {
        let denied = serial(chain.envoy.port, path, COUNT, path, true).await;
        assert!(denied <= 10, "{path}: {denied} of {COUNT}");
    }
    chain.envoy.is_well().await;
}
