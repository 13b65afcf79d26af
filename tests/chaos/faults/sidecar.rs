//! The sidecar: killed, stopped, restarted, without file descriptors.

use std::time::Duration;

use sluicegate_tests::process::limit_files;
use sluicegate_tests::proxy::Mode;

use super::super::campaign::Campaign;
use super::super::chain::{Chain, DRAIN};
use super::super::fault::{Fault, Noticed};

const KILLS: u64 = 5;

pub async fn all(campaign: &mut Campaign) {
    let fault = Fault::new("sidecar killed, and started again after two seconds");
    campaign
        .run(
            fault.in_short_form().away().lasts(Duration::from_secs(2)),
            async |chain, _| chain.sidecar.kill(),
            async |chain, _| chain.sidecar.restart().await,
        )
        .await;
    for (name, pause_ms) in [
        ("sidecar stopped for 0.1 s", 100),
        ("sidecar stopped for 1.5 s", 1_500),
        ("sidecar stopped for 10 s", 10_000),
    ] {
        let mut fault = Fault::new(name).lasts(Duration::ZERO);
        if pause_ms < super::super::rules::FILTER_TIMEOUT_MS {
            fault = fault.unnoticed();
        }
        if pause_ms == 1_500 {
            fault = fault.in_short_form();
        }
        let pause = Duration::from_millis(pause_ms);
        campaign
            .run_once(fault, async |chain, _| chain.pause_sidecar(pause).await)
            .await;
    }
    let fault = Fault::new("sidecar restarted five times in a row (SIGKILL)");
    campaign
        .run_once(fault.cuts(KILLS), async |chain, _| {
            for _ in 0..KILLS {
                chain.sidecar.kill();
                // Longer than the time between two requests, or nobody would feel it.
                tokio::time::sleep(Duration::from_millis(100)).await;
                chain.sidecar.restart().await;
                tokio::time::sleep(Duration::from_millis(300)).await;
            }
        })
        .await;
    let fault = Fault::new("sidecar told to stop (SIGTERM), and started again");
    campaign
        .run(
            // Afterwards nobody listens until it is started again.
            fault
                .noticed(Noticed::NotBefore(DRAIN))
                .cuts(0)
                .lasts(Duration::ZERO),
            async |chain, _| {
                chain.sidecar.signal("TERM");
                chain.sidecar.wait().await;
            },
            async |chain, _| chain.sidecar.restart().await,
        )
        .await;
    let fault = Fault::new("sidecar without file descriptors, its connection to Redis cut");
    campaign
        .run(
            fault.once_more().away(),
            async |chain, _| {
                limit_files(chain.sidecar.id(), open_files(chain));
                chain.proxy().set(Mode::Refuse);
                tokio::time::sleep(Duration::from_millis(50)).await;
                chain.proxy().set(Mode::Pass);
            },
            async |chain, _| limit_files(chain.sidecar.id(), 1_024),
        )
        .await;
}

/// The lowest limit with which it opens nothing more, even after it has closed its connections to Redis.
fn open_files(chain: &Chain) -> usize {
    let folder = format!("/proc/{}/fd", chain.sidecar.id());
    let numbers = std::fs::read_dir(folder).expect("a process").flatten();
    let sockets = numbers.filter(|file| {
        let target = std::fs::read_link(file.path()).unwrap_or_default();
        target.to_string_lossy().starts_with("socket:")
    });
    let lowest = sockets.filter_map(|file| file.file_name().to_str()?.parse().ok());
    lowest.min().unwrap_or(3)
}
