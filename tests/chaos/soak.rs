//! Service life: as many requests as the machine can serve, with keys that come and go, reloads and restarts, for half an hour
//! (`SLUICEGATE_SOAK=SECONDS`). With `SLUICEGATE_WRITE=1`, the figures go into docs/faults.md.
//!
//! The clients of `load.rs` run beside wrk, so that the checker sees a history of decisions that were made under full load.
//!
//! | module | for |
//! |---|---|
//! | `soak/background.rs` | the rules and the requests of wrk |
//! | `soak/samples.rs` | memory, file descriptors, threads and keys, second by second, and whether they are flat |
//! | `soak/verdict.rs` | the history, minute by minute, and what is counted in the end |

mod background;
mod samples;
mod verdict;

use std::time::{Duration, Instant};

use sluicegate_tests::marked;
use sluicegate_tests::process::eventually;
use sluicegate_tests::redis::Redis;

use super::chain::{Chain, Place};
use super::load::Load;
use super::table;
use background::Background;
use samples::Samples;

const DEFAULT_SECONDS: u64 = 1_800;
/// When the sidecar is restarted, in hundredths of the run. The last one lives for half of it, so that a leak shows.
const RESTARTS: [(u64, Restart); 3] = [(15, Ordered), (30, Ordered), (45, Killed)];
/// Reloads of the policy, of the filter's configuration and of Redis's scripts, in turns.
const RELOADS: u64 = 40;
/// The turn of the filter's configuration, which replaces the listener.
const LISTENER: u64 = 1;

use Restart::{Killed, Ordered};

#[derive(Clone, Copy, Debug)]
enum Restart {
    Ordered,
    Killed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes half an hour: make soak"]
async fn service_life() {
    let seconds = std::env::var("SLUICEGATE_SOAK").map_or(DEFAULT_SECONDS, |text| {
        text.parse().expect("SLUICEGATE_SOAK: seconds")
    });
    assert!(seconds >= 60, "SLUICEGATE_SOAK={seconds}: at least 60");
    let mut chain = Chain::start_with(Place::Redis, background::policy).await;
    let background = Background::start(chain.envoy.port, seconds);
    let load = Load::start(&chain.targets);
    let mut samples = Samples::new(seconds);
    let began = Instant::now();
    let (mut restarts, mut reloads, mut replaced) = (0, 0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let hundredth = began.elapsed().as_secs() * 100 / seconds;
        if let Some((_, how)) = RESTARTS.get(restarts).filter(|(at, _)| *at <= hundredth) {
            restart(&mut chain, *how).await;
            samples.disturbed(began.elapsed());
            restarts += 1;
        } else if began.elapsed().as_secs() * RELOADS / seconds > reloads {
            reload(&mut chain, reloads).await;
            replaced += u64::from(reloads % 3 == LISTENER);
            reloads += 1;
        }
        samples.take(&mut chain, began.elapsed()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let wrk = background.finish().await;
    let clock = load.clock;
    let seen = load.stop().await;
    chain.quiet().await;
    let (found, counts) = verdict::of(&chain, seen, clock, replaced).await;
    let text = format!(
        "A run of {seconds} s with {restarts} restarts and {reloads} reloads:\n\n- {}\n{counts}\n{samples}",
        wrk.line
    );
    println!("\n{text}");
    let stood_still = samples.stood_still(Duration::from_secs(1));
    let of_wrk = wrk.failures(replaced, stood_still);
    let (failures, log) = (
        [samples.failures(), of_wrk, found].concat(),
        chain.sidecar.log(),
    );
    assert!(failures.is_empty(), "{failures:#?}\n{log}");
    if table::is_wanted() {
        marked::write(table::PAGE, "soak", &text);
    }
}

async fn restart(chain: &mut Chain, how: Restart) {
    if let Ordered = how {
        chain.sidecar.signal("TERM");
        chain.sidecar.wait().await;
    }
    chain.sidecar.restart().await;
    chain.settled().await;
}

/// How often Redis did not know the script that it was to run.
async fn unknown_scripts(redis: &Redis) -> u64 {
    let info: String = redis.command("INFO errorstats").await;
    let mut lines = info.lines();
    let count = lines.find_map(|line| line.strip_prefix("errorstat_NOSCRIPT:count="));
    count.map_or(0, |count| count.trim().parse().expect("a number"))
}

async fn reload(chain: &mut Chain, number: u64) {
    match number % 3 {
        0 => {
            let text = std::fs::read_to_string(&chain.sidecar.policy).expect("the policy");
            let quota = |number| format!("quota: {}", background::CHURN_QUOTA + number);
            let (before, after) = (quota(number / 3 % 2), quota((number / 3 + 1) % 2));
            assert!(text.contains(&before), "{before}: {text}");
            let epoch = async || chain.sidecar.metric("sluicegate_policy_epoch").await;
            let old = epoch().await;
            let written = std::fs::write(&chain.sidecar.policy, text.replace(&before, &after));
            written.expect("the policy");
            eventually("the policy is in force", async || epoch().await > old).await;
        }
        LISTENER => {
            super::faults::envoy::changed(chain, number);
            chain.listener_replaced().await;
        }
        _ => {
            let redis = chain.redis();
            let before = unknown_scripts(redis).await;
            let _: redis::Value = redis.command("SCRIPT FLUSH").await;
            eventually("the script is sent again", async || {
                unknown_scripts(redis).await > before
            })
            .await;
        }
    }
}

/// What `service_life` does forty times, without the load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_returns_when_it_is_in_force() {
    let mut chain = Chain::start_with(Place::Redis, background::policy).await;
    let mut samples = Samples::new(60);
    for number in 0..4 {
        reload(&mut chain, number).await;
        samples.take(&mut chain, Duration::from_secs(number)).await;
    }
    assert_eq!(chain.sidecar.metric("sluicegate_policy_epoch").await, 3.0);
    assert_eq!(chain.vm_deaths().await, 0);
}
