//! Stores of several servers: failover by Sentinel, Cluster.

use std::time::Duration;

use super::super::campaign::Campaign;
use super::super::chain::Place;
use super::super::fault::{Fault, Noticed};
use super::super::rules;

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("Sentinel: the primary killed").at(Place::Sentinel);
    campaign
        .run(
            fault.forgets().lasts(Duration::ZERO),
            async |chain, _| chain.sentinels().first.kill(),
            async |chain, _| chain.sentinels().promoted().await,
        )
        .await;
    let fault = Fault::new("Sentinel: failover on command").at(Place::Sentinel);
    campaign
        .run(
            fault
                .forgets()
                .noticed(Noticed::Perhaps)
                .lasts(Duration::ZERO),
            async |chain, _| chain.sentinels().fail_over().await,
            // Until the old primary is a replica, it admits what the new one never receives.
            async |chain, _| {
                chain.sentinels().promoted().await;
                chain.sentinels().demoted().await;
            },
        )
        .await;
    cluster(campaign).await;
}

async fn cluster(campaign: &mut Campaign) {
    let fault = Fault::new("Cluster: a slot under load moves twice").at(Place::Cluster);
    campaign
        .run_once(fault.unnoticed(), async |chain, _| {
            let cluster = chain.cluster();
            let slot = cluster.slot(rules::everyone()).await;
            let from = cluster.owner(slot).await;
            for to in [(from + 1) % 3, from] {
                cluster.migrate(slot, to, Duration::from_millis(50)).await;
            }
        })
        .await;
    let fault = Fault::new("Cluster: the node of every decision stopped").at(Place::Cluster);
    campaign
        .run(
            fault.in_short_form().once_more().away(),
            async |chain, _| {
                let node = owner(chain).await;
                chain.cluster().pause(node);
            },
            async |chain, _| (0..3).for_each(|node| chain.cluster().resume(node)),
        )
        .await;
    let fault = Fault::new("Cluster: the node of every decision killed, and empty when it returns");
    let killed = std::cell::Cell::new(0);
    campaign
        .run(
            fault.at(Place::Cluster).forgets().away(),
            async |chain, _| {
                killed.set(owner(chain).await);
                chain.cluster().kill(killed.get());
            },
            async |chain, _| chain.cluster().restart(killed.get()).await,
        )
        .await;
    let fault = Fault::new("Cluster: failover on command").at(Place::Replicated);
    campaign
        .run(
            fault.noticed(Noticed::Perhaps).lasts(Duration::ZERO),
            async |chain, _| {
                let replica = chain.replica();
                chain.cluster().fail_over_to(replica).await;
            },
            async |chain, _| {
                let replica = chain.replica();
                chain.cluster().promoted(replica).await;
            },
        )
        .await;
    let fault = Fault::new("Cluster: the node of every decision killed, its replica promoted");
    campaign
        .run(
            fault.at(Place::Replicated).forgets().lasts(Duration::ZERO),
            async |chain, _| {
                let node = owner(chain).await;
                chain.cluster().kill(node);
            },
            async |chain, _| {
                let replica = chain.replica();
                chain.cluster().promoted(replica).await;
            },
        )
        .await;
}

/// The node that has the limits for everyone, which each decision needs.
async fn owner(chain: &mut super::super::chain::Chain) -> usize {
    let cluster = chain.cluster();
    cluster.owner_of(rules::everyone()).await
}
