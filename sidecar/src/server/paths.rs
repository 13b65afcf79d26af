//! Paths of the admin port that are named in more than one place.

/// Whether the process serves.
pub const HEALTHZ_PATH: &str = "/healthz";
/// Whether it should be sent requests.
pub const READYZ_PATH: &str = "/readyz";
/// For Prometheus.
pub const METRICS_PATH: &str = "/metrics";
