//! Sidecar and filter of two versions: replaced one after the other, as upgrades and rollbacks do.

use sluicegate_tests::version::Version;

use super::super::campaign::Campaign;
use super::super::fault::{Fault, Noticed};

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("versions: rolled back, filter first, then upgraded, sidecar first");
    campaign
        .run(
            // A replaced listener closes its connections.
            fault.noticed(Noticed::Perhaps).breaks_connections(),
            async |chain, _| {
                chain.replace_filter(Version::Earlier).await;
                chain.replace_sidecar(Version::Earlier).await;
            },
            async |chain, _| {
                chain.replace_sidecar(Version::This).await;
                chain.replace_filter(Version::This).await;
            },
        )
        .await;
    let fault = Fault::new("versions: an earlier sidecar under this filter, and back");
    campaign
        .run(
            fault.noticed(Noticed::Perhaps),
            async |chain, _| chain.replace_sidecar(Version::Earlier).await,
            async |chain, _| chain.replace_sidecar(Version::This).await,
        )
        .await;
    let fault = Fault::new("versions: an earlier filter above this sidecar, and back");
    campaign
        .run(
            fault.noticed(Noticed::Perhaps).breaks_connections(),
            async |chain, _| chain.replace_filter(Version::Earlier).await,
            async |chain, _| chain.replace_filter(Version::This).await,
        )
        .await;
}
