//! `make compose`: runs docker-compose.yml in a Docker engine of its own, and prints a report.
//!
//! The services start from images made here (all but Grafana, which has no package). Traffic goes through the published
//! port; the test queries the composed Prometheus; the sidecar is killed, then Redis; then everything is taken down.
//! It all happens in namespaces that end with the test: no process, mount, bridge or firewall rule outlives it.
//!
//! | module | for |
//! |---|---|
//! | `inside.rs` | runs inside the namespaces: starts an engine, runs the scenario, ends both |
//! | `scenario.rs` | the steps of the test |
//! | `report.rs` | the printed report |
//! | `engine.rs` | a Docker engine and the commands that control it |
//! | `stand_ins.rs` | images that replace those that `docker compose up` pulls |
//! | `config.rs` | envoy/envoy.yaml and envoy/policy.yaml with the changes that the test needs |
//! | `hardening.rs` | what the containers may not do |
//! | `traffic.rs` | clients, and exact counts of their answers |
//! | `prometheus.rs` | queries to Prometheus |
//! | `grafana.rs` | Grafana's service and its provisioning files |

mod config;
mod engine;
mod grafana;
mod hardening;
mod inside;
mod prometheus;
mod report;
mod scenario;
mod stand_ins;
mod traffic;

use std::process::ExitCode;

use sluicegate_tests::namespaces;

fn main() -> ExitCode {
    namespaces::main("compose", inside::run)
}
