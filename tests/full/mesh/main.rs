//! `make mesh`: runs the chart in a real Kubernetes, with Envoys of its own, behind Envoy Gateway and inside Istio, and counts
//! what clients get.
//!
//! Control plane and node run as processes of this machine, in namespaces that end with the test: no process, mount,
//! bridge, rule or container outlives it, and two runs do not meet. `SLUICEGATE_MESH_HOLD=1` keeps everything running
//! after a failure until Ctrl-C.
//!
//! | module | for |
//! |---|---|
//! | `inside.rs` | runs inside the namespaces: starts the cluster, runs both meshes, reports |
//! | `cluster.rs` | a Kubernetes of processes: control plane, registry, node |
//! | `node/` | their configuration files |
//! | `tools.rs` | kubectl, helm and other commands |
//! | `pods.rs` | the proxies' pods: their sidecars, their Envoys |
//! | `images.rs` | images from layers, without Docker |
//! | `manifests/` | what the meshes' users would have: Redis, an application, routes |
//! | `mesh.rs` | a mesh with the chart installed |
//! | `kubernetes.rs`, `envoy_gateway.rs`, `istio.rs` | install one |
//! | `pages.rs` | the commands of docs/install, run as they are written |
//! | `scenarios.rs`, `scenarios/` | what is counted, for each mesh alike |
//! | `traffic.rs` | clients, and exact counts of their answers |
//! | `translated.rs` | captures what the control planes made of the chart, for `tests/full/manifests` |
//! | `versions.rs` | the versions that ran |
//! | `report.rs` | the printed table and target/mesh/*.json |

mod cluster;
mod envoy_gateway;
mod images;
mod inside;
mod istio;
mod kubernetes;
mod mesh;
mod pages;
mod pods;
mod report;
mod scenarios;
mod tools;
mod traffic;
mod translated;
mod versions;

use std::process::ExitCode;

use sluicegate_tests::namespaces;

fn main() -> ExitCode {
    namespaces::main("mesh", inside::run)
}
