//! Back to the earlier version.

use sluicegate_tests::version::Version;

use super::fleet::{Fleet, QUOTA};

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_keeps_the_counts_of_the_layouts_that_both_versions_share() {
    let mut fleet = Fleet::start(Version::This, Version::This, "deny").await;
    for limit in ["log", "window", "fixed", "bucket"] {
        fleet.admits(limit, QUOTA / 2).await;
    }
    // Filters first: the reverse of an upgrade.
    fleet.replace_filter(Version::Earlier).await;
    fleet.replace_sidecar(Version::Earlier).await;
    for limit in ["log", "window", "fixed"] {
        fleet.admits(limit, QUOTA / 2).await;
        assert_eq!(fleet.status(limit, "alice").await, 429, "{limit}");
    }
    // The key of a token bucket names a later layout: the earlier version does not read it, and counts from zero.
    fleet.admits("bucket", QUOTA).await;
    assert_eq!(fleet.status("bucket", "alice").await, 429);
    // And forward again: what each version counted is still there.
    fleet.replace_sidecar(Version::This).await;
    fleet.admits("bucket", QUOTA / 2).await;
    assert_eq!(fleet.status("bucket", "alice").await, 429);
    assert_eq!(fleet.envoy.vm_deaths().await, 0, "{}", fleet.envoy.log());
}
