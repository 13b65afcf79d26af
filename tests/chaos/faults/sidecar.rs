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
    let breaks = async |chain: &mut Chain| chain.sidecar.kill();
    let mends = async |chain: &mut Chain| chain.sidecar.restart().await;
    let fault = fault.in_short_form().away().lasts(Duration::from_secs(2));
    campaign.run(fault, breaks, mends).await;
    for (name, pause_ms) in [
        ("sidecar stopped for 0.1 s", 100),
        ("sidecar stopped for 1.5 s", 1_500),
        ("sidecar stopped for 10 s", 10_000),
    ] {
        let mut fault = Fault::new(name).at_once();
        if pause_ms < super::super::rules::FILTER_TIMEOUT_MS {
            fault = fault.unnoticed();
        }
        if pause_ms == 1_500 {
            fault = fault.in_short_form();
        }
        let pause = Duration::from_millis(pause_ms);
        let breaks = async |chain: &mut Chain| chain.pause_sidecar(pause).await;
        campaign.run_once(fault, breaks).await;
    }
    let fault = Fault::new("sidecar restarted five times in a row (SIGKILL)");
    let breaks = async |chain: &mut Chain| {
        for _ in 0..KILLS {
            chain.sidecar.kill();
            // Longer than the time between two requests, or nobody would feel it.
            tokio::time::sleep(Duration::from_millis(100)).await;
            chain.sidecar.restart().await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    };
    campaign.run_once(fault.cuts(KILLS), breaks).await;
    let fault = Fault::new("sidecar told to stop (SIGTERM), and started again");
    let breaks = async |chain: &mut Chain| {
        chain.sidecar.signal("TERM");
        chain.sidecar.wait().await;
    };
    let mends = async |chain: &mut Chain| chain.sidecar.restart().await;
    // Afterwards nobody listens until it is started again.
    let fault = fault.noticed(Noticed::NotBefore(DRAIN)).cuts(0).at_once();
    campaign.run(fault, breaks, mends).await;
    let fault = Fault::new("sidecar without file descriptors, its connection to Redis cut");
    let breaks = async |chain: &mut Chain| {
        limit_files(chain.sidecar.id(), open_files(chain));
        chain.proxy().set(Mode::Refuse);
        tokio::time::sleep(Duration::from_millis(50)).await;
        chain.proxy().set(Mode::Pass);
    };
    let mends = async |chain: &mut Chain| limit_files(chain.sidecar.id(), 1_024);
    campaign.run(fault.once_more().away(), breaks, mends).await;
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
