//! A client that asks one request after the other, ten thousand times: on one worker it is never denied by its own slot, and on four
//! hardly ever.

use super::slots::{FOREVER, PATHS, chain_of, serial, serial_http_2};

const COUNT: usize = 10_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_serial_client_of_one_worker_is_never_denied_by_its_own_slot() {
    let chain = chain_of(1, 1, FOREVER, "").await;
    let port = chain.envoy.port;
    for path in PATHS {
        for close in [false, true] {
            let denied = serial(port, COUNT, path, close).await;
            assert_eq!(denied, 0, "{path} {close}");
        }
        assert_eq!(serial_http_2(port, COUNT, path).await, 0, "{path}");
    }
    chain.envoy.is_well().await;
}

/// Each connection may be of another worker: a release and the next question race, and whoever is denied waits for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_serial_client_of_four_workers_is_hardly_ever_denied_by_its_own_slot() {
    let chain = chain_of(4, 1, FOREVER, "").await;
    for path in PATHS {
        let denied = serial(chain.envoy.port, COUNT, path, true).await;
        assert!(denied <= 10, "{path}: {denied} of {COUNT}");
        eprintln!("{path}: {denied} of {COUNT} denied");
    }
    chain.envoy.is_well().await;
}
