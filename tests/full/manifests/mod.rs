//! `make manifests`: the Helm chart without a cluster, and what control planes make of it in a real Envoy.
//!
//! | module | for |
//! |---|---|
//! | `scenes.rs` | the values files, rendered |
//! | `valid.rs` | Helm's lint, the schemas of Kubernetes and of the custom resources |
//! | `values.rs` | values: their schema, their document |
//! | `mistakes.rs` | what Helm says of mistakes in values |
//! | `sidecar.rs` | the sidecar in a pod: one container for all kinds, its restrictions, its probes |
//! | `filter.rs` | the filter's configuration and policy: `check-config`, the hook that runs it |
//! | `ci.rs` | `check-config` on what `helm template` prints |
//! | `operations.rs` | NetworkPolicy, PodMonitor, alerts, names that several releases must not share |
//! | `alerts.rs` | alerts, monitors and dashboards that operators change |
//! | `operators.rs` | what operators add: Services, users, access logs, certificates, an EnvoyProxy of their own |
//! | `envoy.rs` | real Envoys with the chart's own configuration and the meshes' |
//! | `pod_ends.rs` | the chart's own Envoy: its timeouts, and requests under way when its pod ends |
//! | `plain.rs` | what `sluicegate render` prints for those without Helm |
//! | `documents.rs` | the pages of docs/install |
//!
//! `tests/full/manifests/tools` installs Helm, kubeconform and the schemas. `make chart` writes what is generated.

mod alerts;
mod ci;
mod documents;
mod envoy;
mod filter;
mod mistakes;
mod operations;
mod operators;
mod plain;
mod pod_ends;
mod scenes;
mod sidecar;
mod valid;
mod values;
