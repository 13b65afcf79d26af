//! The filter: proxy-wasm, one VM per Envoy worker.
//!
//! | file | for |
//! |---|---|
//! | `vm.rs` | every call from Envoy |
//! | `host.rs` | every call to Envoy; none can panic |
//! | `imports.rs` | its functions, declared |
//! | `root.rs` | one per plugin configuration: reads it, and asks for requests that wait together |
//! | `shared.rs` | what the requests of a configuration share |
//! | `stream.rs` | one per request: asks the sidecar and does what the verdict says |
//!
//! What is decided here is decided in `rules/`, which knows nothing of Envoy.

mod host;
mod imports;
mod root;
mod shared;
mod stream;
mod vm;
