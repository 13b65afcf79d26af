//! The filter: proxy-wasm, one VM per Envoy worker.
//!
//! | file | for |
//! |---|---|
//! | `host.rs` | every call to Envoy; none can panic |
//! | `root.rs` | one per plugin configuration: reads and checks it |
//! | `stream.rs` | one per request: asks the sidecar and does what the verdict says |
//!
//! What is decided here is decided in `rules/`, which knows nothing of Envoy.

#![expect(
    missing_docs,
    reason = "the macro makes a function for Envoy; there is no public interface"
)]

mod host;
mod root;
mod stream;

proxy_wasm::main! {{
    proxy_wasm::set_root_context(|_| Box::new(root::Root::default()));
}}
