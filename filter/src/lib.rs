//! The filter: proxy-wasm, one VM per Envoy worker.
//!
//! | file | for |
//! |---|---|
//! | `root.rs` | one per plugin configuration: reads it, and passes on what Envoy tells it |
//! | `stream.rs` | one per request: derives what to ask, waits, and does what the verdict says |
//! | `callouts.rs` | the queue of waiting requests, callouts in flight, wake-ups and delivery |
//! | `plugin.rs` | what the requests of a configuration share: rules, cached denials, counters |
//! | `host.rs` | every call to Envoy; none can panic |
//!
//! What is decided here is decided in `rules/`, which knows nothing of Envoy.

mod callouts;
mod host;
mod plugin;
mod root;
mod stream;

// In a module of its own, since what the macro makes is public and without documentation.
mod start {
    use crate::{host, root};

    proxy_wasm::main! {{
        // A panic is a defect and ends the VM; Envoy's log should say which.
        std::panic::set_hook(Box::new(|panic| {
            host::log(host::Level::Critical, &format!("sluicegate: {panic}"));
        }));
        proxy_wasm::set_root_context(|id| Box::new(root::Root::new(id)));
    }}
}
