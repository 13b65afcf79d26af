//! Sidecar and filter of two versions: replaced one after the other, as upgrades and rollbacks do.

use sluicegate_tests::version::Version;

use super::super::campaign::Campaign;
use super::super::chain::Chain;
use super::super::fault::{Fault, Noticed};

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("versions: rolled back, filter first, then upgraded, sidecar first");
    let breaks = async |chain: &mut Chain| {
        chain.replace_filter(Version::Earlier).await;
        chain.replace_sidecar(Version::Earlier).await;
    };
    let mends = async |chain: &mut Chain| {
        chain.replace_sidecar(Version::This).await;
        chain.replace_filter(Version::This).await;
    };
    // A replaced listener closes its connections.
    let fault = fault.noticed(Noticed::Perhaps).breaks_connections();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("versions: an earlier sidecar under this filter, and back");
    let breaks = async |chain: &mut Chain| chain.replace_sidecar(Version::Earlier).await;
    let mends = async |chain: &mut Chain| chain.replace_sidecar(Version::This).await;
    let fault = fault.noticed(Noticed::Perhaps);
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("versions: an earlier filter above this sidecar, and back");
    let breaks = async |chain: &mut Chain| chain.replace_filter(Version::Earlier).await;
    let mends = async |chain: &mut Chain| chain.replace_filter(Version::This).await;
    let fault = fault.noticed(Noticed::Perhaps).breaks_connections();
    campaign.run(fault, breaks, mends).await;
}
