//! Service life: as many requests as the machine can serve, with keys that come and go, reloads and restarts, for half an hour
//! (`SLUICEGATE_SOAK=SECONDS`). With `SLUICEGATE_WRITE=1`, the figures go into docs/reliability.md.
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

use serde_json::json;
use sluicegate_tests::envoy::at;
use sluicegate_tests::marked;

use crate::chain::{Chain, Place};
use crate::load::Load;
use crate::table;
use background::Background;
use samples::Samples;

const DEFAULT_SECONDS: u64 = 1_800;
/// When the sidecar is restarted, in hundredths of the run. The last one lives for half of it, so that a leak shows.
const RESTARTS: [(u64, Restart); 3] = [
    (15, Restart::Ordered),
    (30, Restart::Ordered),
    (45, Restart::Killed),
];
/// Reloads of the policy, of the filter's configuration and of Redis's scripts, in turns.
const RELOADS: u64 = 40;

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
    let mut chain = Chain::start_with(Place::Redis, background::policy, background::plugin()).await;
    let background = Background::start(chain.envoy.port, seconds);
    let load = Load::start(chain.ports());
    let mut samples = Samples::new(seconds);
    let began = Instant::now();
    let (mut restarts, mut reloads) = (0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        let hundredth = began.elapsed().as_secs() * 100 / seconds;
        if let Some((_, how)) = RESTARTS.get(restarts).filter(|(at, _)| *at <= hundredth) {
            restart(&mut chain, *how).await;
            samples.disturbed(began.elapsed());
            restarts += 1;
        } else if began.elapsed().as_secs() * RELOADS / seconds > reloads {
            reload(&mut chain, reloads).await;
            reloads += 1;
        }
        samples.take(&mut chain, began.elapsed()).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let wrk = background.finish().await;
    let clock = load.clock;
    let seen = load.stop().await;
    chain.quiet().await;
    let (found, counts) = verdict::of(&chain, seen, clock).await;
    let text = format!(
        "A run of {seconds} s with {restarts} restarts and {reloads} reloads:\n\n- {wrk}\n{counts}\n{samples}"
    );
    println!("\n{text}");
    let failures = [samples.failures(), found].concat();
    assert!(
        failures.is_empty(),
        "{failures:#?}\n{}",
        chain.sidecar.log()
    );
    if table::is_wanted() {
        marked::write(table::PAGE, "soak", &text);
    }
}

async fn restart(chain: &mut Chain, how: Restart) {
    if let Restart::Ordered = how {
        chain.sidecar.signal("TERM");
        chain.sidecar.wait().await;
    }
    chain.sidecar.restart().await;
    chain.settled().await;
}

async fn reload(chain: &mut Chain, number: u64) {
    match number % 3 {
        0 => {
            let text = std::fs::read_to_string(&chain.sidecar.policy).expect("the policy");
            let quota = |number| format!("quota: {}", background::CHURN_QUOTA + number);
            let (before, after) = (quota(number / 3 % 2), quota((number / 3 + 1) % 2));
            assert!(text.contains(&before), "{before}: {text}");
            std::fs::write(&chain.sidecar.policy, text.replace(&before, &after))
                .expect("the policy");
        }
        1 => {
            at(&mut chain.listener, crate::faults::envoy::FIRST_RULE)["reply"] =
                json!({ "headers": "draft", "on_admitted": true, "body": format!("{number}") });
            chain.listener_replaced().await;
        }
        _ => {
            let _: redis::Value = chain.redis().command("SCRIPT FLUSH").await;
        }
    }
}
