//! The connection between the sidecar and Redis: slow, narrow, silent, cut, half-closed, corrupted.

use std::time::Duration;

use sluicegate_tests::link::Packets;
use sluicegate_tests::proxy::Mode;

use super::super::campaign::Campaign;
use super::super::chain::{Chain, Place};
use super::super::fault::Fault;

/// More than the `store_timeout` of the policy, each way.
const SLOW: Duration = Duration::from_millis(300);
/// In three seconds.
const CUTS: u64 = 15;

pub async fn all(campaign: &mut Campaign) {
    for (name, short, mode) in [
        ("Redis slower than `store_timeout`", true, Mode::Slow(SLOW)),
        ("connection refused", false, Mode::Refuse),
        ("connection silent (packets dropped)", false, Mode::Swallow),
        ("connection cut in mid-answer", true, Mode::CutAnswers),
        (
            "connection half-closed: Redis's answers end",
            false,
            Mode::HalfClose,
        ),
        ("answers corrupted: not the protocol", true, Mode::Corrupt),
        (
            "answers corrupted: a bit flipped in each",
            false,
            Mode::FlipBits,
        ),
    ] {
        let mut fault = Fault::new(name);
        fault.short = short;
        let lies = matches!(mode, Mode::FlipBits);
        let fault = if lies { fault.lies() } else { fault.away() };
        let breaks = async |chain: &mut Chain| chain.proxy().set(mode);
        let mends = async |chain: &mut Chain| chain.proxy().set(Mode::Pass);
        campaign.run(fault.once_more(), breaks, mends).await;
    }
    let fault = Fault::new("connection cut five times a second").once_more();
    let breaks = async |chain: &mut Chain| {
        for _ in 0..CUTS {
            chain.proxy().set(Mode::Refuse);
            tokio::time::sleep(Duration::from_millis(20)).await;
            chain.proxy().set(Mode::Pass);
            tokio::time::sleep(Duration::from_millis(180)).await;
        }
    };
    campaign.run_once(fault.cuts(CUTS), breaks).await;
    let cut = Fault::new("hosts: the network between them cut").away();
    let lossy = Fault::new("hosts: one packet in five lost").loses_answers();
    let narrow = Fault::new("hosts: the network between them as slow as a modem's (56 kbit/s)");
    for (fault, packets) in [
        (cut, Packets::Drop),
        (lossy, Packets::Lose(5)),
        (narrow.loses_answers(), Packets::Narrow(56)),
    ] {
        let breaks = async |chain: &mut Chain| chain.link().set(packets);
        let mends = async |chain: &mut Chain| chain.link().set(Packets::Pass);
        let fault = fault.at(Place::Link).once_more();
        campaign.run(fault, breaks, mends).await;
    }
    let fault = Fault::new("one sidecar of two cut off from Redis").at(Place::Pair);
    let breaks = async |chain: &mut Chain| chain.proxy().set(Mode::Swallow);
    let mends = async |chain: &mut Chain| chain.proxy().set(Mode::Pass);
    // What it denies and promises is by its half of the limit.
    let fault = fault.once_more().unchecked();
    campaign.run(fault, breaks, mends).await;
}
