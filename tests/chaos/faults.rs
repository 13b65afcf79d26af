//! The faults, by what breaks.

pub mod envoy;
pub mod fleet;
pub mod link;
pub mod redis;
pub mod sidecar;
pub mod versions;
