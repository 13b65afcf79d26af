//! The connection between the sidecar and Redis: slow, narrow, silent, cut, half-closed, corrupted.

use std::time::Duration;

use sluicegate_tests::link::Packets;
use sluicegate_tests::proxy::Mode;

use super::super::campaign::Campaign;
use super::super::chain::Place;
use super::super::fault::Fault;

/// More than the `store_timeout` of the policy, each way.
const SLOW: Duration = Duration::from_millis(300);
/// In three seconds.
const CUTS: u64 = 15;

pub async fn all(campaign: &mut Campaign) {
    for (fault, mode) in [
        (
            Fault::new("Redis slower than `store_timeout`")
                .away()
                .in_short_form(),
            Mode::Slow(SLOW),
        ),
        (Fault::new("connection refused").away(), Mode::Refuse),
        (
            Fault::new("connection silent (packets dropped)").away(),
            Mode::Swallow,
        ),
        (
            Fault::new("connection cut in mid-answer")
                .away()
                .in_short_form(),
            Mode::CutAnswers,
        ),
        (
            Fault::new("connection half-closed: Redis's answers end").away(),
            Mode::HalfClose,
        ),
        (
            Fault::new("answers corrupted: not the protocol")
                .away()
                .in_short_form(),
            Mode::Corrupt,
        ),
        (
            Fault::new("answers corrupted: a bit flipped in each").lies(),
            Mode::FlipBits,
        ),
    ] {
        campaign
            .run(
                fault.once_more(),
                async |chain, _| chain.proxy().set(mode),
                async |chain, _| chain.proxy().set(Mode::Pass),
            )
            .await;
    }
    let fault = Fault::new("connection cut five times a second").once_more();
    campaign
        .run_once(fault.cuts(CUTS), async |chain, _| {
            for _ in 0..CUTS {
                chain.proxy().set(Mode::Refuse);
                tokio::time::sleep(Duration::from_millis(20)).await;
                chain.proxy().set(Mode::Pass);
                tokio::time::sleep(Duration::from_millis(180)).await;
            }
        })
        .await;
    for (fault, packets) in [
        (
            Fault::new("hosts: the network between them cut").away(),
            Packets::Drop,
        ),
        (
            Fault::new("hosts: one packet in five lost").loses_answers(),
            Packets::Lose(5),
        ),
        (
            Fault::new("hosts: the network between them as slow as a modem's (56 kbit/s)")
                .loses_answers(),
            Packets::Narrow(56),
        ),
    ] {
        campaign
            .run(
                fault.at(Place::Link).once_more(),
                async |chain, _| chain.link().set(packets),
                async |chain, _| chain.link().set(Packets::Pass),
            )
            .await;
    }
    let fault = Fault::new("one sidecar of two cut off from Redis").at(Place::Pair);
    campaign
        .run(
            // What it denies and promises is by its half of the limit.
            fault.once_more().unchecked(),
            async |chain, _| chain.proxy().set(Mode::Swallow),
            async |chain, _| chain.proxy().set(Mode::Pass),
        )
        .await;
}
