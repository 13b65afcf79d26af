//! Paths of the admin port that several files use.

/// Whether the process serves.
pub const HEALTHZ_PATH: &str = "/healthz";
/// Whether clients should send requests to it.
pub const READYZ_PATH: &str = "/readyz";
/// For Prometheus.
pub const METRICS_PATH: &str = "/metrics";
