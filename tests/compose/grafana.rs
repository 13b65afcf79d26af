//! Grafana's service and its provisioning, by their format: there is no package of Grafana to run.

use crate::engine::Engine;

/// Checks them.
pub fn check(engine: &Engine) {
    let _ = engine.compose(&["config"]);
}
