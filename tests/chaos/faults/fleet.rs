//! Stores of several servers: failover by Sentinel, Cluster.

use std::time::Duration;

use super::super::campaign::Campaign;
use super::super::chain::{Chain, Place};
use super::super::fault::{Fault, Noticed};
use super::super::rules;

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("Sentinel: the primary killed").at(Place::Sentinel);
    let breaks = async |chain: &mut Chain| chain.sentinels().first.kill();
    let mends = async |chain: &mut Chain| chain.sentinels().promoted().await;
    let fault = fault.forgets().at_once();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("Sentinel: failover on command").at(Place::Sentinel);
    let breaks = async |chain: &mut Chain| chain.sentinels().fail_over().await;
    // Until the old primary is a replica, it admits what the new one never receives.
    let mends = async |chain: &mut Chain| {
        chain.sentinels().promoted().await;
        chain.sentinels().demoted().await;
    };
    let fault = fault.forgets().noticed(Noticed::Perhaps).at_once();
    campaign.run(fault, breaks, mends).await;
    cluster(campaign).await;
}

async fn cluster(campaign: &mut Campaign) {
    let fault = Fault::new("Cluster: a slot under load moves twice").at(Place::Cluster);
    let breaks = async |chain: &mut Chain| {
        let cluster = chain.cluster();
        let slot = cluster.slot(rules::everyone()).await;
        let from = cluster.owner(slot).await;
        for to in [(from + 1) % 3, from] {
            cluster.migrate(slot, to, Duration::from_millis(50)).await;
        }
    };
    campaign.run_once(fault.unnoticed(), breaks).await;
    let fault = Fault::new("Cluster: the node of every decision stopped").at(Place::Cluster);
    let breaks = async |chain: &mut Chain| {
        let node = owner(chain).await;
        chain.cluster().pause(node);
    };
    let mends = async |chain: &mut Chain| (0..3).for_each(|node| chain.cluster().resume(node));
    let fault = fault.in_short_form().once_more().away();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("Cluster: the node of every decision killed, and empty when it returns");
    let killed = std::cell::Cell::new(0);
    let breaks = async |chain: &mut Chain| {
        killed.set(owner(chain).await);
        chain.cluster().kill(killed.get());
    };
    let mends = async |chain: &mut Chain| chain.cluster().restart(killed.get()).await;
    let fault = fault.at(Place::Cluster).forgets().away();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("Cluster: failover on command").at(Place::Replicated);
    let breaks = async |chain: &mut Chain| {
        let replica = chain.replica();
        chain.cluster().fail_over_to(replica).await;
    };
    let mends = async |chain: &mut Chain| {
        let replica = chain.replica();
        chain.cluster().promoted(replica).await;
    };
    let fault = fault.noticed(Noticed::Perhaps).at_once();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("Cluster: the node of every decision killed, its replica promoted");
    let breaks = async |chain: &mut Chain| {
        let node = owner(chain).await;
        chain.cluster().kill(node);
    };
    let mends = async |chain: &mut Chain| {
        let replica = chain.replica();
        chain.cluster().promoted(replica).await;
    };
    let fault = fault.at(Place::Replicated).forgets().at_once();
    campaign.run(fault, breaks, mends).await;
}

/// The node that has the limits for everyone, which each decision needs.
async fn owner(chain: &mut Chain) -> usize {
    let cluster = chain.cluster();
    cluster.owner_of(rules::everyone()).await
}
