//! What a plugin's configuration says of Envoy's own side: one for each root context, whatever the rules are.

use std::time::Duration;

use crate::key::Hasher;

/// How the filter reaches the sidecar, and the secret of its keys.
#[derive(Debug)]
pub struct Settings {
    /// Name of the Envoy cluster that contains the sidecar.
    pub cluster: String,
    /// How long a request waits for its verdict.
    pub timeout: Duration,
    /// Waiting requests share a callout.
    pub together: bool,
    /// The sidecar gets the `traceparent` of sampled requests.
    pub traces: bool,
    pub(crate) hasher: Hasher,
}
