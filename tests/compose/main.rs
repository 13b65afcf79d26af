//! `make compose`: docker-compose.yml for real, in a Docker engine of its own, and a report.
//!
//! The services come up from images made here (all but Grafana, of which there is no package); traffic goes through the
//! published port; the composed Prometheus is asked what it saw; the sidecar is killed, then Redis; then all is taken
//! down. Everything happens in namespaces that end with it: no process, mount, bridge or firewall rule outlives it.
//!
//! | module | for |
//! |---|---|
//! | `outside.rs` | the namespaces, and what has to be removed by hand afterwards |
//! | `inside.rs` | the namespaces from within: an engine, the scenario, the end of both |
//! | `scenario.rs` | what is tried, in which order |
//! | `report.rs` | what is printed |
//! | `engine.rs` | a Docker engine and the commands that speak to it |
//! | `stand_ins.rs` | images that stand for those which `docker compose up` pulls |
//! | `config.rs` | envoy/envoy.yaml and envoy/policy.yaml with what the test needs besides |
//! | `hardening.rs` | what the containers may not do |
//! | `traffic.rs` | clients, and the exact counts of what they were answered |
//! | `seen.rs` | what Prometheus has seen |
//! | `grafana.rs` | Grafana's service and its provisioning, by their format |

mod config;
mod engine;
mod grafana;
mod hardening;
mod inside;
mod outside;
mod report;
mod scenario;
mod seen;
mod stand_ins;
mod traffic;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    match arguments.as_slice() {
        [] => runtime.block_on(outside::run()),
        [inside, folder, group] if inside == outside::INSIDE => {
            runtime.block_on(inside::run(Path::new(folder), group))
        }
        _ => {
            eprintln!("compose: takes no arguments");
            ExitCode::from(64)
        }
    }
}
