//! Envoy: its configuration replaced, drained and replaced.

use std::time::Duration;

use serde_json::json;
use sluicegate_tests::client::post;
use sluicegate_tests::envoy::{PLUGIN, at};
use sluicegate_tests::process::eventually;

use super::super::campaign::Campaign;
use super::super::chain::Chain;
use super::super::fault::Fault;

/// Another configuration for the filter, which changes no decision.
pub fn changed(chain: &mut Chain, number: u64) {
    let hold = format!("{}ms", 9_000 + number);
    at(&mut chain.listener, PLUGIN)["until_rules"] = json!({ "hold": hold });
}

const REPLACEMENTS: u64 = 5;

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("Envoy's filter configuration replaced five times").unnoticed();
    let breaks = async |chain: &mut Chain| {
        for generation in 0..REPLACEMENTS {
            changed(chain, generation);
            chain.listener_replaced().await;
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    };
    // A listener that is replaced closes its connections; a request that is sent at that moment finds it closed.
    let fault = fault.breaks_connections().cuts(REPLACEMENTS);
    campaign.run_once(fault, breaks).await;
    let fault = Fault::new("Envoy drained, and replaced by another").unnoticed();
    let breaks = async |chain: &mut Chain| {
        let old = chain.replace_envoy().await;
        let admin = format!("http://127.0.0.1:{}", old.admin_port);
        let drain = format!("{admin}/drain_listeners?graceful");
        assert_eq!(post(&drain, "").await.0, 200);
        // Nobody is waiting in it when it ends.
        eventually("it has drained", async || old.active().await == 0).await;
        assert_eq!(old.vm_deaths().await, 0);
    };
    let fault = fault.breaks_connections().cuts(1);
    campaign.run_once(fault, breaks).await;
}
